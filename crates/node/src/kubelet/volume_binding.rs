//! Provisioning of PersistentVolumes in embedded mode: the storage class, the volumes and the binding of claims to
//! them.
//!
//! A volume is a `local` PersistentVolume with affinity to this node. The binder creates one for each claim of the
//! class; when the claim is deleted, the volume and its data are deleted too, unless its reclaim policy is Retain.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    LocalVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectReference, PersistentVolume,
    PersistentVolumeClaim, PersistentVolumeSpec, VolumeNodeAffinity,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub mod binder;

/// Name of the storage class, which is also the default class.
pub const STORAGE_CLASS: &str = "agent-sandbox";
/// Name of the provisioner of the storage class.
pub const PROVISIONER: &str = "agents.x-k8s.io/node";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The storage class of embedded mode.
pub fn storage_class() -> StorageClass {
    let default = [("storageclass.kubernetes.io/is-default-class".to_owned(), "true".to_owned())].into();
    StorageClass {
        metadata: ObjectMeta {
            name: Some(STORAGE_CLASS.to_owned()),
            annotations: Some(default),
            ..ObjectMeta::default()
        },
        provisioner: PROVISIONER.to_owned(),
        reclaim_policy: Some("Delete".to_owned()),
        volume_binding_mode: Some("Immediate".to_owned()),
        allow_volume_expansion: Some(false),
        ..StorageClass::default()
    }
}

/// Whether the binder has to bind a claim.
pub fn needs_binding(claim: &PersistentVolumeClaim) -> bool {
    let Some(spec) = &claim.spec else { return false };
    let class = match &spec.storage_class_name {
        // An empty class name requests a volume that was created by hand; a missing one requests the default class.
        Some(name) => name == STORAGE_CLASS,
        None => true,
    };
    let phase = claim.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("Pending");
    let file_system = spec.volume_mode.as_deref().unwrap_or("Filesystem") == "Filesystem";
    class && file_system && phase == "Pending" && claim.metadata.deletion_timestamp.is_none()
}

/// The name of the volume that is created for a claim.
pub fn volume_name(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or_default())
}

/// The volume for a claim: with the requested size, on this node, reserved for that claim.
pub fn volume_for(claim: &PersistentVolumeClaim, node_name: &str) -> PersistentVolume {
    let spec = claim.spec.clone().unwrap_or_default();
    let requests = spec.resources.as_ref().and_then(|r| r.requests.as_ref());
    let size = requests.and_then(|r| r.get("storage")).cloned().unwrap_or_else(|| Quantity("1Gi".to_owned()));
    let name = volume_name(claim);
    let on_this_node = NodeSelectorRequirement {
        key: HOSTNAME.to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node_name.to_owned()]),
    };
    let term = NodeSelectorTerm { match_expressions: Some(vec![on_this_node]), match_fields: None };
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            annotations: Some([(PROVISIONED_BY.to_owned(), PROVISIONER.to_owned())].into()),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            capacity: Some(BTreeMap::from([("storage".to_owned(), size)])),
            access_modes: spec.access_modes,
            persistent_volume_reclaim_policy: Some("Delete".to_owned()),
            storage_class_name: Some(STORAGE_CLASS.to_owned()),
            volume_mode: Some("Filesystem".to_owned()),
            // The runtime finds the folder by the volume's name; the path is only informative.
            local: Some(LocalVolumeSource { path: format!("/{PROVISIONER}/{name}"), fs_type: None }),
            node_affinity: Some(VolumeNodeAffinity {
                required: Some(NodeSelector { node_selector_terms: vec![term] }),
            }),
            claim_ref: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("PersistentVolumeClaim".to_owned()),
                namespace: claim.metadata.namespace.clone(),
                name: claim.metadata.name.clone(),
                uid: claim.metadata.uid.clone(),
                ..ObjectReference::default()
            }),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

/// Whether a volume is reserved for this claim, and not for another one that had its name or names its volume.
pub fn belongs_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    reference.is_some_and(|reference| {
        reference.uid.is_some()
            && reference.uid == claim.metadata.uid
            && reference.namespace == claim.metadata.namespace
            && reference.name == claim.metadata.name
    })
}

/// Whether a volume was provisioned by this node.
pub fn is_provisioned_by(volume: &PersistentVolume, node_name: &str) -> bool {
    let by_us = volume.metadata.annotations.as_ref().and_then(|a| a.get(PROVISIONED_BY)).map(String::as_str);
    let terms = volume.spec.iter().flat_map(|s| &s.node_affinity).flat_map(|a| &a.required);
    let here = terms.flat_map(|s| &s.node_selector_terms).any(|term| {
        term.match_expressions.iter().flatten().any(|requirement| {
            requirement.key == HOSTNAME && requirement.values.iter().flatten().any(|value| value == node_name)
        })
    });
    by_us == Some(PROVISIONER) && here
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn claim(spec: Value, phase: Option<&str>) -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "n", "uid": "u"}, "spec": spec,
            "status": {"phase": phase}}))
        .unwrap()
    }

    #[test]
    fn only_pending_claims_of_the_class_are_bound() {
        assert!(needs_binding(&claim(json!({}), None)));
        assert!(needs_binding(&claim(json!({"storageClassName": STORAGE_CLASS}), Some("Pending"))));
        assert!(!needs_binding(&claim(json!({"storageClassName": "other"}), None)));
        assert!(!needs_binding(&claim(json!({"storageClassName": ""}), None)));
        assert!(!needs_binding(&claim(json!({}), Some("Bound"))));
        assert!(!needs_binding(&claim(json!({"volumeMode": "Block"}), None)));
    }

    #[test]
    fn a_volume_has_the_requested_size_and_belongs_to_its_node_only() {
        let claim =
            claim(json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "5Gi"}}}), None);
        let volume = volume_for(&claim, "node-a");
        let spec = volume.spec.clone().unwrap();
        assert_eq!(volume.metadata.name.as_deref(), Some("pvc-u"));
        assert_eq!(spec.capacity.unwrap()["storage"].0, "5Gi");
        assert_eq!(spec.claim_ref.unwrap().uid.as_deref(), Some("u"));
        assert!(is_provisioned_by(&volume, "node-a"));
        assert!(!is_provisioned_by(&volume, "node-b"));
        assert!(!is_provisioned_by(&PersistentVolume::default(), "node-a"));
        assert!(belongs_to(&volume, &claim));
        let mut later = claim.clone();
        later.metadata.uid = Some("another".to_owned());
        assert!(!belongs_to(&volume, &later), "a claim of the same name is another claim");
        assert!(!belongs_to(&PersistentVolume::default(), &PersistentVolumeClaim::default()));
    }
}
