//! The texts in which `managedFields` say who set what. Objects made from one template have the same text, and change it in the same way:
//! it is worked out once per template, not once per object.

use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::{BuildHasher as _, Hash as _, Hasher},
    sync::{Arc, LazyLock},
};

use parking_lot::Mutex;
use serde_json::Value;

use super::{diff::Diff, fields::FieldSet, owned::made, record};
use crate::{
    schema::{ListType, Schema},
    store::share_text,
};

/// A text; equal ones are mostly one.
pub(crate) type Text = Arc<[u8]>;

/// Results that are remembered; when there are more, all are forgotten.
const REMEMBERED: usize = 1024;

static MEMORY: LazyLock<Mutex<Memory>> = LazyLock::new(|| Mutex::new(Memory::default()));

#[derive(Default)]
struct Memory {
    created: HashMap<(u64, u64), Text>,
    edited: HashMap<u64, Vec<Edit>>,
    edits: usize,
}

/// How a text was changed.
struct Edit {
    text: Text,
    own: bool,
    removed: FieldSet,
    touched: FieldSet,
    /// `None`: nothing was left.
    result: Option<Text>,
}

/// Two independent hashes: objects of different shape must never be taken for each other.
static HASHERS: LazyLock<(RandomState, RandomState)> = LazyLock::new(|| (RandomState::new(), RandomState::new()));

/// The text for somebody who made the whole object; `None` when it has no fields.
pub(super) fn created(object: &Value, schema: Option<&Schema>) -> Option<Text> {
    let mut hashers = (HASHERS.0.build_hasher(), HASHERS.1.build_hasher());
    schema.map_or(0, |s| s.id).hash(&mut hashers.0);
    shape(object, schema, true, &mut Both(&mut hashers));
    let key = (hashers.0.finish(), hashers.1.finish());
    if let Some(known) = MEMORY.lock().created.get(&key) {
        return Some(known.clone());
    }
    let record: Value = made(object, schema);
    let text = to_text(&record)?;
    let mut memory = MEMORY.lock();
    if memory.created.len() >= REMEMBERED {
        memory.created.clear();
    }
    memory.created.insert(key, text.clone());
    Some(text)
}

/// The text after a change, by its owner or by somebody else. `None` when nothing is left.
pub(super) fn edited(text: &Text, diff: &Diff, own: bool) -> Option<Text> {
    let key = HASHERS.0.hash_one((text.as_ptr().addr(), own, &diff.removed, &diff.touched));
    let same = |e: &&Edit| {
        Arc::ptr_eq(&e.text, text) && e.own == own && e.removed == diff.removed && e.touched == diff.touched
    };
    if let Some(known) = MEMORY.lock().edited.get(&key).into_iter().flatten().find(same) {
        return known.result.clone();
    }
    let mut record = parse(text);
    let mut changed = record::subtract(&mut record, &diff.removed);
    changed |= if own { record::add(&mut record, &diff.touched) } else { record::subtract(&mut record, &diff.touched) };
    let result = if changed { to_text(&record) } else { Some(text.clone()) };
    let (removed, touched) = (diff.removed.clone(), diff.touched.clone());
    let edit = Edit { text: text.clone(), own, removed, touched, result: result.clone() };
    let mut memory = MEMORY.lock();
    if memory.edits >= REMEMBERED {
        memory.edited.clear();
        memory.edits = 0;
    }
    memory.edits += 1;
    memory.edited.entry(key).or_default().push(edit);
    result
}

/// The record that a text stands for.
pub(super) fn parse(text: &[u8]) -> Value {
    serde_json::from_slice(text).unwrap_or_default()
}

fn to_text(record: &Value) -> Option<Text> {
    (!record::is_empty(record)).then(|| share_text(record.to_string().as_bytes()))
}

/// Puts the texts back in the place of their numbers.
pub(crate) fn inflate(object: &mut Value, texts: &[Text]) {
    let Some(entries) = object["metadata"].get_mut("managedFields").and_then(Value::as_array_mut) else { return };
    for entry in entries {
        let number = entry["fieldsV1"].as_u64().and_then(|n| texts.get(n as usize));
        if let (Some(text), Some(members)) = (number, entry.as_object_mut()) {
            members.insert("fieldsV1".into(), parse(text));
        }
    }
}

/// Feeds two hashers.
struct Both<'a, A, B>(&'a mut (A, B));

impl<A: Hasher, B: Hasher> Hasher for Both<'_, A, B> {
    fn write(&mut self, bytes: &[u8]) {
        self.0.0.write(bytes);
        self.0.1.write(bytes);
    }

    fn finish(&self) -> u64 {
        self.0.0.finish()
    }
}

/// Hashes everything that the fields of an object depend on, and a little more: the names of all members, the kind of every value, and the
/// values by which items of lists are told apart.
fn shape(value: &Value, schema: Option<&Schema>, root: bool, out: &mut impl Hasher) {
    match value {
        Value::Object(members) => {
            (1u8, members.len()).hash(out);
            for (name, member) in members {
                name.hash(out);
                match name.as_str() {
                    "metadata" if root => metadata(member, out),
                    _ => shape(member, schema.and_then(|s| s.member(name)), false, out),
                }
            }
        }
        Value::Array(items) => {
            (2u8, items.len()).hash(out);
            let child = schema.and_then(|s| s.items.as_deref());
            match schema.map(|s| &s.list_type) {
                Some(ListType::Map(keys)) => {
                    for item in items {
                        keys.iter().for_each(|key| exactly(item.get(key), out));
                        shape(item, child, false, out);
                    }
                }
                Some(ListType::Set) => items.iter().for_each(|item| exactly(Some(item), out)),
                Some(ListType::Atomic) | None => {}
            }
        }
        // What a kind always has is owned only when it is set.
        _ => (3u8, schema.and_then(Schema::zero).is_some_and(|zero| zero == value)).hash(out),
    }
}

/// Metadata has lists of its own; other members count by name.
fn metadata(meta: &Value, out: &mut impl Hasher) {
    for (name, value) in meta.as_object().into_iter().flatten() {
        name.hash(out);
        match (name.as_str(), value) {
            ("labels" | "annotations", Value::Object(members)) => {
                members.len().hash(out);
                members.keys().for_each(|key| key.hash(out));
            }
            ("finalizers" | "ownerReferences" | "labels" | "annotations", _) => exactly(Some(value), out),
            _ => {}
        }
    }
}

/// A value with everything in it.
fn exactly(value: Option<&Value>, out: &mut impl Hasher) {
    match value {
        None => 0u8.hash(out),
        Some(Value::String(text)) => text.hash(out),
        Some(other) => other.to_string().hash(out),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::patch::tests::object_of;

    proptest! {
        #[test]
        fn what_is_remembered_is_what_would_be_worked_out(object in object_of(), other in object_of()) {
            let schema = crate::patch::diff::tests::schema();
            for object in [&object, &other, &object] {
                let wanted: Value = made(object, Some(&schema));
                prop_assert_eq!(created(object, Some(&schema)).map(|t| parse(&t)), (!record::is_empty(&wanted)).then_some(wanted));
            }
            let Some(text) = created(&object, Some(&schema)) else { return Ok(()) };
            let diff = Diff::between(&object, &other, Some(&schema));
            for own in [true, false, true, false] {
                let mut wanted = parse(&text);
                record::subtract(&mut wanted, &diff.removed);
                if own { record::add(&mut wanted, &diff.touched) } else { record::subtract(&mut wanted, &diff.touched) };
                prop_assert_eq!(edited(&text, &diff, own).map(|t| parse(&t)), (!record::is_empty(&wanted)).then_some(wanted));
            }
        }
    }
}
