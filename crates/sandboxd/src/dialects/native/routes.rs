//! The table of routes. The dispatcher and the test of the OpenAPI document read it.

use std::collections::HashMap;

use agent_sandbox_protocol::native::{ErrorCode, PREFIX};
use http::{Method, Uri};

use super::error::ApiError;

/// Every operation of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Info,
    OpenApi,
    Exec,
    ExecSocket,
    ProcessStart,
    ProcessList,
    ProcessGet,
    ProcessWait,
    ProcessOutput,
    ProcessAttach,
    ProcessStdin,
    ProcessSignal,
    ProcessResize,
    ProcessDelete,
    HistoryList,
    HistoryGet,
    HistoryAdd,
    FileRead,
    FileHead,
    FileWrite,
    FileDelete,
    FileStat,
    FileList,
    FileGlob,
    FileSearch,
    FileWatch,
    FileMkdir,
    FileMove,
    FileCopy,
    FileChmod,
    TarDownload,
    TarUpload,
    CodeRun,
    CodeContextList,
    CodeContextCreate,
    CodeContextRestart,
    CodeContextRemove,
    Ports,
    Usage,
}

/// Method, path below the prefix, operation. `{id}` is the id of a process.
pub const ROUTES: [(&str, &str, Operation); 39] = [
    ("GET", "", Operation::Info),
    ("GET", "/openapi.json", Operation::OpenApi),
    ("POST", "/exec", Operation::Exec),
    ("GET", "/exec", Operation::ExecSocket),
    ("POST", "/processes", Operation::ProcessStart),
    ("GET", "/processes", Operation::ProcessList),
    ("GET", "/processes/{id}", Operation::ProcessGet),
    ("DELETE", "/processes/{id}", Operation::ProcessDelete),
    ("GET", "/processes/{id}/wait", Operation::ProcessWait),
    ("GET", "/processes/{id}/output", Operation::ProcessOutput),
    ("GET", "/processes/{id}/attach", Operation::ProcessAttach),
    ("POST", "/processes/{id}/stdin", Operation::ProcessStdin),
    ("POST", "/processes/{id}/signal", Operation::ProcessSignal),
    ("POST", "/processes/{id}/resize", Operation::ProcessResize),
    ("GET", "/history", Operation::HistoryList),
    ("POST", "/history", Operation::HistoryAdd),
    ("GET", "/history/{id}", Operation::HistoryGet),
    ("GET", "/files", Operation::FileRead),
    ("HEAD", "/files", Operation::FileHead),
    ("PUT", "/files", Operation::FileWrite),
    ("DELETE", "/files", Operation::FileDelete),
    ("GET", "/files/stat", Operation::FileStat),
    ("GET", "/files/list", Operation::FileList),
    ("GET", "/files/glob", Operation::FileGlob),
    ("GET", "/files/search", Operation::FileSearch),
    ("GET", "/files/watch", Operation::FileWatch),
    ("POST", "/files/mkdir", Operation::FileMkdir),
    ("POST", "/files/move", Operation::FileMove),
    ("POST", "/files/copy", Operation::FileCopy),
    ("POST", "/files/chmod", Operation::FileChmod),
    ("GET", "/files/tar", Operation::TarDownload),
    ("PUT", "/files/tar", Operation::TarUpload),
    ("POST", "/code", Operation::CodeRun),
    ("GET", "/code/contexts", Operation::CodeContextList),
    ("POST", "/code/contexts", Operation::CodeContextCreate),
    ("DELETE", "/code/contexts", Operation::CodeContextRemove),
    ("POST", "/code/contexts/restart", Operation::CodeContextRestart),
    ("GET", "/ports", Operation::Ports),
    ("GET", "/usage", Operation::Usage),
];

/// The operation of a request, with the parameters in its URL.
#[derive(Debug)]
pub(super) struct RouteMatch {
    pub(super) operation: Operation,
    pub(super) id: i32,
    pub(super) query: Query,
}

/// Decoded query parameters; of repeated names, the last value counts.
#[derive(Debug, Default)]
pub(super) struct Query(HashMap<String, String>);

impl Query {
    fn parse(query: Option<&str>) -> Self {
        let decode = |text: &str| {
            let text = text.replace('+', " ");
            String::from_utf8_lossy(&crate::core::paths::decode_once(&text)).into_owned()
        };
        let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs
                .map(|pair| pair.split_once('=').unwrap_or((pair, "true")))
                .map(|(n, v)| (decode(n), decode(v)))
                .collect(),
        )
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(super) fn required(&self, name: &str) -> Result<&str, ApiError> {
        self.get(name).ok_or_else(|| ApiError::invalid(format!("query parameter {name:?} is missing")))
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.get(name) {
            None | Some("false" | "0") => Ok(false),
            Some("true" | "1" | "") => Ok(true),
            Some(other) => Err(ApiError::invalid(format!("query parameter {name:?}: {other:?} is not true or false"))),
        }
    }

    pub(super) fn number<T: std::str::FromStr>(&self, name: &str, default: T) -> Result<T, ApiError> {
        let Some(text) = self.get(name) else { return Ok(default) };
        text.parse().map_err(|_| ApiError::invalid(format!("query parameter {name:?}: {text:?} is not a valid number")))
    }
}

pub(super) fn route(method: &Method, uri: &Uri) -> Result<RouteMatch, ApiError> {
    let path = uri.path().strip_prefix(PREFIX).unwrap_or_default();
    let path = path.strip_suffix('/').unwrap_or(path);
    let mut known = false;
    for (allowed, pattern, operation) in ROUTES {
        let Some(id) = matches(pattern, path) else { continue };
        known = true;
        if allowed == method.as_str() {
            return Ok(RouteMatch { operation, id, query: Query::parse(uri.query()) });
        }
    }
    Err(if known {
        ApiError::new(ErrorCode::MethodNotAllowed, format!("{method} is not allowed on {path:?}"))
    } else {
        ApiError::new(ErrorCode::NotFound, format!("no such endpoint {path:?}; see {PREFIX}/openapi.json"))
    })
}

/// The id in `path` (0 when the pattern has none), or `None` when the pattern does not match.
fn matches(pattern: &str, path: &str) -> Option<i32> {
    let Some((before, after)) = pattern.split_once("{id}") else { return (pattern == path).then_some(0) };
    let rest = path.strip_prefix(before)?;
    let id = rest.strip_suffix(after).filter(|id| !id.is_empty() && !id.contains('/'))?;
    id.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_documented_path_is_routed_and_every_route_documented() {
        let document: serde_json::Value = serde_json::from_str(crate::dialects::native::OPENAPI).expect("JSON");
        let paths = document["paths"].as_object().expect("paths");
        let documented: Vec<(String, String)> = paths
            .iter()
            .flat_map(|(path, methods)| {
                let methods = methods.as_object().expect("methods").keys();
                methods.map(move |method| (method.to_uppercase(), path.clone()))
            })
            .collect();
        for (method, path, _) in ROUTES {
            let path = format!("{PREFIX}{path}");
            assert!(documented.contains(&(method.into(), path.clone())), "{method} {path} is not documented");
        }
        for (method, path) in &documented {
            let known = ROUTES.iter().any(|(m, p, _)| m == method && format!("{PREFIX}{p}") == *path);
            assert!(known, "{method} {path} is documented but not routed");
        }
    }

    #[test]
    fn ids_are_numbers() {
        assert_eq!(matches("/processes/{id}/wait", "/processes/12/wait"), Some(12));
        assert_eq!(matches("/processes/{id}/wait", "/processes/x/wait"), None);
        assert_eq!(matches("/processes/{id}", "/processes/12/wait"), None);
    }
}
