//! Tests of secure defaults and of the comparison that rollouts depend on.

use std::sync::Arc;

use agent_sandbox_api::template::{NetworkPolicyRules, PodMetadata, PodTemplate, VolumeClaimMetadata};
use agent_sandbox_api::v1beta1::SandboxTemplateSpec;

use super::*;

fn is_stale(sandbox: &Sandbox, template: &SandboxTemplate, compare_by: CompareBy) -> bool {
    StalenessCheck::new(template).is_stale(sandbox, compare_by)
}

fn template(pod: Value) -> SandboxTemplate {
    let mut template = SandboxTemplate {
        spec: SandboxTemplateSpec {
            pod_template: PodTemplate { spec: pod.into(), metadata: None },
            ..SandboxTemplateSpec::default()
        },
        ..SandboxTemplate::default()
    };
    template.metadata.name = Some("t".into());
    template
}

fn pod() -> Value {
    json!({"containers": [{"name": "c", "image": "i", "resources": {"limits": {"memory": "1Gi", "cpu": 1}}}]})
}

/// A Sandbox as a pool makes it from the template.
fn member(template: &SandboxTemplate) -> Sandbox {
    let mut sandbox = Sandbox::default();
    sandbox.metadata.labels = [
        (&labels::TEMPLATE_REF_HASH, &names::name_hash(template.name())),
        (&labels::TEMPLATE_HASH, &template_hash(template)),
    ]
    .into_iter()
    .collect();
    sandbox.spec.pod_template = PodTemplate { spec: secure_pod_spec(template), metadata: None };
    sandbox.spec.volume_claim_templates = template.spec.volume_claim_templates.clone();
    sandbox.spec.service = template.spec.service;
    sandbox
}

fn volume(name: &str, size: &str) -> VolumeClaimTemplate {
    VolumeClaimTemplate {
        metadata: Some(VolumeClaimMetadata { name: Some(name.into()), ..VolumeClaimMetadata::default() }),
        spec: json!({"resources": {"requests": {"storage": size}}}).into(),
    }
}

#[test]
fn x_032_the_service_account_token_is_closed_unless_asked_for() {
    assert_eq!(secure_pod_spec(&template(pod()))["automountServiceAccountToken"], false);
    for explicit in [true, false] {
        let mut spec = pod();
        spec["automountServiceAccountToken"] = explicit.into();
        assert_eq!(secure_pod_spec(&template(spec))["automountServiceAccountToken"], explicit);
    }
}

/// public resolvers exactly under the default policy.
#[test]
fn x_033_x_187_resolvers_follow_the_default_policy() {
    let spec = secure_pod_spec(&template(pod()));
    assert_eq!(
        (&spec["dnsPolicy"], &spec["dnsConfig"]),
        (&json!("None"), &json!({"nameservers": ["8.8.8.8", "1.1.1.1"]}))
    );

    let mut with_rules = template(pod());
    with_rules.spec.network_policy = Some(NetworkPolicyRules::default());
    assert_eq!(secure_pod_spec(&with_rules).get("dnsPolicy"), None);

    let mut unmanaged = template(pod());
    unmanaged.spec.network_policy_management = Some(NetworkPolicyManagement::Unmanaged);
    assert_eq!(secure_pod_spec(&unmanaged).get("dnsPolicy"), None);

    let mut chosen = pod();
    chosen["dnsPolicy"] = "ClusterFirst".into();
    assert_eq!(secure_pod_spec(&template(chosen))["dnsPolicy"], "ClusterFirst");
}

#[test]
fn x_206_what_was_injected_is_not_a_difference() {
    let template = template(pod());
    for trust in [CompareBy::Hash, CompareBy::FullSpec] {
        assert!(!is_stale(&member(&template), &template, trust));
    }
    let mut unlabelled = member(&template);
    unlabelled.metadata.labels.remove(labels::TEMPLATE_HASH);
    assert!(!is_stale(&unlabelled, &template, CompareBy::Hash));
}

#[test]
fn x_206_x_207_what_the_user_changed_is_a_difference() {
    let old = {
        let mut old = template(pod());
        old.spec.volume_claim_templates = Some(vec![volume("a", "1Gi"), volume("b", "1Gi")]);
        old
    };
    let stale = |change: &dyn Fn(&mut SandboxTemplate)| {
        let mut new = old.clone();
        change(&mut new);
        is_stale(&member(&old), &new, CompareBy::Hash)
    };
    assert!(stale(&|t| t.spec.pod_template.spec.make_mut()["containers"][0]["image"] = "j".into()));
    assert!(stale(&|t| t.spec.pod_template.spec.make_mut()["automountServiceAccountToken"] = true.into()));
    assert!(stale(&|t| t.spec.pod_template.spec.make_mut()["dnsPolicy"] = "Default".into()));
    assert!(stale(&|t| t.spec.volume_claim_templates = Some(vec![volume("b", "1Gi"), volume("a", "1Gi")])));
    assert!(stale(&|t| t.spec.volume_claim_templates = Some(vec![volume("a", "1Gi"), volume("c", "1Gi")])));
    assert!(stale(&|t| t.spec.volume_claim_templates = Some(vec![volume("a", "1Gi")])));
    assert!(stale(&|t| t.spec.volume_claim_templates = Some(vec![volume("a", "2Gi"), volume("b", "1Gi")])));
    assert!(stale(&|t| t.spec.service = Some(true)));
    assert!(stale(&|t| t.spec.service = Some(false)));
    assert!(stale(&|t| t.metadata.name = Some("other".into())), "X-203: another name is another template");
}

#[test]
fn x_202_metadata_of_pods_and_volumes_is_not_a_difference() {
    let mut old = template(pod());
    old.spec.volume_claim_templates = Some(vec![volume("a", "1Gi")]);
    let mut new = old.clone();
    let labels = Some([("l".to_owned(), "v".to_owned())].into());
    new.spec.pod_template.metadata =
        Some(Arc::new(PodMetadata { labels: labels.clone(), annotations: labels.clone() }));
    new.spec.volume_claim_templates.as_mut().expect("volumes")[0].metadata.as_mut().expect("metadata").labels = labels;
    assert_ne!(template_hash(&old), template_hash(&new));
    assert!(!is_stale(&member(&old), &new, CompareBy::Hash));
}

#[test]
fn x_184_a_forged_hash_does_not_help_an_orphan() {
    let template = template(pod());
    let mut forged = member(&template);
    forged.spec.pod_template.spec.make_mut()["containers"][0]["image"] = "evil".into();
    assert!(!is_stale(&forged, &template, CompareBy::Hash));
    assert!(is_stale(&forged, &template, CompareBy::FullSpec));
}

#[test]
fn quantities_compare_by_value_and_empty_is_absent() {
    let spec = |memory: Value, cpu: Value| json!({"containers": [{"resources": {"limits": {"memory": memory, "cpu": cpu}}, "env": []}]});
    let same = |one: &Value, other: &Value| same_json(one, other, false);
    assert!(same(&spec("1Gi".into(), 1.into()), &spec("1024Mi".into(), "1000m".into())));
    assert!(same(&spec("1e3".into(), "0.5".into()), &spec("1k".into(), "500m".into())));
    assert!(!same(&spec("1Gi".into(), 1.into()), &spec("1G".into(), 1.into())));
    assert!(!same(&spec("x".into(), 1.into()), &spec("y".into(), 1.into())));
    assert!(same(&json!({"a": null, "b": [], "c": {}}), &json!({})));
    assert!(!same(&json!({"a": "1"}), &json!({"a": 1})), "only quantities");
    assert!(!same(&json!({"a": [1, 2]}), &json!({"a": [2, 1]})));
}
