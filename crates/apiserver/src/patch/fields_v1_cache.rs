//! Cache of serialised `FieldsV1` values. Objects created from one template have the same `fieldsV1`, and updates
//! change it in the same way, so it is computed once per template instead of once per object.

use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::{BuildHasher as _, Hash as _, Hasher},
    sync::{Arc, LazyLock},
};

use parking_lot::Mutex;
use serde_json::Value;

use super::{diff::Diff, field_set::FieldSet, fields_v1, ownership::created_fields};
use crate::{
    schema::{ListType, Schema},
    store::intern,
};

/// A serialised `FieldsV1` value, interned: equal texts usually share one allocation.
pub(crate) type FieldsText = Arc<[u8]>;

/// Maximum number of cached results of each kind. When it is reached, all of them are dropped.
const MAX_CACHED: usize = 1024;

static CACHE: LazyLock<Mutex<Cache>> = LazyLock::new(|| Mutex::new(Cache::default()));

#[derive(Default)]
struct Cache {
    created: HashMap<(u64, u64), FieldsText>,
    edited: HashMap<u64, Vec<Edit>>,
    edits: usize,
}

/// A cached change of a text.
struct Edit {
    text: FieldsText,
    own: bool,
    removed: FieldSet,
    touched: FieldSet,
    /// `None` if no field was left.
    result: Option<FieldsText>,
}

/// Two independent hash functions: a collision would give an object the fields of a differently shaped one.
static HASHERS: LazyLock<(RandomState, RandomState)> = LazyLock::new(|| (RandomState::new(), RandomState::new()));

/// The text for a manager that created the whole object; `None` if it has no fields.
pub(super) fn created(object: &Value, schema: Option<&Schema>) -> Option<FieldsText> {
    let mut hashers = (HASHERS.0.build_hasher(), HASHERS.1.build_hasher());
    schema.map_or(0, |s| s.id).hash(&mut hashers.0);
    hash_shape(object, schema, true, &mut HashBoth(&mut hashers));
    let key = (hashers.0.finish(), hashers.1.finish());
    if let Some(known) = CACHE.lock().created.get(&key) {
        return Some(known.clone());
    }
    let fields: Value = created_fields(object, schema);
    let text = to_text(&fields)?;
    let mut cache = CACHE.lock();
    if cache.created.len() >= MAX_CACHED {
        cache.created.clear();
    }
    cache.created.insert(key, text.clone());
    Some(text)
}

/// The text of an entry after a change by its own manager (`own`) or by another one. `None` if no field is left.
pub(super) fn edited(text: &FieldsText, diff: &Diff, own: bool) -> Option<FieldsText> {
    let key = HASHERS.0.hash_one((text.as_ptr().addr(), own, &diff.removed, &diff.touched));
    let same = |e: &&Edit| {
        Arc::ptr_eq(&e.text, text) && e.own == own && e.removed == diff.removed && e.touched == diff.touched
    };
    if let Some(known) = CACHE.lock().edited.get(&key).into_iter().flatten().find(same) {
        return known.result.clone();
    }
    let mut fields = parse(text);
    let mut changed = fields_v1::subtract(&mut fields, &diff.removed);
    changed |=
        if own { fields_v1::add(&mut fields, &diff.touched) } else { fields_v1::subtract(&mut fields, &diff.touched) };
    let result = if changed { to_text(&fields) } else { Some(text.clone()) };
    let (removed, touched) = (diff.removed.clone(), diff.touched.clone());
    let edit = Edit { text: text.clone(), own, removed, touched, result: result.clone() };
    let mut cache = CACHE.lock();
    if cache.edits >= MAX_CACHED {
        cache.edited.clear();
        cache.edits = 0;
    }
    cache.edits += 1;
    cache.edited.entry(key).or_default().push(edit);
    result
}

/// Parses a text to `FieldsV1` JSON.
pub(super) fn parse(text: &[u8]) -> Value {
    serde_json::from_slice(text).unwrap_or_default()
}

fn to_text(fields: &Value) -> Option<FieldsText> {
    (!fields_v1::is_empty(fields)).then(|| intern(fields.to_string().as_bytes()))
}

/// Replaces each `fieldsV1` value that is an index into `texts` with the parsed text.
pub(crate) fn expand_fields_v1(object: &mut Value, texts: &[FieldsText]) {
    let Some(entries) = object["metadata"].get_mut("managedFields").and_then(Value::as_array_mut) else { return };
    for entry in entries {
        let text = entry["fieldsV1"].as_u64().and_then(|index| texts.get(index as usize));
        if let (Some(text), Some(members)) = (text, entry.as_object_mut()) {
            members.insert("fieldsV1".into(), parse(text));
        }
    }
}

/// Feeds two hashers at once.
struct HashBoth<'a, A, B>(&'a mut (A, B));

impl<A: Hasher, B: Hasher> Hasher for HashBoth<'_, A, B> {
    fn write(&mut self, bytes: &[u8]) {
        self.0.0.write(bytes);
        self.0.1.write(bytes);
    }

    fn finish(&self) -> u64 {
        self.0.0.finish()
    }
}

/// Hashes everything that the field set of an object depends on, and a little more: the names of all members, the type
/// of every value, and the values that identify list items.
fn hash_shape(value: &Value, schema: Option<&Schema>, root: bool, out: &mut impl Hasher) {
    match value {
        Value::Object(members) => {
            (1u8, members.len()).hash(out);
            for (name, member) in members {
                name.hash(out);
                match name.as_str() {
                    "metadata" if root => hash_metadata(member, out),
                    _ => hash_shape(member, schema.and_then(|s| s.member(name)), false, out),
                }
            }
        }
        Value::Array(items) => {
            (2u8, items.len()).hash(out);
            let child = schema.and_then(|s| s.items.as_deref());
            match schema.map(|s| &s.list_type) {
                Some(ListType::Map(keys)) => {
                    for item in items {
                        keys.iter().for_each(|key| hash_value(item.get(key), out));
                        hash_shape(item, child, false, out);
                    }
                }
                Some(ListType::Set) => items.iter().for_each(|item| hash_value(Some(item), out)),
                Some(ListType::Atomic) | None => {}
            }
        }
        // A field with a zero value is owned only if its value differs from it.
        _ => (3u8, schema.and_then(Schema::zero_value).is_some_and(|zero| zero == value)).hash(out),
    }
}

/// Hashes metadata: its maps by key, its lists with all values, other members by name only.
fn hash_metadata(meta: &Value, out: &mut impl Hasher) {
    for (name, value) in meta.as_object().into_iter().flatten() {
        name.hash(out);
        match (name.as_str(), value) {
            ("labels" | "annotations", Value::Object(members)) => {
                members.len().hash(out);
                members.keys().for_each(|key| key.hash(out));
            }
            ("finalizers" | "ownerReferences" | "labels" | "annotations", _) => hash_value(Some(value), out),
            _ => {}
        }
    }
}

/// Hashes a complete value.
fn hash_value(value: Option<&Value>, out: &mut impl Hasher) {
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
    use crate::patch::tests::kubernetes_object;

    proptest! {
        #[test]
        fn cached_texts_equal_computed_ones(object in kubernetes_object(), other in kubernetes_object()) {
            let schema = crate::patch::diff::tests::schema();
            for object in [&object, &other, &object] {
                let wanted: Value = created_fields(object, Some(&schema));
                prop_assert_eq!(created(object, Some(&schema)).map(|t| parse(&t)), (!fields_v1::is_empty(&wanted)).then_some(wanted));
            }
            let Some(text) = created(&object, Some(&schema)) else { return Ok(()) };
            let diff = Diff::between(&object, &other, Some(&schema));
            for own in [true, false, true, false] {
                let mut wanted = parse(&text);
                fields_v1::subtract(&mut wanted, &diff.removed);
                if own { fields_v1::add(&mut wanted, &diff.touched) } else { fields_v1::subtract(&mut wanted, &diff.touched) };
                prop_assert_eq!(edited(&text, &diff, own).map(|t| parse(&t)), (!fields_v1::is_empty(&wanted)).then_some(wanted));
            }
        }
    }
}
