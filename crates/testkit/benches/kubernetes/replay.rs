//! The baseline: the writes of a claim and of a Sandbox, sent with the controller's concurrency but without any
//! decision.
//!
//! It shows what the API server and the disk allow; the difference to a controller is what the controller adds.

use std::sync::Arc;

use anyhow::Context;
use jiff::Timestamp;
use kube::{
    Client, ResourceExt,
    api::{DynamicObject, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::{
    sync::{Mutex, Semaphore},
    task::JoinSet,
};

use crate::{
    environment::{Ready, within},
    objects::{self, NAMESPACE, POOL, api},
};

/// Default concurrency of our controller for claims and for Sandboxes.
const CLAIMS: usize = 50;
const SANDBOXES: usize = 100;

pub(crate) struct Replay {
    client: Client,
    pods: Ready,
    warm: Mutex<Vec<DynamicObject>>,
    claims: Semaphore,
    sandboxes: Semaphore,
}

fn ready(at: Timestamp) -> Value {
    json!({ "type": "Ready", "status": "True", "reason": "DependenciesReady", "message": "Sandbox is ready",
        "lastTransitionTime": format!("{at:.0}"), "observedGeneration": 1 })
}

fn owner(object: &DynamicObject) -> Value {
    let types = object.types.clone().unwrap_or_default();
    json!([{ "apiVersion": types.api_version, "kind": types.kind, "name": object.name_any(), "uid": object.uid(),
        "controller": true, "blockOwnerDeletion": true }])
}

impl Replay {
    pub(crate) async fn new(client: Client) -> anyhow::Result<Arc<Self>> {
        let pods = Ready::follow(&client, "Pod").await?;
        Ok(Arc::new(Self {
            client,
            pods,
            warm: Mutex::default(),
            claims: Semaphore::new(CLAIMS),
            sandboxes: Semaphore::new(SANDBOXES),
        }))
    }

    /// Fills the pool.
    pub(crate) async fn fill(self: &Arc<Self>, count: usize) -> anyhow::Result<()> {
        let mut tasks = JoinSet::new();
        for number in 0..count {
            let replay = self.clone();
            tasks.spawn(async move { replay.refill(&format!("{POOL}-{number}")).await });
        }
        while let Some(outcome) = tasks.join_next().await {
            outcome??;
        }
        Ok(())
    }

    /// Creates one warm Sandbox and makes it Ready.
    async fn refill(&self, name: &str) -> anyhow::Result<()> {
        let permit = self.sandboxes.acquire().await?;
        let sandbox = api(&self.client, "Sandbox").create(&PostParams::default(), &objects::sandbox(name)).await?;
        drop(permit);
        let ready = self.bring_up(&sandbox).await?;
        self.warm.lock().await.push(ready);
        Ok(())
    }

    /// Creates a Sandbox's Pod and writes the Sandbox's status.
    pub(crate) async fn bring_up(&self, sandbox: &DynamicObject) -> anyhow::Result<DynamicObject> {
        let name = sandbox.name_any();
        let waiter = self.pods.expect(&name).await;
        let mut pod = DynamicObject::new(&name, &objects::resource("Pod"));
        pod.metadata.owner_references = serde_json::from_value(owner(sandbox))?;
        pod.data = json!({ "spec": sandbox.data["spec"]["podTemplate"]["spec"] });
        let permit = self.sandboxes.acquire().await?;
        api(&self.client, "Pod").create(&PostParams::default(), &pod).await?;
        drop(permit);
        within(waiter).await?;
        let permit = self.sandboxes.acquire().await?;
        let status = json!({ "status": { "podIPs": ["10.0.0.1"], "conditions": [ready(Timestamp::now())] } });
        let sandboxes = api(&self.client, "Sandbox");
        let done = sandboxes.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await?;
        drop(permit);
        Ok(done)
    }

    /// Sends a claim's three writes, two of them concurrently; [`Self::follow_up`] runs in the background.
    pub(crate) async fn serve(self: &Arc<Self>, claim: &DynamicObject) -> anyhow::Result<()> {
        let permit = self.claims.acquire().await?;
        let sandbox = self.warm.lock().await.pop().context("the replay's pool is empty")?;
        let (name, claim_name) = (sandbox.name_any(), claim.name_any());
        let (claims, sandboxes) = (api(&self.client, "SandboxClaim"), api(&self.client, "Sandbox"));
        let parameters = PatchParams::default();
        let lock = json!({ "metadata": { "resourceVersion": sandbox.resource_version(), "ownerReferences": owner(claim),
            "labels": { "agents.x-k8s.io/launch-type": "warm" } } });
        let note = json!({ "metadata": { "annotations": { "agents.x-k8s.io/sandbox-name": name } } });
        let (lock, note) = (Patch::Merge(lock), Patch::Merge(note));
        let (locked, noted) =
            tokio::join!(sandboxes.patch(&name, &parameters, &lock), claims.patch(&claim_name, &parameters, &note));
        locked?;
        noted?;
        let sandbox = json!({ "name": name, "podIPs": ["10.0.0.1"] });
        let status = json!({ "status": { "sandbox": sandbox, "conditions": [ready(Timestamp::now())] } });
        claims.patch_status(&claim_name, &parameters, &Patch::Merge(status)).await?;
        drop(permit);
        let replay = self.clone();
        tokio::spawn(async move { replay.follow_up(&name, &claim_name).await });
        Ok(())
    }

    /// The writes of our controller after the claim is Ready: the Pod's metadata, an Event, and a new warm Sandbox.
    async fn follow_up(&self, sandbox: &str, claim: &str) -> anyhow::Result<()> {
        let metadata = json!({ "metadata": { "annotations": { "agents.x-k8s.io/claim": claim } } });
        api(&self.client, "Pod").patch(sandbox, &PatchParams::default(), &Patch::Merge(metadata)).await?;
        let event = json!({ "metadata": { "name": claim }, "eventTime": format!("{:.6}", Timestamp::now()),
            "reportingController": "replay", "reportingInstance": "replay", "action": "Adopt", "reason": "Adopted",
            "type": "Normal", "note": "adopted",
            "regarding": { "kind": "SandboxClaim", "name": claim, "namespace": NAMESPACE } });
        let request = http::Request::post(format!("/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(serde_json::to_vec(&event)?)?;
        self.client.request_text(request).await?;
        self.refill(&format!("{POOL}-for-{claim}")).await
    }
}
