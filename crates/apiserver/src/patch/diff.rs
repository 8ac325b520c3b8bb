//! The fields that a write changed. Both objects are walked in parallel and equal subtrees are skipped, since most of
//! an object is unchanged.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{
    field_set::{FieldSet, Tree as _, field_edge},
    ownership::{Node, all_fields, is_owned_metadata, items_by_edge, root_member},
};
use crate::schema::{ListType, Schema};

/// The difference between two states of an object.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Diff {
    /// Fields that were removed.
    pub(super) removed: FieldSet,
    /// Fields that were added or have a different value.
    pub(super) touched: FieldSet,
}

impl Diff {
    pub(super) fn between(old: &Value, new: &Value, schema: Option<&Schema>) -> Self {
        let empty = Map::new();
        let (before, after) = (old.as_object().unwrap_or(&empty), new.as_object().unwrap_or(&empty));
        let mut diff = Self::default();
        for (name, (old, new)) in differing(before, after) {
            let Some(schema) = root_member(name, schema) else { continue };
            let child = match name {
                "metadata" => {
                    let (old, new) = (old.and_then(Value::as_object), new.and_then(Value::as_object));
                    Self::of_members(old.unwrap_or(&empty), new.unwrap_or(&empty), schema, is_owned_metadata)
                }
                _ => Self::of_member(old, new, schema),
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

    fn added(new: FieldSet) -> Self {
        Self { removed: FieldSet::default(), touched: new }
    }

    fn removed(old: FieldSet) -> Self {
        Self { removed: old, touched: FieldSet::default() }
    }

    fn of_members(
        before: &Map<String, Value>,
        after: &Map<String, Value>,
        schema: Option<&Schema>,
        is_owned: impl Fn(&str) -> bool,
    ) -> Self {
        let mut diff = Self::default();
        for (name, (old, new)) in differing(before, after).filter(|(name, _)| is_owned(name)) {
            diff.put(field_edge(name), Self::of_member(old, new, schema.and_then(|s| s.member(name))));
        }
        diff
    }

    /// The difference of one member of a node that exists before and after.
    fn of_member(old: Option<&Value>, new: Option<&Value>, schema: Option<&Schema>) -> Self {
        // A field with a zero value exists even where it is not written.
        let zero = schema.and_then(Schema::zero_value);
        match (old.or(zero), new.or(zero)) {
            (Some(old), Some(new)) => Self::of_values(old, new, schema),
            (Some(old), None) => Self::removed(all_fields(old, schema)),
            (None, Some(new)) => Self::added(all_fields(new, schema)),
            (None, None) => Self::default(),
        }
    }

    fn of_values(old: &Value, new: &Value, schema: Option<&Schema>) -> Self {
        if old == new {
            return Self::default();
        }
        let (no_members, no_items) = (Map::new(), []);
        match (Node::of(old, schema), Node::of(new, schema)) {
            (Node::Map(before), Node::Map(after)) => Self::of_members(before, after, schema, |_| true),
            (Node::List(before, list), Node::List(after, _)) => Self::of_lists(before, after, list),
            // Compared with a non-empty map or list, null counts as an empty one.
            (Node::Map(before), Node::Leaf) if new.is_null() && !before.is_empty() => {
                Self::of_members(before, &no_members, schema, |_| true)
            }
            (Node::Leaf, Node::Map(after)) if old.is_null() && !after.is_empty() => {
                Self::of_members(&no_members, after, schema, |_| true)
            }
            (Node::List(before, list), Node::Leaf) if new.is_null() && !before.is_empty() => {
                Self::of_lists(before, &no_items, list)
            }
            (Node::Leaf, Node::List(after, list)) if old.is_null() && !after.is_empty() => {
                Self::of_lists(&no_items, after, list)
            }
            // Replaced as a whole: the node itself stays, the fields below it are removed.
            _ => Self::replaced(all_fields(old, schema), all_fields(new, schema)),
        }
    }

    fn replaced(mut old: FieldSet, new: FieldSet) -> Self {
        old.set_node(false);
        Self { removed: old, touched: new }
    }

    fn of_lists(before: &[Value], after: &[Value], list: &Schema) -> Self {
        let child = list.items.as_deref();
        let fields = |found: &[&Value]| match found {
            [item] => all_fields(item, child),
            _ => FieldSet::leaf(),
        };
        let mut olds: HashMap<String, Vec<&Value>> = items_by_edge(before, list).into_iter().collect();
        let mut diff = Self::default();
        for (edge, new) in items_by_edge(after, list) {
            let item = match (olds.remove(&edge).as_deref(), new.as_slice()) {
                (None, new) => Self::added(fields(new)),
                (Some([old]), [new]) if matches!(list.list_type, ListType::Map(_)) => Self::of_values(old, new, child),
                (Some(old), new) if old == new => Self::default(),
                (Some(old), new) => Self::replaced(fields(old), fields(new)),
            };
            diff.put(edge, item);
        }
        for (edge, old) in olds {
            diff.put(edge, Self::removed(fields(&old)));
        }
        diff
    }
}

/// The members that differ, with their old and new values.
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
    use crate::{
        patch::{ownership::created_fields, tests::kubernetes_object},
        status::Path,
    };

    /// A schema with every type of node.
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

    /// The fields owned by a manager that created `old` and then updated it to `new`.
    fn after(old: &Value, new: &Value, schema: Option<&Schema>) -> FieldSet {
        let diff = Diff::between(old, new, schema);
        let mut owned = created_fields::<FieldSet>(old, schema).difference(&diff.removed);
        owned.add(&diff.touched);
        owned
    }

    #[test]
    fn equal_objects_do_not_differ() {
        let object = json!({"metadata": {"labels": {"a": "b"}}, "a": {"a": [{"a": "x"}]}});
        assert!(Diff::between(&object, &object, Some(&schema())).is_empty());
    }

    #[test]
    fn a_new_node_is_owned_with_everything_in_it_and_a_changed_one_is_not() {
        let old = json!({"a": {"c": {"x": "1"}}});
        let new = json!({"a": {"c": {"x": "2"}, "a": [{"a": "k", "b": 1}], "b": ["s"]}, "b": {"b": 2}});
        let diff = Diff::between(&old, &new, Some(&schema()));
        assert!(diff.removed.is_empty());
        assert_eq!(
            diff.touched.to_value(),
            json!({"f:a": {"f:c": {"f:x": {}}, "f:b": {".": {}, "v:\"s\"": {}},
                "f:a": {".": {}, "k:{\"a\":\"k\"}": {".": {}, "f:a": {}, "f:b": {}}}}, "f:b": {".": {}, "f:b": {}}})
        );
        let back = Diff::between(&new, &old, Some(&schema()));
        assert_eq!(back.touched.to_value(), json!({"f:a": {"f:c": {"f:x": {}}}}));
        assert_eq!(back.removed, diff.touched.difference(&back.touched));
    }

    #[test]
    fn replacing_a_node_as_a_whole_removes_the_fields_below_it() {
        let (old, new) = (json!({"z": {"x": 1}}), json!({"z": "text"}));
        let diff = Diff::between(&old, &new, None);
        assert_eq!(diff.removed.to_value(), json!({"f:z": {"f:x": {}}}));
        assert_eq!(diff.touched.to_value(), json!({"f:z": {}}));
    }

    proptest! {
        #[test]
        fn a_manager_that_creates_and_updates_an_object_owns_all_its_fields(old in kubernetes_object(), new in kubernetes_object(), known: bool) {
            let schema = schema();
            let schema = known.then_some(&schema);
            prop_assert_eq!(after(&old, &new, schema), created_fields::<FieldSet>(&new, schema));
        }
    }
}
