//! Suspended Sandboxes that requests wake, and idle ones that are reported: against an API with one Sandbox, which a
//! real `kube::Client` reads and patches.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_api::keys::annotations;
use agent_sandbox_api::sleep::IdlePolicy;
use agent_sandbox_protocol::e2b::{ENVD_PORT, INTERPRETER_PORT, Token};
use agent_sandbox_protocol::scoped_token::Secret;
use agent_sandbox_router::{AuthzConfig, Deps, Modes, PodFacts, RouterConfig, StaticToken, Traffic};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::*;

/// An API with the Sandbox `box`, and any number of others like it to read, `like-box-…`, which are not used.
#[derive(Clone)]
pub(crate) struct Api(Arc<Mutex<State>>);

struct State {
    sandbox: Value,
    /// The annotations of each patch that was accepted.
    patches: Vec<Value>,
    refused: usize,
    reads: usize,
    /// Changes the Sandbox after a read, as another writer would.
    after_read: Option<Value>,
    /// Patches fail, and are counted.
    failing: Option<usize>,
}

impl Api {
    pub(crate) fn with(mode: &str, annotated: Value) -> Self {
        let ready = json!({ "type": "Ready", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2020-01-01T00:00:00Z" });
        let sandbox = json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
            "metadata": { "name": "box", "namespace": "default", "uid": "uid-box", "resourceVersion": "1", "annotations": annotated },
            "spec": { "operatingMode": mode, "podTemplate": { "spec": {} } },
            "status": { "conditions": [ready] },
        });
        Self(Arc::new(Mutex::new(State {
            sandbox,
            patches: Vec::new(),
            refused: 0,
            reads: 0,
            after_read: None,
            failing: None,
        })))
    }

    fn answer(&self, method: &Method, path: &str, body: &[u8]) -> Response<Full<bytes::Bytes>> {
        let mut state = self.0.lock();
        let name = path.strip_prefix("/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes/").unwrap_or_default();
        if name.starts_with("like-box-") && *method == Method::GET {
            let mut like = state.sandbox.clone();
            like["metadata"]["name"] = name.into();
            like["metadata"]["uid"] = format!("uid-{name}").into();
            like["metadata"]["annotations"][annotations::LAST_ACTIVITY_AT] = "2020-01-01T00:00:00Z".into();
            return Response::new(Full::from(like.to_string()));
        }
        if name != "box" {
            let status =
                json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": path });
            return Response::builder().status(404).body(Full::from(status.to_string())).unwrap();
        }
        if *method == Method::GET {
            state.reads += 1;
            let answer = state.sandbox.to_string();
            if let Some(change) = state.after_read.take() {
                apply(&mut state.sandbox, &change);
            }
            return Response::new(Full::from(answer));
        }
        assert_eq!(*method, Method::PATCH);
        if let Some(failed) = &mut state.failing {
            *failed += 1;
            let status = json!({ "kind": "Status", "status": "Failure", "reason": "InternalError", "code": 500, "message": "no" });
            return Response::builder().status(500).body(Full::from(status.to_string())).unwrap();
        }
        let patch: Value = serde_json::from_slice(body).unwrap();
        assert!(patch.get("spec").is_none(), "the router writes annotations only: {patch}");
        let metadata = &patch["metadata"];
        let differs = |field: &str| !metadata[field].is_null() && metadata[field] != state.sandbox["metadata"][field];
        if differs("uid") || differs("resourceVersion") {
            state.refused += 1;
            let status = json!({ "kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409, "message": "changed" });
            return Response::builder().status(409).body(Full::from(status.to_string())).unwrap();
        }
        let annotated = metadata["annotations"].clone();
        apply(&mut state.sandbox, &json!({ "metadata": { "annotations": annotated } }));
        state.patches.push(annotated);
        Response::new(Full::from(state.sandbox.to_string()))
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
        Deps { client: Some(kube::Client::new(service, "default")), sleep: true, ..Deps::detached() }
    }

    /// How often each annotation was written.
    pub(crate) fn writes(&self, key: &str) -> usize {
        self.0.lock().patches.iter().filter(|patch| patch.get(key).is_some()).count()
    }

    fn edit(&self, change: Value) {
        apply(&mut self.0.lock().sandbox, &change);
    }
}

fn apply(sandbox: &mut Value, change: &Value) {
    fn merge(target: &mut Value, patch: &Value) {
        match patch {
            Value::Object(fields) => {
                for (key, value) in fields {
                    merge(&mut target[key], value);
                }
            }
            other => *target = other.clone(),
        }
    }
    merge(sandbox, change);
    let version: u64 = sandbox["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    sandbox["metadata"]["resourceVersion"] = (version + 1).to_string().into();
}

/// A router whose index has no Pod: the Sandbox is suspended.
async fn asleep(config: RouterConfig, api: &Api, backend: &Backend) -> Arc<TestRouter> {
    asleep_before(config, api, backend.addr).await
}

pub(crate) async fn asleep_before(config: RouterConfig, api: &Api, sandbox: SocketAddr) -> Arc<TestRouter> {
    let router = TestRouter::with_deps(config, sandbox, api.deps()).await;
    router.router.index().replace_all(Vec::new());
    Arc::new(router)
}

pub(crate) fn by_idleness() -> Value {
    json!({ annotations::SUSPENDED_BY: "idle" })
}

/// What the controller does with a wake, as far as routers see it.
pub(crate) fn wakes(api: &Api, router: &TestRouter, facts: PodFacts) {
    api.edit(json!({ "spec": { "operatingMode": "Running" }, "metadata": { "annotations": { annotations::WAKE_REQUESTED_AT: null } } }));
    router.router.index().apply(facts);
}

#[tokio::test]
async fn a_burst_of_requests_wakes_a_sandbox_once_and_all_are_answered() {
    let (backend, api) = (Backend::echo().await, Api::with("Suspended", by_idleness()));
    let router = asleep(quiet(), &api, &backend).await;
    let burst: Vec<_> = (0..10)
        .map(|_| {
            let router = Arc::clone(&router);
            tokio::spawn(async move { router.get("/hello").await.status })
        })
        .collect();
    eventually("the wake is requested", || api.writes(annotations::WAKE_REQUESTED_AT) == 1).await;
    assert!(backend.seen.lock().is_empty());
    wakes(&api, &router, pod("box", POD_IP));
    for request in burst {
        assert_eq!(request.await.unwrap(), 200);
    }
    assert_eq!(api.writes(annotations::WAKE_REQUESTED_AT), 1);
    assert_eq!(backend.seen.lock().len(), 10, "each request arrives once");
    assert!(router.router.render_metrics().contains("waited_for_wake_total{sandbox_namespace="));
}

/// Wakes the Sandbox once it is asked for.
pub(crate) async fn when_asked(api: &Api, router: &TestRouter) {
    eventually("the wake is requested", || api.writes(annotations::WAKE_REQUESTED_AT) == 1).await;
    wakes(api, router, pod("box", POD_IP));
}

/// The body of the request begins before the wake and ends after the response has begun: nothing of it is lost or held.
#[tokio::test]
async fn streams_in_both_directions_wake_a_sandbox() {
    async fn expect(stream: &mut TcpStream, what: &str) {
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains(what) {
            let mut byte = [0];
            let read = tokio::time::timeout(TIMEOUT, stream.read_exact(&mut byte)).await.expect("it arrives in time");
            read.unwrap_or_else(|error| panic!("{error} before {what:?}: {}", String::from_utf8_lossy(&seen)));
            seen.push(byte[0]);
        }
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let api = Api::with("Suspended", by_idleness());
    let router = asleep_before(quiet(), &api, listener.local_addr().unwrap()).await;
    let sandbox = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        expect(&mut stream, "first").await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n").await.unwrap();
        expect(&mut stream, "second").await;
        stream.write_all(b"3\r\ntwo\r\n0\r\n\r\n").await.unwrap();
    });
    let mut client = TcpStream::connect(router.addr).await.unwrap();
    let head = b"POST / HTTP/1.1\r\nHost: r\r\nX-Sandbox-ID: box\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n";
    client.write_all(head).await.unwrap();
    when_asked(&api, &router).await;
    expect(&mut client, "one").await;
    client.write_all(b"6\r\nsecond\r\n0\r\n\r\n").await.unwrap();
    expect(&mut client, "two").await;
    sandbox.await.unwrap();
    assert_eq!(api.writes(annotations::WAKE_REQUESTED_AT), 1);
}

#[tokio::test]
async fn a_sandbox_that_its_user_suspended_is_not_woken() {
    for annotated in [json!({}), json!({ annotations::SUSPENDED_BY: "idle", annotations::WAKE: "Never" })] {
        let (backend, api) = (Backend::echo().await, Api::with("Suspended", annotated));
        let router = asleep(quiet(), &api, &backend).await;
        let reply = router.get("/").await;
        assert_eq!(reply.status, 502);
        assert!(reply.text().contains("it is suspended; resume it first"), "{}", reply.text());
        assert!(api.0.lock().patches.is_empty());
    }
}

#[tokio::test]
async fn a_wake_that_takes_too_long_is_a_timeout_that_says_so() {
    let (backend, api) = (Backend::echo().await, Api::with("Suspended", by_idleness()));
    let router = asleep(quiet(), &api, &backend).await;
    let reply = router.get_with("/", &[("x-sandbox-timeout", "1")]).await;
    assert_eq!(reply.status, 504);
    assert!(reply.text().contains("is being resumed"), "{}", reply.text());
}

/// Who may not reach a Sandbox cannot wake it: the API is not even asked.
#[tokio::test]
async fn a_caller_without_access_wakes_nothing() {
    let (backend, api) = (Backend::echo().await, Api::with("Suspended", by_idleness()));
    let modes = Modes { static_token: Some(StaticToken("right".to_owned())), ..Modes::default() };
    let config = RouterConfig { authz: AuthzConfig::AnyOf(modes), ..quiet() };
    let router = asleep(config, &api, &backend).await;
    assert_eq!(router.get("/").await.status, 401);
    assert_eq!(router.get_with("/", &[("authorization", "Bearer wrong")]).await.status, 401);
    let state = api.0.lock();
    assert_eq!((state.reads, state.patches.len()), (0, 0));
}

/// A UID that is not the Sandbox's names another one, which is not suspended.
#[tokio::test]
async fn a_request_for_another_uid_wakes_nothing() {
    let (backend, api) = (Backend::echo().await, Api::with("Suspended", by_idleness()));
    let router = asleep(quiet(), &api, &backend).await;
    assert_eq!(router.get_with("/", &[("x-sandbox-uid", "another")]).await.status, 502);
    assert!(api.0.lock().patches.is_empty());
}

/// Two routers: the second one's write is refused, because the first one's changed the Sandbox. It reads again and waits.
#[tokio::test]
async fn routers_that_wake_the_same_sandbox_do_not_conflict() {
    let (backend, api) = (Backend::echo().await, Api::with("Suspended", by_idleness()));
    let (one, two) = (asleep(quiet(), &api, &backend).await, asleep(quiet(), &api, &backend).await);
    let send = |router: &Arc<TestRouter>| {
        let router = Arc::clone(router);
        tokio::spawn(async move { router.get("/").await.status })
    };
    // Another writer is faster between read and write, too.
    api.0.lock().after_read = Some(json!({ "metadata": { "annotations": { "other": "x" } } }));
    let answers = [send(&one), send(&two)];
    eventually("the wake is requested", || api.writes(annotations::WAKE_REQUESTED_AT) == 1).await;
    wakes(&api, &one, pod("box", POD_IP));
    two.router.index().apply(pod("box", POD_IP));
    for answer in answers {
        assert_eq!(answer.await.unwrap(), 200);
    }
    assert_eq!(api.writes(annotations::WAKE_REQUESTED_AT), 1);
}

fn idle_pod(seconds: u64, processes_count: bool) -> PodFacts {
    PodFacts { idle: Some(IdlePolicy { after: Duration::from_secs(seconds), processes_count }), ..pod("box", POD_IP) }
}

/// The fence: the first request is recorded before it is forwarded, later ones within a third of the idle time are not.
#[tokio::test]
async fn use_is_recorded_before_the_first_request_and_then_rarely() {
    let (backend, api) = (Backend::echo().await, Api::with("Running", json!({})));
    let router = asleep(quiet(), &api, &backend).await;
    router.router.index().apply(idle_pod(600, true));
    assert_eq!(router.get("/sandbox/v1/ports").await.status, 200);
    assert_eq!(api.writes(annotations::LAST_ACTIVITY_AT), 0, "looking at the ports is no use");
    for _ in 0..20 {
        assert_eq!(router.get("/").await.status, 200);
    }
    assert_eq!(api.writes(annotations::LAST_ACTIVITY_AT), 1);
    router.router.index().apply(pod("other", "10.0.0.8"));
    assert_eq!(api.writes(annotations::LAST_ACTIVITY_AT), 1, "a Sandbox without an idle time costs no write");
}

/// Without a record the Sandbox might be suspended during the request: it is refused, and may be repeated.
#[tokio::test]
async fn a_request_whose_use_cannot_be_recorded_is_refused_and_may_be_repeated() {
    let (backend, api) = (Backend::echo().await, Api::with("Running", json!({})));
    api.0.lock().failing = Some(0);
    let router = asleep(quiet(), &api, &backend).await;
    router.router.index().apply(idle_pod(600, true));
    let refused = router.get("/").await;
    assert_eq!((refused.status.as_u16(), refused.headers["retry-after"].to_str().unwrap()), (503, "1"));
    assert!(refused.detail().contains("could not be recorded"), "{}", refused.text());
    assert!(backend.seen.lock().is_empty(), "nothing was forwarded");
    let failed = api.0.lock().failing.take();
    assert_eq!(failed, Some(2), "the write is repeated once");
    assert_eq!(router.get("/").await.status, 200);
    assert_eq!(api.writes(annotations::LAST_ACTIVITY_AT), 1);
}

/// A deleted Sandbox is like one without a Pod, not like an API that fails.
#[tokio::test]
async fn a_request_to_a_sandbox_that_was_deleted_is_not_forwarded() {
    let (backend, api) = (Backend::echo().await, Api::with("Running", json!({})));
    let router = asleep(quiet(), &api, &backend).await;
    router.router.index().apply(PodFacts { sandbox: "gone".to_owned(), ..idle_pod(600, true) });
    let request = Request::get("/").header("x-sandbox-id", "gone").body(Full::default()).unwrap();
    assert_eq!(router.send(request).await.status, 502);
    assert!(backend.seen.lock().is_empty());
}

const SECRET: [u8; 32] = [b'k'; 32];

/// A router for E2B's clients whose index has no Pod.
async fn for_e2b(api: &Api, backend: &Backend) -> TestRouter {
    let secret = Secret::from_file_bytes(&SECRET).unwrap();
    let modes = Modes { static_token: Some(StaticToken("right".to_owned())), ..Modes::default() };
    let config = RouterConfig { authz: AuthzConfig::AnyOf(modes), ..quiet() };
    let router = TestRouter::with_deps(config, backend.addr, Deps { e2b: Some(secret), ..api.deps() }).await;
    router.router.index().replace_all(Vec::new());
    router
}

/// A request as E2B's clients send it, with the sandbox's own token.
async fn by_e2b(router: &TestRouter, port: u16, path: &str) -> Reply {
    let token = Token::Access.derive(&Secret::from_file_bytes(&SECRET).unwrap(), "default", "box");
    let request = Request::get(path)
        .header("e2b-sandbox-id", "box--default")
        .header("e2b-sandbox-port", port)
        .header("x-access-token", token);
    router.send(request.body(Full::default()).unwrap()).await
}

/// E-120
#[tokio::test]
async fn a_paused_sandbox_is_not_found_for_e2b_clients() {
    let (backend, api) = (Backend::echo().await, Api::with("Suspended", json!({})));
    let router = for_e2b(&api, &backend).await;
    for port in [ENVD_PORT, INTERPRETER_PORT] {
        let reply = by_e2b(&router, port, "/anything").await;
        assert_eq!(reply.status, 502);
        let body: Value = serde_json::from_slice(&reply.body).unwrap();
        let expected = json!({ "sandboxId": "box--default", "message": "The sandbox was not found", "code": 502 });
        assert_eq!(body, expected, "{port}");
    }
    assert!(api.0.lock().patches.is_empty());
}

/// The body of a refused request is not read, so that its connection ends: a client that does not know would lose its
/// next request on it.
#[tokio::test]
async fn a_refusal_of_a_request_with_a_body_says_that_the_connection_ends() {
    let (backend, api) = (Backend::echo().await, Api::with("Suspended", json!({})));
    let router = asleep(quiet(), &api, &backend).await;
    let send = |body: &'static str| {
        let request = Request::post("/").header("x-sandbox-id", "box").body(Full::from(body)).unwrap();
        router.send(request)
    };
    let (with, without) = (send("body").await, send("").await);
    assert_eq!((with.status.as_u16(), without.status.as_u16()), (502, 502));
    assert_eq!(with.headers["connection"], "close");
    assert!(!without.headers.contains_key("connection"), "{:?}", without.headers);
}

/// E-104, E-120: questions for the state of a sandbox are no use of it.
#[tokio::test]
async fn health_and_metrics_of_e2b_neither_wake_a_sandbox_nor_keep_it_awake() {
    let questions = [(ENVD_PORT, "/health"), (ENVD_PORT, "//metrics/"), (INTERPRETER_PORT, "/health")];
    let (backend, api) = (Backend::echo().await, Api::with("Suspended", by_idleness()));
    let router = for_e2b(&api, &backend).await;
    for (port, path) in questions {
        let reply = by_e2b(&router, port, path).await;
        assert_eq!(reply.status, 502, "{port}{path}");
        assert!(reply.text().contains("The sandbox was not found"), "{}", reply.text());
    }
    assert!(api.0.lock().patches.is_empty(), "nothing is woken");

    let (backend, api) = (Backend::echo().await, Api::with("Running", json!({})));
    let router = for_e2b(&api, &backend).await;
    router.router.index().apply(PodFacts { e2b: Some(Traffic::Public), ..idle_pod(600, true) });
    for (port, path) in questions {
        assert_eq!(by_e2b(&router, port, path).await.status, 200, "{port}{path}");
    }
    assert_eq!(api.writes(annotations::LAST_ACTIVITY_AT), 0, "nothing is recorded");
    assert_eq!(by_e2b(&router, ENVD_PORT, "/envs").await.status, 200);
    assert_eq!(api.writes(annotations::LAST_ACTIVITY_AT), 1, "control: other requests are use");
}

/// The record of a request finds the Sandbox suspended: the request is not forwarded to the Pod that is about to go, but
/// wakes the Sandbox and is answered by the next Pod.
#[tokio::test]
async fn a_request_that_meets_a_suspension_is_served_by_the_next_pod() {
    let (backend, api) = (Backend::echo().await, Api::with("Suspended", by_idleness()));
    let router = asleep(quiet(), &api, &backend).await;
    router.router.index().apply(idle_pod(600, true));
    let request = {
        let router = Arc::clone(&router);
        tokio::spawn(async move { router.get("/").await.status })
    };
    eventually("the wake is requested", || api.writes(annotations::WAKE_REQUESTED_AT) == 1).await;
    assert!(backend.seen.lock().is_empty(), "nothing reached the Pod that is about to go");
    router.router.index().remove("default", "box-pod");
    let next = PodFacts { pod_uid: "next".to_owned(), ips: vec!["10.0.0.99".parse().unwrap()], ..idle_pod(600, true) };
    wakes(&api, &router, next);
    assert_eq!(request.await.unwrap(), 200);
    assert_eq!(*router.connect.dialled.lock(), ["10.0.0.99:8888".parse().unwrap()]);
}

/// A Sandbox is reported as idle if its daemon runs no command; without an answer it is not.
#[tokio::test]
async fn only_a_sandbox_without_commands_is_reported_as_idle() {
    let process = |running: bool| {
        json!({ "processes": [{
        "id": 1, "pid": 2, "argv": ["sleep"], "running": running, "terminal": false, "exitCode": null, "signal": null,
        "timedOut": false, "startedAt": "t", "endedAt": null, "outputStart": 0, "outputEnd": 0,
    }] })
    };
    for (status, body, processes_count, idle) in [
        (200, json!({ "processes": [] }), true, true),
        (200, process(false), true, true),
        (200, process(true), true, false),
        (404, json!({}), true, false),
        (404, json!({}), false, true),
    ] {
        let answer = body.to_string();
        let backend =
            Backend::answering(move |_| Response::builder().status(status).body(Full::from(answer.clone())).unwrap())
                .await;
        let api = Api::with("Running", json!({ annotations::LAST_ACTIVITY_AT: "2020-01-01T00:00:00Z" }));
        let router = asleep(quiet(), &api, &backend).await;
        router.router.index().apply(idle_pod(1, processes_count));
        if idle {
            eventually("it is reported", || api.writes(annotations::IDLE_REPORTED_AT) > 0).await;
        } else if status == 200 {
            eventually("its use is recorded", || api.writes(annotations::LAST_ACTIVITY_AT) > 1).await;
            assert_eq!(api.writes(annotations::IDLE_REPORTED_AT), 0, "{body}");
        } else {
            eventually("it is asked several times", || backend.seen.lock().len() > 2).await;
            assert_eq!(api.writes(annotations::IDLE_REPORTED_AT), 0, "{body}");
        }
        if processes_count {
            assert!(backend.seen.lock().iter().all(|seen| seen.target == "/sandbox/v1/processes"));
        }
    }
}

/// A request that takes several idle times: its use is recorded again and again, and nothing is reported.
#[tokio::test]
async fn an_open_request_keeps_a_sandbox_awake() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let api = Api::with("Running", json!({ annotations::LAST_ACTIVITY_AT: "2020-01-01T00:00:00Z" }));
    // Accepts and never answers.
    let router = TestRouter::with_deps(quiet(), listener.local_addr().unwrap(), api.deps()).await;
    router.router.index().replace_all(vec![idle_pod(1, false)]);
    let router = Arc::new(router);
    let request = {
        let router = Arc::clone(&router);
        tokio::spawn(async move { router.get_with("/", &[("x-sandbox-timeout", "30")]).await.status })
    };
    eventually("several records", || api.writes(annotations::LAST_ACTIVITY_AT) > 5).await;
    assert_eq!(api.writes(annotations::IDLE_REPORTED_AT), 0);
    request.abort();
    let _ = request.await;
    eventually("it is idle afterwards", || api.writes(annotations::IDLE_REPORTED_AT) > 0).await;
}

/// Checks that wait for sandboxes without an answer do not delay the record of a Sandbox in use, which another router
/// would report as idle.
#[tokio::test]
async fn sandboxes_that_hang_do_not_delay_records() {
    const CONCURRENT_CHECKS: usize = 16;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let api = Api::with("Running", json!({ annotations::LAST_ACTIVITY_AT: "2020-01-01T00:00:00Z" }));
    // Accepts and never answers.
    let router = Arc::new(TestRouter::with_deps(quiet(), listener.local_addr().unwrap(), api.deps()).await);
    let policy = Some(IdlePolicy { after: Duration::from_secs(1), processes_count: true });
    let hanging = (0..2 * CONCURRENT_CHECKS)
        .map(|number| PodFacts { idle: policy, ..pod(&format!("like-box-{number}"), &format!("10.0.1.{number}")) });
    router.router.index().replace_all(hanging.chain([idle_pod(1, true)]).collect());
    let request = {
        let router = Arc::clone(&router);
        tokio::spawn(async move { router.get_with("/", &[("x-sandbox-timeout", "60")]).await.status })
    };
    let checked = || router.dialled().iter().filter(|address| address.ip() != ip(POD_IP)).count();
    eventually("all checks wait", || checked() == CONCURRENT_CHECKS).await;
    let before = api.writes(annotations::LAST_ACTIVITY_AT);
    eventually("several records", || api.writes(annotations::LAST_ACTIVITY_AT) > before + 2).await;
    assert_eq!(checked(), CONCURRENT_CHECKS, "the checks wait still");
    request.abort();
}

/// An exec may begin before the router has heard of its Pod, or while the Pod is not reachable.
#[tokio::test]
async fn a_session_with_a_pod_that_is_not_known_yet_keeps_its_sandbox_awake() {
    let backend = Backend::echo().await;
    let api = Api::with("Running", json!({ annotations::LAST_ACTIVITY_AT: "2020-01-01T00:00:00Z" }));
    let router = asleep(quiet(), &api, &backend).await;
    let session = router.router.begin_session("default", "box-pod").await.unwrap();
    router.router.index().apply(idle_pod(1, false));
    eventually("several records", || api.writes(annotations::LAST_ACTIVITY_AT) > 5).await;
    assert_eq!(api.writes(annotations::IDLE_REPORTED_AT), 0);
    drop(session);
    eventually("it is idle afterwards", || api.writes(annotations::IDLE_REPORTED_AT) > 0).await;
}
