//! Links to ports: what one opens, and how it ends; two routers in front of one API, as on a cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use agent_sandbox_protocol::links::CreatedLink;
use agent_sandbox_protocol::scoped_token::Secret;
use agent_sandbox_protocol::web::AllowedOrigins;
use agent_sandbox_router::{
    AccessReview, AuthzConfig, Caller, ConnectionAuth, CookieConfig, Deps, LinkConfig, Modes, RouterConfig, Routing,
    SameSite, StaticToken,
};
use async_trait::async_trait;
use futures::{SinkExt, StreamExt};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::support::*;

pub(crate) const SECRET: &[u8; 32] = &[b's'; 32];
const ADMIN: &str = "administrators-token";
pub(crate) const HOST: &str = "3000-box--default.boxes.example";
const BASE: &str = "/router/default/box/3000/";
const LINKS: &str = "agent-sandbox.github.io/links";

/// An API with the Sandbox `box`, whose Pod declares port 9090.
#[derive(Clone)]
struct Api(Arc<Mutex<Value>>);

impl Api {
    fn new() -> Self {
        let container = json!({ "name": "main", "ports": [{ "containerPort": 9090 }] });
        Self(Arc::new(Mutex::new(json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": { "name": "box", "namespace": "default", "uid": "uid-box", "resourceVersion": "1" },
            "spec": { "podTemplate": { "spec": { "containers": [container] } } },
        }))))
    }

    fn answer(&self, method: &Method, path: &str, body: &[u8]) -> Response<Full<bytes::Bytes>> {
        let status = |code: u16, reason: &str| {
            let status =
                json!({ "kind": "Status", "status": "Failure", "reason": reason, "code": code, "message": path });
            Response::builder().status(code).body(Full::from(status.to_string())).unwrap()
        };
        let mut sandbox = self.0.lock();
        if path != "/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes/box" {
            return status(404, "NotFound");
        }
        if *method == Method::PATCH {
            let patch: Value = serde_json::from_slice(body).unwrap();
            let metadata = &patch["metadata"];
            assert_eq!(patch.as_object().unwrap().len(), 1, "the router writes annotations only: {patch}");
            assert_eq!(metadata["annotations"].as_object().unwrap().keys().collect::<Vec<_>>(), [LINKS]);
            if metadata["resourceVersion"] != sandbox["metadata"]["resourceVersion"] {
                return status(409, "Conflict");
            }
            sandbox["metadata"]["annotations"] = metadata["annotations"].clone();
            if metadata["annotations"][LINKS].is_null() {
                sandbox["metadata"]["annotations"] = json!({});
            }
            let version: u64 = sandbox["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
            sandbox["metadata"]["resourceVersion"] = (version + 1).to_string().into();
        }
        Response::new(Full::from(sandbox.to_string()))
    }

    fn deps(&self) -> Deps {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let api = api.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                Ok::<_, kube::Error>(api.answer(&parts.method, parts.uri.path(), &body))
            }
        });
        Deps { client: Some(kube::Client::new(service, "default")), ..Deps::detached() }
    }

    fn records(&self) -> Vec<Value> {
        let text = self.0.lock()["metadata"]["annotations"][LINKS].as_str().unwrap_or("[]").to_owned();
        serde_json::from_str(&text).unwrap()
    }
}

/// A router with links, which takes scoped tokens and the administrator's.
pub(crate) fn config(folder: &tempfile::TempDir) -> RouterConfig {
    let secret = folder.path().join("secret");
    std::fs::write(&secret, SECRET).unwrap();
    let modes = Modes {
        scoped_token_secrets: vec![secret.clone()],
        static_token: Some(StaticToken(ADMIN.to_owned())),
        ..Modes::default()
    };
    RouterConfig {
        authz: AuthzConfig::AnyOf(modes),
        routing: Routing { path_prefix: Some("/router".to_owned()), host_domain: Some("boxes.example".to_owned()) },
        cookie: Some(CookieConfig {
            name: "session".to_owned(),
            query_param: Some("token".to_owned()),
            same_site: SameSite::Lax,
            secure: true,
            allowed_origins: AllowedOrigins::default(),
            trust_forwarded_proto: false,
        }),
        links: Some(LinkConfig { secrets: vec![secret], public_url: None, injected_daemon: true }),
        ..quiet()
    }
}

async fn send(router: &TestRouter, method: Method, uri: &str, headers: &[(&str, &str)], body: &str) -> Reply {
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    router.send(request.body(Full::from(body.to_owned())).unwrap()).await
}

fn wanted(change: Value) -> String {
    let mut wanted = json!({ "ports": [3000], "ttlSeconds": 600 });
    wanted.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    wanted.to_string()
}

async fn post(router: &TestRouter, headers: &[(&str, &str)], change: Value) -> Reply {
    let admin = format!("Bearer {ADMIN}");
    let own = [("authorization", admin.as_str()), ("content-type", "application/json")];
    let replaced: Vec<_> =
        own.iter().filter(|(name, _)| headers.iter().all(|(other, _)| other != name)).chain(headers).copied().collect();
    send(router, Method::POST, "/sandbox-links/default/box", &replaced, &wanted(change)).await
}

async fn create(router: &TestRouter, change: Value) -> (CreatedLink, String) {
    let reply = post(router, &[], change).await;
    assert_eq!((reply.status, &reply.headers["cache-control"]), (StatusCode::CREATED, &"no-store".parse().unwrap()));
    let link: CreatedLink = serde_json::from_slice(&reply.body).unwrap();
    let url: Uri = link.urls[0].host.as_ref().unwrap().parse().unwrap();
    let token = url.query().unwrap().strip_prefix("token=").unwrap().to_owned();
    (link, token)
}

async fn revoke(router: &TestRouter, id: &str) -> StatusCode {
    let admin = format!("Bearer {ADMIN}");
    let uri = format!("/sandbox-links/default/box/{id}");
    send(router, Method::DELETE, &uri, &[("authorization", &admin)], "").await.status
}

async fn visit(router: &TestRouter, method: Method, host: &str, token: &str, more: &[(&str, &str)]) -> Reply {
    let cookie = format!("session={token}");
    let headers = [&[("host", host), ("cookie", cookie.as_str())], more].concat();
    send(router, method, "/page", &headers, "").await
}

#[tokio::test]
async fn a_link_opens_its_port_and_no_other() {
    let (backend, folder, api) = (Backend::echo().await, tempfile::tempdir().unwrap(), Api::new());
    let router = TestRouter::with_deps(config(&folder), backend.addr, api.deps()).await;
    let (link, token) = create(&router, json!({})).await;
    assert_eq!(link.urls[0].host.as_deref(), Some(&*format!("https://{HOST}/?token={token}")));
    assert_eq!(link.urls[0].path.as_deref(), Some(&*format!("https://boxes.example{BASE}?token={token}")));
    assert_eq!((api.records()[0]["id"].as_str(), api.records().len()), (Some(&*link.id), 1));
    assert!(!api.0.lock().to_string().contains(&token), "the token is stored nowhere");

    let first = send(&router, Method::GET, &format!("/page?a=1&token={token}"), &[("host", HOST)], "").await;
    assert_eq!((first.status, &first.headers["location"]), (StatusCode::FOUND, &"/page?a=1".parse().unwrap()));
    let cookie = first.headers["set-cookie"].to_str().unwrap();
    let age = cookie.strip_prefix(&format!("session={token}; Path=/; Max-Age=")).unwrap();
    assert!(age.ends_with("; HttpOnly; Secure; SameSite=Lax"), "{cookie}");
    assert!((590..=600).contains(&age.split(';').next().unwrap().parse::<u32>().unwrap()), "{cookie}");
    assert_eq!(visit(&router, Method::POST, HOST, &token, &[]).await.status, StatusCode::OK);
    assert_eq!(backend.only().header("cookie"), None);

    for (host, expected) in [
        ("3001-box--default.boxes.example", StatusCode::FORBIDDEN),
        ("8888-box--default.boxes.example", StatusCode::FORBIDDEN),
        ("3000-other--default.boxes.example", StatusCode::FORBIDDEN),
        ("3000-box--other.boxes.example", StatusCode::FORBIDDEN),
    ] {
        assert_eq!(visit(&router, Method::GET, host, &token, &[]).await.status, expected, "{host}");
        let uri = format!("/?token={token}");
        let reply = send(&router, Method::GET, &uri, &[("host", host)], "").await;
        assert!(reply.status == expected && !reply.headers.contains_key("set-cookie"), "{host}");
    }
    let bearer = format!("Bearer {token}");
    for (port, expected) in [("3000", StatusCode::OK), ("8888", StatusCode::FORBIDDEN)] {
        let headers = [("x-sandbox-id", "box"), ("x-sandbox-port", port), ("authorization", &*bearer)];
        assert_eq!(send(&router, Method::GET, "/", &headers, "").await.status, expected, "{port}");
    }
    assert_eq!(backend.seen.lock().len(), 2);
}

/// With sandboxes in paths a browser sends a lax cookie along when another site leads to another sandbox.
#[tokio::test]
async fn a_link_in_path_form_has_a_strict_cookie_and_still_opens_from_another_site() {
    let (backend, folder, api) = (Backend::echo().await, tempfile::tempdir().unwrap(), Api::new());
    let router = TestRouter::with_deps(config(&folder), backend.addr, api.deps()).await;
    let (_, token) = create(&router, json!({})).await;
    let uri = format!("{BASE}page?token={token}");
    let headers = [("accept", "text/html"), ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];
    let page = send(&router, Method::GET, &uri, &headers, "").await;
    assert_eq!(page.status, StatusCode::OK);
    assert!(page.text().contains(&format!("content=\"0;url={BASE}page\"")), "{}", page.text());
    assert!(!page.text().contains(&token) && page.headers["referrer-policy"] == "no-referrer");
    let cookie = page.headers["set-cookie"].to_str().unwrap();
    assert!(cookie.contains(&format!("Path={BASE};")) && cookie.ends_with("SameSite=Strict"), "{cookie}");
    assert_eq!(send(&router, Method::GET, &uri, &[], "").await.status, StatusCode::FOUND, "not a browser");
}

#[tokio::test]
async fn a_link_for_reading_refuses_everything_else() {
    let (backend, folder, api) = (Backend::echo().await, tempfile::tempdir().unwrap(), Api::new());
    let router = TestRouter::with_deps(config(&folder), backend.addr, api.deps()).await;
    let (_, token) = create(&router, json!({ "readOnly": true })).await;
    for method in [Method::GET, Method::HEAD, Method::OPTIONS] {
        assert_eq!(visit(&router, method, HOST, &token, &[]).await.status, StatusCode::OK);
    }
    let seen = backend.seen.lock().len();
    for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
        let reply = visit(&router, method, HOST, &token, &[]).await;
        assert!(reply.status == StatusCode::FORBIDDEN && reply.detail().contains("reading only"), "{reply:?}");
        let uri = format!("/page?token={token}");
        let reply = send(&router, Method::POST, &uri, &[("host", HOST)], "").await;
        assert_eq!(reply.status, StatusCode::FORBIDDEN, "also with the link itself");
    }
    let upgrade =
        [("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")];
    assert_eq!(visit(&router, Method::GET, HOST, &token, &upgrade).await.status, StatusCode::FORBIDDEN);
    assert_eq!(backend.seen.lock().len(), seen);
}

/// The hosts of sandboxes are of one site, so that browsers send the cookie with requests of each other's pages.
#[tokio::test]
async fn a_page_of_another_sandbox_cannot_use_the_session() {
    let (backend, folder, api) = (Backend::echo().await, tempfile::tempdir().unwrap(), Api::new());
    let router = TestRouter::with_deps(config(&folder), backend.addr, api.deps()).await;
    let (_, token) = create(&router, json!({})).await;
    let sibling = "http://3000-evil--default.boxes.example";
    for (headers, expected) in [
        (&[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "no-cors")][..], StatusCode::FORBIDDEN),
        (&[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "cors"), ("origin", sibling)], StatusCode::FORBIDDEN),
        (
            &[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")],
            StatusCode::FORBIDDEN,
        ),
        (
            &[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")],
            StatusCode::OK,
        ),
        (&[("sec-fetch-site", "same-origin"), ("sec-fetch-mode", "no-cors")], StatusCode::OK),
    ] {
        assert_eq!(visit(&router, Method::GET, HOST, &token, headers).await.status, expected, "{headers:?}");
    }
    let form = [("origin", sibling), ("sec-fetch-site", "same-site"), ("sec-fetch-mode", "navigate")];
    assert_eq!(visit(&router, Method::POST, HOST, &token, &form).await.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn impossible_links_and_the_daemons_ports_are_refused() {
    let (backend, folder, api) = (Backend::echo().await, tempfile::tempdir().unwrap(), Api::new());
    let router = TestRouter::with_deps(config(&folder), backend.addr, api.deps()).await;
    for wrong in [
        json!({ "ports": [] }),
        json!({ "ports": [0] }),
        json!({ "ports": [1, 2, 3, 4, 5, 6, 7, 8, 9] }),
        json!({ "ttlSeconds": 0 }),
        json!({ "ttlSeconds": 31 * 24 * 3600 }),
        json!({ "unknown": true }),
    ] {
        assert_eq!(post(&router, &[], wrong.clone()).await.status, StatusCode::BAD_REQUEST, "{wrong}");
    }
    for port in [8888, 49983, 49999, 9090] {
        let reply = post(&router, &[], json!({ "ports": [3000, port] })).await;
        assert!(reply.status == StatusCode::BAD_REQUEST && reply.detail().contains("--allow-daemon"), "{reply:?}");
    }
    assert_eq!(create(&router, json!({ "ports": [8080] })).await.0.urls[0].port, 8080, "not declared: a program's");
    create(&router, json!({ "ports": [8888], "allowDaemon": true })).await;
    let admin = format!("Bearer {ADMIN}");
    let headers = [("authorization", admin.as_str()), ("content-type", "application/json")];
    for (path, expected) in [
        ("/sandbox-links/default/none", StatusCode::NOT_FOUND),
        ("/sandbox-links/default/NONE", StatusCode::BAD_REQUEST),
        ("/sandbox-links/default", StatusCode::METHOD_NOT_ALLOWED),
    ] {
        let reply = send(&router, Method::POST, path, &headers, &wanted(json!({}))).await;
        assert_eq!(reply.status, expected, "{path}");
    }
    for _ in api.records().len()..32 {
        create(&router, json!({})).await;
    }
    assert_eq!(post(&router, &[], json!({})).await.status, StatusCode::CONFLICT, "the number is bounded");
}

#[tokio::test]
async fn only_users_create_links_and_no_page_does() {
    let (backend, folder, api) = (Backend::echo().await, tempfile::tempdir().unwrap(), Api::new());
    let router = TestRouter::with_deps(config(&folder), backend.addr, api.deps()).await;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let secret = Secret::from_file_bytes(SECRET).unwrap();
    let scoped = format!("Bearer {}", secret.mint("default", "box", Duration::from_secs(60), now).unwrap());
    let (link, token) = create(&router, json!({})).await;
    let own = format!("Bearer {token}");
    for (headers, expected) in [
        (vec![("authorization", scoped.as_str())], StatusCode::FORBIDDEN),
        (vec![("authorization", own.as_str())], StatusCode::FORBIDDEN),
        (vec![("authorization", "Bearer wrong")], StatusCode::UNAUTHORIZED),
        (vec![("origin", "https://boxes.example")], StatusCode::BAD_REQUEST),
        (vec![("sec-fetch-site", "same-origin")], StatusCode::BAD_REQUEST),
        (vec![("content-type", "text/plain")], StatusCode::BAD_REQUEST),
        // With a sandbox's name the path is the sandbox's own.
        (vec![("x-sandbox-id", "box")], StatusCode::OK),
    ] {
        assert_eq!(post(&router, &headers, json!({})).await.status, expected, "{headers:?}");
    }
    let uri = format!("/sandbox-links/default/box/{}", link.id);
    let reply = send(&router, Method::DELETE, &uri, &[("authorization", own.as_str())], "").await;
    assert_eq!((reply.status, api.records().len()), (StatusCode::FORBIDDEN, 1));
}

struct Grants;

#[async_trait]
impl AccessReview for Grants {
    async fn may_forward(&self, caller: &Caller, namespace: &str, _: &str) -> Result<bool, kube::Error> {
        Ok(caller.user == "alice" && namespace == "default")
    }
}

/// A request over a port-forward of this user.
async fn as_user(router: &TestRouter, user: &str, request: Request<Full<bytes::Bytes>>) -> (StatusCode, String) {
    let (ours, theirs) = tokio::io::duplex(16 * 1024);
    let caller = Arc::new(Caller { user: user.to_owned(), ..Caller::default() });
    let served = Arc::clone(&router.router);
    tokio::spawn(async move { served.serve_connection(theirs, ConnectionAuth::User(caller)).await });
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(ours)).await.unwrap();
    tokio::spawn(connection);
    let response = sender.send_request(request).await.unwrap();
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

/// The right that a port-forward needs is the right that a link needs.
#[tokio::test]
async fn users_create_and_revoke_links_where_they_may_forward_ports() {
    let (backend, folder, api) = (Backend::echo().await, tempfile::tempdir().unwrap(), Api::new());
    let deps = Deps { access_review: Some(Arc::new(Grants)), ..api.deps() };
    let router = TestRouter::with_deps(config(&folder), backend.addr, deps).await;
    let create = || {
        let request = Request::post("/sandbox-links/default/box").header("host", "localhost");
        request.header("content-type", "application/json").body(Full::from(wanted(json!({})))).unwrap()
    };
    assert_eq!(as_user(&router, "bob", create()).await.0, StatusCode::FORBIDDEN);
    assert!(api.records().is_empty());
    let (status, body) = as_user(&router, "alice", create()).await;
    assert_eq!(status, StatusCode::CREATED, "{body}");
    let link: CreatedLink = serde_json::from_str(&body).unwrap();
    assert_eq!(api.records()[0]["createdBy"], "alice");
    let delete = || {
        let request = Request::delete(format!("/sandbox-links/default/box/{}", link.id)).header("host", "localhost");
        request.body(Full::default()).unwrap()
    };
    assert_eq!(as_user(&router, "bob", delete()).await.0, StatusCode::FORBIDDEN);
    assert_eq!(as_user(&router, "alice", delete()).await.0, StatusCode::OK);
    assert!(api.records().is_empty());
    assert_eq!(as_user(&router, "alice", delete()).await.0, StatusCode::NOT_FOUND);
}

/// Streams events for ever, and echoes WebSocket messages.
/// Also counts the requests that it never answers.
pub(crate) async fn live_backend() -> (std::net::SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let hanging = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&hanging);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let count = Arc::clone(&count);
            tokio::spawn(async move {
                let mut head = [0; 16];
                stream.peek(&mut head).await.unwrap();
                if head.starts_with(b"GET /ws") {
                    let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
                    while let Some(Ok(message)) = socket.next().await {
                        if message.is_text() && socket.send(message).await.is_err() {
                            return;
                        }
                    }
                    return;
                }
                if head.starts_with(b"POST /hang") {
                    count.fetch_add(1, Ordering::Relaxed);
                    let _ = stream.read_to_end(&mut Vec::new()).await;
                    return;
                }
                let _ = stream.read(&mut [0; 4096]).await;
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
                let _ = stream.write_all(head.as_bytes()).await;
                let _ = stream.write_all(b"9\r\ndata: 1\n\n\r\n").await;
                // Open until the router closes it.
                let _ = stream.read(&mut [0; 1]).await;
            });
        }
    });
    (addr, hanging)
}

/// Reads what one event stream delivers; `None` when it has ended.
pub(crate) async fn event_stream(router: &TestRouter, token: &str) -> TcpStream {
    let mut stream = TcpStream::connect(router.addr).await.unwrap();
    let request = format!("GET /events HTTP/1.1\r\nHost: {HOST}\r\nCookie: session={token}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    while !seen.windows(7).any(|window| window == b"data: 1") {
        let count = tokio::time::timeout(TIMEOUT, stream.read_buf(&mut seen)).await.unwrap().unwrap();
        assert!(count > 0, "{}", String::from_utf8_lossy(&seen));
    }
    stream
}

pub(crate) type Socket = tokio_tungstenite::WebSocketStream<tokio_tungstenite::MaybeTlsStream<TcpStream>>;

pub(crate) async fn web_socket(router: &TestRouter, token: &str) -> Socket {
    let mut request = format!("ws://{}/ws", router.addr).into_client_request().unwrap();
    request.headers_mut().insert("host", HOST.parse().unwrap());
    request.headers_mut().insert("cookie", format!("session={token}").parse().unwrap());
    let (mut socket, _) = tokio_tungstenite::connect_async(request).await.unwrap();
    socket.send(Message::text("hello")).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::text("hello"));
    socket
}

/// Both connections end by themselves, the WebSocket with a close frame.
pub(crate) async fn both_end(mut stream: TcpStream, mut socket: Socket) {
    let ended = async {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        assert!(!rest.ends_with(b"0\r\n\r\n"), "an aborted stream is not a complete one");
        let close = socket.next().await.unwrap().unwrap();
        assert!(matches!(close, Message::Close(Some(frame)) if u16::from(frame.code) == 1001));
    };
    tokio::time::timeout(TIMEOUT, ended).await.expect("what a credential opened ends with it");
}

/// Revoked at one router, a link ends at every other one, and after a restart.
#[tokio::test]
async fn a_revoked_link_ends_everywhere_with_all_that_it_opened() {
    let ((backend, hanging), folder, api) = (live_backend().await, tempfile::tempdir().unwrap(), Api::new());
    let near = TestRouter::with_deps(config(&folder), backend, api.deps()).await;
    let far = TestRouter::with_deps(config(&folder), backend, api.deps()).await;
    let (kept, kept_token) = create(&near, json!({})).await;
    let (link, token) = create(&near, json!({})).await;
    let open = (event_stream(&far, &token).await, web_socket(&far, &token).await);
    let waiting = {
        let (far, token) = (far.addr, token.clone());
        tokio::spawn(async move {
            let request = Request::post("/hang").header("host", HOST).header("cookie", format!("session={token}"));
            crate::support::send(far, request.body(Full::from("x")).unwrap()).await.status
        })
    };
    eventually("the request reaches the sandbox", || hanging.load(Ordering::Relaxed) == 1).await;
    let mut kept_socket = web_socket(&far, &kept_token).await;
    assert_eq!(revoke(&near, "0000000000000000").await, StatusCode::NOT_FOUND);
    assert_eq!(revoke(&near, &link.id).await, StatusCode::OK);
    both_end(open.0, open.1).await;
    let unanswered = tokio::time::timeout(TIMEOUT, waiting).await.expect("a request without a response ends as well");
    assert_eq!(unanswered.unwrap(), StatusCode::UNAUTHORIZED);
    let third = TestRouter::with_deps(config(&folder), backend, api.deps()).await;
    for router in [&near, &far, &third] {
        let reply = visit(router, Method::GET, HOST, &token, &[]).await;
        assert_eq!(
            (reply.status, &*reply.detail()),
            (StatusCode::UNAUTHORIZED, "this link was revoked, or its sandbox was deleted")
        );
        let page = visit(router, Method::GET, HOST, &token, &[("accept", "text/html")]).await;
        assert!(page.status == StatusCode::UNAUTHORIZED && page.text().contains("<h1>This link was revoked</h1>"));
    }
    kept_socket.send(Message::text("still")).await.unwrap();
    assert_eq!(kept_socket.next().await.unwrap().unwrap(), Message::text("still"), "{} was not revoked", kept.id);
}

#[tokio::test]
async fn an_expired_link_ends_with_all_that_it_opened() {
    let ((backend, _), folder, api) = (live_backend().await, tempfile::tempdir().unwrap(), Api::new());
    let router = TestRouter::with_deps(config(&folder), backend, api.deps()).await;
    let (_, token) = create(&router, json!({ "ttlSeconds": 3 })).await;
    let open = (event_stream(&router, &token).await, web_socket(&router, &token).await);
    both_end(open.0, open.1).await;
    let reply = visit(&router, Method::GET, HOST, &token, &[]).await;
    assert_eq!((reply.status, &*reply.detail()), (StatusCode::UNAUTHORIZED, "this link has expired"));
    let page = visit(&router, Method::GET, HOST, &token, &[("accept", "text/html")]).await;
    assert!(page.text().contains("<h1>This link has expired</h1>"), "{}", page.text());
    // Its record goes with the next change.
    create(&router, json!({})).await;
    assert_eq!(api.records().len(), 1);
}

/// Who presents a link gets no more than the link also where nothing is required.
#[tokio::test]
async fn a_router_without_authorisation_keeps_to_the_link() {
    let (backend, folder, api) = (Backend::echo().await, tempfile::tempdir().unwrap(), Api::new());
    let open = RouterConfig { authz: AuthzConfig::AllowAll, ..config(&folder) };
    let router = TestRouter::with_deps(open, backend.addr, api.deps()).await;
    let (_, token) = create(&router, json!({ "readOnly": true })).await;
    assert_eq!(visit(&router, Method::GET, HOST, &token, &[]).await.status, StatusCode::OK);
    assert_eq!(visit(&router, Method::POST, HOST, &token, &[]).await.status, StatusCode::FORBIDDEN);
    let other = "8888-box--default.boxes.example";
    assert_eq!(visit(&router, Method::GET, other, &token, &[]).await.status, StatusCode::FORBIDDEN);
}

/// Nobody can tell whether a link was revoked: it is refused.
#[tokio::test]
async fn a_link_is_refused_while_the_api_does_not_answer() {
    let (backend, folder, api) = (Backend::echo().await, tempfile::tempdir().unwrap(), Api::new());
    let router = TestRouter::with_deps(config(&folder), backend.addr, api.deps()).await;
    let (_, token) = create(&router, json!({})).await;
    let service = tower::service_fn(|_: Request<kube::client::Body>| async {
        let status = json!({ "kind": "Status", "status": "Failure", "reason": "InternalError", "code": 500 });
        Ok::<_, kube::Error>(
            Response::builder().status(500).body(Full::<bytes::Bytes>::from(status.to_string())).unwrap(),
        )
    });
    let down = Deps { client: Some(kube::Client::new(service, "default")), ..Deps::detached() };
    let router = TestRouter::with_deps(config(&folder), backend.addr, down).await;
    assert_eq!(visit(&router, Method::GET, HOST, &token, &[]).await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(backend.seen.lock().is_empty());
}

#[tokio::test]
async fn a_browser_is_told_in_plain_words_that_nothing_listens() {
    let (backend, folder, api) = (Backend::echo().await, tempfile::tempdir().unwrap(), Api::new());
    let router = TestRouter::with_deps(config(&folder), backend.addr, api.deps()).await;
    let (_, token) = create(&router, json!({})).await;
    *router.connect.outcome.lock() = DialOutcome::Fails(std::io::ErrorKind::ConnectionRefused);
    let page = visit(&router, Method::GET, HOST, &token, &[("accept", "text/html")]).await;
    assert_eq!(page.status, StatusCode::BAD_GATEWAY);
    assert!(page.text().contains("<h1>Nothing listens on port 3000 of box</h1>"), "{}", page.text());
    assert_eq!(page.headers["x-content-type-options"], "nosniff");
    let page = send(&router, Method::GET, "/", &[("host", HOST), ("accept", "text/html")], "").await;
    assert!(page.text().contains("agent-sandbox url box 3000"), "{}", page.text());
}
