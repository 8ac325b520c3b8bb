//! Parses method, path and query of a request into what authorization and the verbs need (Kubernetes' RequestInfo).

use http::{Method, Uri};
use percent_encoding::percent_decode_str;

use crate::status::ApiError;

pub(crate) mod options;

pub use options::{
    DeleteOptions, FieldValidation, ListOptions, Preconditions, Propagation, VersionMatch, WriteOptions,
};

/// The verb of a resource request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }
}

/// What a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestInfo {
    /// `/version`, `/openapi/v3`, `/api`, `/apis/apps/v1` … with the lower-case method as its verb.
    NonResource {
        path: String,
        verb: String,
    },
    Resource(ResourceRequest),
}

/// A request for objects of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceRequest {
    pub verb: Verb,
    /// Empty for the core group.
    pub group: String,
    pub version: String,
    pub resource: String,
    /// Empty for cluster-scoped requests and for all namespaces.
    pub namespace: String,
    /// Empty for collections.
    pub name: String,
    /// Empty for the object itself.
    pub subresource: String,
    /// Path segments after the subresource (`proxy/…`).
    pub tail: Vec<String>,
}

impl ResourceRequest {
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
}

impl RequestInfo {
    /// Parses method, path and query. Paths are decoded segment by segment, so an encoded slash stays inside its
    /// segment.
    pub fn parse(method: &Method, uri: &Uri) -> Result<Self, ApiError> {
        let path = uri.path();
        let segments = decode_segments(path)?;
        let non_resource = || Self::NonResource { path: path.to_owned(), verb: method.as_str().to_ascii_lowercase() };
        let (group, version, mut rest) = match segments.as_slice() {
            [api, version, rest @ ..] if api == "api" && !rest.is_empty() => (String::new(), version.clone(), rest),
            [apis, group, version, rest @ ..] if apis == "apis" && !rest.is_empty() => {
                (group.clone(), version.clone(), rest)
            }
            _ => return Ok(non_resource()),
        };
        let mut watching = is_true(query_value(uri, "watch").as_deref());
        if let [first, more @ ..] = rest
            && first == "watch"
            && !more.is_empty()
        {
            watching = true;
            rest = more;
        }
        let parts = split_scope(rest);
        let verb = verb_of(method, !parts.name.is_empty(), watching).ok_or_else(ApiError::method_not_allowed)?;
        Ok(Self::Resource(ResourceRequest {
            verb,
            group,
            version,
            resource: parts.resource,
            namespace: parts.namespace,
            name: parts.name,
            subresource: parts.subresource,
            tail: parts.tail,
        }))
    }
}

struct Scope {
    namespace: String,
    resource: String,
    name: String,
    subresource: String,
    tail: Vec<String>,
}

/// `namespaces/ns/pods/p/status` → namespace, resource, name, subresource. `namespaces/ns[/status|/finalize]` is the
/// namespace object itself.
fn split_scope(rest: &[String]) -> Scope {
    let scoped = rest.first().is_some_and(|s| s == "namespaces")
        && rest.len() > 2
        && !(matches!(rest[2].as_str(), "status" | "finalize") && rest.len() == 3);
    let (namespace, rest) = if scoped { (rest[1].clone(), &rest[2..]) } else { (String::new(), rest) };
    let at = |i: usize| rest.get(i).cloned().unwrap_or_default();
    Scope {
        namespace,
        resource: at(0),
        name: at(1),
        subresource: at(2),
        tail: rest.get(3..).unwrap_or_default().to_vec(),
    }
}

fn verb_of(method: &Method, named: bool, watching: bool) -> Option<Verb> {
    Some(match (method.as_str(), named) {
        ("GET" | "HEAD", _) if watching => Verb::Watch,
        ("GET" | "HEAD", true) => Verb::Get,
        ("GET" | "HEAD", false) => Verb::List,
        ("POST", _) => Verb::Create,
        ("PUT", _) => Verb::Update,
        ("PATCH", _) => Verb::Patch,
        ("DELETE", true) => Verb::Delete,
        ("DELETE", false) => Verb::DeleteCollection,
        _ => return None,
    })
}

fn decode_segments(path: &str) -> Result<Vec<String>, ApiError> {
    path.trim_matches('/')
        .split('/')
        .map(|raw| {
            percent_decode_str(raw)
                .decode_utf8()
                .map(std::borrow::Cow::into_owned)
                .map_err(|_| ApiError::bad_request(format!("path segment {raw:?} is not UTF-8")))
        })
        .collect()
}

/// The decoded pairs of a query string, in order.
pub fn query_pairs(uri: &Uri) -> impl Iterator<Item = (String, String)> + '_ {
    uri.query().unwrap_or_default().split('&').filter(|p| !p.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode_query(key), decode_query(value))
    })
}

fn decode_query(raw: &str) -> String {
    let spaced = raw.replace('+', " ");
    percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
}

pub fn query_value(uri: &Uri, key: &str) -> Option<String> {
    query_pairs(uri).find(|(k, _)| k == key).map(|(_, v)| v)
}

/// Parses a boolean query value as Kubernetes does: everything but `false` and `0` is true; Python clients send `True`.
pub fn is_true(value: Option<&str>) -> bool {
    match value {
        None => false,
        Some(text) => !matches!(text.to_ascii_lowercase().as_str(), "false" | "0"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: &str, path: &str) -> RequestInfo {
        RequestInfo::parse(&method.parse().unwrap(), &path.parse().unwrap()).unwrap()
    }

    fn resource(method: &str, path: &str) -> ResourceRequest {
        match parse(method, path) {
            RequestInfo::Resource(r) => r,
            other => panic!("{path} parsed as {other:?}"),
        }
    }

    #[test]
    fn namespaced_subresources_are_split() {
        let r = resource("PUT", "/api/v1/namespaces/ns/pods/p/status");
        assert_eq!(
            (r.group.as_str(), r.version.as_str(), r.namespace.as_str(), r.resource.as_str()),
            ("", "v1", "ns", "pods")
        );
        assert_eq!((r.name.as_str(), r.subresource.as_str(), r.verb), ("p", "status", Verb::Update));
    }

    #[test]
    fn a_namespace_is_parsed_as_an_object() {
        let r = resource("GET", "/api/v1/namespaces/ns");
        assert_eq!((r.resource.as_str(), r.name.as_str(), r.namespace.as_str()), ("namespaces", "ns", ""));
        let r = resource("PUT", "/api/v1/namespaces/ns/finalize");
        assert_eq!((r.name.as_str(), r.subresource.as_str()), ("ns", "finalize"));
        let r = resource("GET", "/api/v1/namespaces/ns/pods");
        assert_eq!((r.resource.as_str(), r.namespace.as_str(), r.verb), ("pods", "ns", Verb::List));
    }

    #[test]
    fn watch_is_recognized_in_every_form_d_4_2() {
        for query in ["watch=true", "watch=True", "watch=1", "watch"] {
            assert_eq!(resource("GET", &format!("/apis/g/v1/namespaces/ns/things?{query}")).verb, Verb::Watch);
        }
        assert_eq!(resource("GET", "/apis/g/v1/things?watch=false").verb, Verb::List);
        assert_eq!(resource("GET", "/api/v1/watch/pods").verb, Verb::Watch);
    }

    #[test]
    fn discovery_paths_are_non_resource_requests() {
        for path in ["/", "/api", "/apis", "/api/v1", "/apis/apps/v1", "/version", "/openapi/v3/apis/apps/v1"] {
            assert!(matches!(parse("GET", path), RequestInfo::NonResource { .. }), "{path}");
        }
    }

    #[test]
    fn encoded_slashes_stay_in_their_segment() {
        assert_eq!(resource("GET", "/api/v1/namespaces/a%2Fb/pods").namespace, "a/b");
    }
}
