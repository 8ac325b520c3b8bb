//! The native API under `/sandbox/v1`: everything that the other dialects have no request for.

mod code;
mod error;
mod exec;
mod files;
mod history;
mod idempotency;
mod json_body;
mod machine;
mod processes;
mod request;
mod routes;
mod stream;
mod websocket;

use std::sync::Arc;
use std::time::Instant;

use agent_sandbox_protocol::native::Info;
use http::{Request, Response, StatusCode};

pub use idempotency::IdempotencyKeys;
pub use routes::{Operation, ROUTES};

use crate::core::Sandbox;
use crate::core::processes::users;
use crate::dialects::interpreter::Interpreter;
use crate::http_io::body::{self, Body};
use error::ApiError;
use routes::RouteMatch;

/// The OpenAPI document, as served.
pub const OPENAPI: &str = include_str!("native/openapi.json");

/// State of the native API.
#[derive(Debug)]
pub struct Native {
    pub sandbox: Arc<Sandbox>,
    pub keys: IdempotencyKeys,
    pub interpreter: Interpreter,
    pub base_dir: String,
    pub root_dir: String,
    pub started: Instant,
}

impl Native {
    /// Handles a request whose path begins with the API's prefix.
    pub async fn serve(self: Arc<Self>, request: Request<Body>) -> Response<Body> {
        let routed = match routes::route(request.method(), request.uri()) {
            Ok(routed) => routed,
            Err(error) => return error.into_response(),
        };
        match self.perform(routed, request).await {
            Ok(response) => response,
            Err(error) => error.into_response(),
        }
    }

    async fn perform(self: Arc<Self>, routed: RouteMatch, request: Request<Body>) -> Result<Response<Body>, ApiError> {
        let RouteMatch { operation, id, query } = routed;
        match operation {
            Operation::Info => Ok(body::json(StatusCode::OK, &self.info())),
            Operation::OpenApi => Ok(body::json_text(StatusCode::OK, OPENAPI)),
            Operation::Exec => self.exec(request).await,
            Operation::ExecSocket => websocket::exec(self, request),
            Operation::ProcessStart => self.start(request).await,
            Operation::ProcessList => Ok(self.list_processes()),
            Operation::ProcessGet => Ok(processes::describe(&*self.process(id)?)),
            Operation::ProcessWait => processes::wait(self.process(id)?, &query).await,
            Operation::ProcessOutput => processes::output(self.process(id)?, &query, &request),
            Operation::ProcessAttach => websocket::attach(self.process(id)?, &query, request),
            Operation::ProcessStdin => processes::stdin(self.process(id)?, &query, request).await,
            Operation::ProcessSignal => processes::signal(self.process(id)?, request).await,
            Operation::ProcessResize => processes::resize(self.process(id)?, request).await,
            Operation::ProcessDelete => self.delete_process(id).await,
            Operation::HistoryList => self.list_history(&query),
            Operation::HistoryGet => self.history_entry(id),
            Operation::HistoryAdd => self.add_history(request).await,
            Operation::CodeRun => self.run_code(request).await,
            Operation::CodeContextList => Ok(self.list_code_contexts()),
            Operation::CodeContextCreate => self.create_code_context(request).await,
            Operation::CodeContextRestart => self.restart_code_context(&query).await,
            Operation::CodeContextRemove => self.remove_code_context(&query).await,
            Operation::Ports => machine::ports().await,
            Operation::Usage => machine::usage(&self).await,
            file_operation => files::perform(self.sandbox.clone(), file_operation, &query, request).await,
        }
    }

    fn info(&self) -> Info {
        Info {
            version: env!("CARGO_PKG_VERSION").into(),
            boot_id: self.keys.boot_id(),
            base_dir: self.base_dir.clone(),
            root_dir: self.root_dir.clone(),
            shell: self.sandbox.shell.to_string_lossy().into_owned(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            can_change_user: users::can_change_user(),
            uptime_seconds: self.started.elapsed().as_secs(),
        }
    }
}

/// Fuzz target: route and query of a request.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(request: &Request<Body>) {
    let Ok(RouteMatch { query, .. }) = routes::route(request.method(), request.uri()) else { return };
    let _ = (query.required("path").is_ok(), query.flag("follow").is_ok(), query.number("offset", 0_u64).is_ok());
    let _ = stream::Format::accepted(request.headers());
}
