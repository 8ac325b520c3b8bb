//! Cold start: a new Sandbox for a claim, created from the template.

use agent_sandbox_api::{
    conditions::ClaimReady,
    keys::{self, annotations, labels},
    names,
    v1beta1::{SandboxClaim, SandboxTemplate},
};
use serde_json::json;

use super::{env, metadata, volumes};
use crate::{
    api_client::Request,
    cache::{Key, Kind},
    sandbox_spec,
};

/// Why the template does not allow this claim. Only an edit of claim or template helps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Rejected by the policy on environment variables.
    Env(String),
    /// Rejected by the policy on volumes, or invalid volume names.
    Volumes(String),
    /// Anything else that claim and template disagree on.
    Template(String),
}

impl Refusal {
    /// The claim's Ready condition for this refusal.
    pub fn ready(self) -> ClaimReady {
        match self {
            Self::Env(text) => ClaimReady::EnvVarsInjectionRejected(text),
            Self::Volumes(text) => ClaimReady::VolumeClaimTemplatesError(text),
            Self::Template(text) => ClaimReady::ReconcilerError(text),
        }
    }
}

/// The request that creates the claim's own Sandbox. `trace` is the trace context that the claim is about to get, when
/// it has none.
pub fn create(claim: &SandboxClaim, template: &SandboxTemplate, trace: Option<&str>) -> Result<Request, Refusal> {
    if let Some(conflict) = metadata::override_conflict(claim, template) {
        return Err(Refusal::Template(conflict));
    }
    let volumes = volumes::merge(
        template.volume_claim_templates(),
        claim.volume_claim_templates(),
        template.volume_claim_templates_policy(),
    )?;
    let mut pod = sandbox_spec::secure_pod_spec(template).into_value();
    env::inject(&mut pod, claim.env(), template.env_vars_injection_policy())?;

    let hash = names::name_hash(template.name());
    let mut sandbox_labels = json!({
        labels::CLAIM_UID: claim.uid(),
        labels::LAUNCH_TYPE: keys::LAUNCH_COLD,
        labels::TEMPLATE_REF_HASH: hash,
    });
    if let Some(value) = metadata::created_by(claim) {
        sandbox_labels[labels::CREATED_BY] = value.into();
    }
    let mut sandbox_annotations = json!({ annotations::TEMPLATE_REF: template.name() });
    if let Some(trace) = claim.annotation(annotations::TRACE_CONTEXT).or(trace) {
        sandbox_annotations[annotations::TRACE_CONTEXT] = trace.into();
    }
    for (key, value) in metadata::sleep_policy(claim, Some(template)) {
        sandbox_annotations[key] = value.into();
    }
    for (key, value) in metadata::egress_rules(claim, Some(template)) {
        sandbox_annotations[key] = value.into();
    }
    let base = template.spec.pod_template.metadata();
    let mut spec = json!({
        "podTemplate": { "spec": pod, "metadata": metadata::pod_metadata(base, claim, Some(&hash)) },
    });
    if !volumes.is_empty() {
        spec["volumeClaimTemplates"] = json!(volumes);
    }
    if let Some(service) = template.spec.service {
        spec["service"] = service.into();
    }
    let body = json!({
        "metadata": {
            "name": claim.name(),
            "namespace": claim.namespace(),
            "labels": sandbox_labels,
            "annotations": sandbox_annotations,
            "ownerReferences": [claim.controller_reference()],
        },
        "spec": spec,
    });
    Ok(Request::create(Kind::Sandbox, Key::new(claim.namespace(), claim.name()), body))
}
