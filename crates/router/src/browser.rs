//! Browsers: a page cannot set headers on links, frames and WebSockets, so that its credential comes in a cookie. A
//! link with the credential in its query sets the cookie, once.

use std::borrow::Cow;

use agent_sandbox_protocol::link_token::LinkClaims;
use agent_sandbox_protocol::web::{self, AllowedHosts, AllowedOrigins, PageError, PageRules};
use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_TYPE, COOKIE, HeaderMap, HeaderValue, LOCATION, REFERRER_POLICY, SET_COOKIE,
};
use http::{Method, Request, Response, StatusCode, Uri};

use crate::addressing::{Route, Routing};
use crate::auth::{bearer, unix_seconds};
use crate::error::RouterError;
use crate::pages;
use crate::proxy::headers::FORWARDED_PROTO;

/// The cookie with a browser's credential.
#[derive(Clone, Debug)]
pub struct CookieConfig {
    pub name: String,
    /// Parameter of a link whose value becomes the cookie; `None` accepts cookies that something else has set.
    pub query_param: Option<String>,
    pub same_site: SameSite,
    /// Whether browsers send the cookie over TLS only.
    pub secure: bool,
    /// Pages of other origins that may use the cookie.
    pub allowed_origins: AllowedOrigins,
    /// Whether a proxy in front says in `X-Forwarded-Proto` if its client uses TLS.
    pub trust_forwarded_proto: bool,
}

/// On which requests of pages of other sites browsers send the cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SameSite {
    Lax,
    Strict,
    None,
}

impl SameSite {
    fn as_str(self) -> &'static str {
        match self {
            Self::Lax => "Lax",
            Self::Strict => "Strict",
            Self::None => "None",
        }
    }
}

/// Where a credential was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Header,
    Query,
    Cookie,
}

/// The credential of a request. Query and cookie count only where the URL names the sandbox.
pub(crate) fn credential<'r, B>(
    cookie: Option<&CookieConfig>,
    in_url: bool,
    request: &'r Request<B>,
) -> Option<(Cow<'r, str>, Source)> {
    if let Some(token) = bearer(request.headers()) {
        return Some((token.into(), Source::Header));
    }
    let config = cookie.filter(|_| in_url)?;
    if let Some(token) = config.query_param.as_deref().and_then(|name| query_value(request.uri(), name)) {
        return Some((token.into(), Source::Query));
    }
    cookie_value(request.headers(), &config.name).map(|token| (token.into(), Source::Cookie))
}

/// Refuses requests that a page of another origin sends with what the browser adds by itself: a cookie, or nothing where
/// nothing is required. A credential that the page itself knows proves more than its origin does.
///
/// As for upstream's router a page is known by its host and port, and what has no `Origin` passes, with two exceptions
/// beyond `SameSite`: the scheme counts where it is known, and where hosts name sandboxes a page of the same site may be
/// another sandbox.
pub(crate) fn check_page<B>(
    cookie: Option<&CookieConfig>,
    origins: &AllowedOrigins,
    source: Option<Source>,
    tls: bool,
    routing: &Routing,
    request: &Request<B>,
) -> Result<(), RouterError> {
    let (origins, scheme) = match (source, cookie) {
        (Some(Source::Header | Source::Query), _) => return Ok(()),
        // A page without TLS must not use the cookie of the same host with TLS.
        (Some(Source::Cookie), Some(config)) => {
            // Sandboxes whose names are in hosts are of one site: `SameSite` does not keep them apart.
            let siblings = routing.host_domain.is_some();
            if siblings && config.same_site != SameSite::None && web::is_used_by_other_page(request) {
                return Err(PageError::CrossSite.into());
            }
            (&config.allowed_origins, known_scheme(config, tls, request.headers()))
        }
        _ => (origins, None),
    };
    let rules = PageRules { hosts: AllowedHosts::any(), origins: origins.clone(), own_proxy: false, links: true };
    Ok(rules.check_page(request, scheme)?)
}

/// The scheme that the browser used; `None` without TLS, which may end at a proxy in front that is not trusted to say so.
fn known_scheme<'r>(config: &CookieConfig, tls: bool, headers: &'r HeaderMap) -> Option<&'r str> {
    let forwarded = headers.get(FORWARDED_PROTO).filter(|_| config.trust_forwarded_proto);
    let first = forwarded.and_then(|value| value.to_str().ok()?.split(',').next());
    match first.map(str::trim).filter(|scheme| !scheme.is_empty()) {
        Some(scheme) => Some(scheme),
        None if tls => Some("https"),
        None => config.trust_forwarded_proto.then_some("http"),
    }
}

/// The response to a link with a valid credential: sets the cookie and leads to the same URL without the credential, so
/// that it stays neither in the browser's history nor in `Referer`. `None` if the request is served as it is.
///
/// The cookie of a link ends with the link. Where paths name sandboxes, all of them share one origin, and the cookie of
/// a link is strict: it is not sent when a page of another site leads here.
pub(crate) fn set_cookie<B>(
    config: &CookieConfig,
    route: &Route,
    token: &str,
    link: Option<&LinkClaims>,
    request: &Request<B>,
) -> Option<Response<Bytes>> {
    let parameter = config.query_param.as_deref()?;
    let path = request.uri().path();
    // A browser reads a location that begins with two slashes as another host.
    let leads_elsewhere = path.get(1..2).is_some_and(|second| matches!(second, "/" | "\\"));
    let plain = matches!(*request.method(), Method::GET | Method::HEAD);
    if !plain || leads_elsewhere || !is_cookie_value(token) {
        return None;
    }
    let secure = if config.secure { "; Secure" } else { "" };
    let strict = link.is_some() && route.base != "/";
    let same_site = if strict { SameSite::Strict } else { config.same_site };
    let max_age = link.map(|link| format!("; Max-Age={}", (link.expires - unix_seconds()).max(1))).unwrap_or_default();
    let (name, base, same_site_text) = (&config.name, &route.base, same_site.as_str());
    let cookie = format!("{name}={token}; Path={base}{max_age}; HttpOnly{secure}; SameSite={same_site_text}");
    let location = match request.uri().query().and_then(|query| without_parameter(query, parameter)) {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = StatusCode::FOUND;
    // After a redirect from another site browsers do not send strict cookies.
    if link.is_some() && same_site == SameSite::Strict && pages::wants_html(request.headers()) {
        *response.status_mut() = StatusCode::OK;
        *response.body_mut() = Bytes::from(pages::continue_to(&location));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    } else {
        response.headers_mut().insert(LOCATION, HeaderValue::from_str(&location).ok()?);
    }
    let headers = response.headers_mut();
    headers.insert(SET_COOKIE, HeaderValue::from_str(&cookie).ok()?);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    Some(response)
}

/// The query without a parameter, every other byte unchanged; `None` if nothing is left.
pub(crate) fn without_parameter(query: &str, name: &str) -> Option<String> {
    let kept: Vec<&str> = query.split('&').filter(|pair| !is_parameter(pair, name)).collect();
    Some(kept.join("&")).filter(|query| !query.is_empty())
}

/// Removes the router's own cookie, which the sandbox must not see.
pub(crate) fn strip_cookie(headers: &mut HeaderMap, name: &str) {
    let mentions = |value: &HeaderValue| value.as_bytes().windows(name.len()).any(|window| window == name.as_bytes());
    if !headers.get_all(COOKIE).iter().any(mentions) {
        return;
    }
    let mut kept: Vec<HeaderValue> = Vec::new();
    for value in headers.get_all(COOKIE) {
        let others: Vec<&[u8]> = value
            .as_bytes()
            .split(|byte| *byte == b';')
            .map(<[u8]>::trim_ascii)
            .filter(|cookie| !cookie.is_empty() && !is_cookie(cookie, name))
            .collect();
        if !others.is_empty() {
            kept.extend(HeaderValue::from_bytes(&others.join(&b"; "[..])));
        }
    }
    headers.remove(COOKIE);
    for value in kept {
        headers.append(COOKIE, value);
    }
}

fn is_cookie(cookie: &[u8], name: &str) -> bool {
    cookie.split(|byte| *byte == b'=').next().is_some_and(|found| found.trim_ascii() == name.as_bytes())
}

fn cookie_value<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|value| value.split(';')).filter_map(|cookie| cookie.trim().split_once('='));
    pairs.find(|(found, value)| *found == name && !value.is_empty()).map(|(_, value)| value)
}

fn is_parameter(pair: &str, name: &str) -> bool {
    let key = pair.split('=').next().unwrap_or_default();
    decode(key).is_some_and(|key| key == name)
}

fn query_value(uri: &Uri, name: &str) -> Option<String> {
    let mut pairs = uri.query()?.split('&').filter(|pair| is_parameter(pair, name));
    pairs.next()?.split_once('=').and_then(|(_, value)| decode(value)).filter(|value| !value.is_empty())
}

fn decode(text: &str) -> Option<String> {
    let spaced = text.replace('+', " ");
    percent_encoding::percent_decode_str(&spaced).decode_utf8().ok().map(Cow::into_owned)
}

/// Whether a cookie can carry the value as it is (RFC 6265).
fn is_cookie_value(value: &str) -> bool {
    let octet = |byte: u8| matches!(byte, 0x21 | 0x23..=0x2b | 0x2d..=0x3a | 0x3c..=0x5b | 0x5d..=0x7e);
    !value.is_empty() && value.bytes().all(octet)
}

/// Whether a cookie or a parameter can have this name without being encoded.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    !name.is_empty() && name.bytes().all(plain)
}

#[cfg(test)]
mod tests;
