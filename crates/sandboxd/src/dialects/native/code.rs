//! Code that keeps its variables from one run to the next, by the same kernel as E2B's code interpreter, but with
//! contexts of its own, whose processes are the daemon's user.

use agent_sandbox_protocol::code::{CodeContexts, CodeRequest, NewCodeContext};
use agent_sandbox_protocol::native::ErrorCode;
use http::{Request, Response, StatusCode};

use super::error::ApiError;
use super::routes::Query;
use super::{Native, json_body};
use crate::dialects::interpreter::{Failure, Run};
use crate::http_io::body::{self, Body};

/// Maximum size of a request, which carries code.
const MAX_REQUEST: usize = 16 << 20;

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        let code = match failure.status {
            StatusCode::NOT_FOUND => ErrorCode::NotFound,
            StatusCode::BAD_REQUEST | StatusCode::NOT_IMPLEMENTED => ErrorCode::Invalid,
            StatusCode::TOO_MANY_REQUESTS => ErrorCode::Unavailable,
            _ => ErrorCode::Internal,
        };
        Self::new(code, failure.message)
    }
}

impl Native {
    /// Runs code and streams its events. A client that leaves interrupts it.
    pub(super) async fn run_code(&self, request: Request<Body>) -> Result<Response<Body>, ApiError> {
        let wanted: CodeRequest = json_body::read(request, MAX_REQUEST).await?;
        let run = Run { code: wanted.code, context: wanted.context, language: None, variables: wanted.env };
        Ok(self.interpreter.run(run)?)
    }

    pub(super) fn list_code_contexts(&self) -> Response<Body> {
        body::json(StatusCode::OK, &CodeContexts { contexts: self.interpreter.contexts() })
    }

    pub(super) async fn create_code_context(&self, request: Request<Body>) -> Result<Response<Body>, ApiError> {
        let wanted: NewCodeContext = json_body::read(request, MAX_REQUEST).await?;
        let made = self.interpreter.new_context(wanted.language.as_deref(), wanted.cwd.as_deref())?;
        Ok(body::json(StatusCode::OK, &made))
    }

    pub(super) async fn restart_code_context(&self, query: &Query) -> Result<Response<Body>, ApiError> {
        self.interpreter.restart(query.required("context")?).await?;
        Ok(body::empty(StatusCode::NO_CONTENT))
    }

    pub(super) async fn remove_code_context(&self, query: &Query) -> Result<Response<Body>, ApiError> {
        self.interpreter.remove(query.required("context")?).await?;
        Ok(body::empty(StatusCode::NO_CONTENT))
    }
}
