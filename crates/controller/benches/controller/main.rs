//! Measures the controller on the embedded API with a durable store and a simulated kubelet. Everything is a ratio
//! against the same run's own disk: how long one durable write takes, and how many the API commits per second.
//!
//! `claims` or `size` as an argument runs that part alone. `AGENT_SANDBOX_BENCH_SANDBOXES` sets the number of Sandboxes for the memory
//! part (10000), `AGENT_SANDBOX_BENCH_PROGRAM` the program whose `controller` command is measured there.

mod claims;
mod disk;
mod replay;
mod size;

use std::time::Duration;

use agent_sandbox_api::v1beta1::{SandboxTemplate, SandboxWarmPool};
use agent_sandbox_apiserver::Config as ApiConfig;
use agent_sandbox_testkit::{Cluster, Kubelet, KubeletConfig};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

/// The allocator of the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const NAMESPACE: &str = "default";

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let asked: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wanted = |part: &str| asked.is_empty() || asked.iter().any(|word| word == part);
    runtime.block_on(async {
        if wanted("claims") {
            let disk = disk::measure().await;
            claims::measure(&disk).await;
        }
        if wanted("size") {
            size::measure().await;
        }
    });
}

fn say(name: &str, value: String) {
    let mut out = std::io::stdout().lock();
    let _ = std::io::Write::write_fmt(&mut out, format_args!("{name:<58} {value}\n"));
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() - 1) * percent / 100]
}

fn met_or_missed(met: bool) -> &'static str {
    if met { "met" } else { "missed" }
}

struct Fixture {
    cluster: Cluster,
    kubelet: Option<Kubelet>,
    _folder: tempfile::TempDir,
}

impl Fixture {
    fn start_kubelet(&mut self) {
        self.kubelet = Some(Kubelet::start(self.cluster.client(), KubeletConfig::default()));
    }
}

/// An API with a durable store and no other client.
async fn open() -> Fixture {
    let folder = tempfile::tempdir().expect("a folder");
    let config = ApiConfig { data_dir: Some(folder.path().join("data")), ..ApiConfig::default() };
    let cluster = Cluster::open(config).await.expect("a cluster");
    Fixture { cluster, kubelet: None, _folder: folder }
}

fn api<K>(client: &Client) -> Api<K>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    Api::namespaced(client.clone(), NAMESPACE)
}

/// The Pod of every sandbox here.
fn pod_spec() -> Value {
    json!({ "containers": [{ "name": "main", "image": "busybox", "command": ["sleep", "infinity"], "ports": [{ "containerPort": 8888 }] }] })
}

async fn make_pool(client: &Client, replicas: usize) {
    let template = json!({ "metadata": { "name": "t" }, "spec": { "podTemplate": { "spec": pod_spec() } } });
    api::<SandboxTemplate>(client)
        .create(&PostParams::default(), &serde_json::from_value(template).expect("valid"))
        .await
        .expect("created");
    let pool =
        json!({ "metadata": { "name": "p" }, "spec": { "sandboxTemplateRef": { "name": "t" }, "replicas": replicas } });
    api::<SandboxWarmPool>(client)
        .create(&PostParams::default(), &serde_json::from_value(pool).expect("valid"))
        .await
        .expect("created");
}

async fn resize(client: &Client, replicas: usize) {
    let change = Patch::Merge(json!({ "spec": { "replicas": replicas } }));
    api::<SandboxWarmPool>(client).patch("p", &PatchParams::default(), &change).await.expect("resized");
    until_ready(client, replicas).await;
}

async fn until_ready(client: &Client, replicas: usize) {
    loop {
        let pool = api::<SandboxWarmPool>(client).get("p").await.expect("there");
        let ready = pool.status.and_then(|status| status.ready_replicas).unwrap_or(0);
        if usize::try_from(ready) == Ok(replicas) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The newest resource version of the API: one per write of any client.
async fn newest_version(client: &Client) -> f64 {
    let one = ListParams::default().limit(1);
    let list = api::<SandboxWarmPool>(client).list(&one).await.expect("lists");
    list.metadata.resource_version.and_then(|version| version.parse().ok()).expect("a number")
}
