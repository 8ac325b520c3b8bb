//! One stored object: a single serialised buffer plus the few facts that lists, watches and the collector need without
//! parsing it.

use std::{borrow::Cow, cell::RefCell, sync::Arc};

use bytes::{BufMut, Bytes};
use serde_json::{Map, Value};

use super::{
    peek::{Wanted, peek},
    shared,
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
    /// JSON in the storage version, without the texts of `shared`.
    bytes: Bytes,
    /// Where the digits of `metadata.resourceVersion` begin.
    version_at: u32,
    version_len: u32,
    shared: Box<[Piece]>,
}

/// A text that other objects have too, and how far behind the version it belongs.
#[derive(Debug, Clone)]
struct Piece {
    at: u32,
    text: Arc<[u8]>,
}

impl Stored {
    /// The whole object as JSON text, in its storage version.
    pub fn json(&self) -> Bytes {
        if self.shared.is_empty() {
            return self.bytes.clone();
        }
        let mut out = Vec::with_capacity(self.json_len());
        self.write_json(&mut out);
        out.into()
    }

    /// Appends the JSON text.
    pub fn write_json(&self, out: &mut impl BufMut) {
        self.write_from(0, out, whole);
    }

    /// Appends the JSON text with an empty record in the place of each shared text, which is most of `managedFields`.
    pub fn write_lean(&self, out: &mut impl BufMut) {
        self.write_from(0, out, |_, _| Cow::Borrowed(b"{}"));
    }

    /// Appends the JSON text without `apiVersion` and `kind`, as lists of built-in kinds show their items.
    pub fn write_untyped_json(&self, out: &mut impl BufMut) {
        out.put_u8(b'{');
        self.write_from(self.version_at as usize - BEFORE_VERSION.len(), out, whole);
    }

    /// Appends the text from `start` on; `stand_in` is what stands for each shared text.
    fn write_from<'a>(
        &'a self,
        start: usize,
        out: &mut impl BufMut,
        stand_in: impl Fn(usize, &'a Piece) -> Cow<'a, [u8]>,
    ) {
        let behind = (self.version_at + self.version_len) as usize;
        let mut done = start;
        for (number, piece) in self.shared.iter().enumerate() {
            let at = behind + piece.at as usize;
            out.put_slice(&self.bytes[done..at]);
            out.put_slice(&stand_in(number, piece));
            done = at;
        }
        out.put_slice(&self.bytes[done..]);
    }

    /// Length of the JSON text.
    pub fn json_len(&self) -> usize {
        self.bytes.len() + self.shared.iter().map(|p| p.text.len()).sum::<usize>()
    }

    /// Bytes of memory that this object alone needs.
    pub(super) fn own_len(&self) -> usize {
        self.bytes.len()
    }

    pub fn parse(&self) -> Value {
        const WRITTEN_HERE: &str = "stored objects are JSON this store wrote";
        if self.shared.is_empty() {
            return serde_json::from_slice(&self.bytes).expect(WRITTEN_HERE);
        }
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.clear();
            self.write_json(scratch);
            serde_json::from_slice(scratch).expect(WRITTEN_HERE)
        })
    }

    /// Like [`parse`](Self::parse), but each shared text is left out: in its place stands its number in the list returned.
    pub fn parse_lean(&self) -> (Value, Vec<Arc<[u8]>>) {
        if self.shared.is_empty() {
            return (self.parse(), Vec::new());
        }
        let value = SCRATCH.with_borrow_mut(|scratch| {
            scratch.clear();
            self.write_from(0, scratch, |number, _| Cow::Owned(number.to_string().into_bytes()));
            serde_json::from_slice(scratch).expect("stored objects are JSON this store wrote")
        });
        (value, self.shared.iter().map(|p| p.text.clone()).collect())
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
    pub(crate) fn at_version(&self, version: u64) -> Self {
        let head = &self.bytes[..self.version_at as usize];
        let tail = &self.bytes[(self.version_at + self.version_len) as usize..];
        let draft = Draft {
            key: self.key.clone(),
            facts: self.facts.clone(),
            buffer: with_room(&[head, tail]),
            version_at: head.len(),
            shared: self.shared.clone(),
        };
        draft.seal(self.row, version)
    }

    /// An object read back from disk, which must be exactly what [`Draft`] writes.
    pub(super) fn restore(
        resource: &Resource,
        wanted: &Wanted,
        row: i64,
        version: u64,
        data: &[u8],
    ) -> Result<Self, String> {
        const MARK: &[u8] = b"\"metadata\":{\"resourceVersion\":\"";
        let peeked = peek(data, wanted).map_err(|e| format!("row {row} is not JSON: {e}"))?;
        let digits = version.to_string();
        let version_at = data
            .windows(MARK.len())
            .position(|w| w == MARK)
            .map(|at| at + MARK.len())
            .filter(|at| data[*at..].starts_with(digits.as_bytes()))
            .ok_or_else(|| format!("row {row} does not have version {version}"))?;
        let (key, facts) = Draft::facts_of(resource, &peeked.object);
        let behind = version_at + digits.len();
        let (mut rest, mut done, mut shared) = (Vec::with_capacity(data.len()), behind, Vec::new());
        for (from, to) in peeked.records {
            if from < done || to - from < shared::WORTHWHILE {
                continue;
            }
            rest.extend_from_slice(&data[done..from]);
            shared.push(Piece { at: rest.len() as u32, text: shared::share(&data[from..to]) });
            done = to;
        }
        rest.extend_from_slice(&data[done..]);
        let draft =
            Draft { key, facts, buffer: with_room(&[&data[..version_at], &rest]), version_at, shared: shared.into() };
        Ok(draft.seal(row, version))
    }
}

fn whole(_: usize, piece: &Piece) -> Cow<'_, [u8]> {
    Cow::Borrowed(&piece.text)
}

/// An object ready to be stored: serialised except for its version.
#[derive(Debug)]
pub struct Draft {
    pub key: ObjectKey,
    pub facts: Arc<Facts>,
    /// The text without its version, behind room for the version.
    buffer: Vec<u8>,
    /// Where in the text the version belongs.
    version_at: usize,
    shared: Box<[Piece]>,
}

/// The digits of the highest version.
const VERSION_ROOM: usize = 20;

/// Text behind room for a version, in a buffer of exactly that size: it is what stays in memory.
fn with_room(parts: &[&[u8]]) -> Vec<u8> {
    let mut buffer = Vec::with_capacity(VERSION_ROOM + parts.iter().map(|p| p.len()).sum::<usize>());
    buffer.extend_from_slice(&[0; VERSION_ROOM]);
    parts.iter().for_each(|part| buffer.extend_from_slice(part));
    buffer
}

thread_local! {
    /// Where objects are serialised before their size is known.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}
/// Larger scratch space is not kept.
const SCRATCH_KEPT: usize = 1 << 18;

impl Draft {
    /// Serialises `object`, which must be in the storage version and have a name and a uid.
    pub fn new(resource: &Resource, object: &Value) -> Self {
        Self::with_texts(resource, object, &[])
    }

    /// Like [`new`](Self::new), for an object in whose `managedFields` numbers stand for `texts`.
    pub fn with_texts(resource: &Resource, object: &Value, texts: &[Arc<[u8]>]) -> Self {
        let empty = Map::new();
        let root = object.as_object().unwrap_or(&empty);
        let meta = root.get("metadata").and_then(Value::as_object).unwrap_or(&empty);
        let (buffer, version_at, shared) = SCRATCH.with_borrow_mut(|scratch| {
            scratch.clear();
            let (version_at, shared) = serialise(scratch, root, meta, texts);
            let buffer = with_room(&[scratch]);
            scratch.shrink_to(SCRATCH_KEPT);
            (buffer, version_at, shared)
        });
        let (key, facts) = Self::facts_of(resource, object);
        Self { key, facts, buffer, version_at, shared }
    }

    /// Bytes of the whole text.
    pub fn size(&self) -> usize {
        self.buffer.len() + self.shared.iter().map(|p| p.text.len()).sum::<usize>()
    }

    fn facts_of(resource: &Resource, object: &Value) -> (ObjectKey, Arc<Facts>) {
        let empty = Map::new();
        let meta = object["metadata"].as_object().unwrap_or(&empty);
        let text = |key: &str| meta.get(key).and_then(Value::as_str).unwrap_or_default();
        let key = ObjectKey::new(if resource.namespaced { text("namespace") } else { "" }, text("name"));
        (key, Arc::new(facts(resource, object, meta)))
    }

    pub(super) fn seal(self, row: i64, version: u64) -> Stored {
        let Self { key, facts, mut buffer, version_at, shared } = self;
        let digits = version.to_string();
        // What stands before the version moves to the left to make place for it: it is much shorter than the rest.
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
            shared,
        }
    }

    /// The object as it would be stored under `version`, for dry runs.
    pub fn preview(self, version: u64) -> Stored {
        self.seal(0, version)
    }
}

/// What stands right before the version.
const BEFORE_VERSION: &[u8] = b"\"metadata\":{\"resourceVersion\":\"";

const INFALLIBLE: &str = "JSON values serialise into memory";

/// Writes `apiVersion`, `kind` and `metadata.resourceVersion` first, so that the version's place is known. Returns that place, and the
/// texts that are kept elsewhere.
fn serialise(
    out: &mut Vec<u8>,
    root: &Map<String, Value>,
    meta: &Map<String, Value>,
    texts: &[Arc<[u8]>],
) -> (usize, Box<[Piece]>) {
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
    let mut shared = Vec::new();
    for (key, value) in meta.iter().filter(|(key, _)| *key != "resourceVersion") {
        out.push(b',');
        match value {
            Value::Array(entries) if key == "managedFields" => {
                out.extend_from_slice(b"\"managedFields\":");
                serialise_records(out, entries, version_at, texts, &mut shared);
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
    (version_at, shared.into())
}

fn member(out: &mut Vec<u8>, key: &str, value: &Value) {
    serde_json::to_writer(&mut *out, key).expect(INFALLIBLE);
    out.push(b':');
    serde_json::to_writer(&mut *out, value).expect(INFALLIBLE);
}

/// The entries of `managedFields`; long texts go to `shared`.
fn serialise_records(
    out: &mut Vec<u8>,
    entries: &[Value],
    version_at: usize,
    texts: &[Arc<[u8]>],
    shared: &mut Vec<Piece>,
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
            let text = value.as_u64().filter(|_| key == "fieldsV1").and_then(|number| texts.get(number as usize));
            if let Some(text) = text {
                shared.push(Piece { at: (begin - version_at) as u32, text: text.clone() });
                continue;
            }
            serde_json::to_writer(&mut *out, value).expect(INFALLIBLE);
            if key == "fieldsV1" && out.len() - begin >= shared::WORTHWHILE {
                shared.push(Piece { at: (begin - version_at) as u32, text: shared::share(&out[begin..]) });
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
