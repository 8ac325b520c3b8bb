//! A namespace with a template, a pool, a claim and a port-forward, from its creation until it is gone.

use crate::fixture::Engine;
use crate::tenants::config;
use agent_sandbox_api::v1beta1::SandboxClaim;
use agent_sandbox_client as sdk;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, PostParams},
};
use serde_json::json;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Time for everything, on a machine that has nothing else to do.
const TIME: Duration = Duration::from_secs(5);

#[test]
fn a_namespace_with_a_claim_and_a_port_forward_is_created_used_and_gone_in_five_seconds() {
    let Some(engine) = Engine::start_with(&["--warm", "0"]) else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = Client::try_from(config(&engine, None).await).unwrap();
        let began = Instant::now();
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let wanted = serde_json::from_value(json!({"metadata": {"name": "short-lived"}})).unwrap();
        namespaces.create(&PostParams::default(), &wanted).await.unwrap();
        let options = sdk::ContainerOptions { image: "host".to_owned(), ..Default::default() };
        let templates = Api::namespaced(client.clone(), "short-lived");
        templates.create(&PostParams::default(), &sdk::template("t", &options)).await.unwrap();
        let pools = Api::namespaced(client.clone(), "short-lived");
        pools.create(&PostParams::default(), &sdk::pool("p", "t", 1)).await.unwrap();
        let request = sdk::ClaimRequest::new(sdk::Source::Pool("p".to_owned()), "short-lived");
        let sandboxes = sdk::SandboxClient::new(sdk::Cluster::of(client.clone()), sdk::Connection::PodTunnel);
        let sandbox = sandboxes.claim(&request).await.unwrap();
        let pod = sdk::running_pod(&client, &sandbox.object().await.unwrap()).await.unwrap();
        let mut stream = sdk::dial(&client, &pod, 8888).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let claims: Api<SandboxClaim> = Api::namespaced(client.clone(), "short-lived");
        assert_eq!(claims.list(&Default::default()).await.unwrap().items[0].name_any(), sandbox.claim().unwrap());
        namespaces.delete("short-lived", &DeleteParams::default()).await.unwrap();
        while namespaces.get_opt("short-lived").await.unwrap().is_some() {
            assert!(began.elapsed() < Duration::from_secs(120), "the namespace stays");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let took = began.elapsed();
        println!("took {took:?}");
        let busy = std::fs::read_to_string("/proc/loadavg").unwrap();
        let busy: f64 = busy.split(' ').next().unwrap().parse().unwrap();
        let cores = std::thread::available_parallelism().unwrap().get();
        assert!(took < TIME || busy > cores as f64 * 2.0, "it took {took:?} with a load of {busy} on {cores} cores");
    });
}
