//! JSON merge patch (RFC 7386).

use serde_json::{Map, Value};

use crate::status::ApiError;

/// Applies a merge patch to an object.
pub fn merge(mut object: Value, patch: &Value) -> Result<Value, ApiError> {
    if !patch.is_object() {
        return Err(ApiError::bad_request("a merge patch must be a JSON object"));
    }
    apply(&mut object, patch);
    Ok(object)
}

fn apply(target: &mut Value, patch: &Value) {
    let Value::Object(members) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(object) = target.as_object_mut() else { return };
    for (key, value) in members {
        if value.is_null() {
            object.remove(key);
        } else {
            apply(object.entry(key.as_str()).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn rfc_7386_examples() {
        for (target, patch, wanted) in [
            (json!({"a":"b"}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"b"}), json!({"b":"c"}), json!({"a":"b","b":"c"})),
            (json!({"a":"b"}), json!({"a":null}), json!({})),
            (json!({"a":"b","b":"c"}), json!({"a":null}), json!({"b":"c"})),
            (json!({"a":["b"]}), json!({"a":"c"}), json!({"a":"c"})),
            (json!({"a":"c"}), json!({"a":["b"]}), json!({"a":["b"]})),
            (json!({"a":{"b":"c"}}), json!({"a":{"b":"d","c":null}}), json!({"a":{"b":"d"}})),
            (json!({"a":[{"b":"c"}]}), json!({"a":[1]}), json!({"a":[1]})),
            (json!({"e":null}), json!({"a":1}), json!({"e":null,"a":1})),
            (json!({}), json!({"a":{"bb":{"ccc":null}}}), json!({"a":{"bb":{}}})),
        ] {
            assert_eq!(merge(target.clone(), &patch).unwrap(), wanted, "{target} + {patch}");
        }
        assert!(merge(json!({}), &json!([1])).is_err());
    }

    proptest! {
        #[test]
        fn applying_twice_changes_nothing_more(a in crate::patch::tests::any_object(), p in crate::patch::tests::any_object()) {
            let once = merge(a, &p).unwrap();
            prop_assert_eq!(merge(once.clone(), &p).unwrap(), once);
        }
    }
}
