//! One request to a sandbox, as its caller describes it.

use crate::{ClientError, TraceContext};
use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use std::{io, pin::Pin, time::Duration};

pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;
/// Content that is sent as it is produced.
pub type ByteStream = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// Whether a request may be sent again when it is not known how far it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Only while it is certain that nothing was sent.
    Never,
    /// It does no harm.
    Harmless,
}

/// What a request carries.
pub enum Payload {
    Empty,
    Bytes(Bytes),
    /// Sent once: such a request is never repeated.
    Stream(ByteStream, Option<u64>),
}

/// One request to a sandbox.
pub struct Call {
    pub method: Method,
    /// Path and query, from the slash on.
    pub path: String,
    pub headers: HeaderMap,
    pub payload: Payload,
    /// How long the answer may take to begin, all attempts together.
    pub timeout: Option<Duration>,
    pub repeat: Repeat,
    /// Statuses from 400 on that are answers, not errors.
    pub accept: &'static [u16],
    /// Every status is an answer, for callers that look at it themselves.
    pub raw: bool,
    /// In the words of an error: `run a command`.
    pub operation: String,
    /// Instead of the handle's own.
    pub trace: Option<TraceContext>,
    /// Instead of the transport's own.
    pub port: Option<u16>,
}

impl Call {
    pub fn new(method: Method, path: impl Into<String>, operation: impl Into<String>) -> Self {
        let repeat = match method {
            Method::GET | Method::HEAD | Method::PUT | Method::DELETE => Repeat::Harmless,
            _ => Repeat::Never,
        };
        Self {
            method,
            path: path.into(),
            headers: HeaderMap::new(),
            payload: Payload::Empty,
            timeout: Some(Duration::from_secs(60)),
            repeat,
            accept: &[],
            raw: false,
            operation: operation.into(),
            trace: None,
            port: None,
        }
    }

    pub fn json(mut self, value: &impl serde::Serialize) -> Self {
        let bytes = serde_json::to_vec(value).expect("wire types hold nothing that JSON cannot say");
        self.headers.insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.payload = Payload::Bytes(bytes.into());
        self
    }

    pub fn header(mut self, name: HeaderName, value: &str) -> Result<Self, ClientError> {
        let value = HeaderValue::from_str(value);
        let value = value.map_err(|_| ClientError::Invalid(format!("{name}: not a header's value")))?;
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
