//! Strategic merge patch: like a merge patch, but lists of built-in kinds merge item by item.

use serde_json::{Map, Value};

use crate::{schema::Schema, status::ApiError};

/// Applies a strategic merge patch with the merge keys of `schema`.
pub fn strategic(mut object: Value, patch: &Value, schema: Option<&Schema>) -> Result<Value, ApiError> {
    let (Value::Object(target), Value::Object(members)) = (&mut object, patch) else {
        return Err(ApiError::bad_request("a strategic merge patch must be a JSON object"));
    };
    merge_object(target, members, schema)?;
    Ok(object)
}

const METADATA_LISTS: &[(&str, &str)] = &[("ownerReferences", "uid")];

fn merge_object(
    target: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    schema: Option<&Schema>,
) -> Result<(), ApiError> {
    match patch.get("$patch").and_then(Value::as_str) {
        Some("replace") => {
            target.clear();
            target.extend(patch.iter().filter(|(k, _)| !k.starts_with('$')).map(|(k, v)| (k.clone(), v.clone())));
            return Ok(());
        }
        Some("delete") => {
            target.clear();
            return Ok(());
        }
        Some("merge") | None => {}
        Some(other) => return Err(ApiError::bad_request(format!("unknown patch directive {other:?}"))),
    }
    if let Some(keep) = patch.get("$retainKeys").and_then(Value::as_array) {
        target.retain(|key, _| keep.iter().any(|k| k == key));
    }
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix("$deleteFromPrimitiveList/") {
            delete_values(target, list, value);
            continue;
        }
        if key.starts_with('$') {
            continue;
        }
        let order = patch.get(&format!("$setElementOrder/{key}")).and_then(Value::as_array);
        merge_member(target, key, value, schema.and_then(|s| s.member(key)), order)?;
    }
    Ok(())
}

fn delete_values(target: &mut Map<String, Value>, list: &str, values: &Value) {
    let removed = values.as_array().cloned().unwrap_or_default();
    if let Some(Value::Array(items)) = target.get_mut(list) {
        items.retain(|item| !removed.contains(item));
    }
}

fn merge_member(
    target: &mut Map<String, Value>,
    key: &str,
    value: &Value,
    schema: Option<&Schema>,
    order: Option<&Vec<Value>>,
) -> Result<(), ApiError> {
    match value {
        Value::Null => {
            target.remove(key);
        }
        Value::Object(members) => {
            let slot = target.entry(key).or_insert_with(|| Value::Object(Map::new()));
            if !slot.is_object() {
                *slot = Value::Object(Map::new());
            }
            let replace = schema.is_some_and(|s| s.patch_strategy.contains("replace"));
            let Some(inner) = slot.as_object_mut() else { return Ok(()) };
            if replace {
                inner.clear();
            }
            merge_object(inner, members, schema)?;
        }
        Value::Array(items) => {
            let known = METADATA_LISTS.iter().find(|(name, _)| *name == key).map(|(_, k)| (*k).to_owned());
            let merges = schema.is_some_and(|s| s.patch_strategy.contains("merge")) || known.is_some();
            if !merges && key != "finalizers" {
                target.insert(key.to_owned(), value.clone());
                return Ok(());
            }
            let slot = target.entry(key).or_insert_with(|| Value::Array(Vec::new()));
            if !slot.is_array() {
                *slot = Value::Array(Vec::new());
            }
            let Some(list) = slot.as_array_mut() else { return Ok(()) };
            match schema.and_then(|s| s.merge_key.clone()).or(known) {
                Some(merge_key) => merge_items(list, items, &merge_key, schema.and_then(|s| s.items.as_deref()), key)?,
                None => add_values(list, items),
            }
            if let Some(order) = order {
                reorder(list, order, schema.and_then(|s| s.merge_key.as_deref()));
            }
        }
        scalar => {
            target.insert(key.to_owned(), scalar.clone());
        }
    }
    Ok(())
}

fn add_values(list: &mut Vec<Value>, items: &[Value]) {
    for item in items {
        if !list.contains(item) {
            list.push(item.clone());
        }
    }
}

fn merge_items(
    list: &mut Vec<Value>,
    items: &[Value],
    merge_key: &str,
    schema: Option<&Schema>,
    field: &str,
) -> Result<(), ApiError> {
    if items.iter().any(|i| i["$patch"] == "replace") {
        *list = items.iter().filter(|i| i.get("$patch").is_none()).cloned().collect();
        return Ok(());
    }
    for item in items {
        let Some(members) = item.as_object() else {
            return Err(ApiError::bad_request(format!("items of {field} in a strategic merge patch must be objects")));
        };
        let Some(id) = members.get(merge_key) else {
            return Err(ApiError::bad_request(format!("map: {item} does not contain declared merge key: {merge_key}")));
        };
        let found = list.iter().position(|existing| existing.get(merge_key) == Some(id));
        if members.get("$patch").is_some_and(|p| p == "delete") {
            list.retain(|existing| existing.get(merge_key) != Some(id));
            continue;
        }
        match found {
            Some(at) => {
                if let Some(existing) = list[at].as_object_mut() {
                    merge_object(existing, members, schema)?;
                }
            }
            None => {
                let mut fresh = Map::new();
                merge_object(&mut fresh, members, schema)?;
                list.push(Value::Object(fresh));
            }
        }
    }
    Ok(())
}

/// Sorts the items listed in `$setElementOrder` to the front, in that order; the others follow in their old order.
fn reorder(list: &mut [Value], order: &[Value], merge_key: Option<&str>) {
    let rank = |item: &Value| {
        order
            .iter()
            .position(|o| match merge_key {
                Some(key) => o.get(key).is_some() && o.get(key) == item.get(key),
                None => o == item,
            })
            .unwrap_or(usize::MAX)
    };
    list.sort_by_key(rank);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{builtin, registry::Registry};

    fn pod_patch(object: Value, patch: Value) -> Value {
        let registry = Registry::default().snapshot();
        let schema = builtin::schema(registry.resource("", "pods").unwrap()).unwrap();
        strategic(object, &patch, Some(&schema)).unwrap()
    }

    #[test]
    fn containers_merge_by_name() {
        let pod = json!({"spec": {"containers": [{"name": "a", "image": "x", "env": [{"name": "A", "value": "1"}]}, {"name": "b", "image": "y"}]}});
        let got = pod_patch(
            pod,
            json!({"spec": {"containers": [{"name": "a", "image": "z", "env": [{"name": "B", "value": "2"}]}, {"name": "c", "image": "new"}]}}),
        );
        assert_eq!(
            got["spec"]["containers"],
            json!([
                {"name": "a", "image": "z", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
                {"name": "b", "image": "y"},
                {"name": "c", "image": "new"},
            ])
        );
    }

    #[test]
    fn directives_delete_replace_and_order() {
        let pod = json!({"metadata": {"finalizers": ["x/a", "x/b"]}, "spec": {"containers": [{"name": "a"}, {"name": "b"}], "nodeSelector": {"k": "v"}}});
        let got = pod_patch(
            pod,
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x/a"]},
                   "spec": {"$setElementOrder/containers": [{"name": "c"}, {"name": "b"}],
                            "containers": [{"name": "a", "$patch": "delete"}, {"name": "c", "image": "i"}],
                            "nodeSelector": {"$patch": "replace", "n": "w"}}}),
        );
        assert_eq!(got["metadata"]["finalizers"], json!(["x/b"]));
        assert_eq!(got["spec"]["containers"], json!([{"name": "c", "image": "i"}, {"name": "b"}]));
        assert_eq!(got["spec"]["nodeSelector"], json!({"n": "w"}));
    }

    #[test]
    fn atomic_lists_are_replaced_and_missing_keys_named() {
        let pod = json!({"spec": {"containers": [{"name": "a", "args": ["1", "2"]}]}});
        let got = pod_patch(pod.clone(), json!({"spec": {"containers": [{"name": "a", "args": ["3"]}]}}));
        assert_eq!(got["spec"]["containers"][0]["args"], json!(["3"]));
        let registry = Registry::default().snapshot();
        let schema = builtin::schema(registry.resource("", "pods").unwrap()).unwrap();
        let error = strategic(pod, &json!({"spec": {"containers": [{"image": "x"}]}}), Some(&schema)).unwrap_err();
        assert!(error.message.contains("merge key: name"), "{}", error.message);
    }
}
