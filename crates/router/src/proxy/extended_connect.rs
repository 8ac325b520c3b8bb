//! WebSockets over HTTP/2 (RFC 8441): converts an extended CONNECT into the HTTP/1.1 handshake that a sandbox expects,
//! and its 101 into a 200.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, StatusCode, Version};
use hyper::ext::Protocol;

use crate::proxy::headers;
use crate::proxy::websocket::accept_key;

const KEY: HeaderName = HeaderName::from_static("sec-websocket-key");
const ACCEPT: HeaderName = HeaderName::from_static("sec-websocket-accept");
const VERSION: HeaderName = HeaderName::from_static("sec-websocket-version");

/// The WebSocket handshake that the router performs on behalf of the client.
pub(crate) struct Handshake {
    expected: String,
}

/// What a request asks for with respect to CONNECT.
pub(crate) enum ConnectRequest {
    NotConnect,
    WebSocket,
    /// A generic tunnel, or an unsupported protocol.
    Unsupported,
}

impl ConnectRequest {
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        if request.method() != Method::CONNECT {
            return Self::NotConnect;
        }
        match request.extensions().get::<Protocol>() {
            Some(protocol) if request.version() == Version::HTTP_2 && protocol.as_str() == "websocket" => {
                Self::WebSocket
            }
            _ => Self::Unsupported,
        }
    }
}

impl Handshake {
    /// Rewrites an extended CONNECT. The caller must have taken its upgrade before.
    pub(crate) fn begin<B>(request: &mut Request<B>) -> Self {
        let key = STANDARD.encode(rand::random::<[u8; 16]>());
        let expected = accept_key(key.as_bytes());
        *request.method_mut() = Method::GET;
        let headers = request.headers_mut();
        headers.insert(KEY, HeaderValue::from_str(&key).expect("base64 is visible ASCII"));
        headers.entry(VERSION).or_insert(HeaderValue::from_static("13"));
        Self { expected }
    }

    /// Whether the sandbox's response matches this handshake.
    pub(crate) fn is_accepted_by(&self, headers: &HeaderMap) -> bool {
        headers.get(ACCEPT).is_some_and(|accept| accept.as_bytes() == self.expected.as_bytes())
    }

    /// Rewrites the sandbox's 101 for an HTTP/2 client.
    pub(crate) fn accept_response(parts: &mut http::response::Parts) {
        headers::prepare_response(&mut parts.headers, None);
        parts.headers.remove(ACCEPT);
        parts.status = StatusCode::OK;
        parts.version = Version::HTTP_2;
    }
}
