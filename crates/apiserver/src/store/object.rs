//! One stored object: a single serialised buffer plus the few facts that lists, watches and the collector need without
//! parsing it.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::registry::Resource;

/// Identity within a collection. Ordered like Kubernetes lists: namespace, then name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Empty for cluster-scoped objects.
    pub namespace: Box<str>,
    pub name: Box<str>,
}

impl ObjectKey {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

/// An owner reference, as much of it as garbage collection needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerRef {
    pub uid: Box<str>,
    pub group: Box<str>,
    pub kind: Box<str>,
    pub name: Box<str>,
    pub blocks: bool,
}

/// The parsed facts of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// `apiVersion` the object is stored in; older objects may be in an older one.
    pub api_version: Box<str>,
    pub uid: Box<str>,
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// Values of the resource's selectable fields, in the resource's order.
    pub fields: Box<[Box<str>]>,
    pub owners: Box<[OwnerRef]>,
    pub deleting: bool,
    /// `foregroundDeletion` or `orphan` among the finalizers.
    pub collector_finalizer: Option<&'static str>,
}

/// A published or queued object.
#[derive(Debug)]
pub struct Stored {
    /// Row in the database file.
    pub row: i64,
    pub key: ObjectKey,
    pub version: u64,
    pub facts: Arc<Facts>,
    /// Complete JSON in the storage version.
    bytes: Bytes,
    /// Where the digits of `metadata.resourceVersion` begin.
    version_at: u32,
    version_len: u32,
}

impl Stored {
    /// The whole object as JSON text, in its storage version.
    pub fn json(&self) -> &Bytes {
        &self.bytes
    }

    pub fn parse(&self) -> Value {
        serde_json::from_slice(&self.bytes).expect("stored objects are JSON this store wrote")
    }

    pub fn api_version(&self) -> &str {
        &self.facts.api_version
    }

    pub fn uid(&self) -> &str {
        &self.facts.uid
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.facts.labels.iter().find(|(k, _)| &**k == key).map(|(_, v)| &**v)
    }

    /// The same object under another version: the last state of a deleted object carries the deletion's version.
    pub(super) fn at_version(&self, version: u64) -> Self {
        let head = &self.bytes[..self.version_at as usize];
        let tail = &self.bytes[(self.version_at + self.version_len) as usize..];
        Self::assemble(self.row, self.key.clone(), version, self.facts.clone(), head, tail)
    }

    /// An object read back from disk, which must be exactly what [`Draft`] writes.
    pub(super) fn restore(resource: &Resource, row: i64, version: u64, data: Vec<u8>) -> Result<Self, String> {
        const MARK: &[u8] = b"\"metadata\":{\"resourceVersion\":\"";
        let value: Value = serde_json::from_slice(&data).map_err(|e| format!("row {row} is not JSON: {e}"))?;
        let digits = version.to_string();
        let at = data
            .windows(MARK.len())
            .position(|w| w == MARK)
            .map(|at| at + MARK.len())
            .filter(|at| data[*at..].starts_with(digits.as_bytes()))
            .ok_or_else(|| format!("row {row} does not have version {version}"))?;
        let draft = Draft::facts_of(resource, &value);
        Ok(Self {
            row,
            key: draft.0,
            version,
            facts: draft.1,
            version_at: at as u32,
            version_len: digits.len() as u32,
            bytes: data.into(),
        })
    }

    fn assemble(row: i64, key: ObjectKey, version: u64, facts: Arc<Facts>, head: &[u8], tail: &[u8]) -> Self {
        let digits = version.to_string();
        let mut bytes = Vec::with_capacity(head.len() + digits.len() + tail.len());
        bytes.extend_from_slice(head);
        bytes.extend_from_slice(digits.as_bytes());
        bytes.extend_from_slice(tail);
        Self {
            row,
            key,
            version,
            facts,
            version_at: head.len() as u32,
            version_len: digits.len() as u32,
            bytes: bytes.into(),
        }
    }
}

/// An object ready to be stored: serialised except for its version.
#[derive(Debug)]
pub struct Draft {
    pub key: ObjectKey,
    pub facts: Arc<Facts>,
    buffer: Vec<u8>,
    version_at: usize,
}

impl Draft {
    /// Serialises `object`, which must be in the storage version and have a name and a uid.
    pub fn new(resource: &Resource, object: &Value) -> Self {
        let empty = Map::new();
        let root = object.as_object().unwrap_or(&empty);
        let meta = root.get("metadata").and_then(Value::as_object).unwrap_or(&empty);
        let (buffer, version_at) = serialise(root, meta);
        let (key, facts) = Self::facts_of(resource, object);
        Self { key, facts, buffer, version_at }
    }

    fn facts_of(resource: &Resource, object: &Value) -> (ObjectKey, Arc<Facts>) {
        let empty = Map::new();
        let meta = object["metadata"].as_object().unwrap_or(&empty);
        let text = |key: &str| meta.get(key).and_then(Value::as_str).unwrap_or_default();
        let key = ObjectKey::new(if resource.namespaced { text("namespace") } else { "" }, text("name"));
        (key, Arc::new(facts(resource, object, meta)))
    }

    pub(super) fn seal(self, row: i64, version: u64) -> Stored {
        let (head, tail) = self.buffer.split_at(self.version_at);
        Stored::assemble(row, self.key, version, self.facts, head, tail)
    }

    /// The object as it would be stored under `version`, for dry runs.
    pub fn preview(self, version: u64) -> Stored {
        self.seal(0, version)
    }
}

/// Writes `apiVersion`, `kind` and `metadata.resourceVersion` first, so that the version's place is known.
fn serialise(root: &Map<String, Value>, meta: &Map<String, Value>) -> (Vec<u8>, usize) {
    const INFALLIBLE: &str = "JSON values serialise into memory";
    let mut out = Vec::with_capacity(1024);
    out.push(b'{');
    for key in ["apiVersion", "kind"] {
        if let Some(value) = root.get(key) {
            serde_json::to_writer(&mut out, key).expect(INFALLIBLE);
            out.push(b':');
            serde_json::to_writer(&mut out, value).expect(INFALLIBLE);
            out.push(b',');
        }
    }
    out.extend_from_slice(b"\"metadata\":{\"resourceVersion\":\"");
    let version_at = out.len();
    out.push(b'"');
    let mut members = |map: &Map<String, Value>, skip: &[&str]| {
        for (key, value) in map.iter().filter(|(k, _)| !skip.contains(&k.as_str())) {
            out.push(b',');
            serde_json::to_writer(&mut out, key).expect(INFALLIBLE);
            out.push(b':');
            serde_json::to_writer(&mut out, value).expect(INFALLIBLE);
        }
        out.push(b'}');
    };
    members(meta, &["resourceVersion"]);
    members(root, &["apiVersion", "kind", "metadata"]);
    (out, version_at)
}

fn facts(resource: &Resource, object: &Value, meta: &Map<String, Value>) -> Facts {
    let labels = meta
        .get("labels")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(k, v)| (k.as_str().into(), v.as_str().unwrap_or_default().into()))
        .collect();
    let owners = meta.get("ownerReferences").and_then(Value::as_array).into_iter().flatten().map(owner).collect();
    let finalizers = meta.get("finalizers").and_then(Value::as_array);
    let collector_finalizer = ["foregroundDeletion", "orphan"]
        .into_iter()
        .find(|wanted| finalizers.into_iter().flatten().any(|f| f == wanted));
    Facts {
        api_version: object["apiVersion"].as_str().unwrap_or_default().into(),
        uid: meta.get("uid").and_then(Value::as_str).unwrap_or_default().into(),
        labels,
        fields: resource.fields.iter().map(|f| f.read(object)).collect(),
        owners,
        deleting: meta.get("deletionTimestamp").is_some_and(|t| !t.is_null()),
        collector_finalizer,
    }
}

fn owner(raw: &Value) -> OwnerRef {
    let text = |key: &str| raw[key].as_str().unwrap_or_default();
    let group = text("apiVersion").rsplit_once('/').map_or("", |(group, _)| group);
    OwnerRef {
        uid: text("uid").into(),
        group: group.into(),
        kind: text("kind").into(),
        name: text("name").into(),
        blocks: raw["blockOwnerDeletion"] == true,
    }
}
