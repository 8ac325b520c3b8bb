//! `metadata.managedFields`: records which manager set which field, updated by every write.

use serde_json::{Map, Value};

use super::{
    diff::Diff,
    field_set::FieldSet,
    fields_v1,
    fields_v1_cache::{self, FieldsText},
    ownership,
};
use crate::{schema::Schema, verbs::now};

/// The field manager of a write.
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

    pub(super) fn belongs_to(&self, manager: &Manager) -> bool {
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

    /// Records the current time as that of the manager's last write.
    pub(super) fn set_time(&mut self) {
        set_time(&mut self.raw);
    }

    fn into_value(mut self) -> Value {
        self.raw.insert("fieldsV1".into(), self.fields.to_value());
        Value::Object(self.raw)
    }
}

/// Sets the time of the last write. Entries of the `scale` subresource have none.
fn set_time(entry: &mut Map<String, Value>) {
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

/// Finds or adds the entry of a manager, and sets its `apiVersion`.
pub(super) fn find_or_add_entry<'a>(entries: &'a mut Vec<Entry>, manager: &Manager) -> &'a mut Entry {
    let at = entries.iter().position(|e| e.belongs_to(manager)).unwrap_or_else(|| {
        entries.push(Entry { raw: new_entry(manager), fields: FieldSet::default() });
        entries.len() - 1
    });
    let entry = &mut entries[at];
    if entry.text("apiVersion") != manager.api_version {
        entry.raw.insert("apiVersion".into(), manager.api_version.as_str().into());
    }
    entry
}

/// Records that `manager` applied a new object.
pub(crate) fn record_apply(object: &mut Value, manager: &Manager, schema: Option<&Schema>) {
    let mut entry = Entry { raw: new_entry(manager), fields: ownership::applied_fields(object, schema) };
    entry.set_time();
    write(object, vec![entry]);
}

/// Assigns all fields of an object without `managedFields` to the manager "before-first-apply", as Kubernetes does.
pub(crate) fn record_before_first_apply(object: &mut Value, manager: &Manager, schema: Option<&Schema>) {
    if object["metadata"].get("managedFields").is_some() {
        return;
    }
    let before = Manager { name: "before-first-apply".into(), operation: "Update", ..manager.clone() };
    let mut entry = Entry { raw: new_entry(&before), fields: ownership::created_fields(object, schema) };
    entry.set_time();
    write(object, vec![entry]);
}

/// Records that `manager` created the whole object. The `fieldsV1` of its entry is an index into the returned texts.
pub(crate) fn record_create(object: &mut Value, manager: &Manager, schema: Option<&Schema>) -> Vec<FieldsText> {
    let text = fields_v1_cache::created(object, schema);
    let Some(meta) = object["metadata"].as_object_mut() else { return Vec::new() };
    let Some(text) = text else {
        meta.remove("managedFields");
        return Vec::new();
    };
    let mut entry = new_entry(manager);
    set_time(&mut entry);
    entry.insert("fieldsV1".into(), 0.into());
    meta.insert("managedFields".into(), Value::Array(vec![Value::Object(entry)]));
    vec![text]
}

/// Records an update by `manager`: it owns every field it set, and removed fields lose all their owners. Returns false
/// if no field that can be owned differs. A `fieldsV1` value that is an integer is an index into `texts`.
pub(crate) fn record_update(
    old: &Value,
    new: &mut Value,
    manager: &Manager,
    schema: Option<&Schema>,
    texts: &mut Vec<FieldsText>,
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
    // Clients usually send `managedFields` back unchanged; then they are edited in place.
    if meta.get("managedFields") != before {
        match before {
            Some(list) => meta.insert("managedFields".into(), list.clone()),
            None => meta.remove("managedFields"),
        };
    }
    if diff.is_empty() {
        return false;
    }
    // An update does not add `managedFields` to an object without them.
    if let Some(entries) = meta.get_mut("managedFields").and_then(Value::as_array_mut) {
        update_entries(entries, &diff, manager, texts);
        if entries.is_empty() {
            meta.remove("managedFields");
        }
    }
    true
}

/// True for an explicit reset by the client, as in Kubernetes: `[]` or `[{}]`.
fn is_reset(list: &Value) -> bool {
    match list.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([only]) => only.as_object().is_some_and(Map::is_empty),
        _ => false,
    }
}

fn update_entries(entries: &mut Vec<Value>, diff: &Diff, manager: &Manager, texts: &mut Vec<FieldsText>) {
    entries.retain(Value::is_object);
    if !entries.iter().any(|e| entry_belongs_to(e, manager)) {
        entries.push(Value::Object(new_entry(manager)));
    }
    for entry in entries.iter_mut() {
        let own = entry_belongs_to(entry, manager);
        let Some(members) = entry.as_object_mut() else { continue };
        if own && !diff.touched.is_empty() {
            set_time(members);
        }
        let fields = members.entry("fieldsV1").or_insert(Value::Null);
        let text = fields.as_u64().and_then(|index| texts.get(index as usize)).cloned();
        match text {
            Some(text) => update_text(fields, &text, diff, own, texts),
            None => {
                fields_v1::subtract(fields, &diff.removed);
                if own {
                    fields_v1::add(fields, &diff.touched)
                } else {
                    fields_v1::subtract(fields, &diff.touched)
                };
            }
        }
    }
    entries.retain(|e| !fields_v1::is_empty(&e["fieldsV1"]));
    sort(entries);
}

/// Sorts entries: `Apply` before `Update`, then by time of the last write.
fn sort(entries: &mut [Value]) {
    let place = |entry: &Value| {
        ["operation", "time", "manager", "apiVersion", "subresource"]
            .map(|key| entry[key].as_str().unwrap_or_default().to_owned())
    };
    if entries.len() > 1 {
        entries.sort_by_cached_key(place);
    }
}

fn update_text(fields: &mut Value, text: &FieldsText, diff: &Diff, own: bool, texts: &mut Vec<FieldsText>) {
    match fields_v1_cache::edited(text, diff, own) {
        None => *fields = Value::Null,
        Some(same) if std::sync::Arc::ptr_eq(&same, text) => {}
        Some(other) => {
            *fields = texts.len().into();
            texts.push(other);
        }
    }
}

fn entry_belongs_to(entry: &Value, manager: &Manager) -> bool {
    entry.as_object().is_some_and(|members| matches(members, manager))
}

fn matches(entry: &Map<String, Value>, manager: &Manager) -> bool {
    let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default();
    text("manager") == manager.name
        && text("operation") == manager.operation
        && text("subresource") == manager.subresource
        // Updates in another API version have an entry of their own; an applier has one entry for all versions.
        && (manager.operation == "Apply" || text("apiVersion") == manager.api_version)
}

/// An entry without fields.
fn new_entry(manager: &Manager) -> Map<String, Value> {
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
