//! The runtime dialect: `/`, `/execute`, `/upload`, `/download`, `/list`, `/exists`, as the published SDKs use it.

mod execute;
mod files;
mod split;

use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_protocol::runtime::{ACTIVE, Detail, Message};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};

use crate::core::Sandbox;
use crate::core::paths::Mode;
use crate::http_io::body::{self, Body};
#[cfg(any(test, fuzzing))]
pub(crate) use split::fuzz;

/// Whether a command's text is passed to a shell or split into words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecMode {
    Shell,
    Argv,
}

/// State of the dialect.
#[derive(Debug)]
pub struct Runtime {
    pub sandbox: Arc<Sandbox>,
    pub mode: Mode,
    pub exec_mode: ExecMode,
    /// Maximum run time of one `/execute`; a request may ask for less.
    pub time_limit: Duration,
}

/// The endpoints of the dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint<'a> {
    Health,
    Execute,
    Upload,
    Download(&'a str),
    List(&'a str),
    Exists(&'a str),
}

impl<'a> Endpoint<'a> {
    /// Parses the raw path; `None` if it is not one of the dialect's. The argument after the endpoint's name keeps all
    /// of its slashes.
    pub fn of(path: &'a str) -> Option<Self> {
        match path {
            "/" | "" => return Some(Self::Health),
            "/execute" => return Some(Self::Execute),
            "/upload" => return Some(Self::Upload),
            _ => {}
        }
        let (name, argument) = match path[1..].find('/') {
            Some(end) => (&path[1..=end], &path[end + 2..]),
            None => (&path[1..], ""),
        };
        match name {
            "download" => Some(Self::Download(argument)),
            "list" => Some(Self::List(argument)),
            "exists" => Some(Self::Exists(argument)),
            _ => None,
        }
    }

    fn allowed(self) -> &'static str {
        match self {
            Self::Execute | Self::Upload => "POST",
            _ => "GET, HEAD",
        }
    }

    fn allows(self, method: &Method) -> bool {
        self.allowed().split(", ").any(|allowed| allowed == method.as_str())
    }
}

impl Runtime {
    pub async fn serve(self: Arc<Self>, endpoint: Endpoint<'_>, request: Request<Body>) -> Response<Body> {
        if !endpoint.allows(request.method()) {
            let mut response =
                body::json(StatusCode::METHOD_NOT_ALLOWED, &Detail { detail: "Method Not Allowed".into() });
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(endpoint.allowed()));
            return response;
        }
        match endpoint {
            Endpoint::Health => body::json_text(StatusCode::OK, ACTIVE),
            Endpoint::Execute => self.execute(request).await,
            Endpoint::Upload => self.upload(request).await,
            Endpoint::Download(path) => self.download(path, request).await,
            Endpoint::List(path) => self.list(path).await,
            Endpoint::Exists(path) => self.exists(path).await,
        }
    }
}

/// The response for an unknown path.
pub fn not_found() -> Response<Body> {
    body::json(StatusCode::NOT_FOUND, &Detail { detail: "Not Found".into() })
}

fn message(status: StatusCode, text: impl Into<String>) -> Response<Body> {
    body::json(status, &Message { message: text.into() })
}

fn access_denied() -> Response<Body> {
    message(StatusCode::FORBIDDEN, "Access denied")
}

#[cfg(test)]
mod tests {
    use super::Endpoint;

    #[test]
    fn the_argument_keeps_its_slashes() {
        assert_eq!(Endpoint::of("/download//home/user/x"), Some(Endpoint::Download("/home/user/x")));
        assert_eq!(Endpoint::of("/download/%2Fhome"), Some(Endpoint::Download("%2Fhome")));
        assert_eq!(Endpoint::of("/list"), Some(Endpoint::List("")));
        assert_eq!(Endpoint::of("/list/"), Some(Endpoint::List("")));
        assert_eq!(Endpoint::of("/exists/."), Some(Endpoint::Exists(".")));
        assert_eq!(Endpoint::of("/listing"), None);
        assert_eq!(Endpoint::of("/execute/"), None);
    }
}
