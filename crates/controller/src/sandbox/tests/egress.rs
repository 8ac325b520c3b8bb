//! Egress rules: they reach the Pod where nodes enforce them, and are refused elsewhere.

use agent_sandbox_api::keys::annotations;

use super::*;

fn annotated(rules: &str) -> Value {
    with(
        json!({ "metadata": { "annotations": { annotations::EGRESS: rules, annotations::EGRESS_OF_CLAIM: "a.com" } } }),
    )
}

fn enforcing() -> SandboxFixture {
    SandboxFixture::with(Settings { enforces_egress: true, ..Settings::default() }, Tracing::default())
}

#[tokio::test]
async fn the_pod_gets_the_sandboxs_rules_and_follows_them() {
    let mut fixture = enforcing();
    fixture.create(annotated("*.com"));
    fixture.converge().await;
    assert_eq!(annotation_of(&fixture.pod(), annotations::EGRESS).as_deref(), Some("*.com"));
    assert_eq!(annotation_of(&fixture.pod(), annotations::EGRESS_OF_CLAIM).as_deref(), Some("a.com"));
    let edit =
        json!({ "metadata": { "annotations": { annotations::EGRESS: "b.com", annotations::EGRESS_OF_CLAIM: null } } });
    fixture.api.edit(Kind::Sandbox, &key(), edit);
    fixture.converge().await;
    assert_eq!(annotation_of(&fixture.pod(), annotations::EGRESS).as_deref(), Some("b.com"));
    assert_eq!(annotation_of(&fixture.pod(), annotations::EGRESS_OF_CLAIM), None);
}

#[tokio::test]
async fn a_pod_template_cannot_set_rules() {
    let mut fixture = enforcing();
    let metadata = json!({ "annotations": { annotations::EGRESS: "*", annotations::EGRESS_OF_CLAIM: "*" } });
    fixture.create(with(json!({ "spec": { "podTemplate": { "metadata": metadata } } })));
    fixture.converge().await;
    assert_eq!(annotation_of(&fixture.pod(), annotations::EGRESS), None);
    assert_eq!(annotation_of(&fixture.pod(), annotations::EGRESS_OF_CLAIM), None);
}

#[tokio::test]
async fn a_bad_rule_gives_no_pod_and_names_the_rule() {
    let mut fixture = enforcing();
    fixture.create(annotated("a.com, https://b.com"));
    fixture.converge().await;
    assert!(fixture.pod_named(NAME).is_none());
    let (status, _, message) = fixture.ready();
    assert_eq!(status, "False");
    assert!(message.contains("egress rule 2 (\"https://b.com\")"), "{message}");
}

#[tokio::test]
async fn rules_that_nobody_enforces_are_refused_also_on_a_running_sandbox() {
    let mut fixture = SandboxFixture::new();
    fixture.create(annotated("a.com"));
    fixture.converge().await;
    assert!(fixture.pod_named(NAME).is_none());
    assert!(fixture.ready().2.contains("not enforced on this cluster"), "{:?}", fixture.ready());
    let mut running = SandboxFixture::new();
    running.create(with(json!({})));
    running.converge().await;
    running.pod_runs(NAME);
    running.converge().await;
    assert_eq!(running.ready().0, "True");
    let edit = json!({ "metadata": { "annotations": { annotations::EGRESS: "a.com" } } });
    running.api.edit(Kind::Sandbox, &key(), edit);
    running.converge().await;
    assert_eq!(running.ready().0, "False");
}
