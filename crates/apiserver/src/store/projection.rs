//! Partial parsing of stored objects: only the members that [`Facts`](super::Facts) are built from become values, all
//! others are skipped. Start-up with many objects spends most of its time here.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, value::RawValue};

use crate::registry::Resource;

/// Which members of an object are parsed.
pub(super) enum Projection {
    All,
    Members(Vec<(String, Projection)>),
    /// `managedFields`: only the byte ranges of the `fieldsV1` values in it are recorded.
    ManagedFields,
}

/// Members of `metadata` that facts are built from.
const METADATA: [&str; 7] =
    ["name", "namespace", "uid", "labels", "ownerReferences", "finalizers", "deletionTimestamp"];

impl Projection {
    /// The members that the facts of this resource's objects are built from.
    pub(super) fn for_facts(resource: &Resource) -> Self {
        let mut root = Self::Members(Vec::new());
        root.insert(&["apiVersion"], Self::All);
        for name in METADATA {
            root.insert(&["metadata", name], Self::All);
        }
        root.insert(&["metadata", "managedFields"], Self::ManagedFields);
        for field in &resource.fields {
            let path: Vec<&str> = field.path.iter().map(String::as_str).collect();
            root.insert(&path, Self::All);
        }
        root
    }

    fn insert(&mut self, path: &[&str], leaf: Self) {
        let Self::Members(members) = self else { return };
        let Some((first, rest)) = path.split_first() else {
            *self = leaf;
            return;
        };
        let at = members.iter().position(|(name, _)| name == first).unwrap_or_else(|| {
            members.push(((*first).to_owned(), Self::Members(Vec::new())));
            members.len() - 1
        });
        members[at].1.insert(rest, leaf);
    }
}

/// Result of a partial parse.
pub(super) struct Projected {
    /// The object, with only the projected members.
    pub(super) object: Value,
    /// Byte ranges (start, end) of the `fieldsV1` values, in order.
    pub(super) fields_v1: Vec<(usize, usize)>,
}

/// Parses the projected members of one object. The whole text is checked to be valid JSON.
pub(super) fn parse(data: &[u8], projection: &Projection) -> serde_json::Result<Projected> {
    let mut fields_v1 = Vec::new();
    let mut reader = serde_json::Deserializer::from_slice(data);
    let visitor = ProjectionVisitor { projection, begin: data.as_ptr().addr(), fields_v1: &mut fields_v1 };
    let object = visitor.deserialize(&mut reader)?;
    reader.end()?;
    Ok(Projected { object, fields_v1 })
}

struct ProjectionVisitor<'a> {
    projection: &'a Projection,
    /// Address of the first byte of the text, to turn pointers into offsets.
    begin: usize,
    fields_v1: &'a mut Vec<(usize, usize)>,
}

impl<'de> DeserializeSeed<'de> for ProjectionVisitor<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self.projection {
            Projection::All => serde::Deserialize::deserialize(deserializer),
            Projection::Members(_) | Projection::ManagedFields => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for ProjectionVisitor<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    // A projected path that runs into something other than an object yields null.
    fn visit_bool<E>(self, _: bool) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_str<E>(self, _: &str) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let Self { projection, begin, fields_v1 } = self;
        if matches!(projection, Projection::ManagedFields) {
            while items
                .next_element_seed(ProjectionVisitor { projection, begin, fields_v1: &mut *fields_v1 })?
                .is_some()
            {}
        } else {
            while items.next_element::<IgnoredAny>()?.is_some() {}
        }
        Ok(Value::Null)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let Self { projection, begin, fields_v1 } = self;
        let Projection::Members(names) = projection else {
            while let Some(is_text) = members.next_key_seed(KeyMatcher(|name: &str| name == "fieldsV1"))? {
                if is_text {
                    let raw = members.next_value::<&'de RawValue>()?.get();
                    let at = raw.as_ptr().addr() - begin;
                    fields_v1.push((at, at + raw.len()));
                } else {
                    members.next_value::<IgnoredAny>()?;
                }
            }
            return Ok(Value::Null);
        };
        let mut out = Map::new();
        while let Some(found) =
            members.next_key_seed(KeyMatcher(|name: &str| names.iter().position(|(n, _)| n == name)))?
        {
            match found {
                None => {
                    members.next_value::<IgnoredAny>()?;
                }
                Some(at) => {
                    let (name, projection) = &names[at];
                    let value =
                        members.next_value_seed(ProjectionVisitor { projection, begin, fields_v1: &mut *fields_v1 })?;
                    out.insert(name.clone(), value);
                }
            }
        }
        Ok(Value::Object(out))
    }
}

/// Evaluates a closure on a key without allocating the key.
struct KeyMatcher<F>(F);

impl<'de, T, F: FnOnce(&str) -> T> DeserializeSeed<'de> for KeyMatcher<F> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<T, F: FnOnce(&str) -> T> Visitor<'_> for KeyMatcher<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member's name")
    }

    fn visit_str<E>(self, name: &str) -> Result<T, E> {
        Ok((self.0)(name))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn projection() -> Projection {
        let mut projection = Projection::Members(Vec::new());
        projection.insert(&["metadata", "name"], Projection::All);
        projection.insert(&["metadata", "managedFields"], Projection::ManagedFields);
        projection.insert(&["status", "phase"], Projection::All);
        projection
    }

    #[test]
    fn only_projected_members_are_kept_and_fields_v1_ranges_are_found() {
        let object = json!({"metadata": {"name": "n", "labels": {"a": "b"}, "managedFields": [
            {"manager": "m", "fieldsV1": {"f:spec": {}}}, {"fieldsV1": {"f:x": {"f:\u{e4}": {}}}}]},
            "spec": {"phase": [1, 2, {"deep": null}]}, "status": {"phase": "Running", "x": 1.5}});
        let text = object.to_string();
        let projected = parse(text.as_bytes(), &projection()).unwrap();
        assert_eq!(
            projected.object,
            json!({"metadata": {"name": "n", "managedFields": null}, "status": {"phase": "Running"}})
        );
        let fields_v1: Vec<&str> = projected.fields_v1.iter().map(|(from, to)| &text[*from..*to]).collect();
        assert_eq!(fields_v1, [r#"{"f:spec":{}}"#, "{\"f:x\":{\"f:\u{e4}\":{}}}"]);
    }

    #[test]
    fn unexpected_types_are_ignored_and_invalid_json_is_refused() {
        for odd in
            ["{}", "[]", "1", r#"{"metadata": 3, "status": [1]}"#, r#"{"metadata": {"managedFields": {"a": 1}}}"#]
        {
            assert!(parse(odd.as_bytes(), &projection()).unwrap().fields_v1.is_empty(), "{odd}");
        }
        for bad in ["", "{", "{\"spec\": nope}", "{} x", "{\"spec\": \"\\q\"}"] {
            assert!(parse(bad.as_bytes(), &projection()).is_err(), "{bad}");
        }
    }
}
