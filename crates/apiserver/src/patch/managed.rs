//! `metadata.managedFields`: who set which field, kept up to date by every write.

use serde_json::{Map, Value};

use super::{
    diff::Diff,
    fields::FieldSet,
    record,
    texts::{self, Text},
};
use crate::{schema::Schema, verbs::now};

/// The author of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manager {
    pub name: String,
    /// `Apply` or `Update`.
    pub operation: &'static str,
    pub api_version: String,
    /// `status`, `scale`, or empty.
    pub subresource: String,
}

/// One entry of `managedFields`.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    raw: Map<String, Value>,
    pub(super) fields: FieldSet,
    changed: bool,
}

impl Entry {
    fn new(manager: &Manager, fields: FieldSet) -> Self {
        Self { raw: header(manager), fields, changed: true }
    }

    fn text(&self, key: &str) -> &str {
        self.raw.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn is(&self, manager: &Manager) -> bool {
        matches(&self.raw, manager)
    }

    pub(super) fn label(&self) -> String {
        let mut out = format!("{:?}", self.text("manager"));
        if self.text("operation") == "Update" {
            out.push_str(&format!(" using {}", self.text("apiVersion")));
        }
        if !self.text("subresource").is_empty() {
            out.push_str(&format!(" with subresource {:?}", self.text("subresource")));
        }
        out
    }

    pub(super) fn set_fields(&mut self, fields: FieldSet) {
        if self.fields != fields {
            self.fields = fields;
            self.changed = true;
        }
    }

    fn into_value(mut self) -> Value {
        if self.changed || !self.raw.contains_key("time") {
            self.raw.insert("time".into(), now().into());
            self.raw.insert("fieldsV1".into(), self.fields.to_value());
        }
        Value::Object(self.raw)
    }
}

/// All entries of an object.
pub(super) fn read(object: &Value) -> Vec<Entry> {
    object["metadata"]["managedFields"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_object)
        .map(|raw| Entry {
            fields: FieldSet::from_value(raw.get("fieldsV1").unwrap_or(&Value::Null)),
            raw: raw.clone(),
            changed: false,
        })
        .collect()
}

pub(super) fn write(object: &mut Value, entries: Vec<Entry>) {
    let list: Vec<Value> = entries.into_iter().filter(|e| !e.fields.is_empty()).map(Entry::into_value).collect();
    if let Some(meta) = object["metadata"].as_object_mut() {
        if list.is_empty() {
            meta.remove("managedFields");
        } else {
            meta.insert("managedFields".into(), Value::Array(list));
        }
    }
}

/// Finds or adds the entry of a manager.
pub(super) fn entry_of<'a>(entries: &'a mut Vec<Entry>, manager: &Manager) -> &'a mut Entry {
    let at = entries.iter().position(|e| e.is(manager)).unwrap_or_else(|| {
        entries.push(Entry::new(manager, FieldSet::default()));
        entries.len() - 1
    });
    let entry = &mut entries[at];
    if entry.text("apiVersion") != manager.api_version {
        entry.raw.insert("apiVersion".into(), manager.api_version.as_str().into());
    }
    entry
}

/// Records that `manager` made the whole object. In the record, a number stands for the text returned.
pub(crate) fn created(object: &mut Value, manager: &Manager, schema: Option<&Schema>) -> Vec<Text> {
    let text = texts::created(object, schema);
    let Some(meta) = object["metadata"].as_object_mut() else { return Vec::new() };
    let Some(text) = text else {
        meta.remove("managedFields");
        return Vec::new();
    };
    let mut entry = header(manager);
    entry.insert("time".into(), now().into());
    entry.insert("fieldsV1".into(), 0.into());
    meta.insert("managedFields".into(), Value::Array(vec![Value::Object(entry)]));
    vec![text]
}

/// Records what `manager` changed: it owns every field it set, and nobody owns what it removed. False when nothing that can be owned
/// differs. Numbers in the record stand for `texts`.
pub(crate) fn updated(
    old: &Value,
    new: &mut Value,
    manager: &Manager,
    schema: Option<&Schema>,
    texts: &mut Vec<Text>,
) -> bool {
    if is_reset(&new["metadata"]["managedFields"]) {
        if let Some(meta) = new["metadata"].as_object_mut() {
            meta.remove("managedFields");
        }
        return true;
    }
    let diff = Diff::between(old, new, schema);
    let Some(meta) = new["metadata"].as_object_mut() else { return !diff.is_empty() };
    let before = old["metadata"].get("managedFields");
    // Usually the client left the record alone: then it is edited where it is.
    if meta.get("managedFields") != before {
        match before {
            Some(list) => meta.insert("managedFields".into(), list.clone()),
            None => meta.remove("managedFields"),
        };
    }
    if diff.is_empty() {
        return false;
    }
    if !meta.get("managedFields").is_some_and(Value::is_array) {
        meta.insert("managedFields".into(), Value::Array(Vec::new()));
    }
    if let Some(entries) = meta.get_mut("managedFields").and_then(Value::as_array_mut) {
        edit(entries, &diff, manager, texts);
        if entries.is_empty() {
            meta.remove("managedFields");
        }
    }
    true
}

/// An explicit reset by the client, as Kubernetes reads it: `[]` or `[{}]`.
fn is_reset(list: &Value) -> bool {
    match list.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([only]) => only.as_object().is_some_and(Map::is_empty),
        _ => false,
    }
}

fn edit(entries: &mut Vec<Value>, diff: &Diff, manager: &Manager, texts: &mut Vec<Text>) {
    entries.retain(Value::is_object);
    if !entries.iter().any(|e| is_of(e, manager)) {
        entries.push(Value::Object(header(manager)));
    }
    for entry in entries.iter_mut() {
        let own = is_of(entry, manager);
        let Some(members) = entry.as_object_mut() else { continue };
        let fields = members.entry("fieldsV1").or_insert(Value::Null);
        let text = fields.as_u64().and_then(|number| texts.get(number as usize)).cloned();
        let changed = match text {
            Some(text) => edit_text(fields, &text, diff, own, texts),
            None => {
                let removed = record::subtract(fields, &diff.removed);
                let touched =
                    if own { record::add(fields, &diff.touched) } else { record::subtract(fields, &diff.touched) };
                removed | touched
            }
        };
        if changed || !members.contains_key("time") {
            members.insert("time".into(), now().into());
        }
    }
    entries.retain(|e| !record::is_empty(&e["fieldsV1"]));
}

fn edit_text(fields: &mut Value, text: &Text, diff: &Diff, own: bool, texts: &mut Vec<Text>) -> bool {
    match texts::edited(text, diff, own) {
        None => *fields = Value::Null,
        Some(same) if std::sync::Arc::ptr_eq(&same, text) => return false,
        Some(other) => {
            *fields = texts.len().into();
            texts.push(other);
        }
    }
    true
}

fn is_of(entry: &Value, manager: &Manager) -> bool {
    entry.as_object().is_some_and(|members| matches(members, manager))
}

fn matches(entry: &Map<String, Value>, manager: &Manager) -> bool {
    let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default();
    text("manager") == manager.name
        && text("operation") == manager.operation
        && text("subresource") == manager.subresource
        // Updates of another version are another entry; an applier owns its fields in every version.
        && (manager.operation == "Apply" || text("apiVersion") == manager.api_version)
}

/// An entry without fields.
fn header(manager: &Manager) -> Map<String, Value> {
    let mut raw = Map::new();
    raw.insert("manager".into(), manager.name.as_str().into());
    raw.insert("operation".into(), manager.operation.into());
    raw.insert("apiVersion".into(), manager.api_version.as_str().into());
    raw.insert("fieldsType".into(), "FieldsV1".into());
    if !manager.subresource.is_empty() {
        raw.insert("subresource".into(), manager.subresource.as_str().into());
    }
    raw
}
