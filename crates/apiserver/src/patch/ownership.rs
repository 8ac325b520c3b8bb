//! Which fields a manager owns after creating or applying a value. The two differ, as in Kubernetes: a creator owns
//! every node that did not exist before; an applier owns leaves, list items and map keys.

use std::{collections::HashMap, sync::LazyLock};

use serde_json::{Map, Value, json};

use super::field_set::{FieldSet, Tree, field_edge, item_edge};
use crate::schema::{ListType, Schema};

/// Members of metadata that have no owner.
const SYSTEM_METADATA: &[&str] = &[
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "managedFields",
    "selfLink",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
];

/// The schema of `metadata`, common to all kinds.
static METADATA: LazyLock<Schema> = LazyLock::new(|| {
    let text = json!({ "type": "string" });
    let map = json!({ "type": "object", "additionalProperties": text });
    let owner = json!({ "type": "object", "x-kubernetes-map-type": "atomic", "properties": { "uid": text } });
    let raw = json!({ "type": "object", "properties": {
        "labels": map,
        "annotations": map,
        "finalizers": { "type": "array", "items": text, "x-kubernetes-list-type": "set" },
        "ownerReferences": { "type": "array", "items": owner, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["uid"] },
    } });
    Schema::compile(&raw, &crate::status::Path::Root).expect("the schema of metadata is well-formed")
});

/// The schema of a root member, or `None` if the member cannot be owned.
pub(super) fn root_member<'a>(name: &str, schema: Option<&'a Schema>) -> Option<Option<&'a Schema>> {
    match name {
        "apiVersion" | "kind" => None,
        "metadata" => Some(Some(&METADATA)),
        _ => Some(schema.and_then(|s| s.member(name))),
    }
}

/// True for a member of `metadata` that can be owned.
pub(super) fn is_owned_metadata(name: &str) -> bool {
    !SYSTEM_METADATA.contains(&name)
}

/// How ownership treats a value, according to its schema.
pub(super) enum Node<'a> {
    /// Owned as a whole.
    Leaf,
    Map(&'a Map<String, Value>),
    List(&'a [Value], &'a Schema),
}

impl<'a> Node<'a> {
    pub(super) fn of(value: &'a Value, schema: Option<&'a Schema>) -> Self {
        match (value, schema) {
            (Value::Object(members), schema) if schema.is_none_or(|s| !s.atomic_map) => Self::Map(members),
            (Value::Array(items), Some(schema)) if schema.list_type != ListType::Atomic => Self::List(items, schema),
            _ => Self::Leaf,
        }
    }
}

/// The fields owned by a manager that created the whole object.
pub(super) fn created_fields<T: Tree>(object: &Value, schema: Option<&Schema>) -> T {
    let members = object.as_object().into_iter().flatten();
    let children = members.filter_map(|(name, value)| {
        let schema = root_member(name, schema)?;
        let node = match (name.as_str(), value) {
            ("metadata", Value::Object(members)) => created_members(members, schema, is_owned_metadata),
            ("metadata", _) => None,
            _ => created_member(value, schema),
        };
        Some((field_edge(name), node?))
    });
    T::node(false, children)
}

/// Created members of a node that exists regardless of the object.
fn created_members<T: Tree>(
    members: &Map<String, Value>,
    schema: Option<&Schema>,
    is_owned: impl Fn(&str) -> bool,
) -> Option<T> {
    let made: Vec<(String, T)> = members
        .iter()
        .filter(|(name, _)| is_owned(name))
        .filter_map(|(name, value)| {
            Some((field_edge(name), created_member(value, schema.and_then(|s| s.member(name)))?))
        })
        .collect();
    (!made.is_empty()).then(|| T::node(false, made.into_iter()))
}

/// The fields of a created member; `None` if its value equals the zero value that it would have anyway.
fn created_member<T: Tree>(value: &Value, schema: Option<&Schema>) -> Option<T> {
    let Some(zero) = schema.and_then(Schema::zero_value) else { return Some(all_fields(value, schema)) };
    match Node::of(value, schema) {
        Node::Map(members) => created_members(members, schema, |_| true),
        Node::List(items, list) if !items.is_empty() => Some(T::node(false, created_items(items, list))),
        _ => (value != zero).then(T::leaf),
    }
}

/// Every node of a value that did not exist before.
pub(super) fn all_fields<T: Tree>(value: &Value, schema: Option<&Schema>) -> T {
    match Node::of(value, schema) {
        Node::Leaf => T::leaf(),
        Node::Map(members) => {
            let member = |name: &str| schema.and_then(|s| s.member(name));
            T::node(true, members.iter().map(|(name, value)| (field_edge(name), all_fields(value, member(name)))))
        }
        Node::List(items, list) => T::node(true, created_items(items, list)),
    }
}

fn created_items<T: Tree>(items: &[Value], list: &Schema) -> impl Iterator<Item = (String, T)> {
    let child = list.items.as_deref();
    items_by_edge(items, list).into_iter().map(move |(edge, found)| match found.as_slice() {
        [item] => (edge, all_fields(item, child)),
        // Items with the same identity are owned together.
        _ => (edge, T::leaf()),
    })
}

/// The items of a list, grouped by their edge (identity), in order.
pub(super) fn items_by_edge<'a>(items: &'a [Value], list: &Schema) -> Vec<(String, Vec<&'a Value>)> {
    let child = list.items.as_deref();
    let mut places: HashMap<String, usize> = HashMap::with_capacity(items.len());
    let mut found: Vec<(String, Vec<&Value>)> = Vec::with_capacity(items.len());
    for item in items {
        let edge = item_edge(&list.list_type, child, item);
        match places.get(&edge) {
            Some(at) => found[*at].1.push(item),
            None => {
                places.insert(edge.clone(), found.len());
                found.push((edge, vec![item]));
            }
        }
    }
    found
}

/// The fields owned by a manager that applied an object.
pub(super) fn applied_fields(object: &Value, schema: Option<&Schema>) -> FieldSet {
    let mut set = FieldSet::default();
    for (name, value) in object.as_object().into_iter().flatten() {
        let Some(schema) = root_member(name, schema) else { continue };
        let mut fields = match (name.as_str(), value) {
            ("metadata", Value::Object(members)) => applied_members(members, schema, is_owned_metadata),
            ("metadata", _) => continue,
            _ => applied_value(value, schema),
        };
        if name != "metadata" && is_null_or_empty_map(value) {
            fields.set_node(true);
        }
        set.insert(field_edge(name), fields);
    }
    set
}

fn applied_value(value: &Value, schema: Option<&Schema>) -> FieldSet {
    match Node::of(value, schema) {
        Node::Leaf => FieldSet::leaf(),
        Node::Map(members) => applied_members(members, schema, |_| true),
        Node::List(items, list) => {
            let child = list.items.as_deref();
            let mut set = FieldSet::default();
            for (edge, found) in items_by_edge(items, list) {
                let mut fields = match found.as_slice() {
                    [item] => applied_value(item, child),
                    _ => FieldSet::default(),
                };
                fields.set_node(true);
                set.insert(edge, fields);
            }
            set
        }
    }
}

fn applied_members(members: &Map<String, Value>, schema: Option<&Schema>, is_owned: impl Fn(&str) -> bool) -> FieldSet {
    let mut set = FieldSet::default();
    for (name, value) in members.iter().filter(|(name, _)| is_owned(name)) {
        let mut fields = applied_value(value, schema.and_then(|s| s.member(name)));
        // Map keys are owned themselves; members of structs only through the fields below them.
        if is_null_or_empty_map(value) || schema.is_none_or(|s| !s.properties.contains_key(name)) {
            fields.set_node(true);
        }
        set.insert(field_edge(name), fields);
    }
    set
}

fn is_null_or_empty_map(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(members) => members.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Path;

    fn schema() -> Schema {
        let item = json!({"type": "object", "properties": {"name": {"type": "string"}, "image": {"type": "string"}}});
        let raw = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "mode": {"type": "string"},
            "map": {"type": "object", "additionalProperties": {"type": "string"}},
            "inner": {"type": "object", "properties": {"a": {"type": "string"}}},
            "list": {"type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        }}}});
        Schema::compile(&raw, &Path::Root).unwrap_or_else(|e| panic!("{e:?}"))
    }

    fn object() -> Value {
        json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n", "uid": "u", "labels": {"a": "1"}, "finalizers": ["x/y"]},
            "spec": {"mode": "m", "map": {"k": "v"}, "inner": {"a": "b"}, "list": [{"name": "c", "image": "i"}]}})
    }

    #[test]
    fn the_creator_of_an_object_owns_every_node() {
        let set: FieldSet = created_fields(&object(), Some(&schema()));
        assert_eq!(
            set.to_value(),
            json!({
                "f:metadata": {"f:labels": {".": {}, "f:a": {}}, "f:finalizers": {".": {}, "v:\"x/y\"": {}}},
                "f:spec": {".": {}, "f:mode": {}, "f:map": {".": {}, "f:k": {}}, "f:inner": {".": {}, "f:a": {}},
                    "f:list": {".": {}, "k:{\"name\":\"c\"}": {".": {}, "f:name": {}, "f:image": {}}}},
            })
        );
    }

    #[test]
    fn the_applier_of_an_object_owns_leaves_items_and_map_keys() {
        assert_eq!(
            applied_fields(&object(), Some(&schema())).to_value(),
            json!({
                "f:metadata": {"f:labels": {"f:a": {}}, "f:finalizers": {"v:\"x/y\"": {}}},
                "f:spec": {"f:mode": {}, "f:map": {"f:k": {}}, "f:inner": {"f:a": {}},
                    "f:list": {"k:{\"name\":\"c\"}": {".": {}, "f:name": {}, "f:image": {}}}},
            })
        );
    }

    #[test]
    fn map_values_have_no_zero_value() {
        let registry = crate::registry::Registry::default().snapshot();
        let schema = crate::builtin::schema(registry.resource("", "configmaps").unwrap()).unwrap();
        let set: FieldSet = created_fields(&json!({"data": {"a": "", "b": "1"}}), Some(&schema));
        assert_eq!(set.to_value(), json!({"f:data": {".": {}, "f:a": {}, "f:b": {}}}));
    }

    #[test]
    fn zero_values_of_built_in_kinds_have_no_owner() {
        let registry = crate::registry::Registry::default().snapshot();
        let schema = crate::builtin::schema(registry.resource("", "pods").unwrap()).unwrap();
        let pod = json!({"metadata": {"name": "n"}, "status": {}, "spec": {"restartPolicy": "Never", "securityContext": {},
            "containers": [{"name": "c", "resources": {}, "ports": [{"containerPort": 1, "protocol": "TCP"}]}]}});
        let set: FieldSet = created_fields(&pod, Some(&schema));
        let port = "k:{\"containerPort\":1,\"protocol\":\"TCP\"}";
        assert_eq!(
            set.to_value(),
            json!({"f:spec": {"f:restartPolicy": {}, "f:securityContext": {}, "f:containers": {"k:{\"name\":\"c\"}": {
                ".": {}, "f:name": {}, "f:resources": {},
                "f:ports": {".": {}, port: {".": {}, "f:containerPort": {}, "f:protocol": {}}},
            }}}})
        );
    }
}
