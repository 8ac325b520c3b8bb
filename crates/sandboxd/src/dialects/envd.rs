//! The dialect of E2B's sandboxes: processes and files over Connect, uploads and downloads over HTTP. Programs written
//! for the published `e2b` clients use it unchanged.

mod access;
mod connect;
mod entry;
mod filesystem;
mod machine;
mod metadata;
mod process;
mod settings;
mod transfer;
mod user;
mod watch;

use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use serde_json::json;

pub use access::Caller;
pub use settings::Settings;
pub(crate) use settings::is_variable;
pub(crate) use user::User;

use crate::core::Sandbox;
use crate::http_io::body::{self, Body};
use connect::{Code, RpcError, Shape};
use process::Started;
use watch::Watchers;

/// State of the dialect.
#[derive(Debug)]
pub struct Envd {
    pub sandbox: Arc<Sandbox>,
    pub settings: Arc<Settings>,
    started: Started,
    watchers: Watchers,
    cpu: machine::CpuSample,
}

impl Envd {
    pub fn new(sandbox: Arc<Sandbox>, settings: Arc<Settings>) -> Self {
        Self {
            sandbox,
            settings,
            started: Started::default(),
            watchers: Watchers::default(),
            cpu: machine::CpuSample::default(),
        }
    }

    /// Handles one request. Slashes around its path do not matter.
    pub async fn serve(self: Arc<Self>, request: Request<Body>, caller: Caller) -> Response<Body> {
        let settings = Arc::clone(&self.settings);
        settings.guard(request, |request| self.route(request, caller)).await
    }

    async fn route(self: Arc<Self>, request: Request<Body>, caller: Caller) -> Response<Body> {
        let path = format!("/{}", request.uri().path().trim_matches('/'));
        let method = request.method().clone();
        match (path.as_str(), method) {
            ("/health", Method::GET | Method::HEAD) => return body::empty(StatusCode::NO_CONTENT),
            // These two decide for themselves: a signature may replace the token.
            ("/files", Method::GET | Method::HEAD) => return self.download(request, caller).await,
            ("/files", Method::POST) => return self.upload(request, caller).await,
            ("/init", Method::POST) => return self.init(request, caller).await,
            _ => {}
        }
        if !self.settings.allows(caller, request.headers()) {
            return unauthorized();
        }
        match (path.as_str(), request.method()) {
            ("/metrics", &Method::GET) => self.metrics().await,
            ("/envs", &Method::GET) => body::json(StatusCode::OK, &self.settings.env()),
            (path, &Method::POST) => match procedure(path) {
                Some((service, name)) => self.call(service, name, request).await,
                None => plain_error(StatusCode::NOT_FOUND, format!("no such path: {path}")),
            },
            ("/health" | "/files" | "/init" | "/metrics" | "/envs", method) => {
                plain_error(StatusCode::METHOD_NOT_ALLOWED, format!("{method} is not supported for {path}"))
            }
            (path, _) => plain_error(StatusCode::NOT_FOUND, format!("no such path: {path}")),
        }
    }

    async fn call(self: Arc<Self>, service: Service, name: &str, request: Request<Body>) -> Response<Body> {
        let Some(shape) = service.shape(name) else {
            let error = RpcError::new(Code::Unimplemented, format!("{name} is not a call of this service"));
            return error.into_response();
        };
        if let Err(refused) = connect::check_type(request.headers(), shape) {
            return *refused;
        }
        match service {
            Service::Process => self.process_call(name, request).await,
            Service::Filesystem => self.filesystem_call(name, request).await,
        }
    }
}

/// The two services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Service {
    Process,
    Filesystem,
}

impl Service {
    /// How a call is made; `None` for an unknown one.
    fn shape(self, name: &str) -> Option<Shape> {
        match (self, name) {
            (Self::Process, "Start" | "Connect" | "StreamInput") | (Self::Filesystem, "WatchDir") => {
                Some(Shape::Stream)
            }
            (Self::Process, "List" | "Update" | "SendInput" | "SendSignal" | "CloseStdin")
            | (
                Self::Filesystem,
                "Stat" | "MakeDir" | "Move" | "ListDir" | "Remove" | "CreateWatcher" | "GetWatcherEvents"
                | "RemoveWatcher",
            ) => Some(Shape::Unary),
            _ => None,
        }
    }
}

/// Service and call of a path such as `/process.Process/Start`.
fn procedure(path: &str) -> Option<(Service, &str)> {
    let (service, name) = path.strip_prefix('/')?.split_once('/')?;
    match service {
        "process.Process" => Some((Service::Process, name)),
        "filesystem.Filesystem" => Some((Service::Filesystem, name)),
        _ => None,
    }
}

/// An error of the plain HTTP part.
fn plain_error(status: StatusCode, message: impl Into<String>) -> Response<Body> {
    body::json(status, &json!({ "code": status.as_u16(), "message": message.into() }))
}

fn unauthorized() -> Response<Body> {
    plain_error(StatusCode::UNAUTHORIZED, "the access token is missing or wrong; send it as X-Access-Token")
}

/// Fuzz target: what is read from the head of a request.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_head(request: &Request<Body>) {
    let headers = request.headers();
    let token = access::AccessToken::new("secret".to_owned()).expect("a token");
    let _ = procedure(request.uri().path()).map(|(service, name)| service.shape(name));
    let _ = (access::is_cross_origin(headers), access::preflight(request), connect::time_limit(headers).is_ok());
    let _ = (connect::check_type(headers, Shape::Unary).is_ok(), metadata::of_headers(headers).is_ok());
    if access::allows(Some(&token), Caller::Unproven, headers) {
        assert_eq!(access::given_token(headers), Some(&b"secret"[..]));
    }
    assert!(!transfer::fuzz_signature(request, &token), "a forged signature was accepted");
}

/// Fuzz target: the first byte is the size of the packets, the rest the frames of a client.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_frames(data: &[u8]) {
    let Some((step, bytes)) = data.split_first() else { return };
    futures::executor::block_on(process::fuzz_frames(|| crate::fuzzing::packets(*step, bytes)));
}
