//! The body type of every response, constructors for common responses, and reading of request bodies up to a limit.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::BodyExt;
use serde::Serialize;

pub use axum::body::Body;

/// Why a request's body could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("body is larger than {0} bytes")]
    TooLarge(usize),
    #[error("body ended early")]
    Broken,
}

/// Reads a whole body of at most `limit` bytes.
pub async fn collect(body: Body, limit: usize) -> Result<Bytes, BodyError> {
    match http_body_util::Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => Err(BodyError::TooLarge(limit)),
        Err(_) => Err(BodyError::Broken),
    }
}

/// Maximum number of bytes that [`discard`] reads.
const DISCARD_BYTES: usize = 256 * 1024;
/// Timeout for [`discard`].
const DISCARD_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads and drops the rest of a small body before an error response: otherwise the server closes the connection while
/// the client is still sending, and the client sees a broken connection instead of the error.
pub async fn discard(mut body: Body) {
    let drain = async {
        let mut left = DISCARD_BYTES;
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
            if left == 0 {
                break;
            }
        }
    };
    // A client that sends more, or nothing, loses only the message.
    let _ = tokio::time::timeout(DISCARD_TIMEOUT, drain).await;
}

pub fn json<T: Serialize>(status: StatusCode, value: &T) -> Response<Body> {
    // Wire types always serialise.
    json_bytes(status, serde_json::to_vec(value).unwrap_or_default())
}

pub fn json_text(status: StatusCode, text: &'static str) -> Response<Body> {
    with_type(status, "application/json", Body::from(text))
}

pub fn json_bytes(status: StatusCode, bytes: Vec<u8>) -> Response<Body> {
    with_type(status, "application/json", Body::from(bytes))
}

pub fn text(status: StatusCode, text: impl Into<String>) -> Response<Body> {
    with_type(status, "text/plain; charset=utf-8", Body::from(text.into()))
}

pub fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

pub fn with_type(status: StatusCode, content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
