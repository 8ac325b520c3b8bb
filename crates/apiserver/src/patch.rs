//! The four kinds of patch, as pure functions from an object to an object.

mod apply;
mod fields;
mod json;
pub mod managed;
mod merge;
mod strategic;

pub use apply::apply;
pub use fields::FieldSet;
pub use json::JsonPatch;
pub use merge::merge;
pub use strategic::strategic;

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

    /// A small JSON object with few distinct keys, so that patches meet what they patch.
    pub(super) fn any_object() -> impl Strategy<Value = Value> {
        proptest::collection::btree_map("[a-d]{1,2}", any_value(), 0..5)
            .prop_map(|m| Value::Object(m.into_iter().collect::<Map<_, _>>()))
    }
}
