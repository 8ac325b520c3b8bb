//! The metadata of a claimed Sandbox: identity labels, and the metadata of its Pod.

use std::collections::BTreeMap;

use agent_sandbox_api::{
    keys::{self, annotations, labels},
    names,
    template::PodMetadata,
    v1beta1::{SandboxClaim, SandboxTemplate},
};
use serde_json::{Map, Value, json};

use crate::api_client::{Request, merge_diff};

use crate::cache::Sandbox;

/// The claim's own `created-by` label.
pub fn created_by(claim: &SandboxClaim) -> Option<&str> {
    claim.label(labels::CREATED_BY).filter(|value| !value.is_empty())
}

/// An error for the first key that the claim sets to another value than the template.
pub fn override_conflict(claim: &SandboxClaim, template: &SandboxTemplate) -> Option<String> {
    let extra = claim.spec.additional_pod_metadata.as_ref()?;
    let base = template.spec.pod_template.metadata.as_ref()?;
    let conflict = |what: &str, base: &Option<BTreeMap<String, String>>, extra: &Option<BTreeMap<String, String>>| {
        extra.iter().flatten().find_map(|(key, wanted)| {
            let given = base.as_ref()?.get(key).filter(|given| *given != wanted)?;
            Some(format!(
                "metadata override conflict: {what} \"{key}\" is defined in template with value \"{given}\", but claim requests \"{wanted}\""
            ))
        })
    };
    conflict("label", &base.labels, &extra.labels)
        .or_else(|| conflict("annotation", &base.annotations, &extra.annotations))
}

/// The metadata of the Pod of a claimed Sandbox.
pub fn pod_metadata(base: PodMetadata, claim: &SandboxClaim, template_ref_hash: Option<&str>) -> PodMetadata {
    let extra = claim.spec.additional_pod_metadata.clone().unwrap_or_default();
    let mut pod_labels = base.labels.unwrap_or_default();
    pod_labels.insert(labels::CLAIM_UID.to_owned(), claim.uid().to_owned());
    if let Some(hash) = template_ref_hash {
        pod_labels.insert(labels::TEMPLATE_REF_HASH.to_owned(), hash.to_owned());
    }
    match created_by(claim) {
        Some(value) => pod_labels.insert(labels::CREATED_BY.to_owned(), value.to_owned()),
        None => pod_labels.remove(labels::CREATED_BY),
    };
    pod_labels.extend(extra.labels.unwrap_or_default());
    let mut pod_annotations = base.annotations.unwrap_or_default();
    pod_annotations.extend(extra.annotations.unwrap_or_default());
    PodMetadata { labels: Some(pod_labels), annotations: Some(pod_annotations).filter(|map| !map.is_empty()) }
}

/// The template's own metadata, or, when it cannot be read, the metadata that the pool gave the Sandbox without the
/// keys that only pools set.
fn base_metadata(sandbox: &Sandbox, template: Option<&SandboxTemplate>) -> PodMetadata {
    if let Some(template) = template {
        return template.spec.pod_template.metadata();
    }
    let mut base = sandbox.spec.pod_template.metadata();
    if let Some(map) = &mut base.labels {
        for key in [labels::WARM_POOL_SANDBOX, labels::TEMPLATE_HASH, labels::POD_TEMPLATE_HASH] {
            map.remove(key);
        }
    }
    if let Some(map) = &mut base.annotations
        && map.get(annotations::SAFE_TO_EVICT).is_some_and(|value| value == "true")
    {
        map.remove(annotations::SAFE_TO_EVICT);
    }
    base
}

/// The hash of the template that the Sandbox was created from: its own label, else its own annotation, else the given
/// template. Not the claim's current pool: repointing it must not move a running Pod under another network policy.
fn template_ref_hash(sandbox: &Sandbox, template: Option<&SandboxTemplate>) -> Option<String> {
    sandbox
        .label(labels::TEMPLATE_REF_HASH)
        .map(str::to_owned)
        .or_else(|| sandbox.annotation(annotations::TEMPLATE_REF).map(names::name_hash))
        .or_else(|| template.map(|template| names::name_hash(template.name())))
}

/// The request that makes this claim the owner of a pool's Sandbox: the lock of adoption, valid only for the observed
/// version. `trace` is the trace context that the claim is about to get, when it has none.
pub fn adopt(
    sandbox: &Sandbox,
    claim: &SandboxClaim,
    template: Option<&SandboxTemplate>,
    trace: Option<&str>,
) -> Request {
    let hash = template_ref_hash(sandbox, template);
    let mut label_changes = identity_labels(sandbox, claim, hash.as_deref());
    for key in [labels::WARM_POOL_SANDBOX, labels::TEMPLATE_HASH, labels::POD_TEMPLATE_HASH] {
        label_changes.insert(key.to_owned(), Value::Null);
    }
    if sandbox.label(labels::LAUNCH_TYPE) != Some(keys::LAUNCH_WARM) {
        label_changes.insert(labels::LAUNCH_TYPE.to_owned(), keys::LAUNCH_WARM.into());
    }
    let mut metadata = json!({ "labels": label_changes, "ownerReferences": [claim.controller_reference()] });
    let mut annotation_changes = Map::new();
    if sandbox.annotation(annotations::POD_NAME) != Some(sandbox.name()) {
        annotation_changes.insert(annotations::POD_NAME.to_owned(), sandbox.name().into());
    }
    if let Some(trace) = claim.annotation(annotations::TRACE_CONTEXT).or(trace) {
        annotation_changes.insert(annotations::TRACE_CONTEXT.to_owned(), trace.into());
    }
    annotation_changes
        .extend(sleep_policy(claim, template).filter(|(key, value)| sandbox.annotation(key) != Some(value)).map(owned));
    annotation_changes
        .extend(egress_rules(claim, template).filter(|(key, value)| sandbox.annotation(key) != Some(value)).map(owned));
    if !annotation_changes.is_empty() {
        metadata["annotations"] = Value::Object(annotation_changes);
    }
    let mut body = json!({ "metadata": metadata });
    let desired = pod_metadata(base_metadata(sandbox, template), claim, hash.as_deref());
    if let Some(change) = pod_metadata_change(sandbox, &desired) {
        body["spec"] = change;
    }
    Request::patch_exact(sandbox, body)
}

/// The request that brings a bound Sandbox's metadata to what claim and template specify; `None` when it is up to date.
pub fn sync(
    sandbox: &Sandbox,
    claim: &SandboxClaim,
    template: Option<&SandboxTemplate>,
    launch_type: &str,
) -> Option<Request> {
    let hash = template_ref_hash(sandbox, template);
    let mut label_changes = identity_labels(sandbox, claim, hash.as_deref());
    if sandbox.label(labels::LAUNCH_TYPE).is_none_or(str::is_empty) {
        label_changes.insert(labels::LAUNCH_TYPE.to_owned(), launch_type.into());
    }
    let mut body = json!({});
    if !label_changes.is_empty() {
        body["metadata"]["labels"] = Value::Object(label_changes);
    }
    if let Some(template) = template {
        if sandbox.annotation(annotations::TEMPLATE_REF).is_none() {
            body["metadata"]["annotations"][annotations::TEMPLATE_REF] = template.name().into();
        }
        let desired = pod_metadata(base_metadata(sandbox, Some(template)), claim, hash.as_deref());
        if let Some(change) = pod_metadata_change(sandbox, &desired) {
            body["spec"] = change;
        }
    }
    // The claim's own only: the template's were copied when the Sandbox was made, like everything of it.
    for (key, value) in sleep_policy(claim, None).filter(|(key, value)| sandbox.annotation(key) != Some(value)) {
        body["metadata"]["annotations"][key] = value.into();
    }
    // The claim's rules narrow the Sandbox's; without them the Sandbox's own hold again.
    let narrowing = claim.annotation(annotations::EGRESS);
    if sandbox.annotation(annotations::EGRESS_OF_CLAIM) != narrowing {
        body["metadata"]["annotations"][annotations::EGRESS_OF_CLAIM] = json!(narrowing);
    }
    body.as_object().is_some_and(|body| !body.is_empty()).then(|| Request::patch(sandbox, body))
}

/// The egress rules of the claimed Sandbox: its template's, narrowed by its claim's.
pub fn egress_rules<'a>(
    claim: &'a SandboxClaim,
    template: Option<&'a SandboxTemplate>,
) -> impl Iterator<Item = (&'static str, &'a str)> {
    let own = template.and_then(|template| template.annotation(annotations::EGRESS));
    let narrowing = claim.annotation(annotations::EGRESS);
    [(annotations::EGRESS, own), (annotations::EGRESS_OF_CLAIM, narrowing)]
        .into_iter()
        .filter_map(|(key, value)| Some((key, value?)))
}

/// When the claimed Sandbox sleeps and wakes: as its claim says, else as its template says.
pub fn sleep_policy<'a>(
    claim: &'a SandboxClaim,
    template: Option<&'a SandboxTemplate>,
) -> impl Iterator<Item = (&'static str, &'a str)> {
    keys::SLEEP_POLICY.into_iter().filter_map(move |key| {
        let value = claim.annotation(key).or_else(|| template?.annotation(key))?;
        Some((key, value))
    })
}

fn owned((key, value): (&'static str, &str)) -> (String, Value) {
    (key.to_owned(), value.into())
}

/// Changes that give the Sandbox the labels of its claim.
fn identity_labels(sandbox: &Sandbox, claim: &SandboxClaim, hash: Option<&str>) -> Map<String, Value> {
    let mut changes = Map::new();
    let wanted = [
        (labels::CLAIM_UID, Some(claim.uid())),
        (labels::CREATED_BY, created_by(claim)),
        (labels::TEMPLATE_REF_HASH, hash.or(sandbox.label(labels::TEMPLATE_REF_HASH))),
    ];
    for (key, value) in wanted {
        if sandbox.label(key) != value {
            changes.insert(key.to_owned(), value.map_or(Value::Null, Value::from));
        }
    }
    changes
}

/// The change of `spec` that makes the Pod template's metadata exactly this.
fn pod_metadata_change(sandbox: &Sandbox, desired: &PodMetadata) -> Option<Value> {
    let stored = sandbox.spec.pod_template.metadata();
    let change = merge_diff(&json!(stored), &json!(desired))?;
    Some(json!({ "podTemplate": { "metadata": change } }))
}
