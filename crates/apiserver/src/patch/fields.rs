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

/// Every field of an object.
pub(super) fn of_object<T: Tree>(object: &Value, schema: Option<&Schema>) -> T {
    let fields = object.as_object().into_iter().flatten().filter_map(|(name, value)| match name.as_str() {
        "apiVersion" | "kind" => None,
        "metadata" => of_metadata(value).map(|meta| ("f:metadata".to_owned(), meta)),
        _ => Some((field_edge(name), of_value(value, schema.and_then(|s| s.member(name))))),
    });
    T::node(false, fields)
}

/// The fields of `metadata` that somebody can own; `None` when there are none.
pub(super) fn of_metadata<T: Tree>(meta: &Value) -> Option<T> {
    let owned = |name: &str| !SYSTEM_METADATA.contains(&name);
    let members = meta.as_object()?;
    if !members.keys().any(|name| owned(name)) {
        return None;
    }
    let fields = members.iter().filter(|(name, _)| owned(name)).map(|(name, value)| {
        let child = match (name.as_str(), value) {
            ("labels" | "annotations", Value::Object(entries)) => {
                T::node(true, entries.keys().map(|k| (field_edge(k), T::leaf())))
            }
            ("finalizers", Value::Array(items)) => T::node(true, items.iter().map(|v| (format!("v:{v}"), T::leaf()))),
            ("ownerReferences", Value::Array(items)) => {
                T::node(true, items.iter().map(|owner| (format!("k:{{\"uid\":{}}}", owner["uid"]), T::leaf())))
            }
            _ => T::leaf(),
        };
        (field_edge(name), child)
    });
    Some(T::node(false, fields))
}

/// The fields of a value.
pub(super) fn of_value<T: Tree>(value: &Value, schema: Option<&Schema>) -> T {
    of_item(value, schema, false)
}

/// The fields of a value; as an item of a list it is a field itself.
fn of_item<T: Tree>(value: &Value, schema: Option<&Schema>, item: bool) -> T {
    match (value, schema) {
        (Value::Object(members), schema) if schema.is_none_or(|s| !s.atomic_map) && !members.is_empty() => {
            let is_map = schema.is_some_and(|s| s.additional.is_some() && s.properties.is_empty());
            let member = |name: &str| schema.and_then(|s| s.member(name));
            let children = members.iter().map(|(name, value)| (field_edge(name), of_value(value, member(name))));
            T::node(is_map || item, children)
        }
        (Value::Array(items), Some(schema)) if schema.list_type != ListType::Atomic => {
            let child = schema.items.as_deref();
            let children = items.iter().map(|value| {
                let fields = match &schema.list_type {
                    ListType::Set => T::leaf(),
                    _ => of_item(value, child, true),
                };
                (item_edge(&schema.list_type, child, value), fields)
            });
            T::node(items.is_empty() || item, children)
        }
        _ => T::leaf(),
    }
}

/// `f:name`.
pub(super) fn field_edge(name: &str) -> String {
    let mut edge = String::with_capacity(name.len() + 2);
    edge.push_str("f:");
    edge.push_str(name);
    edge
}

/// Metadata that nobody owns.
const SYSTEM_METADATA: &[&str] = &[
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "managedFields",
    "selfLink",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
];

impl FieldSet {
    pub fn is_empty(&self) -> bool {
        !self.here && self.children.values().all(Self::is_empty)
    }

    /// Every field of an object.
    pub fn of_object(object: &Value, schema: Option<&Schema>) -> Self {
        of_object(object, schema)
    }

    fn leaf() -> Self {
        Self { here: true, children: BTreeMap::new() }
    }

    /// A field without fields of its own.
    pub(super) fn is_leaf(&self) -> bool {
        self.here && self.children.is_empty()
    }

    pub(super) fn children(&self) -> impl Iterator<Item = (&String, &Self)> {
        self.children.iter()
    }

    pub(super) fn include_node(&mut self) {
        self.here = true;
    }

    /// Adds a child, unless it is empty.
    pub(super) fn insert(&mut self, edge: String, child: Self) {
        if !child.is_empty() {
            self.children.insert(edge, child);
        }
    }

    /// Fields that are in both objects with different values.
    pub fn changed(old: &Value, new: &Value, schema: Option<&Schema>) -> Self {
        let mut set = Self::default();
        let (Some(before), Some(after)) = (old.as_object(), new.as_object()) else { return set };
        for (name, value) in after {
            let Some(previous) = before.get(name).filter(|p| *p != value) else { continue };
            let child = match name.as_str() {
                "apiVersion" | "kind" => continue,
                "metadata" => Self::changed_metadata(previous, value),
                _ => Self::changed_value(previous, value, schema.and_then(|s| s.member(name))),
            };
            if !child.is_empty() {
                set.children.insert(format!("f:{name}"), child);
            }
        }
        set
    }

    pub(super) fn changed_metadata(old: &Value, new: &Value) -> Self {
        let mut set = Self::default();
        for (name, value) in new.as_object().into_iter().flatten() {
            if SYSTEM_METADATA.contains(&name.as_str()) {
                continue;
            }
            let Some(previous) = old.get(name).filter(|p| *p != value) else { continue };
            let child = match (previous, value) {
                (Value::Object(before), Value::Object(after)) => Self {
                    here: false,
                    children: after
                        .iter()
                        .filter(|(k, v)| before.get(*k).is_some_and(|b| b != *v))
                        .map(|(k, _)| (format!("f:{k}"), Self::leaf()))
                        .collect(),
                },
                // Items of lists in metadata are told apart by value: a change is an addition and a removal.
                (Value::Array(_), Value::Array(_)) => Self::default(),
                _ => Self::leaf(),
            };
            if !child.is_empty() {
                set.children.insert(format!("f:{name}"), child);
            }
        }
        set
    }

    pub(super) fn changed_value(old: &Value, new: &Value, schema: Option<&Schema>) -> Self {
        if old == new {
            return Self::default();
        }
        match (old, new, schema) {
            (Value::Object(before), Value::Object(after), schema)
                if schema.is_none_or(|s| !s.atomic_map) && !after.is_empty() && !before.is_empty() =>
            {
                let mut set = Self::default();
                for (name, value) in after {
                    let Some(previous) = before.get(name) else { continue };
                    let child = Self::changed_value(previous, value, schema.and_then(|s| s.member(name)));
                    if !child.is_empty() {
                        set.children.insert(format!("f:{name}"), child);
                    }
                }
                set
            }
            (Value::Array(before), Value::Array(after), Some(schema)) if schema.list_type != ListType::Atomic => {
                let child = schema.items.as_deref();
                let edge = |item: &Value| item_edge(&schema.list_type, child, item);
                let known: BTreeMap<String, &Value> = before.iter().map(|item| (edge(item), item)).collect();
                let mut set = Self::default();
                for item in after {
                    let at = edge(item);
                    if let Some(previous) = known.get(&at) {
                        let changed = Self::changed_value(previous, item, child);
                        if !changed.is_empty() {
                            set.children.insert(at, changed);
                        }
                    }
                }
                set
            }
            _ => Self::leaf(),
        }
    }

    pub fn add(&mut self, other: &Self) {
        self.here |= other.here;
        for (edge, child) in &other.children {
            self.children.entry(edge.clone()).or_default().add(child);
        }
    }

    /// Fields of this set that are not in `other`.
    pub fn minus(&self, other: &Self) -> Self {
        let mut out = Self { here: self.here && !other.here, children: BTreeMap::new() };
        for (edge, child) in &self.children {
            let left = match other.children.get(edge) {
                // A leaf that was removed or replaced as a whole takes everything below with it.
                Some(gone) if gone.is_leaf() => continue,
                Some(gone) => child.minus(gone),
                None => child.clone(),
            };
            if !left.is_empty() {
                out.children.insert(edge.clone(), left);
            }
        }
        out
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
