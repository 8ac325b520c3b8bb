//! Negotiation of the response format from the `Accept` header.

use http::HeaderMap;
use http::header::ACCEPT;

use crate::status::ApiError;

/// The format of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseFormat {
    Json,
    /// JSON in which longer `fieldsV1` values are empty, for in-process clients, which do not read them.
    Lean,
    Yaml,
    Table,
    /// Only the metadata of objects.
    Metadata,
}

/// The object that accompanies each row of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IncludeObject {
    None,
    #[default]
    Metadata,
    Object,
}

impl IncludeObject {
    pub fn read(value: Option<&str>) -> Result<Self, ApiError> {
        match value.unwrap_or_default() {
            "" | "Metadata" => Ok(Self::Metadata),
            "None" => Ok(Self::None),
            "Object" => Ok(Self::Object),
            other => Err(ApiError::bad_request(format!(
                "includeObject: Invalid value: {other:?}: must be 'None', 'Metadata', 'Object', or empty"
            ))),
        }
    }
}

/// One clause of an `Accept` header.
pub struct Clause<'a> {
    media: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
}

impl<'a> Clause<'a> {
    /// All clauses in order. Weights are ignored, because Kubernetes' clients list clauses in order of preference.
    pub fn all(headers: &'a HeaderMap) -> Vec<Self> {
        let values = headers.get_all(ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).filter_map(Self::read).collect()
    }

    fn read(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next().filter(|media| !media.is_empty())?;
        let parameters = parts.filter_map(|part| part.split_once('=')).map(|(key, value)| (key.trim(), value.trim()));
        Some(Self { media, parameters: parameters.collect() })
    }

    pub fn is_json(&self) -> bool {
        matches!(self.media.to_ascii_lowercase().as_str(), "*/*" | "application/*" | "application/json")
    }

    pub fn is_yaml(&self) -> bool {
        self.media.eq_ignore_ascii_case("application/yaml")
    }

    pub fn parameter(&self, name: &str) -> Option<&'a str> {
        self.parameters.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
    }

    /// The media type, without parameters.
    pub fn media(&self) -> &str {
        self.media
    }
}

impl ResponseFormat {
    /// The format of the first clause that can be served; 406 if there is none.
    pub fn negotiate(headers: &HeaderMap) -> Result<Self, ApiError> {
        let clauses = Clause::all(headers);
        if clauses.is_empty() {
            return Ok(Self::Json);
        }
        let served = clauses.iter().find_map(|clause| {
            if clause.is_yaml() && clause.parameter("as").is_none() {
                return Some(Self::Yaml);
            }
            if !clause.is_json() {
                return None;
            }
            let meta = clause.parameter("g").is_none_or(|group| group == "meta.k8s.io");
            let version = clause.parameter("v").is_none_or(|version| matches!(version, "v1" | "v1beta1"));
            match clause.parameter("as") {
                None => Some(Self::Json),
                Some("Table") if meta && version => Some(Self::Table),
                Some("PartialObjectMetadata" | "PartialObjectMetadataList") if meta && version => Some(Self::Metadata),
                Some(_) => None,
            }
        });
        served.ok_or_else(|| ApiError::not_acceptable(&["application/json", "application/yaml"]))
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn form(accept: &'static str) -> Result<ResponseFormat, u16> {
        let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
        ResponseFormat::negotiate(&headers).map_err(|error| error.code.as_u16())
    }

    #[test]
    fn the_first_servable_clause_wins() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(form(kubectl), Ok(ResponseFormat::Table));
        assert_eq!(form("application/vnd.kubernetes.protobuf,application/json"), Ok(ResponseFormat::Json));
        assert_eq!(
            form("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"),
            Ok(ResponseFormat::Metadata)
        );
        assert_eq!(form("*/*"), Ok(ResponseFormat::Json));
        assert_eq!(form("application/yaml"), Ok(ResponseFormat::Yaml));
        assert_eq!(form("application/json, application/yaml"), Ok(ResponseFormat::Json));
        assert_eq!(form("application/json;as=Other;g=x;v=v1,application/json"), Ok(ResponseFormat::Json));
        assert_eq!(ResponseFormat::negotiate(&HeaderMap::new()).map_err(|_| ()), Ok(ResponseFormat::Json));
        for refused in ["application/vnd.kubernetes.protobuf", "text/html", "application/json;as=Other"] {
            assert_eq!(form(refused), Err(406), "{refused}");
        }
    }
}
