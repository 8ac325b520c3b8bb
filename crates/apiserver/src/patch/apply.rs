//! Server-side apply: the applied object is the complete configuration of its field manager; all other fields belong to
//! other managers.

use serde_json::{Map, Value};

use super::{
    diff::Diff,
    field_set::{FieldSet, field_edge, item_edge},
    managed::{self, Manager},
    ownership,
};
use crate::{
    schema::{ListType, Schema},
    status::{ApiError, Cause, Details},
};

/// Merges `applied` into `live` for `manager`. Fields that the manager applied before and that `applied` no longer has
/// are removed, unless another manager owns them too. Setting a field that another manager owns to a different value is
/// a conflict, unless `force`.
pub fn apply(
    live: Value,
    applied: &Value,
    manager: &Manager,
    force: bool,
    schema: Option<&Schema>,
) -> Result<Value, ApiError> {
    let wanted = ownership::applied_fields(applied, schema);
    let mut entries = managed::read(&live);
    let before = entries.iter().find(|e| e.belongs_to(manager)).map(|e| e.fields.clone()).unwrap_or_default();
    let mut merged = live.clone();
    merge_object(&mut merged, applied, schema);

    let mut others = FieldSet::default();
    for entry in entries.iter().filter(|e| !e.belongs_to(manager)) {
        others.add(&entry.fields);
    }
    let dropped = before.difference(&wanted).difference(&others);
    if !dropped.is_empty() {
        others.add(&wanted);
        remove_object(&mut merged, &dropped, Some(&others), schema);
    }

    let diff = Diff::between(&live, &merged, schema);
    let conflicts: Vec<(String, FieldSet)> = entries
        .iter()
        .filter(|e| !e.belongs_to(manager))
        .map(|e| (e.label(), e.fields.intersection(&diff.touched)))
        .filter(|(_, fields)| !fields.is_empty())
        .collect();
    if !conflicts.is_empty() && !force {
        return Err(conflict(&conflicts));
    }
    for entry in entries.iter_mut().filter(|e| !e.belongs_to(manager)) {
        entry.fields = entry.fields.difference(&diff.touched).difference(&diff.removed);
    }
    let own = managed::find_or_add_entry(&mut entries, manager);
    if own.fields != wanted || !diff.is_empty() {
        own.fields = wanted;
        own.set_time();
    }
    managed::write(&mut merged, entries);
    Ok(merged)
}

fn conflict(conflicts: &[(String, FieldSet)]) -> ApiError {
    let mut causes = Vec::new();
    for (owner, fields) in conflicts {
        for path in fields.paths() {
            causes.push(Cause {
                reason: "FieldManagerConflict",
                message: format!("conflict with {owner}"),
                field: path,
            });
        }
    }
    let mut text = Vec::new();
    for (owner, fields) in conflicts {
        let paths = fields.paths();
        if let [one] = paths.as_slice() {
            text.push(format!("conflict with {owner}: {one}"));
        } else {
            let lines: Vec<String> = paths.iter().map(|p| format!("- {p}")).collect();
            text.push(format!("conflicts with {owner}:\n{}", lines.join("\n")));
        }
    }
    let count = causes.len();
    let plural = if count == 1 { "" } else { "s" };
    let mut error = ApiError::new(
        http::StatusCode::CONFLICT,
        "Conflict",
        format!("Apply failed with {count} conflict{plural}: {}", text.join("\n")),
    );
    error.details = Some(Box::new(Details { causes, ..Details::default() }));
    error
}

fn merge_object(target: &mut Value, applied: &Value, schema: Option<&Schema>) {
    let (Some(members), Some(given)) = (target.as_object_mut(), applied.as_object()) else { return };
    for (name, value) in given {
        if name == "metadata" {
            let slot = members.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
            merge_metadata(slot, value);
            continue;
        }
        let child = schema.and_then(|s| s.member(name));
        merge_value(members.entry(name.as_str()).or_insert(Value::Null), value, child);
    }
}

fn merge_metadata(target: &mut Value, applied: &Value) {
    let (Some(members), Some(given)) = (target.as_object_mut(), applied.as_object()) else { return };
    for (name, value) in given {
        match (name.as_str(), value) {
            ("managedFields" | "creationTimestamp" | "generation", _) => {}
            ("labels" | "annotations", Value::Object(entries)) => {
                let slot = members.entry(name.as_str()).or_insert_with(|| Value::Object(Map::new()));
                if let Some(slot) = slot.as_object_mut() {
                    slot.extend(entries.clone());
                }
            }
            ("finalizers", Value::Array(items)) => merge_list(members, name, items, |a, b| a == b),
            ("ownerReferences", Value::Array(items)) => {
                merge_list(members, name, items, |a, b| a["uid"] == b["uid"]);
            }
            _ => {
                members.insert(name.clone(), value.clone());
            }
        }
    }
}

fn merge_list(members: &mut Map<String, Value>, name: &str, items: &[Value], same: impl Fn(&Value, &Value) -> bool) {
    let slot = members.entry(name).or_insert_with(|| Value::Array(Vec::new()));
    let Some(list) = slot.as_array_mut() else { return };
    for item in items {
        match list.iter_mut().find(|existing| same(existing, item)) {
            Some(existing) => *existing = item.clone(),
            None => list.push(item.clone()),
        }
    }
}

fn merge_value(target: &mut Value, applied: &Value, schema: Option<&Schema>) {
    match (&mut *target, applied) {
        (Value::Object(members), Value::Object(given)) if schema.is_none_or(|s| !s.atomic_map) => {
            for (name, value) in given {
                let child = schema.and_then(|s| s.member(name));
                merge_value(members.entry(name.as_str()).or_insert(Value::Null), value, child);
            }
        }
        (Value::Array(list), Value::Array(given)) if schema.is_some_and(|s| s.list_type != ListType::Atomic) => {
            let Some(schema) = schema else { return };
            let child = schema.items.as_deref();
            let edge = |item: &Value| item_edge(&schema.list_type, child, item);
            for item in given {
                let id = edge(item);
                match list.iter_mut().find(|existing| edge(existing) == id) {
                    Some(existing) => merge_value(existing, item, child),
                    None => list.push(item.clone()),
                }
            }
        }
        _ => *target = applied.clone(),
    }
}

/// Removes the fields in `dropped`. A map or list that becomes empty is removed too, unless it is itself in `kept`, the
/// fields that some manager still owns.
fn remove_object(target: &mut Value, dropped: &FieldSet, kept: Option<&FieldSet>, schema: Option<&Schema>) {
    let Some(members) = target.as_object_mut() else { return };
    let names: Vec<String> = members.keys().cloned().collect();
    for name in names {
        let edge = field_edge(&name);
        let Some(removed) = dropped.child(&edge) else { continue };
        let child = if name == "metadata" { None } else { schema.and_then(|s| s.member(&name)) };
        remove_member(members, &name, removed, kept.and_then(|k| k.child(&edge)), child);
    }
}

fn remove_member(
    members: &mut Map<String, Value>,
    name: &str,
    removed: &FieldSet,
    kept: Option<&FieldSet>,
    schema: Option<&Schema>,
) {
    let Some(value) = members.get_mut(name) else { return };
    let empty = match value {
        Value::Object(_) if schema.is_none_or(|s| !s.atomic_map) => {
            remove_object(value, removed, kept, schema);
            value.as_object().is_some_and(Map::is_empty)
        }
        Value::Array(items) if !removed.is_leaf() || schema.is_some_and(|s| s.list_type != ListType::Atomic) => {
            remove_items(items, removed, kept, schema);
            items.is_empty()
        }
        // The value is no longer a map or a list: it has been replaced as a whole.
        _ => removed.is_leaf(),
    };
    if empty && kept.is_none() {
        members.remove(name);
    }
}

fn remove_items(items: &mut Vec<Value>, removed: &FieldSet, kept: Option<&FieldSet>, schema: Option<&Schema>) {
    let owners = ListType::Map(vec!["uid".into()]);
    let list_type = match schema {
        Some(schema) => &schema.list_type,
        None if items.iter().any(|i| i.get("uid").is_some()) => &owners,
        None => &ListType::Set,
    };
    let child = schema.and_then(|s| s.items.as_deref());
    items.retain_mut(|item| {
        let edge = item_edge(list_type, child, item);
        match removed.child(&edge) {
            None => true,
            Some(set) if set.contains_node() => false,
            Some(set) => {
                remove_object(item, set, kept.and_then(|k| k.child(&edge)), child);
                true
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::status::Path;

    fn schema() -> Schema {
        let raw = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "replicas": {"type": "integer"}, "image": {"type": "string"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "atomic": {"type": "array", "items": {"type": "string"}},
            "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port"],
                "items": {"type": "object", "properties": {"port": {"type": "integer"}, "name": {"type": "string"}}}},
        }}}});
        Schema::compile(&raw, &Path::Root).unwrap_or_else(|e| panic!("{e:?}"))
    }

    fn manager(name: &str, operation: &'static str) -> Manager {
        Manager { name: name.into(), operation, api_version: "g/v1".into(), subresource: String::new() }
    }

    fn applied(live: Value, spec: Value, manager_name: &str, force: bool) -> Result<Value, ApiError> {
        let object = json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n"}, "spec": spec});
        apply(live, &object, &manager(manager_name, "Apply"), force, Some(&schema()))
    }

    fn base() -> Value {
        json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n"}})
    }

    #[test]
    fn appliers_share_a_map_list_and_remove_only_their_own_items() {
        let live = applied(base(), json!({"ports": [{"port": 1, "name": "a"}]}), "one", false).unwrap();
        let live = applied(live, json!({"ports": [{"port": 2, "name": "b"}]}), "two", false).unwrap();
        assert_eq!(live["spec"]["ports"], json!([{"port": 1, "name": "a"}, {"port": 2, "name": "b"}]));
        let live = applied(live, json!({"replicas": 1}), "one", false).unwrap();
        assert_eq!(live["spec"], json!({"ports": [{"port": 2, "name": "b"}], "replicas": 1}));
    }

    #[test]
    fn a_different_value_is_a_conflict_unless_forced_d_227() {
        let live = applied(base(), json!({"replicas": 1, "image": "x"}), "one", false).unwrap();
        let same = applied(live.clone(), json!({"replicas": 1}), "two", false).unwrap();
        assert_eq!(same["metadata"]["managedFields"].as_array().unwrap().len(), 2, "shared ownership");
        let error = applied(live.clone(), json!({"replicas": 2}), "two", false).unwrap_err();
        assert_eq!((error.code.as_u16(), error.reason), (409, "Conflict"));
        assert_eq!(error.message, "Apply failed with 1 conflict: conflict with \"one\": .spec.replicas");
        let forced = applied(live, json!({"replicas": 2}), "two", true).unwrap();
        assert_eq!(forced["spec"], json!({"replicas": 2, "image": "x"}));
        let one = &forced["metadata"]["managedFields"][0];
        assert_eq!(one["fieldsV1"], json!({"f:spec": {"f:image": {}}}), "the overridden manager no longer owns it");
    }

    #[test]
    fn updates_take_ownership_of_what_they_change() {
        let live = applied(base(), json!({"replicas": 1, "labels": {"a": "1"}}), "one", false).unwrap();
        let mut new = live.clone();
        new["spec"]["replicas"] = json!(5);
        new["spec"]["labels"]["b"] = json!("2");
        managed::record_update(&live, &mut new, &manager("kubectl", "Update"), Some(&schema()), &mut Vec::new());
        let entries = new["metadata"]["managedFields"].as_array().unwrap();
        assert_eq!(entries[0]["fieldsV1"], json!({"f:spec": {"f:labels": {"f:a": {}}}}));
        assert_eq!(entries[1]["fieldsV1"], json!({"f:spec": {"f:labels": {"f:b": {}}, "f:replicas": {}}}));
        let error = applied(new, json!({"replicas": 1, "labels": {"a": "1"}}), "one", false).unwrap_err();
        assert_eq!(error.message, "Apply failed with 1 conflict: conflict with \"kubectl\" using g/v1: .spec.replicas");
    }

    #[test]
    fn atomic_lists_are_replaced_as_a_whole() {
        let live = applied(base(), json!({"atomic": ["a", "b"]}), "one", false).unwrap();
        let live = applied(live, json!({"atomic": ["c"]}), "one", false).unwrap();
        assert_eq!(live["spec"]["atomic"], json!(["c"]));
    }

    #[test]
    fn labels_and_owners_in_metadata_are_merged() {
        let object = json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n", "labels": {"a": "1"}, "finalizers": ["x/y"]}});
        let live = apply(base(), &object, &manager("one", "Apply"), false, None).unwrap();
        assert_eq!(live["metadata"]["labels"], json!({"a": "1"}));
        let without = json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n"}});
        let live = apply(live, &without, &manager("one", "Apply"), false, None).unwrap();
        assert!(live["metadata"].get("labels").is_none() && live["metadata"].get("finalizers").is_none(), "{live}");
    }
}
