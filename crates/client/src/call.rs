//! Description of one request to a sandbox.

use crate::{ClientError, TraceContext};
use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use std::{io, pin::Pin, time::Duration};

pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;
/// Request content that is sent while it is produced.
pub type ByteStream = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// Whether a request may be sent again if it is unknown whether it was processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Retry only if certainly nothing was sent.
    Never,
    /// The request is idempotent: retry it in any case.
    Safe,
}

/// The body of a request.
pub enum Payload {
    Empty,
    Bytes(Bytes),
    /// A stream and its length, if known. It can be sent once, so such a request is never retried.
    Stream(ByteStream, Option<u64>),
}

/// One request to a sandbox.
pub struct Call {
    pub method: Method,
    /// Path and query, starting with a slash.
    pub path: String,
    pub headers: HeaderMap,
    pub payload: Payload,
    /// Timeout until the response begins, over all attempts.
    pub timeout: Option<Duration>,
    pub retry: Retry,
    /// Status codes from 300 on that count as success.
    pub accept: &'static [u16],
    /// Every status code counts as success, for callers that check it themselves.
    pub raw: bool,
    /// The operation as named in errors, such as `run a command`.
    pub operation: String,
    /// Trace context that overrides that of the transport.
    pub trace: Option<TraceContext>,
    /// Port that overrides that of the transport.
    pub port: Option<u16>,
}

impl Call {
    pub fn new(method: Method, path: impl Into<String>, operation: impl Into<String>) -> Self {
        let retry = match method {
            Method::GET | Method::HEAD | Method::PUT | Method::DELETE => Retry::Safe,
            _ => Retry::Never,
        };
        Self {
            method,
            path: path.into(),
            headers: HeaderMap::new(),
            payload: Payload::Empty,
            timeout: Some(Duration::from_secs(60)),
            retry,
            accept: &[],
            raw: false,
            operation: operation.into(),
            trace: None,
            port: None,
        }
    }

    pub fn json(mut self, value: &impl serde::Serialize) -> Self {
        let bytes = serde_json::to_vec(value).expect("wire types always serialise to JSON");
        self.headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.payload = Payload::Bytes(bytes.into());
        self
    }

    pub fn header(mut self, name: HeaderName, value: &str) -> Result<Self, ClientError> {
        let value = HeaderValue::from_str(value);
        let value = value.map_err(|_| ClientError::Invalid(format!("{name}: not a valid header value")))?;
        self.headers.insert(name, value);
        Ok(self)
    }
}

pub(crate) fn full(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

pub(crate) fn streamed(content: ByteStream) -> Body {
    StreamBody::new(content.map_ok(Frame::data)).boxed_unsync()
}
