//! Decodes request bodies (JSON or YAML, by media type).

use serde_json::Value;

use crate::status::ApiError;

mod duplicates;

/// Maximum size of a request body, as in Kubernetes.
pub const MAX_BODY: usize = 3 << 20;

const ACCEPTED: &[&str] = &["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];

/// Decodes an object. A body without a media type is JSON: a published Python client sends none.
pub(crate) fn decode(content_type: &str, body: &[u8]) -> Result<Value, ApiError> {
    let value = match content_type.split(';').next().unwrap_or_default().trim() {
        "" | "application/json" | "*/*" => from_json(body)?,
        "application/yaml" | "application/x-yaml" | "text/yaml" => from_yaml(body)?,
        _ => return Err(ApiError::unsupported_media_type(ACCEPTED)),
    };
    if value.is_object() { Ok(value) } else { Err(not_an_object()) }
}

/// Like [`decode`], and returns the paths of fields that occur twice.
pub(super) fn decode_with_duplicates(content_type: &str, body: &[u8]) -> Result<(Value, Vec<String>), ApiError> {
    match content_type.split(';').next().unwrap_or_default().trim() {
        "" | "application/json" | "*/*" => {
            let (value, duplicates) = duplicates::parse(body).map_err(undecodable)?;
            if value.is_object() { Ok((value, duplicates)) } else { Err(not_an_object()) }
        }
        _ => decode(content_type, body).map(|value| (value, Vec::new())),
    }
}

fn undecodable(error: serde_json::Error) -> ApiError {
    ApiError::bad_request(format!("the object provided is unrecognized: couldn't decode JSON: {error}"))
}

fn not_an_object() -> ApiError {
    ApiError::bad_request("the request body must be a JSON object")
}

pub(super) fn from_json(body: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(body).map_err(undecodable)
}

pub(super) fn from_yaml(body: &[u8]) -> Result<Value, ApiError> {
    let text = std::str::from_utf8(body).map_err(|_| ApiError::bad_request("the YAML body is not UTF-8"))?;
    serde_saphyr::from_str(text).map_err(|e| ApiError::bad_request(format!("error decoding YAML: {e}")))
}

/// Fuzz target: the bytes are a body.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(data: &[u8]) {
    let json = decode("application/json", data);
    let with_duplicates = decode_with_duplicates("application/json", data);
    assert_eq!(json.is_ok(), with_duplicates.is_ok(), "the two readings of JSON differ");
    if let (Ok(json), Ok((other, duplicates))) = (json, with_duplicates) {
        assert!(json == other || !duplicates.is_empty());
    }
    let _ = decode("application/yaml", data);
}
