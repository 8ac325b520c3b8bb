//! Property tests of server-side apply and strategic merge patch.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{
    FieldSet, apply,
    managed::{self, Manager},
    ownership, strategic,
};
use crate::{builtin, registry::Registry, schema::Schema, status::Path};

fn schema() -> Schema {
    let port = json!({"type": "object", "properties": {"port": {"type": "integer"}, "name": {"type": "string"}}});
    let raw = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "replicas": {"type": "integer"}, "image": {"type": "string"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "atomic": {"type": "array", "items": {"type": "string"}},
        "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        "ports": {"type": "array", "items": port, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port"]},
    }}}});
    Schema::compile(&raw, &Path::Root).unwrap_or_else(|e| panic!("{e:?}"))
}

fn map(key: &'static str, value: &'static str) -> impl Strategy<Value = Value> {
    proptest::collection::btree_map(key, value.prop_map(Value::from), 0..3)
        .prop_map(|m| Value::Object(m.into_iter().collect::<Map<_, _>>()))
}

/// An applied configuration: any part of the object, with few distinct values, so that configurations conflict.
fn config() -> impl Strategy<Value = Value> {
    let ports = proptest::collection::btree_map(1u8..4, proptest::option::of("[ab]"), 1..3).prop_map(|ports| {
        let port = |(number, name): (u8, Option<String>)| match name {
            Some(name) => json!({"port": number, "name": name}),
            None => json!({"port": number}),
        };
        Value::Array(ports.into_iter().map(port).collect())
    });
    let words = |word, count| proptest::collection::btree_set(word, count).prop_map(|w| json!(w));
    let members = (
        proptest::option::of((0..2).prop_map(Value::from)),
        proptest::option::of("[xy]".prop_map(Value::from)),
        proptest::option::of(map("[ab]", "[12]")),
        proptest::option::of(words("[pq]", 0..3)),
        // At least one item: an empty list has no owner.
        proptest::option::of(words("[pqr]", 1..3)),
        proptest::option::of(ports),
        proptest::option::of(map("[ab]", "[12]")),
    );
    members.prop_map(|(replicas, image, labels, atomic, set, ports, meta)| {
        let mut spec = Map::new();
        let named = [("replicas", replicas), ("image", image), ("labels", labels), ("atomic", atomic)];
        for (name, value) in named.into_iter().chain([("set", set), ("ports", ports)]) {
            spec.extend(value.map(|value| (name.to_owned(), value)));
        }
        let mut object = json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n"}, "spec": spec});
        if let Some(labels) = meta {
            object["metadata"]["labels"] = labels;
        }
        object
    })
}

fn base() -> Value {
    json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n"}})
}

fn manager(name: &str) -> Manager {
    Manager { name: name.into(), operation: "Apply", api_version: "g/v1".into(), subresource: String::new() }
}

fn applied(live: &Value, config: &Value, manager_name: &str, force: bool) -> Option<Value> {
    apply(live.clone(), config, &manager(manager_name), force, Some(&schema())).ok()
}

fn fields_of(object: &Value, manager_name: &str) -> FieldSet {
    let entry = managed::read(object).into_iter().find(|e| e.belongs_to(&manager(manager_name)));
    entry.map(|e| e.fields).unwrap_or_default()
}

/// True if `object` contains everything in `config`.
fn contains(object: &Value, config: &Value) -> bool {
    match (object, config) {
        (Value::Object(has), Value::Object(wanted)) => {
            wanted.iter().all(|(k, v)| has.get(k).is_some_and(|h| contains(h, v)))
        }
        (Value::Array(has), Value::Array(wanted)) => wanted.iter().all(|w| has.iter().any(|h| contains(h, w))),
        (has, wanted) => has == wanted,
    }
}

/// The object without `managedFields`, with lists whose order is irrelevant sorted.
fn ordered(mut object: Value) -> Value {
    if let Some(meta) = object["metadata"].as_object_mut() {
        meta.remove("managedFields");
    }
    for list in ["set", "ports"] {
        if let Some(items) = object["spec"].get_mut(list).and_then(Value::as_array_mut) {
            items.sort_by_key(Value::to_string);
        }
    }
    object
}

/// True if every field of `set` exists in `there`.
fn is_there(set: &FieldSet, there: &FieldSet) -> bool {
    set.children().all(|(edge, child)| there.child(edge).is_some_and(|there| is_there(child, there)))
}

proptest! {
    #[test]
    fn applying_again_changes_nothing(first in config(), second in config()) {
        let live = applied(&base(), &first, "one", false).unwrap();
        if let Some(once) = applied(&live, &second, "two", true) {
            prop_assert_eq!(applied(&once, &second, "two", false), Some(once));
        }
    }

    #[test]
    fn the_applier_gets_what_it_applied_and_owns_exactly_that(first in config(), second in config()) {
        let live = applied(&base(), &first, "one", false).unwrap();
        let forced = applied(&live, &second, "two", true).unwrap();
        prop_assert!(contains(&forced, &second), "{} lacks {}", forced, second);
        prop_assert_eq!(fields_of(&forced, "two"), ownership::applied_fields(&second, Some(&schema())));
    }

    #[test]
    fn fields_that_an_applier_no_longer_applies_are_removed(first in config(), second in config()) {
        let twice = applied(&applied(&base(), &first, "one", false).unwrap(), &second, "one", false).unwrap();
        let once = applied(&base(), &second, "one", false).unwrap();
        prop_assert_eq!(ordered(twice), ordered(once));
    }

    #[test]
    fn without_force_fields_of_other_managers_do_not_change(first in config(), second in config()) {
        let live = applied(&base(), &first, "one", false).unwrap();
        match applied(&live, &second, "two", false) {
            Some(both) => {
                prop_assert!(contains(&both, &first) && contains(&both, &second));
                prop_assert_eq!(fields_of(&both, "one"), fields_of(&live, "one"));
            }
            None => {
                let both = fields_of(&live, "one").intersection(&ownership::applied_fields(&second, Some(&schema())));
                prop_assert!(!both.is_empty(), "a conflict needs a field that both own");
            }
        }
    }

    #[test]
    fn owned_fields_exist_in_the_object(first in config(), second in config(), third in config()) {
        let mut live = base();
        for (manager_name, config) in [("one", &first), ("two", &second), ("one", &third)] {
            live = applied(&live, config, manager_name, true).unwrap();
        }
        let there = ownership::applied_fields(&live, Some(&schema()));
        for manager_name in ["one", "two"] {
            prop_assert!(is_there(&fields_of(&live, manager_name), &there), "{} owns a field that is not in {}", manager_name, live);
        }
    }
}

/// A Pod with containers, env variables and args, which a strategic merge patch treats differently.
fn pod() -> impl Strategy<Value = Value> {
    let env = proptest::collection::btree_map("[AB]", "[12]", 0..3)
        .prop_map(|env| env.into_iter().map(|(name, value)| json!({"name": name, "value": value})).collect::<Vec<_>>());
    let container = (proptest::option::of("[xy]"), env, proptest::option::of(proptest::collection::vec("[pq]", 0..3)));
    proptest::collection::btree_map("[abc]", container, 0..3).prop_flat_map(|containers| {
        let containers: Vec<Value> = containers
            .into_iter()
            .map(|(name, (image, env, args))| {
                let mut container = json!({"name": name, "env": env});
                if let Some(image) = image {
                    container["image"] = image.into();
                }
                if let Some(args) = args {
                    container["args"] = json!(args);
                }
                container
            })
            .collect();
        map("[ab]", "[12]")
            .prop_map(move |labels| json!({"metadata": {"labels": labels}, "spec": {"containers": containers}}))
    })
}

fn patched(object: Value, patch: &Value) -> Value {
    let registry = Registry::default().snapshot();
    let schema = builtin::schema(registry.resource("", "pods").unwrap()).unwrap();
    strategic(object, patch, Some(&schema)).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_strategic_patch_is_contained_in_the_result_and_the_rest_stays(object in pod(), patch in pod()) {
        let once = patched(object.clone(), &patch);
        prop_assert!(contains(&once, &patch), "{} lacks {}", once, patch);
        prop_assert_eq!(&patched(once.clone(), &patch), &once, "a second time changes nothing");
        let names = |pod: &Value| -> Vec<Value> {
            pod["spec"]["containers"].as_array().into_iter().flatten().map(|c| c["name"].clone()).collect()
        };
        let (before, after) = (names(&object), names(&once));
        prop_assert_eq!(&after[..before.len()], &before[..], "no container is lost or moved");
        prop_assert_eq!(patched(object.clone(), &json!({})), object);
    }
}

/// Arbitrary JSON, including strategic merge directives: a patch with it succeeds or fails, but never panics.
fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::from),
        "(delete|replace|merge|name|[a-c]{0,2})".prop_map(Value::from),
    ];
    let key = "(\\$patch|\\$retainKeys|\\$setElementOrder/containers|\\$deleteFromPrimitiveList/finalizers|metadata|spec|containers|name|finalizers|env|ownerReferences|uid)";
    leaf.prop_recursive(5, 48, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            proptest::collection::btree_map(key, inner, 0..5)
                .prop_map(|m| Value::Object(m.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

proptest! {
    #[test]
    fn no_patch_panics(mut object in anything(), patch in anything()) {
        // Stored objects always have metadata, and an applied body is always an object.
        if !object.is_object() {
            object = json!({});
        }
        if !object["metadata"].is_object() {
            object["metadata"] = json!({"name": "n"});
        }
        let registry = Registry::default().snapshot();
        let schema = builtin::schema(registry.resource("", "pods").unwrap()).unwrap();
        let _ = strategic(object.clone(), &patch, Some(&schema));
        if patch.is_object() {
            let _ = apply(object.clone(), &patch, &manager("one"), true, Some(&schema));
        }
        if patch["metadata"].is_object() {
            let mut new = patch;
            managed::record_update(&object, &mut new, &manager("two"), Some(&schema), &mut Vec::new());
        }
    }
}
