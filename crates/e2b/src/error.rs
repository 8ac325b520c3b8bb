//! Errors of the API, in the form that clients turn into their exceptions.

use agent_sandbox_client::ClientError;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde_json::{Value, json};

/// Python's client repeats a request only if this header does not forbid it.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("should-retry");

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0}")]
    Invalid(String),
    #[error("the API key is missing, unknown, expired or revoked; `agent-sandbox token e2b` prints a new one")]
    Key,
    #[error("the account of this API key may not do that: {0}")]
    Forbidden(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Conflict(String),
    /// An idempotency key was used before, for another request.
    #[error("this idempotency key was used for another request")]
    OtherRequest,
    #[error("{0}")]
    Quota(String),
    #[error("{0}")]
    Unsupported(String),
    #[error("{0}")]
    Busy(String),
    /// Something was not done in the time that clients wait.
    #[error("{0}")]
    Timeout(String),
    #[error("{0}")]
    Internal(String),
}

impl Error {
    pub(crate) fn sandbox(id: &str) -> Self {
        Self::NotFound(format!("sandbox {id:?} not found"))
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::Invalid(_) => StatusCode::BAD_REQUEST,
            Self::Key => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Conflict(_) => StatusCode::CONFLICT,
            Self::OtherRequest => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Quota(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Unsupported(_) => StatusCode::NOT_IMPLEMENTED,
            Self::Busy(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Timeout(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// What clients read.
    pub(crate) fn body(&self) -> Value {
        json!({ "code": self.status().as_u16(), "message": self.to_string() })
    }

    pub(crate) fn into_response(self) -> Response<Bytes> {
        let status = self.status();
        let mut response = Response::new(Bytes::from(self.body().to_string()));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if matches!(self, Self::Quota(_) | Self::Timeout(_)) {
            // A quota does not change within the seconds that a client waits, and after a timeout few are left.
            response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        if matches!(self, Self::Busy(_)) {
            // Without it Python's client repeats the request three times within a second.
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Self {
        let kube::Error::Api(status) = error else { return Self::Internal(format!("the cluster's API: {error}")) };
        let message = status.message.clone();
        match status.code {
            403 if message.contains("exceeded quota") => Self::Quota(message),
            403 => Self::Forbidden(message),
            404 => Self::NotFound(message),
            409 => Self::Conflict(message),
            400 | 422 => Self::Invalid(message),
            429 | 503 => Self::Busy(message),
            _ => Self::Internal(message),
        }
    }
}

impl From<ClientError> for Error {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Api { source, .. } => (*source).into(),
            ClientError::NotFound { .. } | ClientError::Deleted { .. } | ClientError::NoSource { .. } => {
                Self::NotFound(error.full())
            }
            ClientError::AlreadyExists { .. } => Self::Conflict(error.full()),
            ClientError::Failed { .. } | ClientError::CannotStart { .. } | ClientError::Invalid(_) => {
                Self::Invalid(error.full())
            }
            ClientError::Timeout { .. } => Self::Timeout(error.full()),
            other => Self::Internal(other.full()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    fn api(code: u16, message: &str) -> Error {
        kube::Error::Api(Status::failure(message, "").with_code(code).boxed()).into()
    }

    /// E-020, E-021, E-022
    #[test]
    fn errors_have_a_code_and_a_message() {
        let response = Error::sandbox("x").into_response();
        assert_eq!(response.status(), 404);
        assert_eq!(response.body(), r#"{"code":404,"message":"sandbox \"x\" not found"}"#);
        let quota = api(403, "pods is forbidden: exceeded quota: small").into_response();
        assert_eq!((quota.status().as_u16(), quota.headers()["should-retry"].to_str().unwrap()), (429, "false"));
        let busy = api(429, "too many requests").into_response();
        assert_eq!((busy.status().as_u16(), busy.headers()["retry-after"].to_str().unwrap()), (503, "1"));
        assert!(!quota.headers().contains_key("retry-after"), "Node's client would repeat it");
        let late = ClientError::Timeout {
            name: "box".to_owned(),
            wanted: "ready",
            after: std::time::Duration::from_secs(50),
            last: "the Pod is Pending".to_owned(),
        };
        let late = Error::from(late).into_response();
        assert_eq!((late.status().as_u16(), late.headers()["should-retry"].to_str().unwrap()), (504, "false"));
        for (code, expected) in [(403, 403), (404, 404), (409, 409), (422, 400), (500, 500), (503, 503)] {
            assert_eq!(api(code, "m").into_response().status().as_u16(), expected, "{code}");
        }
    }
}
