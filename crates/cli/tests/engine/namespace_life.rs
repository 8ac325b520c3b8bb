//! A namespace with a template, a pool, a claim and a port-forward, from its creation until it is gone.

use crate::fixture::Engine;
use crate::tenants::config;
use agent_sandbox_api::v1beta1::SandboxClaim;
use agent_sandbox_client as sdk;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, PostParams},
    runtime::wait::{
        await_condition,
        conditions::{is_deleted, is_pod_running},
    },
};
use serde_json::json;
use std::time::{Duration, Instant};

/// Time for everything.
const TIME: Duration = Duration::from_secs(5);
/// Attempts, of which one must keep to the time: other tests run beside this one.
const ATTEMPTS: usize = 3;
/// Timeout of one step. Without it a namespace that stays would hang the test.
const STEP: Duration = Duration::from_secs(60);

#[test]
fn a_namespace_with_a_claim_and_a_port_forward_is_created_used_and_gone_in_five_seconds() {
    let Some(engine) = Engine::start_with(&["--warm", "0"]) else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut took = Vec::new();
    runtime.block_on(async {
        let client = Client::try_from(config(&engine, None).await).unwrap();
        while took.len() < ATTEMPTS && took.iter().all(|time| *time >= TIME) {
            let began = Instant::now();
            live(&client, &format!("short-lived-{}", took.len())).await;
            took.push(began.elapsed());
        }
    });
    println!("took {took:?}");
    assert!(took.iter().any(|time| *time < TIME), "each of {ATTEMPTS} attempts took too long: {took:?}");
}

/// Creates the namespace, uses it as SDKs do, deletes it and waits until it is gone.
async fn live(client: &Client, name: &str) {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let wanted = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    namespaces.create(&PostParams::default(), &wanted).await.unwrap();
    let options = sdk::ContainerOptions { image: "host".to_owned(), ..Default::default() };
    let templates = Api::namespaced(client.clone(), name);
    templates.create(&PostParams::default(), &sdk::template("t", &options)).await.unwrap();
    let pools = Api::namespaced(client.clone(), name);
    pools.create(&PostParams::default(), &sdk::pool("p", "t", 1)).await.unwrap();
    // The namespace is deleted with the router's Pod in it, which no node runs.
    let pods: Api<Pod> = Api::namespaced(client.clone(), name);
    let router = tokio::time::timeout(STEP, await_condition(pods, "sandbox-router", is_pod_running())).await;
    router.expect("the router's Pod is there in time").unwrap();
    let request = sdk::ClaimRequest::new(sdk::Source::Pool("p".to_owned()), name);
    let tunnel = sdk::Tunnel { router_namespace: Some(name.to_owned()) };
    let sandboxes = sdk::SandboxClient::new(sdk::Cluster::of(client.clone()), sdk::Connection::Tunnel(tunnel));
    let sandbox = sandboxes.claim(&request).await.unwrap();
    let output = sandbox.run(&sdk::Command::shell("echo through the router")).await.unwrap();
    assert_eq!(output.stdout.as_ref(), b"through the router\n");
    let claims: Api<SandboxClaim> = Api::namespaced(client.clone(), name);
    assert_eq!(claims.list(&Default::default()).await.unwrap().items[0].name_any(), sandbox.claim().unwrap());
    let uid = namespaces.get(name).await.unwrap().uid();
    namespaces.delete(name, &DeleteParams::default()).await.unwrap();
    let gone = is_deleted(uid.as_deref().unwrap());
    tokio::time::timeout(STEP, await_condition(namespaces, name, gone)).await.expect("the namespace goes").unwrap();
}
