//! Durable writes per second, watch delivery, memory and start of the embedded API. Prints a table; asserts nothing.
//!
//! `cargo bench -p agent-sandbox-apiserver` (optionally a folder on the disk to measure as argument).
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement stops when something is wrong")]

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use agent_sandbox_apiserver::{ApiServer, Config, Converter, store::Moment};
use futures::StreamExt as _;
use kube::{
    Api,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};

struct Ours;

impl Converter for Ours {
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
    let config = Config { data_dir: Some(folder.to_owned()), converter: Some(Arc::new(Ours)), ..Config::default() };
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

/// Runs `work` from `clients` tasks until `count` were done; returns rate and median latency.
async fn rate<F, R>(clients: usize, count: usize, work: F) -> (f64, Duration)
where
    F: Fn(usize) -> R + Send + Sync + Clone + 'static,
    R: Future<Output = ()> + Send,
{
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let tasks: Vec<_> = (0..clients)
        .map(|_| {
            let (next, work) = (next.clone(), work.clone());
            tokio::spawn(async move {
                let mut times = Vec::new();
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= count {
                        return times;
                    }
                    let at = Instant::now();
                    work(n).await;
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
    println!("| {what:<58} | {value:>28} |");
}

async fn writes(folder: &Path) {
    let server = open(&folder.join("writes")).await;
    load_crds(&server).await;
    for (clients, count) in [(1, 500), (64, 10_000)] {
        let api: Api<DynamicObject> = Api::namespaced_with(server.client(), "default", &sandboxes());
        let create = api.clone();
        let (speed, p50) = rate(clients, count, move |n| {
            let api = create.clone();
            async move {
                api.create(&PostParams::default(), &sandbox(&format!("s{clients}-{n}"))).await.unwrap();
            }
        })
        .await;
        row(&format!("durable Sandbox creates, {clients} in-process clients"), &format!("{speed:.0}/s, p50 {p50:.1?}"));
        let (speed, p50) = rate(clients, count, move |n| {
            let api = api.clone();
            async move {
                let patch = Patch::Merge(json!({"metadata": {"annotations": {"n": n.to_string()}}}));
                api.patch(&format!("s{clients}-{n}"), &PatchParams::default(), &patch).await.unwrap();
            }
        })
        .await;
        row(&format!("durable Sandbox patches, {clients} in-process clients"), &format!("{speed:.0}/s, p50 {p50:.1?}"));
    }
    server.close();
}

/// From the commit (seen by the first observer of the store) to the watcher's hands.
async fn delivery(folder: &Path) {
    let server = open(&folder.join("delivery")).await;
    load_crds(&server).await;
    let api: Api<DynamicObject> = Api::namespaced_with(server.client(), "default", &sandboxes());
    let (sender, mut committed) = tokio::sync::mpsc::unbounded_channel();
    server.store().observe(move |storage, _, moment| {
        if moment == Moment::BeforeShown && &**storage == "agents.x-k8s.io/sandboxes" {
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

async fn memory_and_start(folder: &Path) {
    let started = Instant::now();
    let empty = open(&folder.join("empty")).await;
    row("start, empty", &format!("{:.1?}", started.elapsed()));
    empty.close();
    let data = folder.join("many");
    {
        let server = open(&data).await;
        load_crds(&server).await;
        for resource in [sandboxes(), kind("", "v1", "Pod", "pods")] {
            let api: Api<DynamicObject> = Api::namespaced_with(server.client(), "default", &resource);
            let pods = resource.kind == "Pod";
            rate(64, 10_000, move |n| {
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
    let started = Instant::now();
    let server = open(&data).await;
    row("start, 20,000 objects", &format!("{:.1?}", started.elapsed()));
    server.close();
}

fn main() {
    let folder = std::env::args().skip(1).find(|a| !a.starts_with('-')).map(PathBuf::from);
    let temporary = tempfile::tempdir().unwrap();
    let folder = folder.unwrap_or_else(|| temporary.path().to_owned());
    println!("| {:<58} | {:>28} |\n|{:-<60}|{:-<30}|", "measurement", "value", "", "");
    // Memory is measured in a process that has done nothing else.
    if std::env::var_os("BENCH_PART").is_some() {
        tokio::runtime::Runtime::new().unwrap().block_on(memory_and_start(&folder));
        return;
    }
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        writes(&folder).await;
        delivery(&folder).await;
    });
    let own = std::env::current_exe().unwrap();
    std::process::Command::new(own).arg(&folder).env("BENCH_PART", "memory").status().unwrap();
}
