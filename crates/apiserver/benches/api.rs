//! Measures durable writes per second, watch delivery, memory and start time of the embedded API. Prints a table;
//! asserts nothing.
//!
//! `cargo bench -p agent-sandbox-apiserver` (optionally a folder on the disk to measure as argument).
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement stops when something is wrong")]

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use agent_sandbox_apiserver::{ApiServer, Config, Converter, ListenerConfig, store::PublishPhase};
use futures::StreamExt as _;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};

/// Converts the product's kinds between versions.
struct ProductConverter;

impl Converter for ProductConverter {
    fn handles(&self, group: &str, _: &str) -> bool {
        group.ends_with("agents.x-k8s.io")
    }

    fn convert(&self, object: Value, desired: &str) -> Result<Value, String> {
        agent_sandbox_api::conversion::convert(object, desired).map_err(|e| e.to_string())
    }
}

fn kind(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    let api_version = if group.is_empty() { version.into() } else { format!("{group}/{version}") };
    ApiResource { group: group.into(), version: version.into(), api_version, kind: kind.into(), plural: plural.into() }
}

fn sandboxes() -> ApiResource {
    kind("agents.x-k8s.io", "v1beta1", "Sandbox", "sandboxes")
}

/// A Sandbox of about 2 KiB.
fn sandbox(name: &str) -> DynamicObject {
    let env: Vec<Value> =
        (0..24).map(|i| json!({"name": format!("VARIABLE_{i}"), "value": format!("some value {i}")})).collect();
    serde_json::from_value(json!({
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox",
        "metadata": {"name": name, "labels": {"app": "bench", "pool": "p1"}},
        "spec": {"podTemplate": {"metadata": {"labels": {"app": "bench"}}, "spec": {"containers": [{
            "name": "main", "image": "registry.example/python:3.12", "command": ["python3", "-m", "http.server"], "env": env,
            "ports": [{"containerPort": 8080}], "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
            "readinessProbe": {"httpGet": {"path": "/", "port": 8080}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}]}], "volumes": [{"name": "data", "emptyDir": {}}]}}},
    }))
    .unwrap()
}

fn pod(name: &str) -> DynamicObject {
    let mut value = serde_json::to_value(sandbox(name)).unwrap();
    let spec = value["spec"]["podTemplate"]["spec"].take();
    value["apiVersion"] = "v1".into();
    value["kind"] = "Pod".into();
    value["spec"] = spec;
    serde_json::from_value(value).unwrap()
}

async fn open(folder: &Path) -> ApiServer {
    let config =
        Config { data_dir: Some(folder.to_owned()), converter: Some(Arc::new(ProductConverter)), ..Config::default() };
    ApiServer::open(config).await.unwrap()
}

async fn load_crds(server: &ApiServer) {
    let api: Api<DynamicObject> = Api::all_with(
        server.client(),
        &kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions"),
    );
    for crd in agent_sandbox_api::crd::crds() {
        let crd: DynamicObject = serde_json::from_value(crd).unwrap();
        api.create(&PostParams::default(), &crd).await.unwrap();
    }
}

/// Runs `work` `count` times from `clients` tasks; returns rate and median latency.
async fn rate<F, R>(clients: usize, count: usize, work: F) -> (f64, Duration)
where
    F: Fn(usize, usize) -> R + Send + Sync + Clone + 'static,
    R: Future<Output = ()> + Send,
{
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let tasks: Vec<_> = (0..clients)
        .map(|client| {
            let (next, work) = (next.clone(), work.clone());
            tokio::spawn(async move {
                let mut times = Vec::new();
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= count {
                        return times;
                    }
                    let at = Instant::now();
                    work(client, n).await;
                    times.push(at.elapsed());
                }
            })
        })
        .collect();
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.unwrap());
    }
    let elapsed = started.elapsed();
    times.sort();
    (count as f64 / elapsed.as_secs_f64(), times[times.len() / 2])
}

fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}

fn row(what: &str, value: &str) {
    println!("| {what:<58} | {value:>38} |");
}

/// Baseline of the disk: sequential appends of 64 KiB, each with an `fdatasync`.
fn disk(folder: &Path) {
    let mut file = std::fs::File::create(folder.join("disk")).unwrap();
    let block = vec![7; 64 << 10];
    let mut times: Vec<Duration> = (0..200)
        .map(|_| {
            file.write_all(&block).unwrap();
            let at = Instant::now();
            file.sync_data().unwrap();
            at.elapsed()
        })
        .collect();
    times.sort();
    row("the disk alone: fdatasync of 64 KiB", &format!("p50 {:.2?}, p99 {:.2?}", times[100], times[198]));
}

async fn writes(folder: &Path) {
    let server = open(&folder.join("writes")).await;
    load_crds(&server).await;
    for (clients, count) in [(1, 500), (64, 10_000)] {
        let clients_of = |_: usize| server.client();
        measure_writes("in-process", clients, count, clients_of).await;
    }
    let listener = server.listen(ListenerConfig::default()).await.unwrap();
    let config = kube::Config::from_custom_kubeconfig(
        kube::config::Kubeconfig::from_yaml(listener.kubeconfig()).unwrap(),
        &kube::config::KubeConfigOptions::default(),
    )
    .await
    .unwrap();
    for (clients, count) in [(1, 300), (64, 5_000)] {
        // Each client has a connection of its own.
        measure_writes("TLS", clients, count, |_| kube::Client::try_from(config.clone()).unwrap()).await;
    }
    server.close();
}

/// The part of a response that the clients parse: most need only the new version, and get the object from their watch.
#[derive(serde::Deserialize)]
struct PatchedObject {
    metadata: Metadata,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
}

async fn measure_writes(way: &str, clients: usize, count: usize, client: impl Fn(usize) -> kube::Client) {
    let clients_of: Arc<[kube::Client]> = (0..clients).map(client).collect();
    let prefix = format!("{}{clients}", way.to_lowercase());
    // Building the object in the client is not part of the measurement.
    let body = serde_json::to_string(&sandbox("NAME")).unwrap();
    let path = "/apis/agents.x-k8s.io/v1beta1/namespaces/default/sandboxes";
    let work = |create: bool| {
        let (clients, prefix, body) = (clients_of.clone(), prefix.clone(), body.clone());
        move |client: usize, n: usize| {
            let (client, name) = (clients[client].clone(), format!("{prefix}-{n}"));
            let request = if create {
                let body = body.replacen("NAME", &name, 1).into_bytes();
                kube::core::Request::new(path).create(&PostParams::default(), body)
            } else {
                let patch = Patch::Merge(json!({"metadata": {"annotations": {"n": n.to_string()}}}));
                kube::core::Request::new(path).patch(&name, &PatchParams::default(), &patch)
            };
            async move {
                let object: PatchedObject = client.request(request.unwrap()).await.unwrap();
                assert!(!object.metadata.resource_version.is_empty());
            }
        }
    };
    for (what, create) in [("creates", true), ("patches", false)] {
        let cpu = cpu_time();
        let (speed, p50) = rate(clients, count, work(create)).await;
        let each = (cpu_time() - cpu) / count as u32;
        row(
            &format!("durable Sandbox {what}, {clients} {way} clients"),
            &format!("{speed:.0}/s, p50 {p50:.1?}, {each:.0?} CPU"),
        );
    }
}

/// CPU time of this process, including the clients.
fn cpu_time() -> Duration {
    let usage = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(usage.tv_sec as u64, usage.tv_nsec as u32)
}

/// Time from the commit (seen by the first observer of the store) until the client has parsed the watch event.
async fn delivery(folder: &Path) {
    let server = open(&folder.join("delivery")).await;
    load_crds(&server).await;
    let api: Api<DynamicObject> = Api::namespaced_with(server.client(), "default", &sandboxes());
    let (sender, mut committed) = tokio::sync::mpsc::unbounded_channel();
    server.store().observe(move |storage, _, moment| {
        if moment == PublishPhase::BeforePublish && &**storage == "agents.x-k8s.io/sandboxes" {
            let _ = sender.send(Instant::now());
        }
    });
    let mut events = api.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    let mut times = Vec::new();
    for n in 0..500 {
        let writer = api.clone();
        let write = tokio::spawn(async move {
            writer.create(&PostParams::default(), &sandbox(&format!("d{n}"))).await.unwrap();
        });
        while !matches!(events.next().await, Some(Ok(WatchEvent::Added(_)))) {}
        let now = Instant::now();
        times.push(now - committed.recv().await.unwrap());
        write.await.unwrap();
    }
    times.sort();
    row("watch delivery after commit (parsed by kube)", &format!("p50 {:.0?}, p99 {:.0?}", times[250], times[495]));
    server.close();
}

async fn memory(folder: &Path) {
    let server = open(&folder.join("many")).await;
    load_crds(&server).await;
    row("resident, empty", &format!("{:.0} MiB", resident_mib()));
    for resource in [sandboxes(), kind("", "v1", "Pod", "pods")] {
        let api: Api<DynamicObject> = Api::namespaced_with(server.client(), "default", &resource);
        let pods = resource.kind == "Pod";
        rate(64, 10_000, move |_, n| {
            let api = api.clone();
            async move {
                let name = format!("o{n}");
                let object = if pods { pod(&name) } else { sandbox(&name) };
                api.create(&PostParams::default(), &object).await.unwrap();
            }
        })
        .await;
    }
    row("resident with 10,000 Sandboxes and 10,000 Pods", &format!("{:.0} MiB", resident_mib()));
    server.close();
}

async fn start(folder: &Path) {
    let started = Instant::now();
    let empty = open(&folder.join("empty")).await;
    row("start, empty", &format!("{:.1?}", started.elapsed()));
    empty.close();
    let started = Instant::now();
    let server = open(&folder.join("many")).await;
    row("start, 20,000 objects", &format!("{:.1?}", started.elapsed()));
    row("resident after that start", &format!("{:.0} MiB", resident_mib()));
    server.close();
}

fn main() {
    let folder = std::env::args().skip(1).find(|a| !a.starts_with('-')).map(PathBuf::from);
    let temporary = tempfile::tempdir().unwrap();
    let folder = folder.unwrap_or_else(|| temporary.path().to_owned());
    // Memory and start time are measured in processes of their own.
    let part = |name: &str| {
        let own = std::env::current_exe().unwrap();
        std::process::Command::new(own).arg(&folder).env("BENCH_PART", name).status().unwrap();
    };
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    match std::env::var("BENCH_PART").as_deref() {
        Ok("memory") => return runtime().block_on(memory(&folder)),
        Ok("start") => return runtime().block_on(start(&folder)),
        _ => {}
    }
    println!("| {:<58} | {:>38} |\n|{:-<60}|{:-<40}|", "measurement", "value", "", "");
    disk(&folder);
    runtime().block_on(async {
        writes(&folder).await;
        delivery(&folder).await;
    });
    part("memory");
    part("start");
}
