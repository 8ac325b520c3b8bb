//! The ConfigMaps, Secrets and claims that a Pod references: their names and, once read, their contents.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, PodSpec, Secret};

pub mod fetch;

/// Names of the objects in the Pod's namespace that a spec references.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ReferencedNames {
    pub config_maps: BTreeSet<String>,
    pub secrets: BTreeSet<String>,
    pub claims: BTreeSet<String>,
}

impl ReferencedNames {
    pub fn is_empty(&self) -> bool {
        self.config_maps.is_empty() && self.secrets.is_empty() && self.claims.is_empty()
    }
}

/// The referenced objects that were read. An object that is missing here does not exist.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    pub config_maps: BTreeMap<String, ConfigMap>,
    pub secrets: BTreeMap<String, Secret>,
    pub claims: BTreeMap<String, PersistentVolumeClaim>,
    /// Service account tokens by volume name and path in the volume.
    pub tokens: BTreeMap<(String, String), String>,
    /// When the first of the tokens must be renewed.
    pub renew_at: Option<Timestamp>,
}

/// The value of a key of a ConfigMap, from `data` or `binaryData`.
pub fn config_map_value(map: &ConfigMap, key: &str) -> Option<Vec<u8>> {
    let text = map.data.as_ref().and_then(|d| d.get(key)).map(|v| v.clone().into_bytes());
    text.or_else(|| map.binary_data.as_ref().and_then(|d| d.get(key)).map(|b| b.0.clone()))
}

/// The value of a key of a Secret.
pub fn secret_value(secret: &Secret, key: &str) -> Option<Vec<u8>> {
    secret.data.as_ref().and_then(|d| d.get(key)).map(|b| b.0.clone())
}

/// All references of a spec.
pub fn referenced_names(spec: &PodSpec) -> ReferencedNames {
    let mut out = ReferencedNames::default();
    for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
        for from in container.env_from.iter().flatten() {
            out.config_maps.extend(from.config_map_ref.iter().map(|r| r.name.clone()));
            out.secrets.extend(from.secret_ref.iter().map(|r| r.name.clone()));
        }
        for source in container.env.iter().flatten().filter_map(|e| e.value_from.as_ref()) {
            out.config_maps.extend(source.config_map_key_ref.iter().map(|r| r.name.clone()));
            out.secrets.extend(source.secret_key_ref.iter().map(|r| r.name.clone()));
        }
    }
    let volumes = referenced_by_volumes(spec);
    out.config_maps.extend(volumes.config_maps);
    out.secrets.extend(volumes.secrets);
    out.claims.extend(volumes.claims);
    out.secrets.extend(spec.image_pull_secrets.iter().flatten().map(|s| s.name.clone()));
    out
}

/// The references of the volumes only, whose files are updated when the objects change.
pub fn referenced_by_volumes(spec: &PodSpec) -> ReferencedNames {
    let mut out = ReferencedNames::default();
    for volume in spec.volumes.iter().flatten() {
        out.config_maps.extend(volume.config_map.iter().map(|c| c.name.clone()));
        out.secrets.extend(volume.secret.iter().filter_map(|s| s.secret_name.clone()));
        out.claims.extend(volume.persistent_volume_claim.iter().map(|c| c.claim_name.clone()));
        for source in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
            out.config_maps.extend(source.config_map.iter().map(|c| c.name.clone()));
            out.secrets.extend(source.secret.iter().map(|s| s.name.clone()));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_place_that_can_name_an_object_is_read() {
        let spec: PodSpec = serde_json::from_value(json!({
            "imagePullSecrets": [{"name": "s-pull"}],
            "initContainers": [{"name": "i", "envFrom": [{"configMapRef": {"name": "c-init"}}]}],
            "containers": [{"name": "a",
                "envFrom": [{"secretRef": {"name": "s-from"}}],
                "env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "c-env", "key": "k"}}},
                        {"name": "Y", "valueFrom": {"secretKeyRef": {"name": "s-env", "key": "k"}}}]}],
            "volumes": [{"name": "1", "configMap": {"name": "c-vol"}}, {"name": "2", "secret": {"secretName": "s-vol"}},
                {"name": "3", "persistentVolumeClaim": {"claimName": "p"}},
                {"name": "4", "projected": {"sources": [{"configMap": {"name": "c-proj"}}, {"secret": {"name": "s-proj"}}]}}]
        }))
        .unwrap();
        let want = referenced_names(&spec);
        let names = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(",");
        assert_eq!(names(&want.config_maps), "c-env,c-init,c-proj,c-vol");
        assert_eq!(names(&want.secrets), "s-env,s-from,s-proj,s-pull,s-vol");
        assert_eq!(names(&want.claims), "p");
        assert!(!want.is_empty());
    }
}
