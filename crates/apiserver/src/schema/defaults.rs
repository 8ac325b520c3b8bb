//! Defaulting as in Kubernetes: top down; a `null` in a field that is not nullable counts as absent if the field has a
//! default.

use serde_json::Value;

use super::Schema;

pub(super) fn apply(schema: &Schema, value: &mut Value) {
    if !schema.defaults_below {
        return;
    }
    match value {
        Value::Object(members) => {
            for (name, child) in &schema.properties {
                let Some(default) = &child.default else { continue };
                let missing = match members.get(name) {
                    None => true,
                    Some(Value::Null) => !child.nullable,
                    Some(_) => false,
                };
                if missing {
                    members.insert(name.clone(), default.clone());
                }
            }
            for (name, member) in members.iter_mut() {
                if let Some(child) = schema.member(name) {
                    apply(child, member);
                }
            }
        }
        Value::Array(items) => {
            if let Some(child) = &schema.items {
                items.iter_mut().for_each(|item| apply(child, item));
            }
        }
        _ => {}
    }
}
