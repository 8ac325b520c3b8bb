//! The NetworkPolicy and the label of a template.

use std::sync::Arc;

use agent_sandbox_api::v1beta1::SandboxTemplate;
use serde_json::{Value, json};

use super::*;
use crate::testing::fake_api::{FakeApi, FakeClock, merge};

struct TemplateFixture {
    api: Arc<FakeApi>,
    store: Arc<Store>,
    reconciler: TemplateReconciler,
    cursor: usize,
}

const HASH_LABEL: &str = "agents.x-k8s.io/sandbox-template-ref-hash";
/// FNV-1a of `test-template`.
const HASH: &str = "69155462";

fn key() -> Key {
    Key::new("default", "test-template")
}

fn policy_key() -> Key {
    key().sibling("test-template-network-policy")
}

impl TemplateFixture {
    fn new(spec: Value) -> Self {
        let api = FakeApi::new(FakeClock::new());
        let store = Store::new(vec![route], false);
        let mut template = json!({
            "metadata": { "name": "test-template" },
            "spec": { "podTemplate": { "spec": { "containers": [{ "name": "c", "image": "i" }] } } },
        });
        merge(&mut template["spec"], &spec);
        api.create(Kind::Template, template);
        let reconciler = TemplateReconciler::new(store.clone(), api.clone());
        Self { api, store, reconciler, cursor: 0 }
    }

    async fn pass(&mut self) -> Result<Next, ReconcileError> {
        self.api.deliver_events(&self.store, &mut self.cursor, usize::MAX);
        self.reconciler.reconcile(&key()).await
    }

    fn policy(&self) -> Option<Value> {
        self.api.get(Kind::NetworkPolicy, &policy_key())
    }

    fn template(&self) -> SandboxTemplate {
        self.api.typed(&key()).expect("there")
    }
}

/// without rules only the router may connect and only the Internet is reachable; the selector is the
/// label that Pods carry.
#[tokio::test]
async fn x_230_x_235_the_default_policy() {
    let mut fixture = TemplateFixture::new(json!({}));
    fixture.pass().await.expect("passes");
    let policy = fixture.policy().expect("made");
    assert_eq!(
        policy["spec"],
        json!({
            "podSelector": { "matchLabels": { HASH_LABEL: HASH } },
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{ "from": [{
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "agent-sandbox-system" } },
                "podSelector": { "matchLabels": { "app": "sandbox-router" } },
            }] }],
            "egress": [{ "to": [
                { "ipBlock": { "cidr": "0.0.0.0/0", "except": ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"] } },
                { "ipBlock": { "cidr": "::/0", "except": ["fc00::/7", "fe80::/10"] } },
            ] }],
        })
    );
    let owner = &policy["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["uid"], &owner["controller"]),
        (&json!("SandboxTemplate"), &json!(fixture.template().uid()), &json!(true))
    );
    assert!(policy["metadata"]["labels"].is_null());
}

/// the user's rules replace the default; empty ones close everything.
#[tokio::test]
async fn x_231_x_237_custom_rules() {
    let rules = json!({ "ingress": [{ "ports": [{ "port": 80 }] }], "egress": [] });
    for (given, ingress) in [(rules, json!([{ "ports": [{ "port": 80 }] }])), (json!({}), json!([]))] {
        let mut fixture = TemplateFixture::new(json!({ "networkPolicy": given }));
        fixture.pass().await.expect("passes");
        let spec = fixture.policy().expect("made")["spec"].clone();
        assert_eq!((&spec["ingress"], &spec["egress"]), (&ingress, &json!([])));
        assert_eq!(spec["policyTypes"], json!(["Ingress", "Egress"]));
        assert_eq!(spec["podSelector"]["matchLabels"][HASH_LABEL], HASH);
    }
}

/// unmanaged: an owned policy is deleted, a foreign one stays.
#[tokio::test]
async fn x_232_unmanaged() {
    let mut fixture = TemplateFixture::new(json!({}));
    fixture.pass().await.expect("passes");
    fixture.api.edit(Kind::Template, &key(), json!({ "spec": { "networkPolicyManagement": "Unmanaged" } }));
    fixture.pass().await.expect("passes");
    assert!(fixture.policy().is_none());
    let foreign = json!({ "metadata": { "name": "test-template-network-policy" }, "spec": { "podSelector": {} } });
    fixture.api.create(Kind::NetworkPolicy, foreign);
    fixture.pass().await.expect("passes");
    assert!(fixture.policy().is_some());
}

/// drift is overwritten; a foreign policy of that name is an error and stays.
#[tokio::test]
async fn x_233_drift_and_foreign_policies() {
    let mut fixture = TemplateFixture::new(json!({}));
    fixture.pass().await.expect("passes");
    let wanted = fixture.policy().expect("made")["spec"].clone();
    let drift = json!({ "spec": { "podSelector": { "matchLabels": { "app": "x" } }, "egress": [{}], "policyTypes": ["Ingress"] } });
    fixture.api.edit(Kind::NetworkPolicy, &policy_key(), drift);
    fixture.pass().await.expect("passes");
    assert_eq!(fixture.policy().expect("there")["spec"], wanted);

    let mut refused = TemplateFixture::new(json!({}));
    let foreign = json!({ "metadata": { "name": "test-template-network-policy" }, "spec": { "podSelector": {} } });
    refused.api.create(Kind::NetworkPolicy, foreign);
    let error = refused.pass().await.expect_err("refused");
    let text = "refusing to update NetworkPolicy \"test-template-network-policy\" as it is not controlled by SandboxTemplate \"test-template\"";
    assert_eq!(error.message, text);
    assert_eq!(refused.policy().expect("there")["spec"], json!({ "podSelector": {} }));
}

/// the label is written once; a second pass writes nothing, also when the server has added defaults to the
/// rules.
#[tokio::test]
async fn x_234_the_label_and_silence() {
    let rules = json!({ "networkPolicy": { "egress": [{ "ports": [{ "port": 53 }] }] } });
    for spec in [json!({}), rules] {
        let mut fixture = TemplateFixture::new(spec);
        fixture.pass().await.expect("passes");
        assert_eq!(fixture.template().label(HASH_LABEL), Some(HASH));
        let mut stored = fixture.policy().expect("made");
        for port in stored["spec"]["egress"][0]["ports"].as_array_mut().into_iter().flatten() {
            port["protocol"] = "TCP".into();
        }
        fixture.api.edit(Kind::NetworkPolicy, &policy_key(), stored);
        fixture.api.take_writes();
        fixture.pass().await.expect("passes");
        assert_eq!(fixture.api.take_writes(), []);
    }
}

/// a policy deleted by hand is created again; it is deleted with the template.
#[tokio::test]
async fn x_236_recreated_and_collected() {
    let mut fixture = TemplateFixture::new(json!({}));
    fixture.pass().await.expect("passes");
    fixture.api.remove(Kind::NetworkPolicy, &policy_key());
    while futures::FutureExt::now_or_never(fixture.store.queues.template.next()).flatten().is_some() {}
    fixture.api.deliver_events(&fixture.store, &mut fixture.cursor, usize::MAX);
    let woken =
        futures::FutureExt::now_or_never(fixture.store.queues.template.next()).flatten().map(|work| work.key.clone());
    assert_eq!(woken, Some(key()), "its deletion wakes the template");
    fixture.pass().await.expect("passes");
    assert!(fixture.policy().is_some());
    fixture.api.remove(Kind::Template, &key());
    fixture.api.collect_garbage();
    assert!(fixture.policy().is_none());
    assert_eq!(fixture.pass().await.expect("gone is fine"), Next::Idle);
}

/// A template that is being deleted is left alone.
#[tokio::test]
async fn a_deleting_template_is_left_alone() {
    let mut fixture = TemplateFixture::new(json!({}));
    fixture.api.edit(Kind::Template, &key(), json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }));
    fixture.pass().await.expect("passes");
    assert_eq!(fixture.api.writes(), []);
}
