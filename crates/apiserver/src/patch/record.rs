//! `FieldsV1` as it is stored: sets of fields taken away and added in place, without making a set of the whole first.

use serde_json::{Map, Value};

use super::fields::FieldSet;

/// Takes the fields of `gone` away. True when that changed anything.
pub(super) fn subtract(record: &mut Value, gone: &FieldSet) -> bool {
    record.as_object_mut().is_some_and(|node| subtract_node(node, gone).changed)
}

/// Adds the fields of `more`. True when that changed anything.
pub(super) fn add(record: &mut Value, more: &FieldSet) -> bool {
    match record {
        Value::Object(node) => add_node(node, more, false),
        // Nothing is recorded yet.
        other => {
            *other = more.to_value();
            !more.is_empty()
        }
    }
}

/// Nothing is left of it. (At the root; further down an empty object is a field without fields of its own.)
pub(super) fn is_empty(record: &Value) -> bool {
    match record {
        Value::Object(members) => members.is_empty(),
        other => other.is_null(),
    }
}

fn is_here(node: &Map<String, Value>) -> bool {
    node.is_empty() || node.contains_key(".")
}

struct Left {
    changed: bool,
    empty: bool,
}

fn subtract_node(node: &mut Map<String, Value>, gone: &FieldSet) -> Left {
    let was_here = is_here(node);
    let here = was_here && !gone.contains_node();
    let mut changed = was_here != here;
    for (edge, gone) in gone.children() {
        let Some(child) = node.get_mut(edge) else { continue };
        let left = match child {
            Value::Object(child) => subtract_node(child, gone),
            _ => Left { changed: true, empty: true },
        };
        changed |= left.changed;
        if left.empty {
            node.remove(edge);
        }
    }
    let marked = node.contains_key(".");
    let childless = node.len() == usize::from(marked);
    if marked && (!here || childless) {
        node.remove(".");
    }
    Left { changed, empty: !here && childless }
}

fn add_node(node: &mut Map<String, Value>, more: &FieldSet, fresh: bool) -> bool {
    let was_here = !fresh && is_here(node);
    let here = was_here || more.contains_node();
    let mut changed = was_here != here;
    for (edge, more) in more.children().filter(|(_, more)| !more.is_empty()) {
        match node.get_mut(edge) {
            Some(Value::Object(child)) => changed |= add_node(child, more, false),
            _ => {
                node.insert(edge.clone(), more.to_value());
                changed = true;
            }
        }
    }
    if here && !node.is_empty() && !node.contains_key(".") {
        node.insert(".".into(), Value::Object(Map::new()));
    }
    changed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::patch::{owned, tests::object_of};

    /// A set as it is read from JSON, none of whose nodes but the root may be empty.
    fn set() -> impl Strategy<Value = FieldSet> {
        (object_of(), any::<bool>()).prop_map(|(object, applied)| match applied {
            true => owned::applied(&object, None),
            false => owned::made(&object, None),
        })
    }

    proptest! {
        #[test]
        fn taking_away_in_place_is_taking_away(set in set(), gone in set()) {
            let mut record = set.to_value();
            let changed = subtract(&mut record, &gone);
            let expected = set.without(&gone);
            prop_assert_eq!(changed, expected != set);
            if expected.is_empty() {
                prop_assert!(is_empty(&record));
            } else {
                prop_assert_eq!(record, expected.to_value());
            }
        }

        #[test]
        fn adding_in_place_is_adding(set in set(), more in set()) {
            let mut record = if set.is_empty() { Value::Null } else { set.to_value() };
            let changed = add(&mut record, &more);
            let mut expected = set.clone();
            expected.add(&more);
            prop_assert_eq!(changed, expected != set);
            if !expected.is_empty() {
                prop_assert_eq!(record, expected.to_value());
            }
        }
    }
}
