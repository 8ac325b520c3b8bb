//! The controller as a process: flags, TLS to the API, election, probes, metrics and an orderly end.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use agent_sandbox_api::{conditions::ConditionType, v1beta1::Sandbox};
use agent_sandbox_controller::{Config, Controller, ControllerError, Flags, api_client::connections, run_process};
use agent_sandbox_testkit::{ControllerFixture, eventually};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Namespace, ResourceQuota},
};
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

const LEASE: &str = "a3317529.agent-sandbox.x-k8s.io";
/// Generous, for a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(30);

struct Served {
    bench: ControllerFixture,
    api: agent_sandbox_testkit::ServedApi,
}

async fn serve() -> Served {
    let bench = ControllerFixture::start().await.expect("a workbench");
    let api = bench.serve().await.expect("listens");
    Served { bench, api }
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").expect("binds").local_addr().expect("bound").port()
}

async fn get(port: u16, path: &str) -> Option<String> {
    get_from(port, "x", path).await
}

async fn get_from(port: u16, host: &str, path: &str) -> Option<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").as_bytes())
        .await
        .ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await.ok()?;
    Some(response)
}

/// S-215, S-225: started from flags, the controller leads, works over TLS, serves its endpoints, and releases the
/// lease.
#[tokio::test]
async fn s_215_s_225_a_process_from_start_to_end() {
    let served = serve().await;
    let (metrics, health) = (free_port(), free_port());
    let arguments = [
        "controller".to_owned(),
        format!("--kubeconfig={}", served.api.kubeconfig.display()),
        "--leader-election-namespace=default".to_owned(),
        "--enable-webhook=false".to_owned(),
        format!("--metrics-bind-address=127.0.0.1:{metrics}"),
        format!("-health-probe-bind-address=127.0.0.1:{health}"),
        "--extensions".to_owned(),
    ];
    let flags = Flags::parse_from_go(arguments).expect("parses");
    let shutdown = CancellationToken::new();
    let process = tokio::spawn(run_process(flags, shutdown.clone()));

    let sandboxes: Api<Sandbox> = Api::namespaced(served.bench.cluster.client(), "default");
    let sandbox = json!({ "metadata": { "name": "over-tls" }, "spec": { "podTemplate": { "spec": { "containers": [{ "name": "c", "image": "i" }] } } } });
    sandboxes.create(&PostParams::default(), &serde_json::from_value(sandbox).expect("valid")).await.expect("created");
    eventually("the Sandbox is Ready", || async {
        let sandbox = sandboxes.get("over-tls").await.expect("there");
        match sandbox.condition(ConditionType::Ready) {
            Some(ready) if ready.status == "True" => Ok(()),
            _ => Err(sandbox.status),
        }
    })
    .await;
    let leases: Api<Lease> = Api::namespaced(served.bench.cluster.client(), "default");
    let holder = || async {
        leases.get(LEASE).await.expect("there").spec.and_then(|spec| spec.holder_identity).unwrap_or_default()
    };
    assert!(holder().await.contains('_'));
    let rebound = get_from(metrics, "evil.example", "/metrics").await.expect("answered");
    assert!(rebound.starts_with("HTTP/1.1 421") && !rebound.contains("agent_sandboxes"), "{rebound}");
    let page = get(metrics, "/metrics").await.expect("served");
    assert!(page.contains("controller_runtime_reconcile_total{controller=\"sandbox\",result=\"success\"}"), "{page}");
    assert!(page.contains("agent_sandboxes{namespace=\"default\",ready_condition=\"true\""), "{page}");
    assert!(page.contains(&format!("leader_election_master_status{{name=\"{LEASE}\"}} 1")), "{page}");
    for path in ["/healthz", "/readyz", "/healthz/healthz", "/readyz/readyz"] {
        assert!(get(health, path).await.expect("served").starts_with("HTTP/1.1 200"), "{path}");
    }
    shutdown.cancel();
    tokio::time::timeout(Duration::from_secs(10), process)
        .await
        .expect("in time")
        .expect("no panic")
        .expect("in order");
    assert_eq!(holder().await, "", "released");
    assert!(get(health, "/healthz").await.is_none(), "nothing listens any more");
}

/// What the controller creates, and what it is refused, is in its audit log in the form of the router's records.
#[tokio::test]
async fn a_controllers_writes_are_in_its_audit_log() {
    let served = serve().await;
    let client = served.bench.cluster.client();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("audit.jsonl");
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let full: Namespace = serde_json::from_value(json!({ "metadata": { "name": "full" } })).expect("valid");
    namespaces.create(&PostParams::default(), &full).await.expect("created");
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), "full");
    let quota = json!({ "metadata": { "name": "none" }, "spec": { "hard": { "pods": "0" } } });
    quotas.create(&PostParams::default(), &serde_json::from_value(quota).expect("valid")).await.expect("created");
    let arguments = [
        "controller".to_owned(),
        format!("--kubeconfig={}", served.api.kubeconfig.display()),
        "--leader-elect=false".to_owned(),
        "--enable-webhook=false".to_owned(),
        "--metrics-bind-address=0".to_owned(),
        "--health-probe-bind-address=0".to_owned(),
        format!("--audit-log={}", file.display()),
    ];
    let flags = Flags::parse_from_go(arguments).expect("parses");
    let shutdown = CancellationToken::new();
    let process = tokio::spawn(run_process(flags, shutdown.clone()));
    let template = json!({ "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    let sandbox = json!({ "metadata": { "name": "box" }, "spec": { "podTemplate": template } });
    for (namespace, ready) in [("default", "True"), ("full", "False")] {
        let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
        let sandbox = serde_json::from_value(sandbox.clone()).expect("valid");
        sandboxes.create(&PostParams::default(), &sandbox).await.expect("created");
        eventually(namespace, || async {
            let sandbox = sandboxes.get("box").await.expect("there");
            match sandbox.condition(ConditionType::Ready) {
                Some(found) if found.status == ready => Ok(()),
                _ => Err(sandbox.status),
            }
        })
        .await;
    }
    // The log is complete once the process has ended.
    shutdown.cancel();
    process.await.expect("no panic").expect("in order");
    let text = std::fs::read_to_string(&file).expect("written");
    let records: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |namespace: &str, decision: &str| -> Vec<&Value> {
        let pods = records.iter().filter(|record| record["resource"] == "pods" && record["namespace"] == namespace);
        pods.filter(|record| record["decision"] == decision).collect()
    };
    let created = of("default", "allow");
    assert_eq!(created.len(), 1, "{text}");
    let expected = json!({
        "source": "controller", "action": "create", "name": "box", "status": 201, "reason": "for Sandbox box",
    });
    for (member, value) in expected.as_object().expect("an object") {
        assert_eq!(&created[0][member], value, "{member} of {}", created[0]);
    }
    assert!(created[0]["user"].as_str().is_some_and(|user| !user.is_empty()), "{}", created[0]);
    let refused = of("full", "deny");
    assert!(!refused.is_empty() && of("full", "allow").is_empty(), "{text}");
    assert_eq!((&refused[0]["action"], &refused[0]["status"]), (&json!("create"), &json!(403)));
    assert!(refused[0]["reason"].as_str().is_some_and(|reason| reason.contains("exceeded quota")), "{}", refused[0]);
}

/// Two replicas: only one writes; when it stops, the other continues.
#[tokio::test]
async fn a_second_replica_takes_over() {
    let served = serve().await;
    let start = || {
        let shutdown = CancellationToken::new();
        let arguments = [
            "controller".to_owned(),
            format!("--kubeconfig={}", served.api.kubeconfig.display()),
            "--leader-election-namespace=default".to_owned(),
            "--enable-webhook=false".to_owned(),
            "--metrics-bind-address=0".to_owned(),
            "--health-probe-bind-address=0".to_owned(),
        ];
        let flags = Flags::parse_from_go(arguments).expect("parses");
        (tokio::spawn(run_process(flags, shutdown.clone())), shutdown)
    };
    let sandboxes: Api<Sandbox> = Api::namespaced(served.bench.cluster.client(), "default");
    let make_ready = async |name: &str| {
        let sandbox = json!({ "metadata": { "name": name }, "spec": { "podTemplate": { "spec": { "containers": [{ "name": "c", "image": "i" }] } } } });
        sandboxes
            .create(&PostParams::default(), &serde_json::from_value(sandbox).expect("valid"))
            .await
            .expect("created");
        eventually(name, || async {
            let sandbox = sandboxes.get(name).await.expect("there");
            match sandbox.condition(ConditionType::Ready) {
                Some(ready) if ready.status == "True" => Ok(()),
                _ => Err(sandbox.status),
            }
        })
        .await;
    };
    let (first, stop_first) = start();
    make_ready("one").await;
    let (second, stop_second) = start();
    stop_first.cancel();
    first.await.expect("no panic").expect("in order");
    make_ready("two").await;
    stop_second.cancel();
    second.await.expect("no panic").expect("in order");
}

/// In one namespace, the others are not touched.
#[tokio::test]
async fn a_namespaced_controller_stays_in_its_namespace() {
    let served = serve().await;
    let namespaces: Api<Namespace> = Api::all(served.bench.cluster.client());
    let other: Namespace = serde_json::from_value(json!({ "metadata": { "name": "other" } })).expect("valid");
    namespaces.create(&PostParams::default(), &other).await.expect("created");
    let arguments = [
        "controller".to_owned(),
        format!("--kubeconfig={}", served.api.kubeconfig.display()),
        "--leader-elect=false".to_owned(),
        "--watch-namespace=default".to_owned(),
        "--enable-webhook=false".to_owned(),
        "--metrics-bind-address=0".to_owned(),
        "--health-probe-bind-address=0".to_owned(),
    ];
    let shutdown = CancellationToken::new();
    let process = tokio::spawn(run_process(Flags::parse_from_go(arguments).expect("parses"), shutdown.clone()));
    let sandbox: Sandbox =
        serde_json::from_value(json!({ "metadata": { "name": "s" }, "spec": { "podTemplate": { "spec": { "containers": [{ "name": "c", "image": "i" }] } } } })).expect("valid");
    for namespace in ["other", "default"] {
        Api::namespaced(served.bench.cluster.client(), namespace)
            .create(&PostParams::default(), &sandbox)
            .await
            .expect("created");
    }
    let of = |namespace: &str| Api::<Sandbox>::namespaced(served.bench.cluster.client(), namespace);
    eventually("ours is Ready", || async {
        let sandbox = of("default").get("s").await.expect("there");
        match sandbox.condition(ConditionType::Ready) {
            Some(ready) if ready.status == "True" => Ok(()),
            _ => Err(sandbox.status),
        }
    })
    .await;
    assert!(of("other").get("s").await.expect("there").status.is_none());
    shutdown.cancel();
    process.await.expect("no panic").expect("in order");
}

/// Forwards connections to the API and counts them.
async fn counting_door(to: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("bound");
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                if let Ok(mut onward) = TcpStream::connect(to).await {
                    let _ = tokio::io::copy_bidirectional(&mut from, &mut onward).await;
                }
            });
        }
    });
    (address, count)
}

/// S-217, S-218: a lane has exactly the requested number of connections, however many requests are in flight; watches
/// have their own.
#[tokio::test]
async fn s_217_s_218_connections_are_counted() {
    let served = serve().await;
    for wanted in [1, 3] {
        let mut config =
            connections::cluster_config(&served.api.kubeconfig.display().to_string()).await.expect("reads");
        let target = config.cluster_url.authority().expect("an address").as_str().parse().expect("an address");
        let (door, count) = counting_door(target).await;
        config.cluster_url = format!("https://{door}").parse().expect("a URL");
        let clients = connections::connect(&config, wanted).expect("connects");
        let read = |client: &kube::Client| {
            let api: Api<Sandbox> = Api::namespaced(client.clone(), "default");
            async move { api.list(&Default::default()).await.expect("reads") }
        };
        for _ in 0..wanted {
            read(&clients.core).await;
        }
        assert_eq!(count.load(Ordering::SeqCst), wanted);
        futures::future::join_all((0..60).map(|_| read(&clients.core))).await;
        assert_eq!(count.load(Ordering::SeqCst), wanted, "sixty in flight share them");
        read(&clients.watch).await;
        assert_eq!(count.load(Ordering::SeqCst), wanted + 1, "no write travels with a watch");
        // Claims have a few direct connections in addition, unless a number was requested.
        let apart = if wanted == 1 { 4 } else { 0 };
        for _ in 0..wanted {
            read(&clients.claims).await;
        }
        futures::future::join_all((0..60).map(|_| read(&clients.claims))).await;
        let all = count.load(Ordering::SeqCst);
        assert!((2 * wanted + 1..=2 * wanted + 1 + apart).contains(&all), "{all}");
    }
}

/// Waiting for a controller that cannot start, or was stopped, returns at once with the reason.
#[tokio::test]
async fn waiting_for_an_ended_controller_returns() {
    let bench = ControllerFixture::start().await.expect("a workbench");
    let taken = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let config = Config { metrics_address: taken.local_addr().ok(), ..Config::default() };
    let failed = Controller::start(bench.cluster.client(), config, CancellationToken::new());
    let error = tokio::time::timeout(TIMEOUT, failed.wait_until_running())
        .await
        .expect("in time")
        .expect_err("it cannot start");
    assert!(error.to_string().contains("cannot serve metrics"), "{error}");
    assert_eq!(failed.wait().await, Err(error));

    let stop = CancellationToken::new();
    stop.cancel();
    let stopped = Controller::start(bench.cluster.client(), Config::default(), stop);
    assert_eq!(
        tokio::time::timeout(TIMEOUT, stopped.wait_until_running()).await.expect("in time"),
        Err(ControllerError::Stopped)
    );
    assert_eq!(stopped.wait().await, Ok(()));

    let stop = CancellationToken::new();
    let works = Controller::start(bench.cluster.client(), Config::default(), stop.clone());
    assert_eq!(tokio::time::timeout(TIMEOUT, works.wait_until_running()).await.expect("in time"), Ok(()));
    stop.cancel();
    assert_eq!(works.wait().await, Ok(()));
}
