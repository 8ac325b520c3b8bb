//! WebSockets over HTTP/2 (RFC 8441): an extended CONNECT from the client becomes the handshake that a sandbox expects
//! over HTTP/1.1, and its 101 becomes a 200.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, StatusCode, Version};
use hyper::ext::Protocol;

use crate::forward;
use crate::websocket::accept_key;

const KEY: HeaderName = HeaderName::from_static("sec-websocket-key");
const ACCEPT: HeaderName = HeaderName::from_static("sec-websocket-accept");
const VERSION: HeaderName = HeaderName::from_static("sec-websocket-version");

/// The handshake that the router performs in the client's place.
pub(crate) struct Handshake {
    expected: String,
}

/// What a CONNECT request asks for.
pub(crate) enum Connect {
    No,
    WebSocket,
    /// A tunnel to anywhere, or a protocol we do not speak.
    Unsupported,
}

impl Connect {
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        if request.method() != Method::CONNECT {
            return Self::No;
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
    /// Rewrites an extended CONNECT; its upgrade must have been taken before.
    pub(crate) fn begin<B>(request: &mut Request<B>) -> Self {
        let key = STANDARD.encode(rand::random::<[u8; 16]>());
        let expected = accept_key(key.as_bytes());
        *request.method_mut() = Method::GET;
        let headers = request.headers_mut();
        headers.insert(KEY, HeaderValue::from_str(&key).expect("base64 is visible ASCII"));
        headers.entry(VERSION).or_insert(HeaderValue::from_static("13"));
        Self { expected }
    }

    /// Whether the sandbox has answered this handshake and no other.
    pub(crate) fn is_answered_by(&self, headers: &HeaderMap) -> bool {
        headers.get(ACCEPT).is_some_and(|accept| accept.as_bytes() == self.expected.as_bytes())
    }

    /// The sandbox's agreement as an HTTP/2 client is told it.
    pub(crate) fn agree(parts: &mut http::response::Parts) {
        forward::prepare_response(&mut parts.headers, None);
        parts.headers.remove(ACCEPT);
        parts.status = StatusCode::OK;
        parts.version = Version::HTTP_2;
    }
}
