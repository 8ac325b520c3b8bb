//! Sets of fields, in the structure of Kubernetes' `FieldsV1`: a tree whose edges are `f:name` for fields,
//! `k:{"key":…}` for items of map lists, and `v:"value"` for items of sets.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::schema::{ListType, Schema, Type};

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct FieldSet {
    /// The node itself is in the set (`.`, or a leaf).
    is_member: bool,
    children: BTreeMap<String, FieldSet>,
}

/// Output of functions that list fields: a [`FieldSet`] for set operations, or directly the `FieldsV1` JSON.
pub(super) trait Tree: Sized {
    fn node(is_member: bool, children: impl Iterator<Item = (String, Self)>) -> Self;

    fn leaf() -> Self {
        Self::node(true, std::iter::empty())
    }
}

impl Tree for FieldSet {
    fn node(is_member: bool, children: impl Iterator<Item = (String, Self)>) -> Self {
        Self { is_member, children: children.collect() }
    }
}

impl Tree for Value {
    fn node(is_member: bool, children: impl Iterator<Item = (String, Self)>) -> Self {
        let mut members: Map<String, Self> = children.collect();
        if is_member && !members.is_empty() {
            members.insert(".".into(), Self::Object(Map::new()));
        }
        Self::Object(members)
    }
}

/// The edge of a field: `f:name`.
pub(super) fn field_edge(name: &str) -> String {
    let mut edge = String::with_capacity(name.len() + 2);
    edge.push_str("f:");
    edge.push_str(name);
    edge
}

impl FieldSet {
    pub fn is_empty(&self) -> bool {
        !self.is_member && self.children.values().all(Self::is_empty)
    }

    /// True for a field that has no fields below it.
    pub(super) fn is_leaf(&self) -> bool {
        self.is_member && self.children.is_empty()
    }

    pub(super) fn children(&self) -> impl Iterator<Item = (&String, &Self)> {
        self.children.iter()
    }

    /// Sets whether the node itself is in the set.
    pub(super) fn set_node(&mut self, is_member: bool) {
        self.is_member = is_member;
    }

    /// Adds a child, unless it is empty.
    pub(super) fn insert(&mut self, edge: String, child: Self) {
        if !child.is_empty() {
            self.children.insert(edge, child);
        }
    }

    pub fn add(&mut self, other: &Self) {
        self.is_member |= other.is_member;
        for (edge, child) in &other.children {
            self.children.entry(edge.clone()).or_default().add(child);
        }
    }

    /// Fields of this set that are not in `other`, field by field.
    pub fn difference(&self, other: &Self) -> Self {
        let mut out = Self { is_member: self.is_member && !other.is_member, children: BTreeMap::new() };
        for (edge, child) in &self.children {
            let left = other.children.get(edge).map_or_else(|| child.clone(), |theirs| child.difference(theirs));
            out.insert(edge.clone(), left);
        }
        out
    }

    /// Fields that are in both sets.
    pub fn intersection(&self, other: &Self) -> Self {
        let mut out = Self { is_member: self.is_member && other.is_member, children: BTreeMap::new() };
        for (edge, child) in &self.children {
            let Some(theirs) = other.children.get(edge) else { continue };
            let both = child.intersection(theirs);
            if !both.is_empty() {
                out.children.insert(edge.clone(), both);
            }
        }
        out
    }

    pub fn child(&self, edge: &str) -> Option<&Self> {
        self.children.get(edge)
    }

    pub fn contains_node(&self) -> bool {
        self.is_member
    }

    /// Paths of all fields in the form used by conflict messages: `.spec.replicas`.
    pub fn paths(&self) -> Vec<String> {
        let mut out = Vec::new();
        self.collect("", &mut out);
        out
    }

    fn collect(&self, prefix: &str, out: &mut Vec<String>) {
        if self.is_member {
            out.push(prefix.to_owned());
        }
        for (edge, child) in &self.children {
            let step = match edge.split_once(':') {
                Some(("f", name)) => format!(".{name}"),
                Some(("k", key)) => format!(
                    "[{}]",
                    key.trim_matches(['{', '}'])
                        .replace("\":", "\"=")
                        .replace('"', "")
                        .replace('=', "=\"")
                        .replace(',', "\",")
                        + "\""
                ),
                Some((_, value)) => format!("[={value}]"),
                None => edge.clone(),
            };
            child.collect(&format!("{prefix}{step}"), out);
        }
    }

    pub fn to_value(&self) -> Value {
        let mut out = Map::new();
        if self.is_member && !self.children.is_empty() {
            out.insert(".".into(), Value::Object(Map::new()));
        }
        for (edge, child) in &self.children {
            out.insert(edge.clone(), child.to_value());
        }
        Value::Object(out)
    }

    pub fn from_value(raw: &Value) -> Self {
        let Some(members) = raw.as_object() else { return Self::default() };
        let mut set = Self { is_member: members.is_empty(), children: BTreeMap::new() };
        for (edge, child) in members {
            if edge == "." {
                set.is_member = true;
            } else {
                set.children.insert(edge.clone(), Self::from_value(child));
            }
        }
        set
    }
}

/// The edge of a list item: `k:{"name":"a"}` in a map list, `v:"a"` otherwise.
pub(super) fn item_edge(list_type: &ListType, item_schema: Option<&Schema>, item: &Value) -> String {
    let ListType::Map(keys) = list_type else { return format!("v:{item}") };
    let mut sorted: Vec<&str> = keys.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    let mut edge = "k:{".to_owned();
    for (i, key) in sorted.into_iter().enumerate() {
        if i > 0 {
            edge.push(',');
        }
        push_json(&mut edge, &key);
        edge.push(':');
        match item.get(key) {
            Some(value) => push_json(&mut edge, value),
            None => push_json(&mut edge, &default_of(item_schema, key)),
        }
    }
    edge.push('}');
    edge
}

fn push_json(out: &mut String, value: &impl serde::Serialize) {
    // Serialising a JSON value to a string cannot fail.
    if let Ok(text) = serde_json::to_string(value) {
        out.push_str(&text);
    }
}

/// The value of a list key that an item omits: its default, such as TCP for the protocol of a port.
fn default_of(schema: Option<&Schema>, key: &str) -> Value {
    let declared = schema.and_then(|s| s.member(key));
    match declared.and_then(|s| s.default.clone()) {
        Some(value) => value,
        None if key == "protocol" => "TCP".into(),
        None if declared.is_some_and(|s| s.kind == Type::String) => "".into(),
        None => Value::Null,
    }
}
