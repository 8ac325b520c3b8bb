//! Fuzz targets: what the router reads from requests, and the frames that pass through it.

#[cfg(test)]
#[path = "../../../fuzz/src/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/src/request.rs"]
mod input;

use agent_sandbox_protocol::router_headers::Loopback;
use agent_sandbox_protocol::web::AllowedOrigins;
use http::HeaderMap;
use http::header::{AUTHORIZATION, COOKIE};

use crate::addressing::{Named, Routing};
use crate::browser::{self, CookieConfig, SameSite};
use crate::observability::audit::fuzz_operation;
use crate::proxy::headers::{Inbound, prepare_request, prepare_response, requested_upgrade};
use crate::proxy::websocket::FrameTracker;

/// A function that gets any bytes and panics if they are handled wrongly.
pub type Target = fn(&[u8]);

/// Name and function of each target.
pub const TARGETS: &[(&str, Target)] =
    &[("router-request", request), ("router-frames", frames), ("router-audit", fuzz_operation)];

/// The bytes are a request. What reaches the sandbox must have none of the router's credentials.
fn request(data: &[u8]) {
    let Some(request) = input::request(data) else { return };
    let routing = Routing { path_prefix: Some("/router".to_owned()), host_domain: Some("boxes.example".to_owned()) };
    let cookies = CookieConfig {
        name: "session".to_owned(),
        query_param: Some("token".to_owned()),
        secure: true,
        same_site: SameSite::Lax,
        trust_forwarded_proto: true,
        allowed_origins: AllowedOrigins::default(),
    };
    let named = routing.find(&request);
    let in_url = matches!(named, Ok(Named::InUrl(_)));
    let found = browser::credential(Some(&cookies), in_url, &request);
    let source = found.as_ref().map(|(_, source)| *source);
    let _ = browser::check_page(Some(&cookies), &AllowedOrigins::default(), source, false, &routing, &request);
    if let Ok(named) = &named {
        let _ = named.read(request.headers(), Loopback::Refused);
        if let (Named::InUrl(route), Some((token, _))) = (named, &found)
            && let Some(response) = browser::set_cookie(&cookies, route, token, None, &request)
        {
            let location = response.headers()["location"].to_str().expect("a location is text");
            assert!(location.starts_with('/') && !location.starts_with("//"), "a redirect to {location:?}");
        }
    }
    let mut headers: HeaderMap = request.headers().clone();
    let upgrade = requested_upgrade(&headers);
    browser::strip_cookie(&mut headers, &cookies.name);
    prepare_request(&mut headers, &Inbound::new(None, true), None, upgrade.as_ref());
    assert!(!headers.contains_key(AUTHORIZATION));
    for cookie in headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok()) {
        let leaked = cookie.split(';').any(|pair| pair.trim().split('=').next().map(str::trim) == Some("session"));
        assert!(!leaked, "{cookie:?} reaches the sandbox");
    }
    prepare_response(&mut headers, upgrade.as_ref());
}

/// The first byte is the size of the packets. Boundaries of frames must not depend on it.
fn frames(data: &[u8]) {
    let Some((step, bytes)) = data.split_first() else { return };
    for limit in [0, 1_000] {
        let (mut whole, mut parts) = (FrameTracker::new(limit), FrameTracker::new(limit));
        let together = whole.feed(bytes).is_ok();
        let apart = bytes.chunks(usize::from(*step).max(1)).all(|part| parts.feed(part).is_ok());
        assert_eq!((together, whole.at_boundary() || !together), (apart, parts.at_boundary() || !apart));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn corpora_pass() {
        super::corpus::replay(super::TARGETS);
    }
}
