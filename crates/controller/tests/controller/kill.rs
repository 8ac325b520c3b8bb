//! The controller is killed without warning, at random, in the middle of a burst of claims, again and again.
//!
//! The test runs itself as the controller process, so that the kill is a real one.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::{Child, Command, Stdio},
    time::Duration,
};

use agent_sandbox_api::{
    conditions::{ConditionType, is_true},
    owners,
    v1beta1::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool},
};
use agent_sandbox_apiserver::serve::ListenerConfig;
use agent_sandbox_controller::{Flags, run_process};
use agent_sandbox_testkit::{Cluster, Kubelet, KubeletConfig, eventually_within};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};
use rand::RngExt;
use serde_json::json;
use tokio_util::sync::CancellationToken;

/// Set for the child: where the API is.
const CHILD: &str = "AGENT_SANDBOX_TEST_KUBECONFIG";
const CLAIMS: usize = 12;
const MEMBERS: i32 = 8;

fn rounds() -> usize {
    if std::env::var_os("AGENT_SANDBOX_SOAK").is_some() { 30 } else { 6 }
}

/// Not a test of its own: the controller process of the test below.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controller_process() {
    let Ok(kubeconfig) = std::env::var(CHILD) else { return };
    let arguments = [
        "controller".to_owned(),
        format!("--kubeconfig={kubeconfig}"),
        "--leader-elect=false".to_owned(),
        "--extensions".to_owned(),
        "--enable-webhook=false".to_owned(),
        "--metrics-bind-address=0".to_owned(),
        "--health-probe-bind-address=0".to_owned(),
    ];
    let flags = Flags::parse_from_go(arguments).expect("parses");
    run_process(flags, CancellationToken::new()).await.expect("runs until killed");
}

fn start_controller(kubeconfig: &std::path::Path) -> Child {
    Command::new(std::env::current_exe().expect("known"))
        .args(["controller_process", "--exact", "--nocapture"])
        .env(CHILD, kubeconfig)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts")
}

/// Ends the child with the test, whatever happens.
struct Running(Child);

impl Running {
    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Architecture's invariants 1 and 3: no claim is lost, doubled or orphaned, however often the controller dies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_random_during_bursts() {
    let cluster = Cluster::start().await.expect("a cluster");
    let folder = tempfile::tempdir().expect("a folder");
    let kubeconfig = folder.path().join("kubeconfig");
    let listening = ListenerConfig { kubeconfig: Some(kubeconfig.clone()), ..ListenerConfig::default() };
    let _listener = cluster.api.listen(listening).await.expect("listens");
    let _kubelet = Kubelet::start(cluster.client(), KubeletConfig::default());
    let templates: Api<SandboxTemplate> = Api::namespaced(cluster.client(), "default");
    let template = json!({ "metadata": { "name": "t" }, "spec": { "podTemplate": { "spec": { "containers": [{ "name": "c", "image": "i" }] } } } });
    templates.create(&PostParams::default(), &serde_json::from_value(template).expect("valid")).await.expect("created");
    let pools: Api<SandboxWarmPool> = Api::namespaced(cluster.client(), "default");
    let pool =
        json!({ "metadata": { "name": "p" }, "spec": { "sandboxTemplateRef": { "name": "t" }, "replicas": MEMBERS } });
    pools.create(&PostParams::default(), &serde_json::from_value(pool).expect("valid")).await.expect("created");

    let claims: Api<SandboxClaim> = Api::namespaced(cluster.client(), "default");
    let sandboxes: Api<Sandbox> = Api::namespaced(cluster.client(), "default");
    let mut controller = Running(start_controller(&kubeconfig));
    for round in 0..rounds() {
        let burst = (0..CLAIMS).map(|number| {
            let claim = json!({ "metadata": { "name": format!("r{round}-{number}") }, "spec": { "warmPoolRef": { "name": "p" } } });
            let claims = claims.clone();
            async move { claims.create(&PostParams::default(), &serde_json::from_value(claim).expect("valid")).await.expect("created") }
        });
        let killer = async {
            let moment = Duration::from_millis(rand::rng().random_range(0..400));
            tokio::time::sleep(moment).await;
            controller.kill();
        };
        tokio::join!(futures::future::join_all(burst), killer);
        controller = Running(start_controller(&kubeconfig));
        eventually_within(Duration::from_secs(60), "one Sandbox for every claim, and a full pool", || {
            check(&claims, &sandboxes)
        })
        .await;
        // Half of them leave, so that the garbage collector has work during the next burst.
        for number in 0..CLAIMS / 2 {
            claims.delete(&format!("r{round}-{number}"), &DeleteParams::background()).await.expect("deleted");
        }
    }
}

/// Every claim is Ready with a Sandbox of its own, no Sandbox is left over, and the pool is full.
async fn check(claims: &Api<SandboxClaim>, sandboxes: &Api<Sandbox>) -> Result<(), String> {
    let claims = claims.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
    let sandboxes = sandboxes.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
    let mut by_claim: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut members = 0;
    for sandbox in &sandboxes {
        if owners::owning_pool(&sandbox.metadata).is_some() {
            members += 1;
        } else if let Some(claim) = owners::owning_claim(&sandbox.metadata) {
            by_claim.entry(claim.uid.clone()).or_default().push(sandbox.name().to_owned());
        } else {
            return Err(format!("{} is nobody's", sandbox.name()));
        }
    }
    let mut published = BTreeSet::new();
    for claim in &claims {
        if !is_true(claim.condition(ConditionType::Ready)) {
            return Err(format!("{} is not Ready: {:?}", claim.name(), claim.conditions()));
        }
        let name = claim.bound_sandbox().unwrap_or_default().to_owned();
        if by_claim.remove(claim.uid()).as_deref() != Some(std::slice::from_ref(&name)) {
            return Err(format!("{} does not control exactly {name}", claim.name()));
        }
        if !published.insert(name.clone()) {
            return Err(format!("{name} serves two claims"));
        }
    }
    if !by_claim.is_empty() {
        return Err(format!("left over: {by_claim:?}"));
    }
    if members != MEMBERS {
        return Err(format!("the pool has {members} members"));
    }
    Ok(())
}
