//! Parses JSON and reports duplicate fields: the last one applies, but strict field validation reports them.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::status::Path;

/// Parses JSON; returns the value and the paths of duplicate fields.
pub(super) fn parse(body: &[u8]) -> serde_json::Result<(Value, Vec<String>)> {
    let mut duplicates = Vec::new();
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = Node { path: &Path::Root, duplicates: &mut duplicates }.deserialize(&mut reader)?;
    reader.end()?;
    Ok((value, duplicates))
}

struct Node<'a> {
    path: &'a Path<'a>,
    duplicates: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Number::from_f64(v).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(v.into())
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        while let Some(item) =
            items.next_element_seed(Node { path: &self.path.index(out.len()), duplicates: &mut *self.duplicates })?
        {
            out.push(item);
        }
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            let value =
                members.next_value_seed(Node { path: &self.path.child(&key), duplicates: &mut *self.duplicates })?;
            if out.contains_key(&key) {
                self.duplicates.push(self.path.child(&key).to_string());
            }
            out.insert(key, value);
        }
        Ok(Value::Object(out))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn duplicates_are_reported_and_the_last_one_applies() {
        let (value, duplicates) = parse(br#"{"a": 1, "b": [{"c": 1, "c": 2.5}], "a": null}"#).unwrap();
        assert_eq!(value, json!({"a": null, "b": [{"c": 2.5}]}));
        assert_eq!(duplicates, ["b[0].c", "a"]);
        assert!(parse(b"{} x").is_err());
    }

    proptest! {
        #[test]
        fn agrees_with_serde(text in "[\\[\\]{}:,\"a-c0-9 .\\-]{0,40}") {
            let ours = parse(text.as_bytes()).ok().map(|(v, _)| v);
            let theirs = serde_json::from_str::<Value>(&text).ok();
            prop_assert_eq!(ours, theirs);
        }
    }
}
