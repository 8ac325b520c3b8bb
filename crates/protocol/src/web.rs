//! What a server checks so that a web page in a user's browser cannot use it: the name that the client calls it by
//! (`Host`), and the page that sends the request (`Origin`, `Sec-Fetch-Site`).
//!
//! A browser sends requests of any page to any address. Two attacks follow. *DNS rebinding*: the attacker's own domain
//! resolves to the server's address, so that the page is of the same origin; its requests name that domain as `Host`.
//! *Cross-site requests*: a page of another origin cannot read responses or add headers of its own, but it can send
//! forms, `text/plain` bodies and WebSocket handshakes; browsers mark these with `Origin` and `Sec-Fetch-Site`. Clients
//! other than browsers send neither.
//!
//! A request with a valid credential that a page cannot know (a bearer token) needs none of these checks.

mod authority;
mod hosts;

use http::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN};
use http::{Method, Request, StatusCode};

pub use authority::{AllowedOrigins, Authority, Host, Origin, OriginError};
pub use hosts::{AllowedHosts, HostError};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Media types that a page can send to another origin without asking first (Fetch standard, CORS-safelisted).
const FORM_TYPES: [&str; 3] = ["application/x-www-form-urlencoded", "multipart/form-data", "text/plain"];

/// Which requests of web pages a server accepts.
#[derive(Clone, Debug)]
pub struct PageRules {
    pub hosts: AllowedHosts,
    /// Pages of other origins that may send requests.
    pub origins: AllowedOrigins,
    /// Whether a page of the proxy in front counts as the server's own. A page of another origin cannot set the header
    /// that names the proxy.
    pub own_proxy: bool,
    /// Whether a link on another site may lead here.
    pub links: bool,
}

/// Why a request that a web page may have sent is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    #[error("the Host {0:?} is not a name of this server")]
    Host(String),
    #[error("web pages of {0:?} may not send requests to this server")]
    Origin(String),
    #[error("web pages of other sites may not send requests to this server")]
    CrossSite,
}

impl PageError {
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Host(_) => StatusCode::MISDIRECTED_REQUEST,
            Self::Origin(_) | Self::CrossSite => StatusCode::FORBIDDEN,
        }
    }
}

impl PageRules {
    /// Checks the server's name and then the page.
    pub fn check<B>(&self, request: &Request<B>) -> Result<(), PageError> {
        self.hosts.check(request)?;
        self.check_page(request, None)
    }

    /// Refuses requests of pages that are neither the server's own nor allowed. With a `scheme`, the server's own pages
    /// are those with this one.
    pub fn check_page<B>(&self, request: &Request<B>, scheme: Option<&str>) -> Result<(), PageError> {
        let headers = request.headers();
        for origin in headers.get_all(ORIGIN) {
            let text = lossy(origin);
            let origin = Origin::parse(&text);
            if !origin.is_some_and(|origin| self.origins.contain(&origin) || self.is_own(&origin, scheme, request)) {
                return Err(PageError::Origin(text));
            }
        }
        let cross_site = headers.get_all(SEC_FETCH_SITE).iter().any(|site| site.as_bytes() == b"cross-site");
        let link = self.links && is_navigation(request.method(), headers);
        if cross_site && !link && !headers.contains_key(ORIGIN) {
            return Err(PageError::CrossSite);
        }
        Ok(())
    }

    fn is_own<B>(&self, origin: &Origin<'_>, scheme: Option<&str>, request: &Request<B>) -> bool {
        let proxy = request.headers().get(FORWARDED_HOST).filter(|_| self.own_proxy).map(lossy);
        let names = names(request);
        names.iter().chain(&proxy).filter_map(|name| Authority::parse(name)).any(|own| origin.is_of(scheme, &own))
    }
}

/// The names by which a request calls the server: of HTTP/2 or an absolute URL, and of the `Host` header.
pub fn names<B>(request: &Request<B>) -> Vec<String> {
    let authority = request.uri().authority().map(|authority| authority.as_str().to_owned());
    authority.into_iter().chain(request.headers().get_all(HOST).iter().map(lossy)).collect()
}

/// Whether a page sent the request, as far as browsers tell: they name the page's origin on requests that change something
/// and on WebSockets, and its relation to the server on every request to a server that they trust, over TLS or on their
/// own machine. Other clients send neither; `fetch` of Node.js sends `Sec-Fetch-Mode` alone.
pub fn is_of_page<B>(request: &Request<B>) -> bool {
    request.headers().contains_key(ORIGIN) || request.headers().contains_key(SEC_FETCH_SITE)
}

/// Whether the user follows a link, in contrast to a page that fetches something.
fn is_navigation(method: &Method, headers: &HeaderMap) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
        && headers.get(SEC_FETCH_MODE).is_some_and(|mode| mode.as_bytes() == b"navigate")
}

/// Whether a page of another origin loads something from here, or shows a page from here in a frame, without naming
/// itself in `Origin`. Pages of the same site count, too: the hosts of sandboxes are of one site.
pub fn is_used_by_other_page<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    let other = |site: &HeaderValue| matches!(site.as_bytes(), b"same-site" | b"cross-site");
    let framed = headers.get_all(SEC_FETCH_DEST).iter().any(|dest| dest.as_bytes() != b"document");
    headers.get_all(SEC_FETCH_SITE).iter().any(other)
        && !headers.contains_key(ORIGIN)
        && (framed || !is_navigation(request.method(), headers))
}

fn lossy(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

/// The media type of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// No `Content-Type`. Some published clients send JSON this way.
    Unnamed,
    /// `application/json` or `application/…+json`.
    Json,
    /// One of the types that a page can send to another origin without asking first.
    Form,
    Other,
}

impl BodyKind {
    /// Only the type itself counts, not its parameters: `text/plain;x=json` is plain text. A repeated header is no JSON.
    pub fn of(headers: &HeaderMap) -> Self {
        let mut values = headers.get_all(CONTENT_TYPE).iter();
        let Some(value) = values.next() else { return Self::Unnamed };
        let text = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
        let essence = text.split(';').next().unwrap_or_default().trim_matches([' ', '\t']);
        let json = essence.strip_prefix("application/").is_some_and(|name| name == "json" || name.ends_with("+json"));
        // A list of types in one header is as ambiguous as two headers.
        let repeated = values.next().is_some() || text.contains(',');
        match () {
            () if FORM_TYPES.contains(&essence) => Self::Form,
            () if json && !repeated => Self::Json,
            () => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests;
