//! HTTP upgrade: parses the client's offer (WebSocket or SPDY) and builds the `101 Switching Protocols` response.

use http::header::{
    CONNECTION, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    UPGRADE,
};
use http::{Method, Response, StatusCode};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::body::{self, Body};
use crate::request::RequestError;

static STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");

/// The protocol that the client asks to upgrade to, with the sub-protocols it offers in order of preference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Offer {
    WebSocket { key: HeaderValue, protocols: Vec<String> },
    Spdy { protocols: Vec<String> },
}

impl Offer {
    pub fn read(method: &Method, headers: &HeaderMap) -> Result<Self, RequestError> {
        let refuse = |message: &str| Err(RequestError::BadRequest(message.to_owned()));
        if !list_elements(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade")) {
            return refuse("Upgrade request required");
        }
        let upgrade = headers.get(UPGRADE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if upgrade.eq_ignore_ascii_case("websocket") {
            if method != Method::GET {
                return refuse("a WebSocket upgrade must be a GET request");
            }
            let Some(key) = headers.get(SEC_WEBSOCKET_KEY).cloned() else {
                return refuse("header Sec-WebSocket-Key is missing");
            };
            let protocols = list_elements(headers, &SEC_WEBSOCKET_PROTOCOL).map(str::to_owned).collect();
            return Ok(Self::WebSocket { key, protocols });
        }
        if upgrade.eq_ignore_ascii_case("spdy/3.1") {
            let protocols = list_elements(headers, &STREAM_PROTOCOL).map(str::to_owned).collect();
            return Ok(Self::Spdy { protocols });
        }
        refuse("Upgrade must be websocket or SPDY/3.1")
    }

    fn protocols(&self) -> &[String] {
        match self {
            Self::WebSocket { protocols, .. } | Self::Spdy { protocols } => protocols,
        }
    }

    /// The first of the client's sub-protocols that is in `supported`.
    pub fn choose<'a>(&self, supported: &[&'a str]) -> Option<&'a str> {
        self.protocols().iter().find_map(|offered| supported.iter().copied().find(|name| name == offered))
    }

    pub fn unsupported(&self, supported: &[&str]) -> RequestError {
        let offered = self.protocols().join(", ");
        RequestError::BadRequest(format!(
            "no protocol in common: the client offers [{offered}], the server supports [{}]",
            supported.join(", ")
        ))
    }

    /// The `101` response that selects `protocol`; an empty `protocol` adds no header (the client offered none).
    pub fn accept(&self, protocol: &str) -> Response<Body> {
        let mut response = Response::new(body::full(""));
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        let chosen = HeaderValue::from_str(protocol).ok().filter(|_| !protocol.is_empty());
        match self {
            Self::WebSocket { key, .. } => {
                headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
                if let Ok(accept) = HeaderValue::from_str(&derive_accept_key(key.as_bytes())) {
                    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
                }
                headers.extend(chosen.map(|value| (SEC_WEBSOCKET_PROTOCOL, value)));
            }
            Self::Spdy { .. } => {
                headers.insert(UPGRADE, HeaderValue::from_static("SPDY/3.1"));
                headers.extend(chosen.map(|value| (STREAM_PROTOCOL.clone(), value)));
            }
        }
        response
    }
}

/// The elements of all comma-separated values of a header.
fn list_elements<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn spdy_sub_protocols_are_read_from_repeated_headers() {
        let mut request = headers(&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")]);
        for version in ["v5.channel.k8s.io", "v4.channel.k8s.io", "channel.k8s.io"] {
            request.append(STREAM_PROTOCOL.clone(), HeaderValue::from_static(version));
        }
        let offer = Offer::read(&Method::POST, &request).unwrap();
        assert_eq!(offer.choose(&["v4.channel.k8s.io", "channel.k8s.io"]), Some("v4.channel.k8s.io"));
        let response = offer.accept("v4.channel.k8s.io");
        assert_eq!(response.status(), 101);
        assert_eq!(response.headers()["upgrade"], "SPDY/3.1");
        assert_eq!(response.headers()["x-stream-protocol-version"], "v4.channel.k8s.io");
    }

    #[test]
    fn a_websocket_response_contains_the_accept_key() {
        let request = headers(&[
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-protocol", "v9, SPDY/3.1+portforward.k8s.io"),
        ]);
        let offer = Offer::read(&Method::GET, &request).unwrap();
        assert_eq!(offer.choose(&["SPDY/3.1+portforward.k8s.io"]), Some("SPDY/3.1+portforward.k8s.io"));
        let response = offer.accept("SPDY/3.1+portforward.k8s.io");
        assert_eq!(response.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn a_request_without_a_valid_upgrade_is_refused() {
        assert!(Offer::read(&Method::GET, &HeaderMap::new()).is_err());
        assert!(Offer::read(&Method::GET, &headers(&[("connection", "Upgrade"), ("upgrade", "h2c")])).is_err());
        assert!(Offer::read(&Method::POST, &headers(&[("connection", "Upgrade"), ("upgrade", "websocket")])).is_err());
    }
}
