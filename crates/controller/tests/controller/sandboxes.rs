//! The Sandbox controller on the embedded API, with a simulated kubelet.

use std::time::Duration;

use agent_sandbox_api::{conditions::ConditionType, v1beta1::Sandbox};
use agent_sandbox_testkit::eventually;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Service};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::fixture::Fixture;

/// What a user does with Sandboxes.
struct Sandboxes(Fixture);

impl std::ops::Deref for Sandboxes {
    type Target = Fixture;

    fn deref(&self) -> &Fixture {
        &self.0
    }
}

impl Sandboxes {
    async fn start() -> Self {
        Self(Fixture::start().await)
    }

    async fn create(&self, name: &str, spec: Value) -> Sandbox {
        let mut full = json!({ "podTemplate": { "spec": { "containers": [{ "name": "main", "image": "busybox" }] } } });
        for (field, value) in spec.as_object().into_iter().flatten() {
            full[field] = value.clone();
        }
        let sandbox = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": full })).expect("valid");
        self.api::<Sandbox>().create(&PostParams::default(), &sandbox).await.expect("created")
    }

    async fn patch(&self, name: &str, change: Value) {
        self.api::<Sandbox>().patch(name, &PatchParams::default(), &Patch::Merge(change)).await.expect("patched");
    }

    /// Waits until a condition of the Sandbox has this reason for its current generation.
    async fn until(&self, name: &str, type_: ConditionType, reason: &str) -> Sandbox {
        eventually(&format!("{name}: {type_:?} {reason}"), || async {
            let sandbox = self.api::<Sandbox>().get(name).await.expect("there");
            let condition = sandbox.condition(type_);
            let reached = condition.is_some_and(|condition| {
                condition.reason == reason && condition.observed_generation == sandbox.metadata.generation
            });
            if reached { Ok(sandbox) } else { Err(sandbox.status) }
        })
        .await
    }

    async fn until_gone<K>(&self, name: &str)
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned,
    {
        eventually(&format!("{name} gone"), || async {
            match self.api::<K>().get_opt(name).await.expect("reads") {
                None => Ok(()),
                Some(object) => Err(object.meta().clone()),
            }
        })
        .await;
    }

    async fn stop(self) {
        self.0.stop().await;
    }
}

/// S-033, S-034, S-177: a Sandbox with a Service and a volume becomes Ready, with everything named and owned.
#[tokio::test]
async fn s_033_s_034_s_177_a_sandbox_becomes_ready() {
    let bench = Sandboxes::start().await;
    let claim = json!([{ "metadata": { "name": "data" }, "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } }]);
    bench.create("vct-sandbox", json!({ "service": true, "volumeClaimTemplates": claim })).await;
    let sandbox = bench.until("vct-sandbox", ConditionType::Ready, "DependenciesReady").await;
    assert_eq!(sandbox.condition(ConditionType::Ready).expect("there").message, "Pod is Ready; Service Exists");
    let status = sandbox.status.clone().expect("written");
    assert_eq!(status.service_fqdn.as_deref(), Some("vct-sandbox.default.svc.cluster.local"));
    assert_eq!(status.selector.as_deref(), Some("agents.x-k8s.io/sandbox-name-hash=6936fe48"));
    assert_eq!(status.pod_ips.map(|ips| ips.len()), Some(1));
    assert!(status.node_name.is_some());
    let pvc = bench.api::<PersistentVolumeClaim>().get("data-vct-sandbox").await.expect("made");
    assert_eq!(pvc.metadata.labels.expect("labelled")["agents.x-k8s.io/sandbox-name-hash"], "6936fe48");
    let pod = bench.api::<Pod>().get("vct-sandbox").await.expect("made");
    let owner = &pod.metadata.owner_references.expect("owned")[0];
    assert_eq!(
        (owner.uid.as_str(), owner.controller, owner.block_owner_deletion),
        (sandbox.uid(), Some(true), Some(true))
    );
    assert!(bench.api::<Service>().get("vct-sandbox").await.is_ok());
    bench.stop().await;
}

/// S-035: twenty at once.
#[tokio::test]
async fn s_035_twenty_sandboxes_at_once() {
    let bench = Sandboxes::start().await;
    let names: Vec<String> = (0..20).map(|number| format!("many-{number}")).collect();
    futures::future::join_all(names.iter().map(|name| bench.create(name, json!({})))).await;
    for name in &names {
        bench.until(name, ConditionType::Ready, "DependenciesReady").await;
    }
    bench.stop().await;
}

/// S-036: a Pod deleted by hand comes back with a new uid.
#[tokio::test]
async fn s_036_a_deleted_pod_comes_back() {
    let bench = Sandboxes::start().await;
    bench.create("phoenix", json!({})).await;
    bench.until("phoenix", ConditionType::Ready, "DependenciesReady").await;
    let old = bench.api::<Pod>().get("phoenix").await.expect("there").metadata.uid;
    bench.api::<Pod>().delete("phoenix", &DeleteParams::default()).await.expect("deleted");
    eventually("a new Pod", || async {
        match bench.api::<Pod>().get_opt("phoenix").await.expect("reads") {
            Some(pod) if pod.metadata.uid != old => Ok(()),
            other => Err(other.map(|pod| pod.metadata)),
        }
    })
    .await;
    bench.until("phoenix", ConditionType::Ready, "DependenciesReady").await;
    bench.stop().await;
}

/// S-080: suspend and resume, twice, with the Service kept.
#[tokio::test]
async fn s_080_suspend_and_resume() {
    let bench = Sandboxes::start().await;
    bench.create("sleeper", json!({ "service": true })).await;
    bench.until("sleeper", ConditionType::Ready, "DependenciesReady").await;
    let service = bench.api::<Service>().get("sleeper").await.expect("there").metadata.uid;
    for _ in 0..2 {
        bench.patch("sleeper", json!({ "spec": { "operatingMode": "Suspended" } })).await;
        let asleep = bench.until("sleeper", ConditionType::Suspended, "PodTerminated").await;
        assert_eq!(asleep.pod_ips(), [] as [String; 0]);
        assert!(bench.api::<Pod>().get_opt("sleeper").await.expect("reads").is_none());
        bench.patch("sleeper", json!({ "spec": { "operatingMode": "Running" } })).await;
        bench.until("sleeper", ConditionType::Ready, "DependenciesReady").await;
    }
    assert_eq!(bench.api::<Service>().get("sleeper").await.expect("kept").metadata.uid, service);
    bench.stop().await;
}

/// S-189: a running Sandbox expires at its time, not before, and reports that for the generation that set the time; its
/// children are deleted. `Retain` keeps the Sandbox, `Delete` does not.
#[tokio::test]
async fn s_189_expiry_in_time() {
    let bench = Sandboxes::start().await;
    for (name, policy) in [("kept", "Retain"), ("dropped", "Delete")] {
        bench.create(name, json!({ "service": true, "shutdownPolicy": policy })).await;
        bench.until(name, ConditionType::Ready, "DependenciesReady").await;
    }
    let at = jiff::Timestamp::now() + Duration::from_secs(2);
    let at: jiff::Timestamp = format!("{at:.0}").parse().expect("a time in whole seconds");
    for name in ["kept", "dropped"] {
        bench.patch(name, json!({ "spec": { "shutdownTime": at.to_string() } })).await;
    }
    let expired = bench.until("kept", ConditionType::Ready, "SandboxExpired").await;
    assert!(jiff::Timestamp::now() >= at, "not before its time");
    let ready = expired.condition(ConditionType::Ready).expect("there");
    assert_eq!((ready.status.as_str(), ready.observed_generation), ("False", Some(2)));
    bench.until_gone::<Pod>("kept").await;
    bench.until_gone::<Service>("kept").await;
    bench.until_gone::<Sandbox>("dropped").await;
    bench.until_gone::<Pod>("dropped").await;
    let after = eventually("the service fields are empty", || async {
        let sandbox = bench.api::<Sandbox>().get("kept").await.expect("kept");
        let status = sandbox.status.clone().unwrap_or_default();
        let empty =
            status.service.is_none_or(|name| name.is_empty()) && status.service_fqdn.is_none_or(|name| name.is_empty());
        if empty { Ok(sandbox) } else { Err(sandbox.status) }
    })
    .await;
    let suspended = after.condition(ConditionType::Suspended).expect("there");
    assert_eq!((suspended.status.as_str(), suspended.reason.as_str()), ("False", "NotSuspended"));
    bench.stop().await;
}

/// S-190: the Finished condition of an ended Pod stays after the Sandbox expired; the children are deleted.
#[tokio::test]
async fn s_190_what_finished_stays_finished_after_expiry() {
    let bench = Sandboxes::start().await;
    let pod = json!({ "spec": { "restartPolicy": "Never", "containers": [{ "name": "main", "image": "busybox" }] } });
    bench.create("task", json!({ "podTemplate": pod, "shutdownPolicy": "Retain" })).await;
    bench.until("task", ConditionType::Ready, "DependenciesReady").await;
    let ended = Patch::Merge(json!({ "status": { "phase": "Succeeded" } }));
    bench.api::<Pod>().patch_status("task", &PatchParams::default(), &ended).await.expect("patched");
    bench.until("task", ConditionType::Finished, "PodSucceeded").await;
    let at = jiff::Timestamp::now() + Duration::from_secs(1);
    bench.patch("task", json!({ "spec": { "shutdownTime": format!("{at:.0}") } })).await;
    bench.until("task", ConditionType::Ready, "SandboxExpired").await;
    bench.until_gone::<Pod>("task").await;
    let expired = bench.api::<Sandbox>().get("task").await.expect("kept");
    let finished = expired.condition(ConditionType::Finished).expect("kept");
    assert_eq!((finished.status.as_str(), finished.reason.as_str()), ("True", "PodSucceeded"));
    bench.stop().await;
}

/// A settled controller writes nothing.
#[tokio::test]
async fn a_converged_controller_writes_nothing() {
    let bench = Sandboxes::start().await;
    for number in 0..5 {
        let name = format!("quiet-{number}");
        bench.create(&name, json!({ "service": true })).await;
        bench.until(&name, ConditionType::Ready, "DependenciesReady").await;
    }
    // The write that made the last one Ready is visible before its response arrives and is recorded.
    for attempt in 0.. {
        bench.writes.clear();
        tokio::time::sleep(Duration::from_millis(500)).await;
        if bench.writes.writes().is_empty() {
            break;
        }
        assert!(attempt < 20, "it never settles: {:?}", bench.writes.writes());
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(bench.writes.writes(), []);
    bench.stop().await;
}
