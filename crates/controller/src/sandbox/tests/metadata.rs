//! How a Pod's labels and annotations follow the Sandbox.

use agent_sandbox_api::keys::annotations;

use super::*;

const POOL: &str = "agents.x-k8s.io/warm-pool-sandbox";
const TEMPLATE: &str = "agents.x-k8s.io/sandbox-template-ref-hash";
const CREATED_BY: &str = "agents.x-k8s.io/created-by";
const LABELS: &str = "agents.x-k8s.io/propagated-labels";
const ANNOTATIONS: &str = "agents.x-k8s.io/propagated-annotations";

fn owned_by(kind: &str, version: &str) -> Value {
    let api_version = format!("extensions.agents.x-k8s.io/{version}");
    json!([{ "apiVersion": api_version, "kind": kind, "name": "o", "uid": "owner", "controller": true }])
}

fn template(labels: Value, annotations: Value) -> Value {
    json!({ "spec": { "podTemplate": { "metadata": { "labels": labels, "annotations": annotations } } } })
}

/// Edits the Sandbox and lets it converge; the Pod patches that took.
async fn after(fixture: &mut SandboxFixture, change: Value) -> usize {
    fixture.api.edit(Kind::Sandbox, &key(), change);
    fixture.api.take_writes();
    fixture.pass().await.expect("passes");
    let patches = fixture.api.take_writes().iter().filter(|request| request.kind == Kind::Pod).count();
    fixture.converge().await;
    patches
}

/// S-032, S-120: a new Pod carries the template's metadata and a record of it.
#[tokio::test]
async fn s_032_s_120_a_new_pod_carries_the_templates_metadata() {
    let mut fixture = SandboxFixture::new();
    fixture.create(with(template(json!({ "b": "2", "a": "1" }), json!({ "note": "n" }))));
    fixture.converge().await;
    let pod = fixture.pod();
    assert_eq!((label_of(&pod, "a").as_deref(), annotation_of(&pod, "note").as_deref()), (Some("1"), Some("n")));
    assert_eq!(annotation_of(&pod, LABELS).as_deref(), Some("a,b"));
    assert_eq!(annotation_of(&pod, ANNOTATIONS).as_deref(), Some("note"));
    assert_eq!(fixture.sandbox().annotation(POD_NAME), Some(NAME));
}

/// A node replaces the files of a Pod that names another snapshot than before: the Sandbox's own counts, and the Pod of a
/// Sandbox that was set back keeps it although the template names another.
#[tokio::test]
async fn the_snapshot_of_a_pod_is_that_of_its_creation() {
    let mut fixture = SandboxFixture::new();
    fixture.create(with(template(json!({ "a": "1" }), json!({ annotations::SNAPSHOT: "of-template" }))));
    fixture.api.edit(
        Kind::Sandbox,
        &key(),
        json!({ "metadata": { "annotations": { annotations::SNAPSHOT: "own", annotations::RESTORED_AT: "now" } } }),
    );
    fixture.converge().await;
    let origin = |pod: &Pod| [annotations::SNAPSHOT, annotations::RESTORED_AT].map(|key| annotation_of(pod, key));
    let own = [Some("own".to_owned()), Some("now".to_owned())];
    assert_eq!(origin(&fixture.pod()), own);
    // A new label is written; the snapshot stays, whatever the template or the Sandbox names meanwhile.
    let named = json!({ annotations::SNAPSHOT: "later" });
    assert_eq!(after(&mut fixture, template(json!({ "a": "2" }), named)).await, 1);
    assert_eq!((origin(&fixture.pod()), label_of(&fixture.pod(), "a").as_deref()), (own.clone(), Some("2")));
    assert_eq!(
        after(&mut fixture, json!({ "metadata": { "annotations": { annotations::SNAPSHOT: "next" } } })).await,
        0
    );
    assert_eq!(origin(&fixture.pod()), own);
    assert_eq!(after(&mut fixture, template(Value::Null, json!({ annotations::SNAPSHOT: null }))).await, 1);
    assert_eq!(origin(&fixture.pod()), own);
}

/// S-121, S-124: reserved keys of a template are ignored and not recorded.
#[tokio::test]
async fn s_121_s_124_reserved_keys_are_ignored() {
    let mut fixture = SandboxFixture::new();
    fixture.create(with(template(
        json!({ TRACKING: "forged", "extensions.agents.x-k8s.io/x": "y", POOL: "forged", "ok": "1" }),
        json!({ POD_NAME: "forged", "opentelemetry.io/trace-context": "{}", "fine": "2" }),
    )));
    fixture.converge().await;
    let pod = fixture.pod();
    assert_eq!(label_of(&pod, TRACKING).as_deref(), Some(HASH));
    for key in ["extensions.agents.x-k8s.io/x", POOL] {
        assert_eq!(label_of(&pod, key), None);
    }
    for key in [POD_NAME, "opentelemetry.io/trace-context"] {
        assert_eq!(annotation_of(&pod, key), None);
    }
    assert_eq!(annotation_of(&pod, LABELS).as_deref(), Some("ok"));
    assert_eq!(annotation_of(&pod, ANNOTATIONS).as_deref(), Some("fine"));
}

/// S-122: what an older controller recorded of reserved keys is scrubbed.
#[tokio::test]
async fn s_122_reserved_keys_on_the_record_are_scrubbed() {
    let mut fixture = SandboxFixture::new();
    fixture.create(with(template(json!({ "a": "1" }), Value::Null)));
    fixture.converge().await;
    fixture.api.edit(
        Kind::Pod,
        &key(),
        json!({ "metadata": {
            "labels": { "extensions.agents.x-k8s.io/x": "y" },
            "annotations": { LABELS: format!("a,extensions.agents.x-k8s.io/x,{TRACKING}"), ANNOTATIONS: "opentelemetry.io/trace-context", "opentelemetry.io/trace-context": "{}" },
        } }),
    );
    fixture.converge().await;
    let pod = fixture.pod();
    assert_eq!(label_of(&pod, "extensions.agents.x-k8s.io/x"), None);
    assert_eq!(annotation_of(&pod, "opentelemetry.io/trace-context"), None);
    assert_eq!(label_of(&pod, TRACKING).as_deref(), Some(HASH));
    assert_eq!(annotation_of(&pod, LABELS).as_deref(), Some("a"));
    assert_eq!(annotation_of(&pod, ANNOTATIONS).as_deref(), Some(""));
}

/// S-123, S-125: the extension labels mean nothing on a Sandbox without such an owner.
#[tokio::test]
async fn s_123_s_125_extension_labels_need_an_owner() {
    let mut fixture = SandboxFixture::new();
    fixture.create(with(json!({ "metadata": { "labels": { POOL: "p", TEMPLATE: "t" } } })));
    fixture.converge().await;
    let pod = fixture.pod();
    assert_eq!((label_of(&pod, POOL), label_of(&pod, TEMPLATE)), (None, None));
}

/// S-022, S-126, S-128, S-129: pool and claim members pass their labels on, to new and to existing Pods, whatever the
/// owner's version.
#[tokio::test]
async fn s_022_s_126_s_128_s_129_extension_labels_follow_the_owner() {
    for (kind, pool) in [("SandboxWarmPool", true), ("SandboxClaim", false)] {
        for version in ["v1beta1", "v1alpha1"] {
            let mut fixture = SandboxFixture::new();
            let metadata = json!({ "metadata": { "labels": { POOL: "p", TEMPLATE: "t" }, "ownerReferences": owned_by(kind, version) } });
            fixture.create(with(metadata));
            fixture.converge().await;
            let expected = (pool.then(|| "p".to_owned()), Some("t".to_owned()));
            assert_eq!((label_of(&fixture.pod(), POOL), label_of(&fixture.pod(), TEMPLATE)), expected, "new Pod");
            fixture.api.edit(Kind::Pod, &key(), json!({ "metadata": { "labels": { POOL: null, TEMPLATE: null } } }));
            fixture.converge().await;
            assert_eq!((label_of(&fixture.pod(), POOL), label_of(&fixture.pod(), TEMPLATE)), expected, "existing Pod");
        }
    }
}

/// S-127, S-130: they leave the Pod with the owner, or with the Sandbox's own label.
#[tokio::test]
async fn s_127_s_130_extension_labels_leave_the_pod() {
    let mut fixture = SandboxFixture::new();
    let member = json!({ "metadata": { "labels": { POOL: "p", TEMPLATE: "t" }, "ownerReferences": owned_by("SandboxWarmPool", "v1beta1") } });
    fixture.create(with(member));
    fixture.converge().await;
    assert_eq!(
        after(&mut fixture, json!({ "metadata": { "ownerReferences": owned_by("SandboxClaim", "v1beta1") } })).await,
        1
    );
    assert_eq!((label_of(&fixture.pod(), POOL), label_of(&fixture.pod(), TEMPLATE).as_deref()), (None, Some("t")));
    after(&mut fixture, json!({ "metadata": { "labels": { TEMPLATE: null } } })).await;
    assert_eq!(label_of(&fixture.pod(), TEMPLATE), None);
    after(&mut fixture, json!({ "metadata": { "labels": { TEMPLATE: "t" } } })).await;
    assert_eq!(label_of(&fixture.pod(), TEMPLATE).as_deref(), Some("t"));
    after(&mut fixture, json!({ "metadata": { "ownerReferences": [] } })).await;
    assert_eq!(label_of(&fixture.pod(), TEMPLATE), None);
}

/// S-131, S-134: a key that leaves the template leaves the Pod; other people's keys stay.
#[tokio::test]
async fn s_131_s_134_removed_keys_leave_the_pod() {
    let mut fixture = SandboxFixture::new();
    fixture.create(with(template(json!({ "a": "1", "b": "2" }), json!({ "note": "n" }))));
    fixture.converge().await;
    let others =
        json!({ "metadata": { "labels": { "agents.x-k8s.io/other": "x" }, "annotations": { "webhook": "w" } } });
    fixture.api.edit(Kind::Pod, &key(), others);
    let removed =
        json!({ "spec": { "podTemplate": { "metadata": { "labels": { "a": null }, "annotations": null } } } });
    assert_eq!(after(&mut fixture, removed).await, 1);
    let pod = fixture.pod();
    assert_eq!((label_of(&pod, "a"), label_of(&pod, "b").as_deref()), (None, Some("2")));
    assert_eq!(annotation_of(&pod, "note"), None);
    assert_eq!(
        (label_of(&pod, "agents.x-k8s.io/other").as_deref(), annotation_of(&pod, "webhook").as_deref()),
        (Some("x"), Some("w"))
    );
    assert_eq!(
        (annotation_of(&pod, LABELS).as_deref(), annotation_of(&pod, ANNOTATIONS).as_deref()),
        (Some("b"), Some(""))
    );
}

/// S-132: created-by is bounded on the Pod, and follows the Sandbox.
#[tokio::test]
async fn s_132_created_by_follows() {
    for (given, shown) in [("go-client", "go-client"), ("curl", "unknown")] {
        let mut fixture = SandboxFixture::new();
        fixture.create(with(json!({ "metadata": { "labels": { CREATED_BY: given } } })));
        fixture.converge().await;
        assert_eq!(label_of(&fixture.pod(), CREATED_BY).as_deref(), Some(shown));
        after(&mut fixture, json!({ "metadata": { "labels": { CREATED_BY: "python-client" } } })).await;
        assert_eq!(label_of(&fixture.pod(), CREATED_BY).as_deref(), Some("python-client"));
        after(&mut fixture, json!({ "metadata": { "labels": { CREATED_BY: null } } })).await;
        assert_eq!(label_of(&fixture.pod(), CREATED_BY), None);
    }
}

/// S-133: after adoption one patch removes the pool's label and its annotation.
#[tokio::test]
async fn s_133_adoption_costs_one_pod_patch() {
    const EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
    let mut fixture = SandboxFixture::new();
    let mut member = with(template(json!({}), json!({ EVICT: "true" })));
    member["metadata"]["labels"] = json!({ POOL: "p", TEMPLATE: "t" });
    member["metadata"]["ownerReferences"] = owned_by("SandboxWarmPool", "v1beta1");
    fixture.create(member);
    fixture.converge().await;
    assert_eq!(annotation_of(&fixture.pod(), EVICT).as_deref(), Some("true"));
    let adopted = json!({
        "metadata": { "labels": { POOL: null }, "ownerReferences": owned_by("SandboxClaim", "v1beta1") },
        "spec": { "podTemplate": { "metadata": { "annotations": null } } },
    });
    assert_eq!(after(&mut fixture, adopted).await, 1);
    assert_eq!((label_of(&fixture.pod(), POOL), annotation_of(&fixture.pod(), EVICT)), (None, None));
}
