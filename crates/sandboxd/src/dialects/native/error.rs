//! The error type of the API, and its conversion into a response.

use agent_sandbox_protocol::native::{ErrorBody, ErrorCode};
use http::Response;
use rustix::io::Errno;

use crate::core::files::FileError;
use crate::core::processes::LaunchError;
use crate::core::processes::managed::{ControlError, StartError};
use crate::http_io::body::{self, Body, BodyError};

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ApiError {
    pub(crate) code: ErrorCode,
    pub(crate) message: String,
}

impl ApiError {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::Invalid, message)
    }

    pub(crate) fn into_response(self) -> Response<Body> {
        body::json(self.code.status(), &ErrorBody { code: self.code, message: self.message })
    }
}

/// Adds the requested path to an error. A path outside the root is never named in a message.
pub(crate) fn with_path(path: &str) -> impl FnOnce(FileError) -> ApiError + use<> {
    let path = path.to_owned();
    move |error| {
        let named = matches!(error, FileError::Os(_));
        let error = ApiError::from(error);
        if named { ApiError::new(error.code, format!("{path:?}: {}", error.message)) } else { error }
    }
}

impl From<FileError> for ApiError {
    fn from(error: FileError) -> Self {
        let code = match &error {
            FileError::Escapes | FileError::Refused(_) => ErrorCode::Denied,
            FileError::Os(errno) => error_code(*errno),
        };
        Self::new(code, error.to_string())
    }
}

fn error_code(errno: Errno) -> ErrorCode {
    match errno {
        Errno::NOENT | Errno::NOTDIR => ErrorCode::NotFound,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => ErrorCode::Denied,
        Errno::EXIST | Errno::NOTEMPTY | Errno::BUSY | Errno::ISDIR | Errno::XDEV => ErrorCode::Conflict,
        Errno::NAMETOOLONG | Errno::INVAL | Errno::LOOP => ErrorCode::Invalid,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => ErrorCode::TooLarge,
        Errno::MFILE | Errno::NFILE | Errno::AGAIN | Errno::NOMEM => ErrorCode::Unavailable,
        _ => ErrorCode::Internal,
    }
}

impl From<LaunchError> for ApiError {
    fn from(error: LaunchError) -> Self {
        let code = match &error {
            LaunchError::Empty | LaunchError::Nul => ErrorCode::Invalid,
            LaunchError::Program { errno: Errno::TOOBIG, .. } => ErrorCode::TooLarge,
            LaunchError::Program { errno, .. } | LaunchError::Prepare(errno) => error_code(*errno),
        };
        Self::new(code, error.to_string())
    }
}

impl From<StartError> for ApiError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::TooMany => Self::new(ErrorCode::Unavailable, error.to_string()),
            StartError::Launch(error) => error.into(),
        }
    }
}

impl From<ControlError> for ApiError {
    fn from(error: ControlError) -> Self {
        Self::new(ErrorCode::Conflict, error.to_string())
    }
}

impl From<BodyError> for ApiError {
    fn from(error: BodyError) -> Self {
        let code = match error {
            BodyError::TooLarge(_) => ErrorCode::TooLarge,
            BodyError::Broken => ErrorCode::Invalid,
        };
        Self::new(code, error.to_string())
    }
}
