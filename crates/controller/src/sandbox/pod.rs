//! The Pod of a Sandbox: its content at creation, and how its metadata follows the Sandbox afterwards.
//!
//! The Pod's spec is the template's, unchanged, plus the volumes of the claim templates. Metadata from the template is
//! recorded on the Pod, so that a key which is removed from the template is also removed from the Pod, while keys of
//! other clients stay.

use std::collections::{BTreeMap, BTreeSet};

use agent_sandbox_api::{
    groups,
    keys::{self, annotations, labels},
    names, owners,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Map, Value, json};

use super::{egress, sleep::pod_policy};
use crate::cache::{Meta, Pod, Sandbox};

type StringMap = BTreeMap<String, String>;

/// Where a Pod's files come from. Taken from the Sandbox at the Pod's creation, and never changed on a Pod afterwards: a
/// node that finds another snapshot there replaces the files.
const ORIGIN_OF_FILES: [&str; 2] = [annotations::SNAPSHOT, annotations::RESTORED_AT];

/// The template's metadata without keys that only controllers may set.
struct Template {
    labels: StringMap,
    annotations: StringMap,
}

impl Template {
    /// The metadata from the Sandbox's template, the Sandbox's idle policy, which routers read from the
    /// Pod, and its egress rules, which nodes enforce.
    fn of(sandbox: &Sandbox) -> Self {
        let metadata = sandbox.spec.pod_template.metadata.as_ref();
        let keep = |pairs: Option<&StringMap>, reserved: fn(&str) -> bool| -> StringMap {
            pairs
                .into_iter()
                .flatten()
                .filter(|(key, _)| !reserved(key))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect()
        };
        let mut annotations =
            keep(metadata.and_then(|metadata| metadata.annotations.as_ref()), keys::is_reserved_annotation);
        annotations.extend(pod_policy(sandbox));
        annotations.extend(egress::pod_rules(sandbox));
        Self {
            labels: keep(metadata.and_then(|metadata| metadata.labels.as_ref()), keys::is_reserved_label),
            annotations,
        }
    }
}

/// Labels that identify a Pod's owner, with the value it must have or `None` where it must not carry the key.
fn identity_labels(sandbox: &Sandbox) -> [(&'static str, Option<String>); 4] {
    let own = |key: &str| sandbox.label(key).map(str::to_owned);
    let pool_owned = owners::owning_pool(&sandbox.metadata).is_some();
    let extension_owned = owners::controller_of(&sandbox.metadata)
        .is_some_and(|owner| groups::group_of(&owner.api_version) == groups::EXTENSIONS);
    [
        (labels::SANDBOX_NAME_HASH, Some(names::name_hash(sandbox.name()))),
        (labels::WARM_POOL_SANDBOX, own(labels::WARM_POOL_SANDBOX).filter(|_| pool_owned)),
        (labels::TEMPLATE_REF_HASH, own(labels::TEMPLATE_REF_HASH).filter(|_| extension_owned)),
        (
            labels::CREATED_BY,
            own(labels::CREATED_BY)
                .filter(|value| !value.is_empty())
                .map(|value| keys::normalised_created_by(&value).to_owned()),
        ),
    ]
}

/// The body of a Pod create request.
pub(super) fn new_pod(sandbox: &Sandbox) -> Value {
    let template = Template::of(sandbox);
    let mut pod_labels = template.labels.clone();
    for (key, value) in identity_labels(sandbox) {
        if let Some(value) = value {
            pod_labels.insert(key.to_owned(), value);
        }
    }
    let mut pod_annotations = template.annotations.clone();
    for key in ORIGIN_OF_FILES {
        pod_annotations.extend(sandbox.annotation(key).map(|value| (key.to_owned(), value.to_owned())));
    }
    for (key, recorded) in [
        (annotations::PROPAGATED_LABELS, joined(&template.labels)),
        (annotations::PROPAGATED_ANNOTATIONS, joined(&template.annotations)),
    ] {
        if !recorded.is_empty() {
            pod_annotations.insert(key.to_owned(), recorded);
        }
    }
    let mut metadata = json!({
        "name": sandbox.name(),
        "namespace": sandbox.namespace(),
        "labels": pod_labels,
        "ownerReferences": [sandbox.controller_reference()],
    });
    if !pod_annotations.is_empty() {
        metadata["annotations"] = json!(pod_annotations);
    }
    json!({ "metadata": metadata, "spec": pod_spec(sandbox) })
}

/// The template's spec with one volume per claim template; these come last and replace volumes of the same name.
fn pod_spec(sandbox: &Sandbox) -> Value {
    let mut spec = (*sandbox.spec.pod_template.spec).clone();
    let templates = sandbox.volume_claim_templates();
    if templates.is_empty() {
        return spec;
    }
    if !spec.is_object() {
        spec = json!({});
    }
    let claimed: BTreeSet<&str> = templates.iter().map(|template| template.name()).collect();
    let mut volumes: Vec<Value> = match spec.get_mut("volumes").map(Value::take) {
        Some(Value::Array(volumes)) => volumes,
        _ => Vec::new(),
    };
    volumes.retain(|volume| !volume.get("name").and_then(Value::as_str).is_some_and(|name| claimed.contains(name)));
    volumes.extend(templates.iter().map(|template| {
        json!({
            "name": template.name(),
            "persistentVolumeClaim": { "claimName": names::volume_claim(template.name(), sandbox.name()) },
        })
    }));
    spec["volumes"] = Value::Array(volumes);
    spec
}

/// The merge patch that brings an existing Pod's metadata up to date; `None` when it already is.
pub(super) fn metadata_patch(sandbox: &Sandbox, pod: &Pod) -> Option<Value> {
    let template = Template::of(sandbox);
    let have_labels = &pod.metadata.labels.to_map();
    let have_annotations = &pod.metadata.annotations.to_map();

    let mut want_labels = have_labels.clone();
    prune(&mut want_labels, recorded(have_annotations, annotations::PROPAGATED_LABELS), &[labels::SANDBOX_NAME_HASH]);
    want_labels.extend(template.labels.clone());
    for (key, value) in identity_labels(sandbox) {
        match value {
            Some(value) => want_labels.insert(key.to_owned(), value),
            None => want_labels.remove(key),
        };
    }

    let bookkeeping = [annotations::PROPAGATED_LABELS, annotations::PROPAGATED_ANNOTATIONS];
    let mut want_annotations = have_annotations.clone();
    prune(&mut want_annotations, recorded(have_annotations, annotations::PROPAGATED_ANNOTATIONS), &bookkeeping);
    want_annotations.extend(template.annotations.clone());
    for key in ORIGIN_OF_FILES {
        match have_annotations.get(key) {
            Some(value) => want_annotations.insert(key.to_owned(), value.clone()),
            None => want_annotations.remove(key),
        };
    }
    for (key, keys) in bookkeeping.into_iter().zip([joined(&template.labels), joined(&template.annotations)]) {
        // A missing record equals an empty one.
        if have_annotations.get(key).map(String::as_str).unwrap_or_default() != keys {
            want_annotations.insert(key.to_owned(), keys);
        }
    }

    let mut metadata = Map::new();
    for (field, have, want) in
        [("labels", have_labels, &want_labels), ("annotations", have_annotations, &want_annotations)]
    {
        if let Some(change) = pairs_diff(have, want) {
            metadata.insert(field.to_owned(), change);
        }
    }
    (!metadata.is_empty()).then(|| json!({ "metadata": metadata }))
}

/// The merge patch that adopts an unowned Pod: owner reference and metadata in one.
pub(super) fn adoption_patch(sandbox: &Sandbox, pod: &Pod) -> Value {
    let mut patch = metadata_patch(sandbox, pod).unwrap_or_else(|| json!({ "metadata": {} }));
    patch["metadata"]["ownerReferences"] = json!(owner_references(sandbox, &pod.metadata));
    patch
}

/// The object's owner references with this Sandbox as controller. A reference to this Sandbox that does not control is
/// replaced.
pub(super) fn owner_references(sandbox: &Sandbox, metadata: &Meta) -> Vec<OwnerReference> {
    let ours = sandbox.controller_reference();
    metadata
        .owner_references
        .iter()
        .filter(|owner| !(owners::is_kind(owner, groups::CORE, groups::SANDBOX) && owner.name == ours.name))
        .cloned()
        .chain([ours.clone()])
        .collect()
}

/// Removes the keys of an earlier template. Reserved keys on the record were written by an older controller.
fn prune(pairs: &mut StringMap, recorded: Vec<String>, keep: &[&str]) {
    for key in recorded.iter().filter(|key| !keep.contains(&key.as_str())) {
        pairs.remove(key);
    }
}

fn recorded(annotations: &StringMap, key: &str) -> Vec<String> {
    annotations
        .get(key)
        .map(String::as_str)
        .unwrap_or_default()
        .split(',')
        .filter(|key| !key.is_empty())
        .map(str::to_owned)
        .collect()
}

fn joined(pairs: &StringMap) -> String {
    pairs.keys().map(String::as_str).collect::<Vec<_>>().join(",")
}

fn pairs_diff(have: &StringMap, want: &StringMap) -> Option<Value> {
    let set = want
        .iter()
        .filter(|(key, value)| have.get(*key) != Some(value))
        .map(|(key, value)| (key.clone(), value.as_str().into()));
    let unset = have.keys().filter(|key| !want.contains_key(*key)).map(|key| (key.clone(), Value::Null));
    let change: Map<String, Value> = set.chain(unset).collect();
    (!change.is_empty()).then_some(Value::Object(change))
}
