//! Error pages for browsers, in plain words. Other clients get the same status with JSON.

use agent_sandbox_protocol::sandbox_address::Address;
use agent_sandbox_protocol::web::PageError;
use bytes::Bytes;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{Method, Request, Response, StatusCode};

use crate::addressing::{Named, Routing};
use crate::error::{DialError, RouterError};
use crate::links::LinkError;

/// A request whose client shows HTML to a person.
pub(crate) struct Reader {
    /// The sandbox that the URL names.
    address: Option<Address>,
}

impl Reader {
    /// `None` for clients that did not ask for a page, and for requests that name their sandbox in headers.
    pub(crate) fn of<B>(routing: &Routing, request: &Request<B>) -> Option<Self> {
        if !matches!(*request.method(), Method::GET | Method::HEAD | Method::POST) || !wants_html(request.headers()) {
            return None;
        }
        match routing.find(request) {
            Ok(Named::InUrl(route)) => Some(Self { address: Some(route.address) }),
            Ok(Named::InHeaders) if request.headers().contains_key("x-sandbox-id") => None,
            _ => Some(Self { address: None }),
        }
    }

    /// The response to an error with a page as its body.
    pub(crate) fn page(&self, error: RouterError) -> Response<Bytes> {
        let (title, text) = self.words(&error);
        let mut response = error.into_response();
        *response.body_mut() = Bytes::from(html(response.status(), &title, &text));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
        headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        response
    }

    fn words(&self, error: &RouterError) -> (String, String) {
        let (name, port) = match &self.address {
            Some(address) => (address.id.as_str(), address.port.to_string()),
            None => ("NAME", "PORT".to_owned()),
        };
        let (title, text) = match error {
            RouterError::Link(LinkError::Expired) => (
                "This link has expired".to_owned(),
                "Links to sandboxes are valid for a limited time. Ask the person who sent it for a new one.".to_owned(),
            ),
            RouterError::Link(LinkError::Revoked | LinkError::Ended) => (
                "This link was revoked".to_owned(),
                "It was withdrawn, or its sandbox was deleted. Ask the person who sent it for a new one.".to_owned(),
            ),
            RouterError::Link(LinkError::ReadOnly) => (
                "This link is for reading only".to_owned(),
                "Pages can be opened, but nothing can be sent or changed, and no live connections are made.".to_owned(),
            ),
            RouterError::Link(LinkError::Port(_)) => (
                format!("This link is not for port {port}"),
                "It opens other ports of the sandbox. Ask the person who sent it for one to this port.".to_owned(),
            ),
            RouterError::Unauthenticated | RouterError::MissingStaticToken | RouterError::WrongStaticToken => (
                "A link is needed here".to_owned(),
                format!("Create one with: agent-sandbox url {name} {port}. It may be that an earlier one has expired."),
            ),
            RouterError::Forbidden => (
                "No access".to_owned(),
                format!("What this browser presented is for another sandbox than {name}. Open the link again."),
            ),
            RouterError::Dial { cause: DialError::Connect(_), .. } => (
                format!("Nothing listens on port {port} of {name}"),
                "The sandbox runs, but no program accepts connections there. Start it, or wait until it has started, \
                 and load this page again."
                    .to_owned(),
            ),
            RouterError::Dial { .. } => (
                format!("Sandbox {name} does not run"),
                "It was deleted, is suspended, or is still starting. If it is starting, load this page again."
                    .to_owned(),
            ),
            RouterError::Suspended { .. } => (
                format!("Sandbox {name} is suspended"),
                format!("Requests do not wake it. Start it with: agent-sandbox resume {name}"),
            ),
            RouterError::NotAwake { .. } => (
                format!("Sandbox {name} is still waking up"),
                "It was suspended and is being resumed. Load this page again.".to_owned(),
            ),
            RouterError::Timeout { .. } => (
                format!("No answer from port {port} of {name}"),
                "The program accepted the request, but did not answer in time.".to_owned(),
            ),
            RouterError::Upstream { .. } => (
                format!("Port {port} of {name} closed the connection"),
                "The program ended the connection without an answer. It may have crashed.".to_owned(),
            ),
            RouterError::Page(PageError::Host(host)) | RouterError::PageHost(host) => (
                "Unknown host name".to_owned(),
                format!("This server is not called {host}. Open the address as the link shows it."),
            ),
            RouterError::Page(_) => (
                "Refused".to_owned(),
                "A page of another site tried to use this one. Open the address itself instead.".to_owned(),
            ),
            RouterError::Address(_) | RouterError::Header(_) => {
                ("This address names no sandbox".to_owned(), error.to_string())
            }
            other => (other.status().canonical_reason().unwrap_or("The request failed").to_owned(), other.to_string()),
        };
        (title, text)
    }
}

/// Neither scripts nor anything from elsewhere, and no frames: a page of the router must not decorate another one.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'";

/// A page that leads to `location`, which begins with a slash. Other than after a redirect, the next request is of this
/// page and not of the site that the user came from, so that browsers send strict cookies with it.
pub(crate) fn continue_to(location: &str) -> String {
    let location = escape(location);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"refresh\" content=\"0;url={location}\"><title>Opening</title></head>\
         <body><p><a href=\"{location}\">Continue</a></p></body></html>\n"
    )
}

/// Whether a client prefers HTML, as browsers do where they show what they get.
pub(crate) fn wants_html(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted
        .flat_map(|value| value.split(','))
        .any(|range| range.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/html")))
}

fn html(status: StatusCode, title: &str, text: &str) -> String {
    let (title, text) = (escape(title), escape(text));
    let code = status.as_u16();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <style>body{{font:1rem/1.5 system-ui,sans-serif;max-width:36rem;margin:15vh auto;padding:0 1rem}}\
         small{{opacity:.7}}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n<p>{text}</p>\n\
         <p><small>{code} · agent-sandbox</small></p>\n</main>\n</body>\n</html>\n"
    )
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

    fn reader(host: &str, headers: &[(&str, &str)]) -> Option<Reader> {
        let routing = Routing { host_domain: Some("localhost".to_owned()), ..Routing::default() };
        let mut request = Request::get("/").header("host", host);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Reader::of(&routing, &request.body(()).unwrap())
    }

    #[test]
    fn only_browsers_get_pages() {
        let host = "3000-box--team.localhost";
        assert!(reader(host, &[("accept", BROWSER)]).is_some());
        for headers in [&[][..], &[("accept", "*/*")], &[("accept", "application/json")]] {
            assert!(reader(host, headers).is_none(), "{headers:?}");
        }
        let client = [("accept", BROWSER), ("x-sandbox-id", "box")];
        assert!(reader("localhost", &client).is_none(), "the contract's clients always get JSON");
    }

    #[test]
    fn a_page_has_the_status_of_its_error_and_no_markup_of_others() {
        let reader = reader("3000-box--team.localhost", &[("accept", BROWSER)]).unwrap();
        let host = "<script>alert(1)</script>\"'&".to_owned();
        let response = reader.page(RouterError::Page(PageError::Host(host)));
        assert_eq!(response.status(), StatusCode::MISDIRECTED_REQUEST);
        let body = std::str::from_utf8(response.body()).unwrap();
        assert!(body.contains("&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;&amp;"), "{body}");
        assert!(!body.contains("<script"), "{body}");
        let cause = DialError::Connect(std::io::ErrorKind::ConnectionRefused.into());
        let id = agent_sandbox_protocol::router_headers::Label::from_static("box");
        let refused = reader.page(RouterError::Dial { id, cause });
        assert_eq!(refused.status(), StatusCode::BAD_GATEWAY);
        assert!(std::str::from_utf8(refused.body()).unwrap().contains("Nothing listens on port 3000 of box"));
        assert_eq!(refused.headers()["cache-control"], "no-store");
    }

    #[test]
    fn a_page_that_leads_on_quotes_its_target() {
        let page = continue_to("/a?b=\"><script>");
        assert!(page.contains("0;url=/a?b=&quot;&gt;&lt;script&gt;\""), "{page}");
    }
}
