//! The Connect protocol over HTTP, as far as clients of this dialect use it: JSON messages, unary calls, and streams in
//! either direction.

mod frames;

use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

pub(super) use frames::{Messages, responses};

use crate::core::files::FileError;
use crate::http_io::body::{self, Body, BodyError};
use rustix::io::Errno;

/// Maximum size of one message; standard input arrives in messages.
const MAX_MESSAGE: usize = 16 << 20;

const UNARY: &str = "application/json";
const STREAM: &str = "application/connect+json";
const TIMEOUT_HEADER: &str = "connect-timeout-ms";
const STREAM_ENCODING_HEADER: &str = "connect-content-encoding";

/// Error codes of the protocol that this dialect uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    InvalidArgument,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    DeadlineExceeded,
    Unimplemented,
    Internal,
    Unauthenticated,
}

impl Code {
    fn name(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid_argument",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::PermissionDenied => "permission_denied",
            Self::ResourceExhausted => "resource_exhausted",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Unimplemented => "unimplemented",
            Self::Internal => "internal",
            Self::Unauthenticated => "unauthenticated",
        }
    }

    pub(super) fn status(self) -> StatusCode {
        match self {
            Self::InvalidArgument => StatusCode::BAD_REQUEST,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists => StatusCode::CONFLICT,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
        }
    }
}

/// An error of a call.
#[derive(Clone, Debug)]
pub(super) struct RpcError {
    pub(super) code: Code,
    pub(super) message: String,
}

impl RpcError {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// The error of a file operation on `path`, as its caller wrote it.
    pub(super) fn of_file(path: &str, error: &FileError) -> Self {
        let code = match error {
            error if error.is_missing() => Code::NotFound,
            FileError::Escapes => Code::InvalidArgument,
            FileError::Refused(_) | FileError::Os(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Code::PermissionDenied,
            FileError::Os(Errno::NOSPC | Errno::DQUOT | Errno::MFILE) => Code::ResourceExhausted,
            FileError::Os(_) => Code::Internal,
        };
        let text = if code == Code::NotFound { "file or directory not found".into() } else { error.to_string() };
        Self::new(code, format!("{path:?}: {text}"))
    }

    fn to_json(&self) -> serde_json::Value {
        json!({ "code": self.code.name(), "message": self.message })
    }

    /// The response to a unary call.
    pub(super) fn into_response(self) -> Response<Body> {
        body::json(self.code.status(), &self.to_json())
    }

    /// The response to a call that streams: clients read errors from the last frame, and ignore other bodies.
    pub(super) fn into_stream_response(self) -> Response<Body> {
        respond(frames::ended(Some(self)))
    }
}

impl From<BodyError> for RpcError {
    fn from(error: BodyError) -> Self {
        let code =
            if matches!(error, BodyError::TooLarge(_)) { Code::ResourceExhausted } else { Code::InvalidArgument };
        Self::new(code, error.to_string())
    }
}

/// What a call sends in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Unary,
    Stream,
}

/// Refuses a request whose body this dialect does not read; the response names the type that it does.
pub(super) fn check_type(headers: &HeaderMap, shape: Shape) -> Result<(), Box<Response<Body>>> {
    let expected = match shape {
        Shape::Unary => UNARY,
        Shape::Stream => STREAM,
    };
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = given.split(';').next().unwrap_or_default().trim();
    let encoding = match shape {
        Shape::Unary => headers.get(header::CONTENT_ENCODING),
        Shape::Stream => headers.get(STREAM_ENCODING_HEADER),
    };
    if !essence.eq_ignore_ascii_case(expected) {
        let message = format!("content type {given:?} is not supported here; send {expected}");
        let mut response = body::text(StatusCode::UNSUPPORTED_MEDIA_TYPE, message);
        response.headers_mut().insert("accept-post", HeaderValue::from_static(expected));
        return Err(Box::new(response));
    }
    if encoding.is_some_and(|encoding| encoding != "identity") {
        let error = RpcError::new(Code::Unimplemented, "compressed messages are not supported; send identity");
        return Err(Box::new(match shape {
            Shape::Unary => error.into_response(),
            Shape::Stream => error.into_stream_response(),
        }));
    }
    Ok(())
}

/// Reads the message of a unary call.
pub(super) async fn message<T: DeserializeOwned>(request: Request<Body>) -> Result<T, RpcError> {
    let bytes = body::collect(request.into_body(), MAX_MESSAGE).await?;
    parse(&bytes)
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, RpcError> {
    // An empty message has an empty body in some clients.
    let bytes = if bytes.is_empty() { b"{}" } else { bytes };
    serde_json::from_slice(bytes).map_err(|error| RpcError::invalid(format!("malformed message: {error}")))
}

/// The response to a unary call.
pub(super) fn unary<T: Serialize>(outcome: Result<T, RpcError>) -> Response<Body> {
    match outcome {
        Ok(message) => body::json(StatusCode::OK, &message),
        Err(error) => error.into_response(),
    }
}

/// A streaming response.
pub(super) fn respond<S>(frames: S) -> Response<Body>
where
    S: Stream<Item = Bytes> + Send + 'static,
{
    let frames = futures::StreamExt::map(frames, Ok::<_, std::convert::Infallible>);
    let mut response = body::with_type(StatusCode::OK, STREAM, Body::from_stream(frames));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The time that the caller allows; `None` without a limit.
pub(super) fn time_limit(headers: &HeaderMap) -> Result<Option<Duration>, RpcError> {
    let Some(value) = headers.get(TIMEOUT_HEADER) else { return Ok(None) };
    let milliseconds = value.to_str().ok().and_then(|text| text.trim().parse::<u64>().ok());
    match milliseconds {
        Some(0) => Ok(None),
        Some(milliseconds) => Ok(Some(Duration::from_millis(milliseconds))),
        None => Err(RpcError::invalid("connect-timeout-ms is not a number of milliseconds")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// E-071
    #[test]
    fn errors_are_in_the_body_of_a_unary_response() {
        let response = RpcError::new(Code::NotFound, "gone").into_response();
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        let response = RpcError::new(Code::NotFound, "gone").into_stream_response();
        assert_eq!(response.status(), StatusCode::OK, "a stream carries its error in the last frame");
    }

    /// E-070
    #[test]
    fn only_json_is_read() {
        let headers = |kind: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            headers
        };
        assert!(check_type(&headers("application/json; charset=utf-8"), Shape::Unary).is_ok());
        assert!(check_type(&headers("application/connect+json"), Shape::Stream).is_ok());
        let refused = check_type(&headers("application/proto"), Shape::Unary).expect_err("binary");
        assert_eq!(refused.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
        assert_eq!(refused.headers()["accept-post"], UNARY);
    }

    /// E-075
    #[test]
    fn no_time_limit_is_no_header_or_zero() {
        let limit = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(TIMEOUT_HEADER, HeaderValue::from_static(text));
            time_limit(&headers)
        };
        assert_eq!(time_limit(&HeaderMap::new()).expect("none"), None);
        assert_eq!(limit("0").expect("none"), None);
        assert_eq!(limit("1500").expect("a limit"), Some(Duration::from_millis(1500)));
        assert!(limit("soon").is_err());
    }
}
