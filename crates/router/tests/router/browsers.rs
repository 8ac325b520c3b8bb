//! Sandboxes named by URLs, and web pages: those of a sandbox, and those of an attacker in the same browser.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agent_sandbox_protocol::scoped_token::Secret;
use agent_sandbox_protocol::web::{AllowedHosts, AllowedOrigins};
use agent_sandbox_router::{
    AuthzConfig, Caller, ConnectionAuth, CookieConfig, Deps, Modes, ReviewOutcome, RouterConfig, Routing, SameSite,
    TokenReview, TokenReviewConfig,
};
use async_trait::async_trait;
use http::{Method, Request, StatusCode};
use http_body_util::{Empty, Full};
use hyper_util::rt::TokioIo;

use crate::support::*;

const SECRET: &[u8; 32] = &[b's'; 32];
const HOST: &str = "8080-box--default.boxes.example";
const BASE: &str = "/router/default/box/8080";

fn routing() -> Routing {
    Routing { path_prefix: Some("/router".to_owned()), host_domain: Some("boxes.example".to_owned()) }
}

fn open() -> RouterConfig {
    RouterConfig { routing: routing(), ..quiet() }
}

/// A router that takes scoped tokens, also in cookies.
fn guarded(secret_file: &std::path::Path) -> RouterConfig {
    std::fs::write(secret_file, SECRET).unwrap();
    let modes = Modes { scoped_token_secrets: vec![secret_file.to_owned()], ..Modes::default() };
    let cookie = CookieConfig {
        name: "session".to_owned(),
        query_param: Some("token".to_owned()),
        same_site: SameSite::Lax,
        secure: true,
        allowed_origins: AllowedOrigins::new(["https://app.example".to_owned()]).unwrap(),
        trust_forwarded_proto: false,
    };
    RouterConfig { authz: AuthzConfig::AnyOf(modes), cookie: Some(cookie), ..open() }
}

fn token(sandbox: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Secret::from_file_bytes(SECRET).unwrap().mint("default", sandbox, Duration::from_secs(60), now).unwrap()
}

async fn send(router: &TestRouter, method: Method, uri: &str, headers: &[(&str, &str)]) -> Reply {
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    router.send(request.body(Full::default()).unwrap()).await
}

#[tokio::test]
async fn a_path_or_a_host_names_the_sandbox() {
    let backend = Backend::echo().await;
    let router = TestRouter::with(open(), backend.addr).await;
    let target = format!("{BASE}/a%2Fb/../c?x=1");
    assert_eq!(send(&router, Method::GET, &target, &[]).await.status, StatusCode::OK);
    assert_eq!(send(&router, Method::GET, "/healthz?x=1", &[("host", HOST)]).await.status, StatusCode::OK);
    let seen: Vec<String> = backend.seen.lock().iter().map(|seen| seen.target.clone()).collect();
    assert_eq!(seen, ["/a%2Fb/../c?x=1", "/healthz?x=1"]);
    let dialled: Vec<String> = router.connect.dialled.lock().iter().map(ToString::to_string).collect();
    assert!(dialled.iter().all(|address| address == "10.0.0.7:8080"), "{dialled:?}");
    assert_eq!(send(&router, Method::GET, "/healthz", &[]).await.status, StatusCode::OK, "the router's own");
    for (uri, headers) in [
        ("/router/default/box", &[][..]),
        ("/router/default/box/x/", &[]),
        ("/router/default/box/8080/", &[("x-sandbox-id", "other")]),
        ("/router/default/box/8080/", &[("x-sandbox-pod-ip", "10.0.0.7")]),
        ("/router/default/other/8080/", &[("host", HOST)]),
        ("/", &[("host", "8080-box.boxes.example")]),
    ] {
        assert_eq!(send(&router, Method::GET, uri, headers).await.status, StatusCode::BAD_REQUEST, "{uri} {headers:?}");
    }
    assert_eq!(backend.seen.lock().len(), 2);
}

#[tokio::test]
async fn a_link_with_a_token_becomes_a_session() {
    let backend = Backend::echo().await;
    let folder = tempfile::tempdir().unwrap();
    let router = TestRouter::with(guarded(&folder.path().join("secret")), backend.addr).await;
    let token = token("box");
    let first = send(&router, Method::GET, &format!("{BASE}/lab?token={token}&a=1"), &[]).await;
    assert_eq!(first.status, StatusCode::FOUND);
    let cookie = first.headers["set-cookie"].to_str().unwrap().to_owned();
    assert_eq!(cookie, format!("session={token}; Path={BASE}/; HttpOnly; Secure; SameSite=Lax"));
    let location = first.headers["location"].to_str().unwrap().to_owned();
    assert_eq!(location, format!("{BASE}/lab?a=1"));
    let session = format!("theme=dark; session={token}");
    let second = send(&router, Method::GET, &location, &[("cookie", &session)]).await;
    assert_eq!(second.status, StatusCode::OK);
    let seen = backend.only();
    assert_eq!((seen.target.as_str(), seen.header("cookie")), ("/lab?a=1", Some("theme=dark")));
    // By host: the cookie is for this host alone.
    let link = send(&router, Method::GET, &format!("/?token={token}"), &[("host", HOST)]).await;
    assert_eq!((link.status, link.headers["location"].to_str().unwrap()), (StatusCode::FOUND, "/"));
    assert!(link.headers["set-cookie"].to_str().unwrap().ends_with("; Path=/; HttpOnly; Secure; SameSite=Lax"));
    let elsewhere = send(&router, Method::GET, &format!("//evil.example/?token={token}"), &[("host", HOST)]).await;
    assert_eq!(elsewhere.status, StatusCode::OK, "served, not redirected");
}

#[tokio::test]
async fn a_credential_in_a_link_or_cookie_grants_no_more_than_in_a_header() {
    let backend = Backend::echo().await;
    let folder = tempfile::tempdir().unwrap();
    let router = TestRouter::with(guarded(&folder.path().join("secret")), backend.addr).await;
    let (other, own) = (token("other"), token("box"));
    let link = send(&router, Method::GET, &format!("{BASE}/?token={other}"), &[]).await;
    assert_eq!(link.status, StatusCode::FORBIDDEN);
    assert!(!link.headers.contains_key("set-cookie"));
    let cookie = |token: &str| format!("session={token}");
    for (uri, headers, expected) in [
        (format!("{BASE}/"), vec![("cookie", cookie(&other))], StatusCode::FORBIDDEN),
        (format!("{BASE}/"), vec![("cookie", cookie("forged"))], StatusCode::UNAUTHORIZED),
        (format!("{BASE}/?token=forged"), vec![], StatusCode::UNAUTHORIZED),
        (format!("{BASE}/"), vec![], StatusCode::UNAUTHORIZED),
        // Where headers name the sandbox, they carry the credential as well.
        ("/".to_owned(), vec![("x-sandbox-id", "box".to_owned()), ("cookie", cookie(&own))], StatusCode::UNAUTHORIZED),
        (format!("/?token={own}"), vec![("x-sandbox-id", "box".to_owned())], StatusCode::UNAUTHORIZED),
    ] {
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(send(&router, Method::GET, &uri, &headers).await.status, expected, "{uri}");
    }
    assert!(backend.seen.lock().is_empty());
}

#[tokio::test]
async fn an_attackers_page_cannot_use_the_session() {
    let backend = Backend::echo().await;
    let folder = tempfile::tempdir().unwrap();
    let router = TestRouter::with(guarded(&folder.path().join("secret")), backend.addr).await;
    let session = format!("session={}", token("box"));
    let upgrade = [
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    let cookie = [("host", "router.example"), ("cookie", session.as_str())];
    for origin in ["https://evil.example", "null", "https://router.example.evil.example", "https://router.example:8443"]
    {
        let headers = [&cookie[..], &upgrade, &[("origin", origin)]].concat();
        assert_eq!(send(&router, Method::GET, &format!("{BASE}/ws"), &headers).await.status, StatusCode::FORBIDDEN);
        let post = [&cookie[..], &[("origin", origin)]].concat();
        assert_eq!(send(&router, Method::POST, &format!("{BASE}/execute"), &post).await.status, StatusCode::FORBIDDEN);
    }
    let image = [&cookie[..], &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")]].concat();
    assert_eq!(send(&router, Method::GET, &format!("{BASE}/"), &image).await.status, StatusCode::FORBIDDEN);
    assert!(backend.seen.lock().is_empty());
    // TLS may end at a proxy in front.
    for own in ["http://router.example", "https://router.example", "https://app.example"] {
        let post = [&cookie[..], &[("origin", own)]].concat();
        assert_eq!(
            send(&router, Method::POST, &format!("{BASE}/execute"), &post).await.status,
            StatusCode::OK,
            "{own}"
        );
    }
    let link = [&cookie[..], &[("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")]].concat();
    assert_eq!(send(&router, Method::GET, &format!("{BASE}/"), &link).await.status, StatusCode::OK, "a link");
}

/// Where nothing is required, the browser of anyone who reaches the router is a way to it.
#[tokio::test]
async fn an_attackers_page_cannot_use_a_router_without_authorisation() {
    let backend = Backend::echo().await;
    let allowed_origins = AllowedOrigins::new(["https://app.example".to_owned()]).unwrap();
    let allowed_hosts = AllowedHosts::private([]).and(["router.example".to_owned(), HOST.to_owned()]).unwrap();
    let router = TestRouter::with(RouterConfig { allowed_origins, allowed_hosts, ..open() }, backend.addr).await;
    for (uri, host) in [(format!("{BASE}/execute"), "router.example"), ("/execute".to_owned(), HOST)] {
        let foreign = [("host", host), ("origin", "https://evil.example"), ("content-type", "text/plain")];
        assert_eq!(send(&router, Method::POST, &uri, &foreign).await.status, StatusCode::FORBIDDEN, "{uri}");
        assert!(backend.seen.lock().is_empty());
        let own = format!("https://{host}");
        for origin in [own.as_str(), "https://app.example"] {
            let headers = [("host", host), ("origin", origin)];
            assert_eq!(send(&router, Method::POST, &uri, &headers).await.status, StatusCode::OK, "{uri} {origin}");
        }
        backend.seen.lock().clear();
    }
}

/// A page whose own domain resolves to the router is of the same origin: it can name a sandbox in headers, too.
#[tokio::test]
async fn a_rebinding_page_cannot_use_a_router_without_authorisation() {
    let backend = Backend::echo().await;
    let reviewed = Modes { token_review: Some(TokenReviewConfig::default()), ..Modes::default() };
    let any_user = Deps { token_review: Some(Arc::new(AnyUser)), ..Deps::detached() };
    let reviewing = RouterConfig { authz: AuthzConfig::AnyOf(reviewed), ..open() };
    for router in
        [TestRouter::with(open(), backend.addr).await, TestRouter::with_deps(reviewing, backend.addr, any_user).await]
    {
        let post = async |host: &str, page: (&str, &str)| {
            let headers = [("x-sandbox-id", "box"), ("host", host), page];
            send(&router, Method::POST, "/execute", &headers).await
        };
        for page in [("origin", "http://evil.example:8080"), ("sec-fetch-site", "same-origin")] {
            let refused = post("evil.example:8080", page).await;
            assert_eq!(refused.status, StatusCode::MISDIRECTED_REQUEST, "{page:?}");
            assert!(refused.detail().contains("--allowed-hosts"), "{}", refused.text());
        }
        let foreign = post("localhost:8080", ("origin", "http://evil.example:8080")).await;
        assert_eq!(foreign.status, StatusCode::FORBIDDEN, "a page of another origin");
        assert!(backend.seen.lock().is_empty());
        for host in [
            "127.0.0.1:8080",
            "[::1]:8080",
            "localhost:8080",
            "sandbox-router-svc",
            "sandbox-router-svc.agent-sandbox-system.svc:8080",
            "sandbox-router-svc.agent-sandbox-system.svc.cluster.local",
        ] {
            let own = post(host, ("origin", &format!("http://{host}"))).await;
            assert_eq!(own.status, StatusCode::OK, "{host}");
        }
        assert_eq!(post("router.example", ("user-agent", "curl")).await.status, StatusCode::OK, "no browser");
        let sandboxs_own = [("host", HOST), ("origin", &*format!("http://{HOST}"))];
        assert_eq!(send(&router, Method::POST, "/", &sandboxs_own).await.status, StatusCode::OK, "by host routing");
        backend.seen.lock().clear();
    }
}

struct AnyUser;

#[async_trait]
impl TokenReview for AnyUser {
    async fn review(&self, _: &str, _: &[String]) -> Result<ReviewOutcome, kube::Error> {
        Ok(ReviewOutcome { authenticated: true, audiences: Vec::new(), caller: Caller::default() })
    }
}

/// A page of any origin can write a token into a URL: where none is checked, it proves nothing.
#[tokio::test]
async fn a_token_that_nobody_checks_does_not_make_a_page_trusted() {
    let (backend, folder) = (Backend::echo().await, tempfile::tempdir().unwrap());
    let config = RouterConfig { authz: AuthzConfig::AllowAll, ..guarded(&folder.path().join("secret")) };
    let router = TestRouter::with(config, backend.addr).await;
    let foreign = [("origin", "https://evil.example"), ("content-type", "text/plain")];
    let uri = format!("{BASE}/execute?token=any");
    assert_eq!(send(&router, Method::POST, &uri, &foreign).await.status, StatusCode::FORBIDDEN);
    assert!(backend.seen.lock().is_empty());
}

/// A router that requires a credential is protected by it, under any name.
#[tokio::test]
async fn a_page_with_a_token_may_use_any_name_of_the_router() {
    let (backend, folder) = (Backend::echo().await, tempfile::tempdir().unwrap());
    let router = TestRouter::with(guarded(&folder.path().join("secret")), backend.addr).await;
    let bearer = format!("Bearer {}", token("box"));
    let page = [("x-sandbox-id", "box"), ("host", "router.example"), ("origin", "https://router.example")];
    assert_eq!(send(&router, Method::POST, "/", &page).await.status, StatusCode::UNAUTHORIZED);
    let known = [&page[..], &[("authorization", bearer.as_str())]].concat();
    assert_eq!(send(&router, Method::POST, "/", &known).await.status, StatusCode::OK);
}

/// A port-forward carries its user's rights: whoever reaches the local port has them.
#[tokio::test]
async fn a_rebinding_page_cannot_use_a_forwarded_port() {
    let backend = Backend::echo().await;
    let router = TestRouter::with(open(), backend.addr).await;
    let (ours, theirs) = tokio::io::duplex(4096);
    let served = Arc::clone(&router.router);
    let user = ConnectionAuth::User(Arc::new(Caller { user: "alice".to_owned(), ..Caller::default() }));
    tokio::spawn(async move { served.serve_connection(theirs, user).await });
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(ours)).await.unwrap();
    tokio::spawn(connection);
    for (host, expected) in
        [("evil.example:8080", StatusCode::MISDIRECTED_REQUEST), ("localhost:8080", StatusCode::FORBIDDEN)]
    {
        let request = Request::get("/").header("host", host).header("x-sandbox-id", "box");
        let response = sender.send_request(request.body(Empty::<bytes::Bytes>::new()).unwrap()).await.unwrap();
        // Without a review of access the user itself is refused, but later.
        assert_eq!(response.status(), expected, "{host}");
    }
}
