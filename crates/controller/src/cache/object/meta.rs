//! The cached form of object metadata. The API's own type takes two kilobytes for an object with a few labels and an
//! owner; there are tens of thousands of objects, most of them alike.

use std::{collections::BTreeMap, fmt, sync::Arc};

use agent_sandbox_api::owners::Owned;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::{Deserialize, Serialize};

use super::Key;
use crate::cache::intern;

/// Access to metadata in either form, the API's type or the compact one.
pub trait ObjectMetadata: Owned {
    fn key(&self) -> Key;
    fn uid(&self) -> &str;
    fn resource_version(&self) -> &str;
    fn is_deleting(&self) -> bool;
    fn label(&self, key: &str) -> Option<&str>;
    fn annotation(&self, key: &str) -> Option<&str>;
}

impl ObjectMetadata for ObjectMeta {
    fn key(&self) -> Key {
        Key::new(self.namespace.as_deref().unwrap_or_default(), self.name.as_deref().unwrap_or_default())
    }

    fn uid(&self) -> &str {
        self.uid.as_deref().unwrap_or_default()
    }

    fn resource_version(&self) -> &str {
        self.resource_version.as_deref().unwrap_or_default()
    }

    fn is_deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.labels.as_ref()?.get(key).map(String::as_str)
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(key).map(String::as_str)
    }
}

/// Compact metadata, for kinds with many objects.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "Wire")]
pub struct Meta {
    pub key: Key,
    pub uid: Arc<str>,
    pub resource_version: Box<str>,
    pub generation: i64,
    pub creation_timestamp: Option<Time>,
    pub deletion_timestamp: Option<Time>,
    pub labels: PackedMap,
    pub annotations: PackedMap,
    pub owner_references: Arc<[OwnerReference]>,
}

impl Owned for Meta {
    fn owner_references(&self) -> &[OwnerReference] {
        &self.owner_references
    }
}

impl ObjectMetadata for Meta {
    fn key(&self) -> Key {
        self.key.clone()
    }

    fn uid(&self) -> &str {
        &self.uid
    }

    fn resource_version(&self) -> &str {
        &self.resource_version
    }

    fn is_deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key)
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key)
    }
}

/// The fields as the API spells them; serde skips all others without building them.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Wire {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
}

impl From<Wire> for Meta {
    fn from(wire: Wire) -> Self {
        Self {
            key: Key {
                namespace: intern::text(&wire.namespace.unwrap_or_default()),
                name: wire.name.unwrap_or_default().into(),
            },
            uid: wire.uid.unwrap_or_default().into(),
            resource_version: wire.resource_version.unwrap_or_default().into(),
            generation: wire.generation.unwrap_or_default(),
            creation_timestamp: wire.creation_timestamp,
            deletion_timestamp: wire.deletion_timestamp,
            labels: wire.labels.iter().flatten().collect(),
            annotations: wire.annotations.iter().flatten().collect(),
            owner_references: intern::owners(wire.owner_references.unwrap_or_default()),
        }
    }
}

/// Labels or annotations in one allocation: for each pair, ordered by key, the two lengths and the two strings.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PackedMap(Arc<str>);

impl Default for PackedMap {
    fn default() -> Self {
        Self("".into())
    }
}

impl<'a, K: AsRef<str> + 'a, V: AsRef<str> + 'a> FromIterator<(&'a K, &'a V)> for PackedMap {
    fn from_iter<I: IntoIterator<Item = (&'a K, &'a V)>>(pairs: I) -> Self {
        let sorted: BTreeMap<&str, &str> =
            pairs.into_iter().map(|(key, value)| (key.as_ref(), value.as_ref())).collect();
        let mut text = String::new();
        for (key, value) in sorted {
            text.push_str(&format!("{} {} {key}{value}", key.len(), value.len()));
        }
        Self(text.into())
    }
}

impl PackedMap {
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut rest = &*self.0;
        std::iter::from_fn(move || {
            let (key_length, after) = rest.split_once(' ')?;
            let (value_length, after) = after.split_once(' ')?;
            let (key, after) = after.split_at_checked(key_length.parse().ok()?)?;
            let (value, after) = after.split_at_checked(value_length.parse().ok()?)?;
            rest = after;
            Some((key, value))
        })
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.iter().find(|(of, _)| *of == key).map(|(_, value)| value)
    }

    /// A mutable copy.
    pub fn to_map(&self) -> BTreeMap<String, String> {
        self.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    /// Removes the pair with this key, if there is one.
    pub(crate) fn remove(&mut self, key: &str) {
        if self.get(key).is_some() {
            let rest: BTreeMap<&str, &str> = self.iter().filter(|(of, _)| *of != key).collect();
            *self = rest.iter().collect();
        }
    }

    /// Shares memory with an equal map. For maps that many objects have in common.
    pub(crate) fn intern(&mut self) {
        self.0 = intern::text(&self.0);
    }
}

impl fmt::Debug for PackedMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Serialize for PackedMap {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for PackedMap {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let pairs = Option::<BTreeMap<String, String>>::deserialize(deserializer)?;
        Ok(pairs.iter().flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    proptest! {
        #[test]
        fn a_packed_map_equals_its_source(map in prop::collection::btree_map(".*", ".*", 0..8), other in ".*") {
            let pairs: PackedMap = map.iter().collect();
            prop_assert_eq!(&pairs.to_map(), &map);
            prop_assert_eq!(pairs.get(&other), map.get(&other).map(String::as_str));
            for (key, value) in &map {
                prop_assert_eq!(pairs.get(key), Some(value.as_str()));
            }
            let read: PackedMap = serde_json::from_value(json!(pairs)).expect("reads");
            prop_assert_eq!(read, pairs);
        }
    }

    #[test]
    fn metadata_keeps_the_fields_that_decisions_read_and_treats_null_as_absent() {
        let wire = json!({
            "name": "a", "namespace": "n", "uid": "u", "resourceVersion": "7", "generation": 2,
            "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": null,
            "labels": { "l": "1" }, "annotations": null,
            "ownerReferences": [{ "apiVersion": "v1", "kind": "K", "name": "o", "uid": "x", "controller": true }],
            "managedFields": [{ "manager": "m" }],
        });
        let meta: Meta = serde_json::from_value(wire).expect("reads");
        assert_eq!((meta.key(), meta.uid(), meta.resource_version()), (Key::new("n", "a"), "u", "7"));
        assert_eq!((meta.label("l"), meta.annotation("l"), meta.generation), (Some("1"), None, 2));
        assert_eq!(meta.owner_references[0].uid, "x");
        assert!(!meta.is_deleting() && meta.creation_timestamp.is_some());
        assert_eq!(serde_json::from_value::<Meta>(json!({})).expect("reads"), Meta::default());
    }
}
