//! `metadata.managedFields`: who set which field, kept up to date by every write.

use serde_json::{Map, Value, json};

use super::fields::FieldSet;
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
        let mut raw = Map::new();
        raw.insert("manager".into(), manager.name.as_str().into());
        raw.insert("operation".into(), manager.operation.into());
        raw.insert("apiVersion".into(), manager.api_version.as_str().into());
        raw.insert("fieldsType".into(), "FieldsV1".into());
        if !manager.subresource.is_empty() {
            raw.insert("subresource".into(), manager.subresource.as_str().into());
        }
        Self { raw, fields, changed: true }
    }

    fn text(&self, key: &str) -> &str {
        self.raw.get(key).and_then(Value::as_str).unwrap_or_default()
    }

    pub(super) fn is(&self, manager: &Manager) -> bool {
        self.text("manager") == manager.name
            && self.text("operation") == manager.operation
            && self.text("subresource") == manager.subresource
            // Updates of another version are another entry; an applier owns its fields in every version.
            && (manager.operation == "Apply" || self.text("apiVersion") == manager.api_version)
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

/// Records that `manager` made the whole object.
pub(crate) fn created(object: &mut Value, manager: &Manager, schema: Option<&Schema>) {
    let fields = FieldSet::of_object(object, schema);
    write(object, vec![Entry::new(manager, fields)]);
}

/// Records what `manager` changed: it owns every field it set, and nobody owns what it removed.
pub(crate) fn updated(old: &Value, new: &mut Value, manager: &Manager, schema: Option<&Schema>) {
    // An explicit reset by the client, as Kubernetes reads it.
    if new["metadata"]["managedFields"] == json!([{}]) || new["metadata"]["managedFields"] == json!([]) {
        if let Some(meta) = new["metadata"].as_object_mut() {
            meta.remove("managedFields");
        }
        return;
    }
    let before = FieldSet::of_object(old, schema);
    let after = FieldSet::of_object(new, schema);
    let removed = before.minus(&after);
    let mut touched = FieldSet::changed(old, new, schema);
    touched.add(&after.minus(&before));
    let mut entries = read(old);
    if touched.is_empty() && removed.is_empty() {
        copy_entries(old, new);
        return;
    }
    for entry in &mut entries {
        if !entry.is(manager) {
            let kept = entry.fields.minus(&touched).minus(&removed);
            entry.set_fields(kept);
        }
    }
    let own = entry_of(&mut entries, manager);
    let mut fields = own.fields.minus(&removed);
    fields.add(&touched);
    own.set_fields(fields);
    write(new, entries);
}

fn copy_entries(old: &Value, new: &mut Value) {
    if let Some(meta) = new["metadata"].as_object_mut() {
        match old["metadata"].get("managedFields") {
            Some(list) => meta.insert("managedFields".into(), list.clone()),
            None => meta.remove("managedFields"),
        };
    }
}
