//! Measures the lifecycle of Pods through the API: created → Ready → deleted, one after the other and several at once.
//!
//! `cargo run --release -p agent-sandbox-node --example pod-start-bench [pods] [at once]`, as root. The image is `host`
//! with sandboxd; Ready means that the port of sandboxd accepts connections. The API keeps its objects in memory, so
//! only the node's own disk accesses are measured.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark: a failed step ends it, the table is its output"
)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_sandbox_apiserver::{ApiServer, Config};
use agent_sandbox_node::kernel::{HelperProgram, KernelConfig, KernelRuntime};
use agent_sandbox_node::{Node, NodeOptions};
use futures::stream::{self, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, PostParams};
use kube::runtime::wait::await_condition;
use serde_json::json;

fn main() {
    agent_sandbox_node::helper_main();
    tokio::runtime::Runtime::new().unwrap().block_on(measure());
}

async fn measure() {
    let mut arguments = std::env::args().skip(1);
    let pods: usize = arguments.next().map_or(50, |a| a.parse().unwrap());
    let at_once: usize = arguments.next().map_or(8, |a| a.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let api = ApiServer::open(Config::default()).await.unwrap();
    let mut config = KernelConfig::new(folder.path());
    config.helper = HelperProgram::CurrentExecutable;
    let runtime = KernelRuntime::open(config).await.unwrap();
    let options =
        NodeOptions { data_dir: folder.path().to_owned(), sandboxd: Some(sandboxd()), ..NodeOptions::default() };
    let node = Node::start(api.client(), runtime.clone(), runtime.clone(), options).await.unwrap();
    println!(
        "{:<8} {:>6} {:>10} {:>10} {:>10} {:>10} {:>8}",
        "at once", "pods", "ready p50", "ready p99", "gone p50", "gone p99", "pods/s"
    );
    for concurrency in [1, at_once] {
        let began = Instant::now();
        let client = api.client();
        let times: Vec<(Duration, Duration)> = stream::iter(0..pods)
            .map(|number| one(Api::namespaced(client.clone(), "default"), format!("p{concurrency}-{number}")))
            .buffer_unordered(concurrency)
            .collect()
            .await;
        let rate = pods as f64 / began.elapsed().as_secs_f64();
        let (mut ready, mut gone): (Vec<_>, Vec<_>) = times.into_iter().unzip();
        ready.sort();
        gone.sort();
        let at = |list: &[Duration], share: usize| {
            format!("{:.1} ms", list[(list.len() * share).div_ceil(100).max(1) - 1].as_secs_f64() * 1e3)
        };
        println!(
            "{concurrency:<8} {pods:>6} {:>10} {:>10} {:>10} {:>10} {rate:>8.1}",
            at(&ready, 50),
            at(&ready, 99),
            at(&gone, 50),
            at(&gone, 99)
        );
    }
    node.purge().await.unwrap();
    drop(Arc::clone(&runtime));
}

/// One Pod from creation to removal: time to Ready, and from the delete request until the object is gone.
async fn one(pods: Api<Pod>, name: String) -> (Duration, Duration) {
    let pod = json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "main", "image": "host"}]}});
    let asked = Instant::now();
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let ready = |pod: Option<&Pod>| {
        let conditions = pod.and_then(|p| p.status.as_ref()).and_then(|s| s.conditions.as_ref());
        conditions.is_some_and(|c| c.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
    };
    await_condition(pods.clone(), &name, ready).await.unwrap();
    let took = asked.elapsed();
    let asked = Instant::now();
    pods.delete(&name, &DeleteParams::default()).await.unwrap();
    await_condition(pods, &name, |pod: Option<&Pod>| pod.is_none()).await.unwrap();
    (took, asked.elapsed())
}

fn sandboxd() -> PathBuf {
    let given = std::env::var_os("SANDBOXD").map(PathBuf::from);
    given.unwrap_or_else(|| std::env::current_exe().unwrap().with_file_name("sandboxd-for-tests"))
}
