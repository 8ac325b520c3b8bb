//! One stored object: a single serialised buffer plus the few parsed facts that lists, watches and the garbage
//! collector need without parsing it.

use std::{borrow::Cow, cell::RefCell, sync::Arc};

use bytes::{BufMut, Bytes};
use serde_json::{Map, Value};

use super::{
    intern,
    projection::{self, Projection},
};
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

/// The parts of an owner reference that garbage collection needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerRef {
    pub uid: Box<str>,
    pub group: Box<str>,
    pub kind: Box<str>,
    pub name: Box<str>,
    /// `blockOwnerDeletion`.
    pub blocks: bool,
}

/// Values parsed from an object when it is stored, for selectors, watches and garbage collection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Facts {
    /// `apiVersion` the object is stored in. Objects stored earlier may have an older one.
    pub api_version: Box<str>,
    pub uid: Box<str>,
    pub labels: Box<[(Box<str>, Box<str>)]>,
    /// Values of the resource's selectable fields, in the resource's order.
    pub fields: Box<[Box<str>]>,
    pub owners: Box<[OwnerRef]>,
    pub deleting: bool,
    /// The garbage collector's own finalizer, if present: `foregroundDeletion` or `orphan`.
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
    /// JSON in the storage version, without the texts in `interned`.
    bytes: Bytes,
    /// Offset of the digits of `metadata.resourceVersion`.
    version_at: u32,
    version_len: u32,
    interned: Box<[InternedText]>,
}

/// A `fieldsV1` value shared with other objects, and its offset from the end of the version digits.
#[derive(Debug, Clone)]
struct InternedText {
    at: u32,
    text: Arc<[u8]>,
}

impl Stored {
    /// The whole object as JSON text, in its storage version.
    pub fn json(&self) -> Bytes {
        if self.interned.is_empty() {
            return self.bytes.clone();
        }
        let mut out = Vec::with_capacity(self.json_len());
        self.write_json(&mut out);
        out.into()
    }

    /// Appends the JSON text.
    pub fn write_json(&self, out: &mut impl BufMut) {
        self.write_from(0, out, full_text);
    }

    /// Appends the JSON text with `{}` in place of each interned `fieldsV1` value, which leaves out most of
    /// `managedFields`.
    pub fn write_lean(&self, out: &mut impl BufMut) {
        self.write_from(0, out, |_, _| Cow::Borrowed(b"{}"));
    }

    /// Appends the JSON text without `apiVersion` and `kind`: the form of items in lists of built-in kinds.
    pub fn write_untyped_json(&self, out: &mut impl BufMut) {
        out.put_u8(b'{');
        self.write_from(self.version_at as usize - BEFORE_VERSION.len(), out, full_text);
    }

    /// Appends the text from `start` on, with `replacement(index, text)` in place of each interned text.
    fn write_from<'a>(
        &'a self,
        start: usize,
        out: &mut impl BufMut,
        replacement: impl Fn(usize, &'a InternedText) -> Cow<'a, [u8]>,
    ) {
        let version_end = (self.version_at + self.version_len) as usize;
        let mut done = start;
        for (index, interned) in self.interned.iter().enumerate() {
            let at = version_end + interned.at as usize;
            out.put_slice(&self.bytes[done..at]);
            out.put_slice(&replacement(index, interned));
            done = at;
        }
        out.put_slice(&self.bytes[done..]);
    }

    /// Length of the JSON text.
    pub fn json_len(&self) -> usize {
        self.bytes.len() + self.interned.iter().map(|p| p.text.len()).sum::<usize>()
    }

    /// Bytes of memory that this object does not share with others.
    pub(super) fn own_len(&self) -> usize {
        self.bytes.len()
    }

    pub fn parse(&self) -> Value {
        const WRITTEN_HERE: &str = "stored objects are JSON this store wrote";
        if self.interned.is_empty() {
            return serde_json::from_slice(&self.bytes).expect(WRITTEN_HERE);
        }
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.clear();
            self.write_json(scratch);
            serde_json::from_slice(scratch).expect(WRITTEN_HERE)
        })
    }

    /// Like [`parse`](Self::parse), but each interned text is replaced by its index in the returned list. That saves
    /// parsing `managedFields` that are written back unchanged.
    pub fn parse_with_text_refs(&self) -> (Value, Vec<Arc<[u8]>>) {
        if self.interned.is_empty() {
            return (self.parse(), Vec::new());
        }
        let value = SCRATCH.with_borrow_mut(|scratch| {
            scratch.clear();
            self.write_from(0, scratch, |index, _| Cow::Owned(index.to_string().into_bytes()));
            serde_json::from_slice(scratch).expect("stored objects are JSON this store wrote")
        });
        (value, self.interned.iter().map(|p| p.text.clone()).collect())
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

    /// A copy with another version. The last state of a deleted object carries the version of its deletion.
    pub(crate) fn at_version(&self, version: u64) -> Self {
        let head = &self.bytes[..self.version_at as usize];
        let tail = &self.bytes[(self.version_at + self.version_len) as usize..];
        let draft = Draft {
            key: self.key.clone(),
            facts: self.facts.clone(),
            buffer: with_room(&[head, tail]),
            version_at: head.len(),
            interned: self.interned.clone(),
        };
        draft.into_stored(self.row, version)
    }

    /// Restores an object from its row. `data` must be exactly what [`Draft`] wrote.
    pub(super) fn restore(
        resource: &Resource,
        projection: &Projection,
        row: i64,
        version: u64,
        data: &[u8],
    ) -> Result<Self, String> {
        const MARK: &[u8] = b"\"metadata\":{\"resourceVersion\":\"";
        let projected = projection::parse(data, projection).map_err(|e| format!("row {row} is not JSON: {e}"))?;
        let digits = version.to_string();
        let version_at = data
            .windows(MARK.len())
            .position(|w| w == MARK)
            .map(|at| at + MARK.len())
            .filter(|at| data[*at..].starts_with(digits.as_bytes()))
            .ok_or_else(|| format!("row {row} does not have version {version}"))?;
        let (key, facts) = Draft::facts_of(resource, &projected.object);
        let version_end = version_at + digits.len();
        let (mut rest, mut done, mut interned) = (Vec::with_capacity(data.len()), version_end, Vec::new());
        for (from, to) in projected.fields_v1 {
            if from < done || to - from < intern::MIN_LEN {
                continue;
            }
            rest.extend_from_slice(&data[done..from]);
            interned.push(InternedText { at: rest.len() as u32, text: intern::intern(&data[from..to]) });
            done = to;
        }
        rest.extend_from_slice(&data[done..]);
        let draft = Draft {
            key,
            facts,
            buffer: with_room(&[&data[..version_at], &rest]),
            version_at,
            interned: interned.into(),
        };
        Ok(draft.into_stored(row, version))
    }
}

fn full_text(_: usize, interned: &InternedText) -> Cow<'_, [u8]> {
    Cow::Borrowed(&interned.text)
}

/// An object ready to be stored: serialised except for its version.
#[derive(Debug)]
pub struct Draft {
    pub key: ObjectKey,
    pub facts: Arc<Facts>,
    /// `VERSION_ROOM` unused bytes, followed by the text without its version.
    buffer: Vec<u8>,
    /// Offset in the text at which the version is inserted.
    version_at: usize,
    interned: Box<[InternedText]>,
}

/// Maximum number of digits of a version.
const VERSION_ROOM: usize = 20;

/// Concatenates `parts` after room for a version. The buffer has exactly the needed capacity, because it stays in
/// memory.
fn with_room(parts: &[&[u8]]) -> Vec<u8> {
    let mut buffer = Vec::with_capacity(VERSION_ROOM + parts.iter().map(|p| p.len()).sum::<usize>());
    buffer.extend_from_slice(&[0; VERSION_ROOM]);
    parts.iter().for_each(|part| buffer.extend_from_slice(part));
    buffer
}

thread_local! {
    /// Buffer in which objects are serialised before their size is known.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}
/// Maximum capacity that the scratch buffer keeps between uses.
const MAX_RETAINED_SCRATCH: usize = 1 << 18;

impl Draft {
    /// Serialises `object`, which must be in the storage version and have a name and a uid.
    pub fn new(resource: &Resource, object: &Value) -> Self {
        Self::with_texts(resource, object, &[])
    }

    /// Like [`new`](Self::new), for an object whose `fieldsV1` values may be indexes into `texts`.
    pub fn with_texts(resource: &Resource, object: &Value, texts: &[Arc<[u8]>]) -> Self {
        let empty = Map::new();
        let root = object.as_object().unwrap_or(&empty);
        let meta = root.get("metadata").and_then(Value::as_object).unwrap_or(&empty);
        let (buffer, version_at, interned) = SCRATCH.with_borrow_mut(|scratch| {
            scratch.clear();
            let (version_at, interned) = serialise(scratch, root, meta, texts);
            let buffer = with_room(&[scratch]);
            scratch.shrink_to(MAX_RETAINED_SCRATCH);
            (buffer, version_at, interned)
        });
        let (key, facts) = Self::facts_of(resource, object);
        Self { key, facts, buffer, version_at, interned }
    }

    /// Size of the whole text in bytes.
    pub fn size(&self) -> usize {
        self.buffer.len() + self.interned.iter().map(|p| p.text.len()).sum::<usize>()
    }

    /// The key and the facts of an object.
    fn facts_of(resource: &Resource, object: &Value) -> (ObjectKey, Arc<Facts>) {
        let empty = Map::new();
        let meta = object["metadata"].as_object().unwrap_or(&empty);
        let text = |key: &str| meta.get(key).and_then(Value::as_str).unwrap_or_default();
        let key = ObjectKey::new(if resource.namespaced { text("namespace") } else { "" }, text("name"));
        (key, Arc::new(facts(resource, object, meta)))
    }

    pub(super) fn into_stored(self, row: i64, version: u64) -> Stored {
        let Self { key, facts, mut buffer, version_at, interned } = self;
        let digits = version.to_string();
        // The part before the version moves to the left to make room, because it is much shorter than the rest.
        let start = VERSION_ROOM - digits.len();
        buffer.copy_within(VERSION_ROOM..VERSION_ROOM + version_at, start);
        buffer[start + version_at..VERSION_ROOM + version_at].copy_from_slice(digits.as_bytes());
        Stored {
            row,
            key,
            version,
            facts,
            version_at: version_at as u32,
            version_len: digits.len() as u32,
            bytes: Bytes::from(buffer).slice(start..),
            interned,
        }
    }

    /// The object as it would be stored with `version`, for dry runs.
    pub fn preview(self, version: u64) -> Stored {
        self.into_stored(0, version)
    }
}

/// The text directly before the version digits.
const BEFORE_VERSION: &[u8] = b"\"metadata\":{\"resourceVersion\":\"";

const INFALLIBLE: &str = "JSON values serialise into memory";

/// Writes `apiVersion`, `kind` and `metadata.resourceVersion` first, so that the offset of the version is known.
/// Returns that offset and the interned texts, which are left out.
fn serialise(
    out: &mut Vec<u8>,
    root: &Map<String, Value>,
    meta: &Map<String, Value>,
    texts: &[Arc<[u8]>],
) -> (usize, Box<[InternedText]>) {
    out.push(b'{');
    for key in ["apiVersion", "kind"] {
        if let Some(value) = root.get(key) {
            member(out, key, value);
            out.push(b',');
        }
    }
    out.extend_from_slice(BEFORE_VERSION);
    let version_at = out.len();
    out.push(b'"');
    let mut interned = Vec::new();
    for (key, value) in meta.iter().filter(|(key, _)| *key != "resourceVersion") {
        out.push(b',');
        match value {
            Value::Array(entries) if key == "managedFields" => {
                out.extend_from_slice(b"\"managedFields\":");
                serialise_managed_fields(out, entries, version_at, texts, &mut interned);
            }
            _ => member(out, key, value),
        }
    }
    out.push(b'}');
    for (key, value) in root.iter().filter(|(key, _)| !matches!(key.as_str(), "apiVersion" | "kind" | "metadata")) {
        out.push(b',');
        member(out, key, value);
    }
    out.push(b'}');
    (version_at, interned.into())
}

fn member(out: &mut Vec<u8>, key: &str, value: &Value) {
    serde_json::to_writer(&mut *out, key).expect(INFALLIBLE);
    out.push(b':');
    serde_json::to_writer(&mut *out, value).expect(INFALLIBLE);
}

/// Writes the entries of `managedFields`. Long `fieldsV1` values go to `interned` instead.
fn serialise_managed_fields(
    out: &mut Vec<u8>,
    entries: &[Value],
    version_at: usize,
    texts: &[Arc<[u8]>],
    interned: &mut Vec<InternedText>,
) {
    out.push(b'[');
    for (i, entry) in entries.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        let Value::Object(members) = entry else {
            serde_json::to_writer(&mut *out, entry).expect(INFALLIBLE);
            continue;
        };
        out.push(b'{');
        for (i, (key, value)) in members.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            serde_json::to_writer(&mut *out, key).expect(INFALLIBLE);
            out.push(b':');
            let begin = out.len();
            let text = value.as_u64().filter(|_| key == "fieldsV1").and_then(|index| texts.get(index as usize));
            if let Some(text) = text {
                interned.push(InternedText { at: (begin - version_at) as u32, text: text.clone() });
                continue;
            }
            serde_json::to_writer(&mut *out, value).expect(INFALLIBLE);
            if key == "fieldsV1" && out.len() - begin >= intern::MIN_LEN {
                interned.push(InternedText { at: (begin - version_at) as u32, text: intern::intern(&out[begin..]) });
                out.truncate(begin);
            }
        }
        out.push(b'}');
    }
    out.push(b']');
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
