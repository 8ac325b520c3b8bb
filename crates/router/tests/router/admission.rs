//! Which requests are accepted, as clients see it; and what is counted and logged about it.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agent_sandbox_protocol::sandbox_token::VerifyingKeys;
use agent_sandbox_protocol::scoped_token::Secret;
use agent_sandbox_protocol::web::AllowedHosts;
use agent_sandbox_router::{
    AccessReview, AuthzConfig, Caller, ConnectionAuth, Deps, Modes, ReviewOutcome, RouterConfig, StaticToken,
    TokenReview, TokenReviewConfig,
};
use async_trait::async_trait;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;

use crate::support::*;

struct Down;

#[async_trait]
impl TokenReview for Down {
    async fn review(&self, _: &str, _: &[String]) -> Result<ReviewOutcome, kube::Error> {
        Err(kube::Error::LinesCodecMaxLineLengthExceeded)
    }
}

fn any_of(change: impl FnOnce(&mut Modes)) -> RouterConfig {
    let mut modes = Modes::default();
    change(&mut modes);
    RouterConfig { authz: AuthzConfig::AnyOf(modes), ..quiet() }
}

fn secret_file() -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"0123456789abcdef0123456789abcdef\n").unwrap();
    file
}

fn token(name: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let secret = Secret::from_file_bytes(b"0123456789abcdef0123456789abcdef").unwrap();
    format!("Bearer {}", secret.mint("default", name, Duration::from_secs(60), now).unwrap())
}

/// D-145
#[tokio::test]
async fn refusals_are_401_403_and_500_and_never_reach_the_sandbox() {
    let backend = Backend::echo().await;
    let file = secret_file();
    let config = any_of(|modes| {
        modes.scoped_token_secrets = vec![file.path().to_owned()];
        modes.token_review = Some(TokenReviewConfig::default());
    });
    let deps = Deps { token_review: Some(Arc::new(Down)), ..Deps::detached() };
    let router = TestRouter::with_deps(config, backend.addr, deps).await;
    let reply = router.get("/").await;
    assert_eq!((reply.status, reply.detail().as_str()), (StatusCode::UNAUTHORIZED, "unauthenticated"));
    assert_eq!(reply.headers["www-authenticate"], "Bearer");
    let reply = router.get_with("/", &[("authorization", &token("other"))]).await;
    assert_eq!((reply.status, reply.detail().as_str()), (StatusCode::FORBIDDEN, "forbidden"));
    let reply = router.get_with("/", &[("authorization", "Bearer opaque")]).await;
    assert_eq!(reply.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(reply.detail().starts_with("tokenreview: "));
    assert!(router.dialled().is_empty());
    assert_eq!(router.get_with("/", &[("authorization", &token("box"))]).await.status, StatusCode::OK);
    let decisions = |decision| {
        metric(
            &router,
            &format!("sandbox_router_authz_decisions_total{{sandbox_namespace=\"default\",decision=\"{decision}\"}}"),
        )
    };
    assert_eq!((decisions("allow"), decisions("deny")), (1.0, 1.0));
}

/// D-144
#[tokio::test]
async fn allow_all_counts_accepted_requests() {
    let backend = Backend::echo().await;
    let router = TestRouter::before(backend.addr).await;
    router.get("/").await;
    let allowed = "sandbox_router_authz_decisions_total{sandbox_namespace=\"default\",decision=\"allow\"}";
    assert_eq!(metric(&router, allowed), 1.0);
}

/// Unauthenticated callers learn nothing about which headers are valid.
#[tokio::test]
async fn authentication_comes_before_validation() {
    let backend = Backend::echo().await;
    let router =
        TestRouter::with(any_of(|modes| modes.static_token = Some(StaticToken("s3cret".into()))), backend.addr).await;
    let bad = Request::get("/").header("x-sandbox-id", "NOT VALID").body(Default::default()).unwrap();
    assert_eq!(router.send(bad).await.status, StatusCode::UNAUTHORIZED);
    let bad = Request::get("/").header("authorization", "Bearer s3cret").body(Default::default()).unwrap();
    assert_eq!(router.send(bad).await.status, StatusCode::BAD_REQUEST);
}

/// D-168
#[tokio::test]
async fn static_tokens_are_refused_with_the_old_routers_messages() {
    let backend = Backend::echo().await;
    let router =
        TestRouter::with(any_of(|modes| modes.static_token = Some(StaticToken(" s3cret\n".into()))), backend.addr)
            .await;
    let reply = router.get("/").await;
    assert_eq!(
        (reply.status, reply.detail().as_str()),
        (StatusCode::UNAUTHORIZED, "Missing or invalid Authorization header.")
    );
    let reply = router.get_with("/", &[("authorization", "Bearer wrong")]).await;
    assert_eq!((reply.status, reply.detail().as_str()), (StatusCode::UNAUTHORIZED, "Invalid token."));
    assert_eq!(router.get_with("/", &[("authorization", "bearer s3cret")]).await.status, StatusCode::OK);
}

/// D-155, D-156: stock clients always send the address they know.
#[tokio::test]
async fn scoped_callers_may_name_their_own_address_and_no_other() {
    let backend = Backend::echo().await;
    let file = secret_file();
    let router =
        TestRouter::with(any_of(|modes| modes.scoped_token_secrets = vec![file.path().to_owned()]), backend.addr).await;
    router.router.index().apply(pod("other", "10.0.0.8"));
    let authorization = ("authorization", token("box"));
    let authorization = (authorization.0, authorization.1.as_str());
    for (extra, status) in [
        (("x-sandbox-pod-ip", POD_IP), StatusCode::OK),
        (("x-sandbox-uid", "uid-box"), StatusCode::OK),
        (("x-sandbox-pod-ip", "10.0.0.8"), StatusCode::FORBIDDEN),
        (("x-sandbox-uid", "uid-other"), StatusCode::FORBIDDEN),
        (("x-sandbox-namespace", "team-a"), StatusCode::FORBIDDEN),
    ] {
        assert_eq!(router.get_with("/", &[authorization, extra]).await.status, status, "{extra:?}");
    }
    assert!(router.dialled().iter().all(|addr| addr.ip() == ip(POD_IP)));
}

/// Users and the namespaces whose ports they may forward.
struct Grants(Arc<parking_lot::Mutex<Vec<(&'static str, &'static str)>>>);

#[async_trait]
impl AccessReview for Grants {
    async fn may_forward(&self, caller: &Caller, namespace: &str, _pod: &str) -> Result<bool, kube::Error> {
        Ok(self.0.lock().contains(&(caller.user.as_str(), namespace)))
    }
}

/// The engine authenticates port-forwards itself: no token is needed, and each request is authorised by its namespace.
#[tokio::test]
async fn every_request_of_an_authenticated_connection_needs_access_to_its_namespace() {
    let backend = Backend::echo().await;
    let config = RouterConfig {
        allowed_hosts: AllowedHosts::loopback(),
        access_ttl: Duration::ZERO,
        ..any_of(|modes| modes.static_token = Some(StaticToken("s3cret".into())))
    };
    let grants = Arc::new(parking_lot::Mutex::new(vec![("alice", "default")]));
    let deps = Deps { access_review: Some(Arc::new(Grants(Arc::clone(&grants)))), ..Deps::detached() };
    let router = TestRouter::with_deps(config, backend.addr, deps).await;
    let connect = |auth: ConnectionAuth| {
        let (ours, theirs) = tokio::io::duplex(4096);
        let served = Arc::clone(&router.router);
        tokio::spawn(async move { served.serve_connection(theirs, auth).await });
        hyper::client::conn::http1::handshake(TokioIo::new(ours))
    };
    let caller = |user: &str| ConnectionAuth::User(Arc::new(Caller { user: user.to_owned(), ..Caller::default() }));
    for (auth, namespaces) in [
        (
            caller("alice"),
            vec![("default", StatusCode::OK), ("team-b", StatusCode::FORBIDDEN), ("default", StatusCode::OK)],
        ),
        (caller("bob"), vec![("default", StatusCode::FORBIDDEN)]),
        (ConnectionAuth::Unauthenticated, vec![("default", StatusCode::MISDIRECTED_REQUEST)]),
    ] {
        let (mut sender, connection) = connect(auth.clone()).await.unwrap();
        let connection = tokio::spawn(connection);
        for (namespace, expected) in namespaces {
            let request = Request::get("/").header("host", "sandbox-router-svc").header("x-sandbox-id", "box");
            let request = request.header("x-sandbox-namespace", namespace).body(Empty::<bytes::Bytes>::new()).unwrap();
            let response = sender.send_request(request).await.unwrap();
            assert_eq!(response.status(), expected, "{auth:?} {namespace}");
            response.into_body().collect().await.unwrap();
        }
        if auth == caller("alice") {
            grants.lock().clear();
            let request = Request::get("/").header("host", "x").header("x-sandbox-id", "box");
            let response = sender.send_request(request.body(Empty::<bytes::Bytes>::new()).unwrap()).await.unwrap();
            assert_eq!(response.status(), StatusCode::FORBIDDEN, "a right that was taken away ends at once");
        }
        drop(sender);
        tokio::time::timeout(TIMEOUT, connection).await.expect("it ends with its client").unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_local_router_is_reached_by_local_names_only() {
    let backend = Backend::echo().await;
    let router =
        TestRouter::with(RouterConfig { allowed_hosts: AllowedHosts::loopback(), ..quiet() }, backend.addr).await;
    for host in ["localhost:1", "127.0.0.1", "[::1]:8080", "8888-box--default.localhost:8080"] {
        assert_eq!(router.get_with("/", &[("host", host)]).await.status, StatusCode::OK, "{host}");
    }
    for host in ["evil.example", "127.0.0.1.nip.io", "10.0.0.1", "[::1]evil.example", "localhost:evil.example"] {
        let status = router.get_with("/", &[("host", host)]).await.status;
        assert_eq!(status, StatusCode::MISDIRECTED_REQUEST, "{host}");
    }
    let foreign_target =
        "GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\nX-Sandbox-ID: box\r\nConnection: close\r\n\r\n";
    let answer = raw(router.addr, foreign_target.as_bytes(), TIMEOUT).await;
    assert!(answer.starts_with(b"HTTP/1.1 421"), "{}", String::from_utf8_lossy(&answer));
}

/// D-167; and clients cannot create label values.
#[tokio::test]
async fn metrics_have_the_contracts_names_and_bounded_labels() {
    let backend = Backend::echo().await;
    let router = TestRouter::before(backend.addr).await;
    router.get("/").await;
    for number in 0..50 {
        let request = Request::builder()
            .method(format!("M{number}").as_str())
            .uri("/")
            .header("x-sandbox-id", "box")
            .header("x-sandbox-namespace", format!("invented-{number}"));
        let request = request.header("x-sandbox-port", "bad").body(Default::default()).unwrap();
        router.send(request).await;
    }
    let text = router.router.render_metrics();
    for name in [
        "sandbox_router_requests_total{method=\"GET\",code=\"200\",sandbox_namespace=\"default\"} 1",
        "sandbox_router_request_duration_seconds_bucket{le=\"0.005\",method=\"GET\"",
        "sandbox_router_inflight_requests 0",
        "sandbox_router_authz_decisions_total{",
        "sandbox_router_build_info{git_version=",
        "# TYPE sandbox_router_upstream_errors counter",
        "# TYPE sandbox_router_upstream_retries counter",
        "# TYPE sandbox_router_cache_invalidations counter",
        "# TYPE sandbox_router_cert_reloads counter",
    ] {
        assert!(text.contains(name), "{name} is missing in\n{text}");
    }
    assert!(!text.contains("invented") && !text.contains("M1"), "{text}");
    assert_eq!(
        metric(&router, "sandbox_router_requests_total{method=\"OTHER\",code=\"400\",sandbox_namespace=\"-\"}"),
        50.0
    );
}

#[tokio::test]
async fn every_request_leaves_one_line_in_the_access_log() {
    let backend = Backend::echo().await;
    let (mut reader, writer) = std::io::pipe().unwrap();
    let deps = Deps { access_log: Some(Box::new(writer)), ..Deps::detached() };
    let router = TestRouter::with_deps(RouterConfig { access_log: true, ..quiet() }, backend.addr, deps).await;
    let headers =
        [("user-agent", "test/1"), ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")];
    router.get_with("/a%2Fb?secret=1", &headers).await;
    router.send(Request::get("/healthz").body(Default::default()).unwrap()).await;
    assert_eq!(backend.only().header("traceparent"), Some(headers[1].1), "the caller's trace reaches the sandbox");
    let text = tokio::task::spawn_blocking(move || {
        let mut text = vec![0; 4096];
        let count = reader.read(&mut text).unwrap();
        String::from_utf8(text[..count].to_vec()).unwrap()
    });
    let text = tokio::time::timeout(TIMEOUT, text).await.unwrap().unwrap();
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 1, "health checks are not logged: {text}");
    for (key, value) in [
        ("msg", "request"),
        ("method", "GET"),
        ("path", "/a%2Fb"),
        ("client_ip", "127.0.0.1"),
        ("sandbox_id", "box"),
        ("sandbox_namespace", "default"),
        ("user_agent", "test/1"),
        ("trace_id", "0af7651916cd43dd8448eb211c80319c"),
    ] {
        assert_eq!(lines[0][key], value);
    }
    assert_eq!((&lines[0]["status"], &lines[0]["bytes_out"]), (&200.into(), &0.into()));
    assert!(lines[0]["duration_ms"].as_f64().unwrap() > 0.0);
}

/// The daemon in the Pod can check that a request came through the router, with the public half of its key.
#[tokio::test]
async fn requests_are_signed_for_the_pod_that_they_go_to() {
    let backend = Backend::echo().await;
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key.pem");
    // PKCS #8 of the seed 0x07 repeated, and its public key.
    let der = [&[0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20][..], &[7; 32]].concat();
    let pem = |label: &str, der: &[u8]| {
        use base64::Engine as _;
        let text = base64::engine::general_purpose::STANDARD.encode(der);
        format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
    };
    std::fs::write(&key, pem("PRIVATE KEY", &der)).unwrap();
    let pair = ring::signature::Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap();
    let public = ring::signature::KeyPair::public_key(&pair).as_ref().to_vec();
    let spki = [&[0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0][..], &public].concat();
    let keys = VerifyingKeys::from_pem(&pem("PUBLIC KEY", &spki)).unwrap();
    let router = TestRouter::with(RouterConfig { sandbox_token_key: Some(key), ..quiet() }, backend.addr).await;
    assert_eq!(router.get_with("/", &[("x-sandbox-token", "forged")]).await.status, StatusCode::OK);
    let seen = backend.only();
    let token = seen.header("x-sandbox-token").unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
    assert_eq!(keys.verify(token, "pod-uid-box", now), Ok(()));
    assert!(keys.verify(token, "pod-uid-box", now + 600).is_err(), "short-lived");
    assert!(keys.verify(token, "pod-uid-other", now).is_err());
    let unusable = RouterConfig { sandbox_token_key: Some(folder.path().join("none")), ..quiet() };
    assert!(agent_sandbox_router::Router::new(unusable, Deps::detached()).is_err());
}
