//! The four patch types (JSON patch, merge patch, strategic merge patch, server-side apply) as pure functions from an
//! object to an object.

mod apply;
mod diff;
mod field_set;
mod fields_v1;
mod fields_v1_cache;
mod json;
pub mod managed;
mod merge;
mod ownership;
mod strategic;

pub use apply::apply;
pub use field_set::FieldSet;
pub(crate) use fields_v1_cache::{FieldsText, expand_fields_v1};
pub use json::JsonPatch;
pub use merge::merge;
pub use strategic::strategic;

#[cfg(test)]
mod properties;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value};

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<i32>().prop_map(Value::from),
            "[a-c]{0,3}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
                proptest::collection::btree_map("[a-d~/]{1,2}", inner, 0..4)
                    .prop_map(|m| Value::Object(m.into_iter().collect::<Map<_, _>>())),
            ]
        })
    }

    /// An object that resembles a Kubernetes object: some members look like metadata, some like lists with keys.
    pub(super) fn kubernetes_object() -> impl Strategy<Value = Value> {
        let item = || {
            proptest::collection::btree_map("[a-d]", any_value(), 0..4)
                .prop_map(|m| Value::Object(m.into_iter().collect::<Map<_, _>>()))
        };
        let named = ("[xyz]", item()).prop_map(|(name, mut item)| {
            item["a"] = name.into();
            item
        });
        let list = proptest::collection::vec(prop_oneof![8 => named, 1 => item()], 0..4).prop_map(Value::Array);
        let spec = (item(), proptest::option::of(list)).prop_map(|(mut spec, list)| {
            if let Some(list) = list {
                spec["a"] = list;
            }
            spec
        });
        let text = |key| proptest::collection::btree_map(key, "[pq]".prop_map(Value::from), 0..3);
        let meta =
            (text("[lm]"), proptest::collection::vec("[fg]".prop_map(Value::from), 0..2)).prop_map(|(labels, f)| {
                let labels: Map<String, Value> = labels.into_iter().collect();
                serde_json::json!({"name": "n", "labels": labels, "finalizers": f})
            });
        (spec, item(), item(), proptest::option::of(meta)).prop_map(|(a, b, c, meta)| {
            let mut object = serde_json::json!({"apiVersion": "v1", "kind": "K", "a": a, "b": b, "c": [c]});
            if let Some(meta) = meta {
                object["metadata"] = meta;
            }
            object
        })
    }

    /// A small JSON object with few distinct keys, so that patches and objects often have keys in common.
    pub(super) fn any_object() -> impl Strategy<Value = Value> {
        proptest::collection::btree_map("[a-d]{1,2}", any_value(), 0..5)
            .prop_map(|m| Value::Object(m.into_iter().collect::<Map<_, _>>()))
    }
}
