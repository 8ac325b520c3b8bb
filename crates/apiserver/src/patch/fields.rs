//! Sets of fields, in the shape Kubernetes writes them (`FieldsV1`): a tree whose edges are `f:name`, `k:{"key":…}` for
//! items of map lists, and `v:"value"` for members of sets.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::schema::{ListType, Schema, Type};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSet {
    /// The node itself is in the set (`.`, or a leaf).
    here: bool,
    children: BTreeMap<String, FieldSet>,
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
    "generateName",
];

impl FieldSet {
    pub fn is_empty(&self) -> bool {
        !self.here && self.children.values().all(Self::is_empty)
    }

    /// Every field of an object.
    pub fn of_object(object: &Value, schema: Option<&Schema>) -> Self {
        let mut set = Self::default();
        for (name, value) in object.as_object().into_iter().flatten() {
            match name.as_str() {
                "apiVersion" | "kind" => {}
                "metadata" => {
                    let meta = Self::of_metadata(value);
                    if !meta.is_empty() {
                        set.children.insert("f:metadata".into(), meta);
                    }
                }
                _ => {
                    let child = schema.and_then(|s| s.member(name));
                    set.children.insert(format!("f:{name}"), Self::of_value(value, child));
                }
            }
        }
        set
    }

    fn of_metadata(meta: &Value) -> Self {
        let mut set = Self::default();
        for (name, value) in meta.as_object().into_iter().flatten() {
            if SYSTEM_METADATA.contains(&name.as_str()) {
                continue;
            }
            let child = match (name.as_str(), value) {
                ("labels" | "annotations", Value::Object(members)) => {
                    Self { here: true, children: members.keys().map(|k| (format!("f:{k}"), Self::leaf())).collect() }
                }
                ("finalizers", Value::Array(items)) => {
                    Self { here: true, children: items.iter().map(|v| (format!("v:{v}"), Self::leaf())).collect() }
                }
                ("ownerReferences", Value::Array(items)) => Self {
                    here: true,
                    children: items
                        .iter()
                        .map(|owner| (format!("k:{{\"uid\":{}}}", owner["uid"]), Self::leaf()))
                        .collect(),
                },
                _ => Self::leaf(),
            };
            set.children.insert(format!("f:{name}"), child);
        }
        set
    }

    fn leaf() -> Self {
        Self { here: true, children: BTreeMap::new() }
    }

    fn of_value(value: &Value, schema: Option<&Schema>) -> Self {
        match (value, schema) {
            (Value::Object(members), Some(schema)) if !schema.atomic_map && !members.is_empty() => {
                let is_map = schema.additional.is_some() && schema.properties.is_empty();
                let children = members
                    .iter()
                    .map(|(name, member)| (format!("f:{name}"), Self::of_value(member, schema.member(name))))
                    .collect();
                Self { here: is_map, children }
            }
            (Value::Object(members), None) if !members.is_empty() => Self {
                here: false,
                children: members.iter().map(|(k, v)| (format!("f:{k}"), Self::of_value(v, None))).collect(),
            },
            (Value::Array(items), Some(schema)) if schema.list_type != ListType::Atomic => {
                let child = schema.items.as_deref();
                let children = items
                    .iter()
                    .map(|item| {
                        let mut set = match &schema.list_type {
                            ListType::Set => Self::leaf(),
                            _ => Self::of_value(item, child),
                        };
                        set.here = true;
                        (item_edge(&schema.list_type, child, item), set)
                    })
                    .collect();
                Self { here: items.is_empty(), children }
            }
            _ => Self::leaf(),
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

    fn changed_metadata(old: &Value, new: &Value) -> Self {
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

    fn changed_value(old: &Value, new: &Value, schema: Option<&Schema>) -> Self {
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
                Some(gone) if gone.here && gone.children.is_empty() => continue,
                Some(gone) => child.minus(gone),
                None => child.clone(),
            };
            if !left.is_empty() {
                out.children.insert(edge.clone(), left);
            }
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
    match list_type {
        ListType::Map(keys) => {
            let mut sorted: Vec<&String> = keys.iter().collect();
            sorted.sort();
            let key: Vec<String> = sorted
                .into_iter()
                .map(|k| {
                    let value = item.get(k).cloned().unwrap_or_else(|| default_of(item_schema, k));
                    format!("{}:{value}", Value::from(k.as_str()))
                })
                .collect();
            format!("k:{{{}}}", key.join(","))
        }
        _ => format!("v:{item}"),
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
