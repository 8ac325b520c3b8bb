//! Set operations directly on stored `FieldsV1` JSON, without converting it to a [`FieldSet`] first.

use serde_json::{Map, Value};

use super::field_set::FieldSet;

/// Removes the fields in `removed`. Returns true if anything changed.
pub(super) fn subtract(fields: &mut Value, removed: &FieldSet) -> bool {
    fields.as_object_mut().is_some_and(|node| subtract_node(node, removed).changed)
}

/// Adds the fields in `added`. Returns true if anything changed.
pub(super) fn add(fields: &mut Value, added: &FieldSet) -> bool {
    match fields {
        Value::Object(node) => add_node(node, added, false),
        // No fields are recorded yet.
        other => {
            *other = added.to_value();
            !added.is_empty()
        }
    }
}

/// True if no field is left. Valid only at the root: below it, an empty object is a field without fields of its own.
pub(super) fn is_empty(fields: &Value) -> bool {
    match fields {
        Value::Object(members) => members.is_empty(),
        other => other.is_null(),
    }
}

/// True if the node itself is in the set: it is a leaf or has the member `.`.
fn contains_node(node: &Map<String, Value>) -> bool {
    node.is_empty() || node.contains_key(".")
}

struct Subtraction {
    changed: bool,
    empty: bool,
}

fn subtract_node(node: &mut Map<String, Value>, removed: &FieldSet) -> Subtraction {
    let was_member = contains_node(node);
    let is_member = was_member && !removed.contains_node();
    let mut changed = was_member != is_member;
    for (edge, removed) in removed.children() {
        let Some(child) = node.get_mut(edge) else { continue };
        let result = match child {
            Value::Object(child) => subtract_node(child, removed),
            _ => Subtraction { changed: true, empty: true },
        };
        changed |= result.changed;
        if result.empty {
            node.remove(edge);
        }
    }
    let marked = node.contains_key(".");
    let childless = node.len() == usize::from(marked);
    if marked && (!is_member || childless) {
        node.remove(".");
    }
    Subtraction { changed, empty: !is_member && childless }
}

fn add_node(node: &mut Map<String, Value>, added: &FieldSet, is_new: bool) -> bool {
    let was_member = !is_new && contains_node(node);
    let is_member = was_member || added.contains_node();
    let mut changed = was_member != is_member;
    for (edge, added) in added.children().filter(|(_, added)| !added.is_empty()) {
        match node.get_mut(edge) {
            Some(Value::Object(child)) => changed |= add_node(child, added, false),
            _ => {
                node.insert(edge.clone(), added.to_value());
                changed = true;
            }
        }
    }
    if is_member && !node.is_empty() && !node.contains_key(".") {
        node.insert(".".into(), Value::Object(Map::new()));
    }
    changed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::patch::{ownership, tests::kubernetes_object};

    /// A set as it would be read from JSON: no node except the root is empty.
    fn set() -> impl Strategy<Value = FieldSet> {
        (kubernetes_object(), any::<bool>()).prop_map(|(object, applied)| match applied {
            true => ownership::applied_fields(&object, None),
            false => ownership::created_fields(&object, None),
        })
    }

    proptest! {
        #[test]
        fn subtracting_in_place_equals_the_set_difference(set in set(), removed in set()) {
            let mut fields = set.to_value();
            let changed = subtract(&mut fields, &removed);
            let expected = set.difference(&removed);
            prop_assert_eq!(changed, expected != set);
            if expected.is_empty() {
                prop_assert!(is_empty(&fields));
            } else {
                prop_assert_eq!(fields, expected.to_value());
            }
        }

        #[test]
        fn adding_in_place_equals_the_set_union(set in set(), added in set()) {
            let mut fields = if set.is_empty() { Value::Null } else { set.to_value() };
            let changed = add(&mut fields, &added);
            let mut expected = set.clone();
            expected.add(&added);
            prop_assert_eq!(changed, expected != set);
            if !expected.is_empty() {
                prop_assert_eq!(fields, expected.to_value());
            }
        }
    }
}
