//! Sets of fields, in the shape Kubernetes writes them (`FieldsV1`): a tree whose edges are `f:name`, `k:{"key":…}` for
//! items of map lists, and `v:"value"` for members of sets.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::schema::{ListType, Schema, Type};

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct FieldSet {
    /// The node itself is in the set (`.`, or a leaf).
    here: bool,
    children: BTreeMap<String, FieldSet>,
}

/// What fields are listed into: a set to calculate with, or right away the JSON that is stored.
pub(super) trait Tree: Sized {
    fn node(here: bool, children: impl Iterator<Item = (String, Self)>) -> Self;

    fn leaf() -> Self {
        Self::node(true, std::iter::empty())
    }
}

impl Tree for FieldSet {
    fn node(here: bool, children: impl Iterator<Item = (String, Self)>) -> Self {
        Self { here, children: children.collect() }
    }
}

impl Tree for Value {
    fn node(here: bool, children: impl Iterator<Item = (String, Self)>) -> Self {
        let mut members: Map<String, Self> = children.collect();
        if here && !members.is_empty() {
            members.insert(".".into(), Self::Object(Map::new()));
        }
        Self::Object(members)
    }
}

/// `f:name`.
pub(super) fn field_edge(name: &str) -> String {
    let mut edge = String::with_capacity(name.len() + 2);
    edge.push_str("f:");
    edge.push_str(name);
    edge
}

impl FieldSet {
    pub fn is_empty(&self) -> bool {
        !self.here && self.children.values().all(Self::is_empty)
    }

    /// A field without fields of its own.
    pub(super) fn is_leaf(&self) -> bool {
        self.here && self.children.is_empty()
    }

    pub(super) fn children(&self) -> impl Iterator<Item = (&String, &Self)> {
        self.children.iter()
    }

    /// Puts the node itself in or out.
    pub(super) fn set_node(&mut self, here: bool) {
        self.here = here;
    }

    /// Adds a child, unless it is empty.
    pub(super) fn insert(&mut self, edge: String, child: Self) {
        if !child.is_empty() {
            self.children.insert(edge, child);
        }
    }

    pub fn add(&mut self, other: &Self) {
        self.here |= other.here;
        for (edge, child) in &other.children {
            self.children.entry(edge.clone()).or_default().add(child);
        }
    }

    /// Fields of this set that are not in `other`, field by field.
    pub fn without(&self, other: &Self) -> Self {
        let mut out = Self { here: self.here && !other.here, children: BTreeMap::new() };
        for (edge, child) in &self.children {
            let left = other.children.get(edge).map_or_else(|| child.clone(), |theirs| child.without(theirs));
            out.insert(edge.clone(), left);
        }
        out
    }

    /// Fields that are in both sets.
    pub fn common(&self, other: &Self) -> Self {
        let mut out = Self { here: self.here && other.here, children: BTreeMap::new() };
        for (edge, child) in &self.children {
            let Some(theirs) = other.children.get(edge) else { continue };
            let both = child.common(theirs);
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
        self.here
    }

    /// Paths of all fields, as conflicts name them: `.spec.replicas`.
    pub fn paths(&self) -> Vec<String> {
        let mut out = Vec::new();
        self.collect("", &mut out);
        out
    }

    fn collect(&self, prefix: &str, out: &mut Vec<String>) {
        if self.here {
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
        if self.here && !self.children.is_empty() {
            out.insert(".".into(), Value::Object(Map::new()));
        }
        for (edge, child) in &self.children {
            out.insert(edge.clone(), child.to_value());
        }
        Value::Object(out)
    }

    pub fn from_value(raw: &Value) -> Self {
        let Some(members) = raw.as_object() else { return Self::default() };
        let mut set = Self { here: members.is_empty(), children: BTreeMap::new() };
        for (edge, child) in members {
            if edge == "." {
                set.here = true;
            } else {
                set.children.insert(edge.clone(), Self::from_value(child));
            }
        }
        set
    }
}

/// `k:{"name":"a"}` or `v:"a"`.
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
    // A String takes everything, and values have only text for keys.
    if let Ok(text) = serde_json::to_string(value) {
        out.push_str(&text);
    }
}

/// A key that an item leaves out has its default (a port's protocol is TCP).
fn default_of(schema: Option<&Schema>, key: &str) -> Value {
    let declared = schema.and_then(|s| s.member(key));
    match declared.and_then(|s| s.default.clone()) {
        Some(value) => value,
        None if key == "protocol" => "TCP".into(),
        None if declared.is_some_and(|s| s.kind == Type::String) => "".into(),
        None => Value::Null,
    }
}
