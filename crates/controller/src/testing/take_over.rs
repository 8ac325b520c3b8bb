//! Taking over the objects of upstream's controller in place, and leaving objects that it can take back.
//!
//! `data/upstream-0.5.6.json` was recorded from upstream's controller 0.5.6 on a real control plane: Sandboxes that run,
//! are suspended, expired or unschedulable, claims served warm and cold or refused, pools and templates. Fields that only
//! the kubelet and the scheduler read are removed.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use serde_json::{Value, json};

use crate::{
    api_client::{ApiClient, Verb},
    cache::{Key, Kind, Store},
    claim::{self, ClaimReconciler, ClaimSettings},
    clock::Clock,
    pool::{self, PoolReconciler, PoolSettings},
    reconcile::Reconciler,
    sandbox::{self, SandboxReconciler, Settings},
    serving::{events::Events, metrics::Metrics, tracing_context::Tracing},
    template::{self, TemplateReconciler},
    testing::fake_api::{FakeApi, FakeClock},
};

const RECORDED: &str = include_str!("data/upstream-0.5.6.json");
const POD_NAME: &str = "agents.x-k8s.io/pod-name";
const DEPRECATED_HASH: &str = "agents.x-k8s.io/sandbox-pod-template-hash";

fn kind_of(object: &Value) -> Kind {
    match object["kind"].as_str() {
        Some("Sandbox") => Kind::Sandbox,
        Some("SandboxClaim") => Kind::Claim,
        Some("SandboxWarmPool") => Kind::Pool,
        Some("SandboxTemplate") => Kind::Template,
        Some("Pod") => Kind::Pod,
        Some("PersistentVolumeClaim") => Kind::Pvc,
        Some("NetworkPolicy") => Kind::NetworkPolicy,
        other => panic!("an object of kind {other:?} was recorded"),
    }
}

fn recorded() -> Vec<Value> {
    serde_json::from_str(RECORDED).expect("valid")
}

/// The same states as upstream 1.0 leaves them: it tracks no Pod name in an annotation, writes one hash instead of two,
/// and mirrors the Service's name.
fn as_upstream_1_0() -> Vec<Value> {
    let mut objects = recorded();
    for object in &mut objects {
        if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
            annotations.remove(POD_NAME);
        }
        for labels in ["/metadata/labels", "/spec/podTemplate/metadata/labels"] {
            if let Some(labels) = object.pointer_mut(labels).and_then(Value::as_object_mut) {
                labels.remove(DEPRECATED_HASH);
            }
        }
    }
    objects
}

/// A controller that starts on objects that exist.
struct Successor {
    api: Arc<FakeApi>,
    store: Arc<Store>,
    reconcilers: Vec<(Kind, Arc<dyn Reconciler>)>,
    cursor: usize,
}

impl Successor {
    fn on(objects: Vec<Value>) -> Self {
        let api = FakeApi::new(FakeClock::new());
        for object in objects {
            api.restore(kind_of(&object), object);
        }
        let store = Store::new(vec![sandbox::route, template::route, claim::route, pool::route], false);
        let (client, clock): (Arc<dyn ApiClient>, Arc<dyn Clock>) = (api.clone(), api.clock.clone());
        let (events, metrics) = (Events::disabled(), Arc::new(Metrics::default()));
        let pools = PoolSettings { status_interval: Duration::ZERO, ..PoolSettings::default() };
        let reconcilers: Vec<(Kind, Arc<dyn Reconciler>)> = vec![
            (Kind::Template, Arc::new(TemplateReconciler::new(store.clone(), client.clone()))),
            (
                Kind::Pool,
                Arc::new(PoolReconciler::new(store.clone(), client.clone(), clock.clone(), events.clone(), pools)),
            ),
            (
                Kind::Claim,
                Arc::new(ClaimReconciler::new(
                    store.clone(),
                    client.clone(),
                    clock.clone(),
                    events.clone(),
                    metrics.clone(),
                    ClaimSettings::default(),
                )),
            ),
            (
                Kind::Sandbox,
                Arc::new(SandboxReconciler::new(
                    store.clone(),
                    client,
                    clock,
                    events,
                    metrics,
                    Settings::default(),
                    Tracing::default(),
                )),
            ),
        ];
        Self { api, store, reconcilers, cursor: 0 }
    }

    /// Passes over every object until nothing is written any more; kubelets run what is created.
    async fn converge(&mut self) {
        for _ in 0..20 {
            let before = self.api.position();
            for (kind, reconciler) in &self.reconcilers {
                for key in self.api.keys(*kind) {
                    self.api.deliver_events(&self.store, &mut self.cursor, usize::MAX);
                    // A claim that cannot be served is an error that is retried; its condition says so.
                    let _ = reconciler.reconcile(&key).await;
                }
            }
            self.run_kubelets();
            self.api.clock.advance(Duration::from_secs(5));
            if self.api.position() == before {
                return;
            }
        }
        panic!("the objects do not converge: {:#?}", self.api.take_writes());
    }

    fn run_kubelets(&self) {
        for key in self.api.keys(Kind::Pod) {
            let pod = self.api.get(Kind::Pod, &key).expect("listed");
            // Recorded Pods keep the state they were recorded in.
            if pod["status"]["phase"] == "Pending"
                && pod["metadata"]["uid"].as_str().expect("a uid").starts_with("pods-")
            {
                let status = json!({ "phase": "Running", "podIPs": [{ "ip": "10.0.0.9" }], "conditions": [
                    { "type": "PodScheduled", "status": "True" }, { "type": "Ready", "status": "True" },
                ] });
                self.api.edit(Kind::Pod, &key, json!({ "spec": { "nodeName": "n" }, "status": status }));
            }
        }
    }

    fn object(&self, kind: Kind, name: &str) -> Value {
        self.api.get(kind, &Key::new("default", name)).unwrap_or_else(|| panic!("{name} exists"))
    }

    /// What must survive: uid of every object, conditions of ours, and the Sandbox that each claim has.
    fn essence(&self) -> Vec<(Kind, String, Value)> {
        let kinds = [Kind::Sandbox, Kind::Claim, Kind::Pool, Kind::Template, Kind::Pod, Kind::Pvc, Kind::NetworkPolicy];
        let mut all = Vec::new();
        for kind in kinds {
            for object in self.api.list(kind) {
                let mut conditions = object["status"]["conditions"].clone();
                if let Some(list) = conditions.as_array_mut() {
                    list.sort_by_key(|condition| condition["type"].to_string());
                }
                let metadata = &object["metadata"];
                let essence = json!({
                    "uid": metadata["uid"], "owners": metadata["ownerReferences"], "generation": metadata["generation"],
                    "conditions": conditions, "sandbox": object["status"]["sandbox"]["name"],
                    "podIPs": object["status"]["podIPs"], "replicas": object["status"]["readyReplicas"].as_i64().unwrap_or_default(),
                });
                all.push((kind, metadata["name"].as_str().expect("a name").to_owned(), essence));
            }
        }
        all
    }
}

fn keys(map: &Value) -> BTreeSet<&str> {
    map.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect()
}

/// No Pod is replaced, no claim changes hands, conditions keep their texts and times, and nothing is created or deleted.
#[tokio::test]
async fn the_objects_of_upstreams_controller_are_taken_over_in_place() {
    for (release, objects) in [("0.5.6", recorded()), ("1.0", as_upstream_1_0())] {
        let mut successor = Successor::on(objects);
        let before = successor.essence();
        successor.converge().await;
        for (now, before) in successor.essence().iter().zip(&before) {
            assert_eq!(now, before, "{release}");
        }
        assert_eq!(successor.essence().len(), before.len(), "{release}");
        let writes = successor.api.take_writes();
        let intrusive: Vec<_> =
            writes.iter().filter(|write| matches!(write.verb, Verb::Create { .. } | Verb::Delete { .. })).collect();
        assert!(intrusive.is_empty(), "{release}: {intrusive:#?}");
    }
}

/// After the take-over everything works on: a member of upstream's pool serves a claim, a suspended Sandbox resumes
/// under its name, and a Sandbox with a volume keeps it.
#[tokio::test]
async fn work_goes_on_with_upstreams_objects() {
    for objects in [recorded(), as_upstream_1_0()] {
        let mut successor = Successor::on(objects);
        successor.converge().await;
        let members: BTreeSet<String> = successor
            .api
            .list(Kind::Sandbox)
            .iter()
            .filter(|sandbox| sandbox["metadata"]["ownerReferences"][0]["kind"] == "SandboxWarmPool")
            .map(|sandbox| sandbox["metadata"]["name"].as_str().expect("a name").to_owned())
            .collect();
        let claim = json!({ "metadata": { "name": "new", "namespace": "default" }, "spec": { "warmPoolRef": { "name": "p" } } });
        successor.api.create(Kind::Claim, claim);
        let (volume, running) = (successor.object(Kind::Pvc, "data-with-volume"), Key::new("default", "with-volume"));
        for mode in ["Suspended", "Running"] {
            successor.api.edit(Kind::Sandbox, &running, json!({ "spec": { "operatingMode": mode } }));
            let resumed = Key::new("default", "suspended");
            successor.api.edit(Kind::Sandbox, &resumed, json!({ "spec": { "operatingMode": "Running" } }));
            successor.converge().await;
        }
        let served = successor.object(Kind::Claim, "new");
        let bound = served["status"]["sandbox"]["name"].as_str().expect("bound");
        assert!(members.contains(bound), "{bound} is a member that upstream made");
        assert_eq!(successor.object(Kind::Pod, "suspended")["metadata"]["name"], "suspended");
        assert_eq!(successor.object(Kind::Pvc, "data-with-volume")["metadata"]["uid"], volume["metadata"]["uid"]);
        let mounted = &successor.object(Kind::Pod, "with-volume")["spec"]["volumes"][0]["persistentVolumeClaim"];
        assert_eq!(mounted["claimName"], "data-with-volume");
    }
}

/// Handing back: what this controller makes has the labels, annotations and owners that upstream's makes, with the same
/// hashes, so that upstream's controller finds nothing to replace.
#[tokio::test]
async fn objects_of_this_controller_can_be_handed_back() {
    let mut successor = Successor::on(recorded());
    successor.converge().await;
    let known: BTreeSet<String> = successor.api.keys(Kind::Sandbox).iter().map(|key| key.name.to_string()).collect();
    let claim =
        json!({ "metadata": { "name": "new", "namespace": "default" }, "spec": { "warmPoolRef": { "name": "p" } } });
    successor.api.create(Kind::Claim, claim);
    successor.converge().await;
    let made = successor
        .api
        .list(Kind::Sandbox)
        .into_iter()
        .find(|sandbox| !known.contains(sandbox["metadata"]["name"].as_str().expect("a name")))
        .expect("the pool replaced the member that it gave away");
    let theirs = successor.object(Kind::Sandbox, "p-9nznb");
    // Upstream compares the spec itself when a hash differs, so the values of the two hashes may.
    let comparable = |sandbox: &Value| {
        let mut sandbox = sandbox.clone();
        for path in ["/metadata/labels", "/spec/podTemplate/metadata/labels"] {
            let labels = sandbox.pointer_mut(path).and_then(Value::as_object_mut).expect("labels");
            for hash in [DEPRECATED_HASH, "agents.x-k8s.io/sandbox-template-hash"] {
                assert!(labels.insert(hash.to_owned(), json!("any")).is_some(), "{hash} in {path}");
            }
        }
        let containers = sandbox.pointer_mut("/spec/podTemplate/spec/containers/0").expect("a container");
        containers.as_object_mut().expect("an object").remove("resources");
        sandbox
    };
    for path in ["/metadata/labels", "/spec/podTemplate"] {
        assert_eq!(comparable(&made).pointer(path), comparable(&theirs).pointer(path), "{path}");
    }
    assert_eq!(made["metadata"]["ownerReferences"], theirs["metadata"]["ownerReferences"]);
    let extra: Vec<_> = keys(&made["metadata"]["annotations"])
        .difference(&keys(&theirs["metadata"]["annotations"]))
        .map(ToString::to_string)
        .collect();
    assert!(extra.is_empty(), "{extra:?}");
    let (ours, theirs) = (successor.object(Kind::Claim, "new"), successor.object(Kind::Claim, "warm"));
    assert_eq!(keys(&ours["metadata"]["annotations"]), keys(&theirs["metadata"]["annotations"]));
    let bound = ours["status"]["sandbox"]["name"].as_str().expect("bound");
    assert_eq!(ours["metadata"]["annotations"]["agents.x-k8s.io/sandbox-name"], bound);
    let (ours, theirs) = (successor.object(Kind::Sandbox, bound), successor.object(Kind::Sandbox, "p-pfds2"));
    assert_eq!(keys(&ours["metadata"]["labels"]), keys(&theirs["metadata"]["labels"]));
    assert_eq!(
        keys(&ours["spec"]["podTemplate"]["metadata"]["labels"]),
        keys(&theirs["spec"]["podTemplate"]["metadata"]["labels"])
    );
    assert_eq!(ours["metadata"]["ownerReferences"][0]["kind"], "SandboxClaim");
}
