//! One error for the whole API, and the one place that turns it into an answer.

use agent_sandbox_protocol::native::{ErrorBody, ErrorCode};
use http::Response;
use rustix::io::Errno;

use crate::files::FileError;
use crate::process::LaunchError;
use crate::process::managed::{ControlError, StartError};
use crate::server::body::{self, Body, BodyError};

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

/// An error about a file that the request names. What lies outside the root is not talked about, not even by name.
pub(crate) fn about(path: &str) -> impl FnOnce(FileError) -> ApiError + use<> {
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
            FileError::Os(errno) => of_errno(*errno),
        };
        Self::new(code, error.to_string())
    }
}

fn of_errno(errno: Errno) -> ErrorCode {
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
            LaunchError::Program { errno, .. } | LaunchError::Prepare(errno) => of_errno(*errno),
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
