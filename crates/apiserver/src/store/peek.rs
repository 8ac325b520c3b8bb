//! A quick look at a stored object: only the members that facts are made of become values, everything else is skipped over. A start with
//! many objects is mostly this.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value, value::RawValue};

use crate::registry::Resource;

/// What of an object is wanted.
pub(super) enum Wanted {
    All,
    Members(Vec<(String, Wanted)>),
    /// `managedFields`: only where the texts in it are.
    Records,
}

/// Metadata that facts are made of.
const METADATA: [&str; 7] =
    ["name", "namespace", "uid", "labels", "ownerReferences", "finalizers", "deletionTimestamp"];

impl Wanted {
    /// What the facts of this resource's objects are made of.
    pub(super) fn for_facts(resource: &Resource) -> Self {
        let mut root = Self::Members(Vec::new());
        root.insert(&["apiVersion"], Self::All);
        for name in METADATA {
            root.insert(&["metadata", name], Self::All);
        }
        root.insert(&["metadata", "managedFields"], Self::Records);
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

/// What was found.
pub(super) struct Peeked {
    /// The object, with nothing but the wanted members.
    pub(super) object: Value,
    /// Begin and end of the `fieldsV1` texts, in order.
    pub(super) records: Vec<(usize, usize)>,
}

/// Looks at one object; the whole text is checked to be JSON.
pub(super) fn peek(data: &[u8], wanted: &Wanted) -> serde_json::Result<Peeked> {
    let mut records = Vec::new();
    let mut reader = serde_json::Deserializer::from_slice(data);
    let look = Look { wanted, begin: data.as_ptr().addr(), records: &mut records };
    let object = look.deserialize(&mut reader)?;
    reader.end()?;
    Ok(Peeked { object, records })
}

struct Look<'a> {
    wanted: &'a Wanted,
    /// Address of the first byte.
    begin: usize,
    records: &'a mut Vec<(usize, usize)>,
}

impl<'de> DeserializeSeed<'de> for Look<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self.wanted {
            Wanted::All => serde::Deserialize::deserialize(deserializer),
            Wanted::Members(_) | Wanted::Records => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Look<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    // A path that ends in something else than an object leads nowhere.
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
        let Self { wanted, begin, records } = self;
        if matches!(wanted, Wanted::Records) {
            while items.next_element_seed(Look { wanted, begin, records: &mut *records })?.is_some() {}
        } else {
            while items.next_element::<IgnoredAny>()?.is_some() {}
        }
        Ok(Value::Null)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let Self { wanted, begin, records } = self;
        let Wanted::Members(names) = wanted else {
            while let Some(is_text) = members.next_key_seed(Named(|name: &str| name == "fieldsV1"))? {
                if is_text {
                    let raw = members.next_value::<&'de RawValue>()?.get();
                    let at = raw.as_ptr().addr() - begin;
                    records.push((at, at + raw.len()));
                } else {
                    members.next_value::<IgnoredAny>()?;
                }
            }
            return Ok(Value::Null);
        };
        let mut out = Map::new();
        while let Some(found) = members.next_key_seed(Named(|name: &str| names.iter().position(|(n, _)| n == name)))? {
            match found {
                None => {
                    members.next_value::<IgnoredAny>()?;
                }
                Some(at) => {
                    let (name, wanted) = &names[at];
                    let value = members.next_value_seed(Look { wanted, begin, records: &mut *records })?;
                    out.insert(name.clone(), value);
                }
            }
        }
        Ok(Value::Object(out))
    }
}

/// Judges a key without keeping it.
struct Named<F>(F);

impl<'de, T, F: FnOnce(&str) -> T> DeserializeSeed<'de> for Named<F> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<T, F: FnOnce(&str) -> T> Visitor<'_> for Named<F> {
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

    fn wanted() -> Wanted {
        let mut wanted = Wanted::Members(Vec::new());
        wanted.insert(&["metadata", "name"], Wanted::All);
        wanted.insert(&["metadata", "managedFields"], Wanted::Records);
        wanted.insert(&["status", "phase"], Wanted::All);
        wanted
    }

    #[test]
    fn only_what_is_wanted_is_kept_and_records_are_found() {
        let object = json!({"metadata": {"name": "n", "labels": {"a": "b"}, "managedFields": [
            {"manager": "m", "fieldsV1": {"f:spec": {}}}, {"fieldsV1": {"f:x": {"f:\u{e4}": {}}}}]},
            "spec": {"phase": [1, 2, {"deep": null}]}, "status": {"phase": "Running", "x": 1.5}});
        let text = object.to_string();
        let peeked = peek(text.as_bytes(), &wanted()).unwrap();
        assert_eq!(
            peeked.object,
            json!({"metadata": {"name": "n", "managedFields": null}, "status": {"phase": "Running"}})
        );
        let records: Vec<&str> = peeked.records.iter().map(|(from, to)| &text[*from..*to]).collect();
        assert_eq!(records, [r#"{"f:spec":{}}"#, "{\"f:x\":{\"f:\u{e4}\":{}}}"]);
    }

    #[test]
    fn odd_shapes_lead_nowhere_and_bad_text_is_refused() {
        for odd in
            ["{}", "[]", "1", r#"{"metadata": 3, "status": [1]}"#, r#"{"metadata": {"managedFields": {"a": 1}}}"#]
        {
            assert!(peek(odd.as_bytes(), &wanted()).unwrap().records.is_empty(), "{odd}");
        }
        for bad in ["", "{", "{\"spec\": nope}", "{} x", "{\"spec\": \"\\q\"}"] {
            assert!(peek(bad.as_bytes(), &wanted()).is_err(), "{bad}");
        }
    }
}
