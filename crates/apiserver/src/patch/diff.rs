//! What a write changed, as sets of fields. Walks both objects at once and leaves out what is equal: most of an object is.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::fields::{FieldSet, field_edge, item_edge, of_metadata, of_value};
use crate::schema::{ListType, Schema};

/// The difference between two states of an object.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Diff {
    /// Fields that are no longer there.
    pub(super) removed: FieldSet,
    /// Fields that are new or have another value.
    pub(super) touched: FieldSet,
}

impl Diff {
    pub(super) fn between(old: &Value, new: &Value, schema: Option<&Schema>) -> Self {
        let empty = Map::new();
        let (before, after) = (old.as_object().unwrap_or(&empty), new.as_object().unwrap_or(&empty));
        let mut diff = Self::default();
        for (name, (old, new)) in differing(before, after) {
            let child = match name {
                "apiVersion" | "kind" => continue,
                "metadata" => Self::of_metadata(old, new),
                _ => Self::of_member(old, new, schema.and_then(|s| s.member(name))),
            };
            diff.put(field_edge(name), child);
        }
        diff
    }

    pub(super) fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.touched.is_empty()
    }

    fn put(&mut self, edge: String, child: Self) {
        self.removed.insert(edge.clone(), child.removed);
        self.touched.insert(edge, child.touched);
    }

    /// Metadata is small: its sets are made and compared as a whole.
    fn of_metadata(old: Option<&Value>, new: Option<&Value>) -> Self {
        let set = |meta: Option<&Value>| meta.and_then(of_metadata::<FieldSet>).unwrap_or_default();
        let (before, after) = (set(old), set(new));
        let mut touched = match (old, new) {
            (Some(old), Some(new)) => FieldSet::changed_metadata(old, new),
            _ => FieldSet::default(),
        };
        touched.add(&after.minus(&before));
        Self { removed: before.minus(&after), touched }
    }

    fn of_member(old: Option<&Value>, new: Option<&Value>, schema: Option<&Schema>) -> Self {
        match (old, new) {
            (Some(old), Some(new)) => Self::of_values(old, new, schema),
            (Some(old), None) => Self { removed: of_value(old, schema), touched: FieldSet::default() },
            (None, Some(new)) => Self { removed: FieldSet::default(), touched: of_value(new, schema) },
            (None, None) => Self::default(),
        }
    }

    /// Of two values that are not equal.
    fn of_values(old: &Value, new: &Value, schema: Option<&Schema>) -> Self {
        match (old, new, schema) {
            (Value::Object(before), Value::Object(after), schema)
                if schema.is_none_or(|s| !s.atomic_map) && !before.is_empty() && !after.is_empty() =>
            {
                let mut diff = Self::default();
                for (name, (old, new)) in differing(before, after) {
                    let child = Self::of_member(old, new, schema.and_then(|s| s.member(name)));
                    diff.put(field_edge(name), child);
                }
                diff
            }
            (Value::Array(before), Value::Array(after), Some(schema)) if schema.list_type != ListType::Atomic => {
                Self::of_lists(before, after, schema).unwrap_or_else(|| Self::by_sets(old, new, Some(schema)))
            }
            _ => Self::by_sets(old, new, schema),
        }
    }

    /// Of two lists whose items have keys. `None` when an item is not what such a list holds, or is there twice.
    fn of_lists(before: &[Value], after: &[Value], schema: &Schema) -> Option<Self> {
        let ListType::Map(_) = &schema.list_type else { return None };
        let child = schema.items.as_deref();
        let plain = |item: &Value| item.as_object().is_some_and(|m| !m.is_empty());
        if before.is_empty() || after.is_empty() || child.is_some_and(|c| c.atomic_map) {
            return None;
        }
        let index = |items: &'_ [Value]| -> Option<BTreeMap<String, usize>> {
            let by_edge: BTreeMap<String, usize> = items
                .iter()
                .enumerate()
                .filter(|(_, item)| plain(item))
                .map(|(i, item)| (item_edge(&schema.list_type, child, item), i))
                .collect();
            (by_edge.len() == items.len()).then_some(by_edge)
        };
        let (olds, news) = (index(before)?, index(after)?);
        let mut diff = Self::default();
        for (edge, at) in &olds {
            if !news.contains_key(edge) {
                diff.removed.insert(edge.clone(), item_fields(&before[*at], child));
            }
        }
        for (edge, at) in news {
            match olds.get(&edge).map(|old| &before[*old]) {
                None => diff.touched.insert(edge, item_fields(&after[at], child)),
                Some(old) if *old == after[at] => {}
                Some(old) => diff.put(edge, Self::of_values(old, &after[at], child)),
            }
        }
        Some(diff)
    }

    /// The definition of the difference, for whatever has no quicker way.
    fn by_sets(old: &Value, new: &Value, schema: Option<&Schema>) -> Self {
        let (before, after): (FieldSet, FieldSet) = (of_value(old, schema), of_value(new, schema));
        let mut touched = FieldSet::changed_value(old, new, schema);
        // A value that is replaced as a whole takes everything below with it.
        if !before.is_leaf() {
            touched.add(&after.minus(&before));
        }
        let removed = if after.is_leaf() { FieldSet::default() } else { before.minus(&after) };
        Self { removed, touched }
    }
}

/// An item of a list is a field itself.
fn item_fields(item: &Value, schema: Option<&Schema>) -> FieldSet {
    let mut fields: FieldSet = of_value(item, schema);
    fields.include_node();
    fields
}

/// Members that differ, by name.
fn differing<'a>(
    before: &'a Map<String, Value>,
    after: &'a Map<String, Value>,
) -> impl Iterator<Item = (&'a str, (Option<&'a Value>, Option<&'a Value>))> {
    let kept = before.iter().map(|(name, old)| (name.as_str(), (Some(old), after.get(name))));
    let added = after.iter().filter(|(name, _)| !before.contains_key(*name));
    kept.chain(added.map(|(name, new)| (name.as_str(), (None, Some(new))))).filter(|(_, (old, new))| old != new)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::{patch::tests::object_of, status::Path};

    /// Every kind of node a schema can have.
    pub(in crate::patch) fn schema() -> Schema {
        let item = json!({"type": "object", "properties": {
            "a": {"type": "string"}, "b": {"type": "integer"}, "c": {"type": "object", "additionalProperties": {"type": "string"}},
        }});
        let raw = json!({"type": "object", "properties": {"a": {"type": "object", "properties": {
            "a": {"type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["a"]},
            "b": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
            "c": {"type": "object", "additionalProperties": {"type": "string"}},
            "d": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"a": {"type": "string"}}},
        }}, "b": item, "c": {"type": "array", "items": item}}});
        Schema::compile(&raw, &Path::Root).unwrap_or_else(|e| panic!("{e:?}"))
    }

    fn by_definition(old: &Value, new: &Value, schema: Option<&Schema>) -> Diff {
        let (before, after) = (FieldSet::of_object(old, schema), FieldSet::of_object(new, schema));
        let mut touched = FieldSet::changed(old, new, schema);
        touched.add(&after.minus(&before));
        Diff { removed: before.minus(&after), touched }
    }

    #[test]
    fn equal_objects_do_not_differ() {
        let object = json!({"metadata": {"labels": {"a": "b"}}, "a": {"a": [{"a": "x"}]}});
        assert!(Diff::between(&object, &object, Some(&schema())).is_empty());
    }

    proptest! {
        #[test]
        fn the_quick_way_finds_what_the_definition_says(old in object_of(), new in object_of(), known: bool) {
            let schema = schema();
            let schema = known.then_some(&schema);
            prop_assert_eq!(Diff::between(&old, &new, schema), by_definition(&old, &new, schema));
        }
    }
}
