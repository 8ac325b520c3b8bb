//! `metadata.managedFields`: who set which field, kept up to date by every write.

use serde_json::{Map, Value};

use super::{
    diff::Diff,
    fields::FieldSet,
    owned, record,
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
}

impl Entry {
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

    /// Its owner wrote.
    pub(super) fn stamp(&mut self) {
        stamp(&mut self.raw);
    }

    fn into_value(mut self) -> Value {
        self.raw.insert("fieldsV1".into(), self.fields.to_value());
        Value::Object(self.raw)
    }
}

/// The time of an owner's last write; scales have none.
fn stamp(entry: &mut Map<String, Value>) {
    if entry.get("subresource").is_none_or(|s| s != "scale") {
        entry.insert("time".into(), now().into());
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
        })
        .collect()
}

pub(super) fn write(object: &mut Value, entries: Vec<Entry>) {
    let mut list: Vec<Value> = entries.into_iter().filter(|e| !e.fields.is_empty()).map(Entry::into_value).collect();
    sort(&mut list);
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
        entries.push(Entry { raw: header(manager), fields: FieldSet::default() });
        entries.len() - 1
    });
    let entry = &mut entries[at];
    if entry.text("apiVersion") != manager.api_version {
        entry.raw.insert("apiVersion".into(), manager.api_version.as_str().into());
    }
    entry
}

/// Records that `manager` applied a new object.
pub(crate) fn applied(object: &mut Value, manager: &Manager, schema: Option<&Schema>) {
    let mut entry = Entry { raw: header(manager), fields: owned::applied(object, schema) };
    entry.stamp();
    write(object, vec![entry]);
}

/// Gives an object that nobody has owned so far to the one whom Kubernetes calls "before-first-apply".
pub(crate) fn adopt(object: &mut Value, manager: &Manager, schema: Option<&Schema>) {
    if object["metadata"].get("managedFields").is_some() {
        return;
    }
    let before = Manager { name: "before-first-apply".into(), operation: "Update", ..manager.clone() };
    let mut entry = Entry { raw: header(&before), fields: owned::made(object, schema) };
    entry.stamp();
    write(object, vec![entry]);
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
    stamp(&mut entry);
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
    // An object without a record gets none by being updated.
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
        if own && !diff.touched.is_empty() {
            stamp(members);
        }
        let fields = members.entry("fieldsV1").or_insert(Value::Null);
        let text = fields.as_u64().and_then(|number| texts.get(number as usize)).cloned();
        match text {
            Some(text) => edit_text(fields, &text, diff, own, texts),
            None => {
                record::subtract(fields, &diff.removed);
                if own {
                    record::add(fields, &diff.touched)
                } else {
                    record::subtract(fields, &diff.touched)
                };
            }
        }
    }
    entries.retain(|e| !record::is_empty(&e["fieldsV1"]));
    sort(entries);
}

/// Appliers first, then by time of the last write.
fn sort(entries: &mut [Value]) {
    let place = |entry: &Value| {
        ["operation", "time", "manager", "apiVersion", "subresource"]
            .map(|key| entry[key].as_str().unwrap_or_default().to_owned())
    };
    if entries.len() > 1 {
        entries.sort_by_cached_key(place);
    }
}

fn edit_text(fields: &mut Value, text: &Text, diff: &Diff, own: bool, texts: &mut Vec<Text>) {
    match texts::edited(text, diff, own) {
        None => *fields = Value::Null,
        Some(same) if std::sync::Arc::ptr_eq(&same, text) => {}
        Some(other) => {
            *fields = texts.len().into();
            texts.push(other);
        }
    }
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
