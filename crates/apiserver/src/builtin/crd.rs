//! Defaults, validation and status of CustomResourceDefinitions.

use serde_json::{Value, json};

use super::{default_to, items, names, text};
use crate::{
    registry::compile_crd,
    status::{FieldError, Path},
    verbs::now,
};

pub(super) fn defaults(object: &mut Value) {
    let spec = &mut object["spec"];
    if !spec.is_object() {
        return;
    }
    default_to(spec, "conversion", json!({ "strategy": "None" }));
    let kind = text(&spec["names"], "kind").to_owned();
    if let Some(names) = spec.get_mut("names").filter(|n| n.is_object()) {
        default_to(names, "singular", kind.to_ascii_lowercase());
        default_to(names, "listKind", format!("{kind}List"));
    }
}

/// Finalizer that keeps a CRD until its objects are deleted.
const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Sets the status of a CRD to established: a CRD that passed validation is served immediately.
pub(super) fn establish(object: &mut Value, old: Option<&Value>) {
    if old.is_none() {
        default_to(&mut object["metadata"], "finalizers", json!([]));
        if let Some(list) = object["metadata"]["finalizers"].as_array_mut()
            && !list.iter().any(|f| f == CLEANUP_FINALIZER)
        {
            list.push(CLEANUP_FINALIZER.into());
        }
    }
    let at = old
        .and_then(|o| o["status"]["conditions"].get(0))
        .and_then(|c| c["lastTransitionTime"].as_str())
        .map_or_else(now, str::to_owned);
    let mut stored: Vec<Value> =
        old.map(|o| items(&o["status"], "storedVersions").cloned().collect()).unwrap_or_default();
    let storage = items(&object["spec"], "versions").find(|v| v["storage"] == true).map(|v| v["name"].clone());
    if let Some(name) = storage.filter(|n| !stored.contains(n)) {
        stored.push(name);
    }
    // A storage migration removes versions from the status that are no longer stored; keep them removed.
    if let (Some(old), Some(kept)) = (old, object["status"]["storedVersions"].as_array())
        && object["status"] != old["status"]
        && !kept.is_empty()
    {
        stored.retain(|v| kept.contains(v));
    }
    object["status"] = json!({
        "acceptedNames": object["spec"]["names"],
        "conditions": [
            { "type": "NamesAccepted", "status": "True", "lastTransitionTime": at, "reason": "NoConflicts", "message": "no conflicts found" },
            { "type": "Established", "status": "True", "lastTransitionTime": at, "reason": "InitialNamesAccepted", "message": "the initial names have been accepted" },
        ],
        "storedVersions": stored,
    });
}

pub(super) fn validate(object: &Value, errors: &mut Vec<FieldError>) {
    let spec = &object["spec"];
    let path = Path::Root.child("spec");
    let group = text(spec, "group");
    let names_path = path.child("names");
    let plural = text(&spec["names"], "plural");
    if group.is_empty() {
        errors.push(FieldError::required(path.child("group"), ""));
    } else {
        for why in names::dns1123_subdomain(group) {
            errors.push(FieldError::invalid_str(path.child("group"), group, why));
        }
    }
    let wanted = format!("{plural}.{group}");
    let name = text(&object["metadata"], "name");
    if name != wanted {
        errors.push(FieldError::invalid_str(
            "metadata.name",
            name,
            format!("must be spec.names.plural+\".\"+spec.group ({wanted:?})"),
        ));
    }
    for key in ["plural", "singular", "kind", "listKind"] {
        let value = text(&spec["names"], key);
        if value.is_empty() {
            errors.push(FieldError::required(names_path.child(key), ""));
            continue;
        }
        for why in names::dns1035_label(&value.to_ascii_lowercase()) {
            errors.push(FieldError::invalid_str(names_path.child(key), value, why));
        }
    }
    if !matches!(text(spec, "scope"), "Namespaced" | "Cluster") {
        errors.push(FieldError::not_supported(path.child("scope"), &spec["scope"], &["Cluster", "Namespaced"]));
    }
    versions(spec, &path.child("versions"), errors);
    if errors.is_empty()
        && let Err(faults) = compile_crd(object)
    {
        errors.extend(faults);
    }
}

fn versions(spec: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let mut seen = Vec::new();
    for (i, version) in items(spec, "versions").enumerate() {
        let at = path.index(i);
        let name = text(version, "name");
        for why in names::dns1035_label(name) {
            errors.push(FieldError::invalid_str(at.child("name"), name, why));
        }
        if seen.contains(&name) {
            errors.push(FieldError::invalid(
                path,
                &Value::Array(seen.iter().map(|s| Value::from(*s)).collect()),
                "must contain unique version names",
            ));
        }
        seen.push(name);
        if !version["schema"]["openAPIV3Schema"].is_object() {
            let schema = at.child("schema");
            errors.push(FieldError::required(schema.child("openAPIV3Schema"), "schemas are required"));
        }
    }
    let stored = items(spec, "versions").filter(|v| v["storage"] == true).count();
    if stored != 1 {
        errors.push(FieldError::invalid(
            path,
            &spec["versions"].as_array().map_or(0, Vec::len).into(),
            "must have exactly one version marked as storage version",
        ));
    }
}

pub(super) fn validate_update(old: &Value, new: &Value, errors: &mut Vec<FieldError>) {
    for (pointer, field) in [
        ("/spec/group", "spec.group"),
        ("/spec/scope", "spec.scope"),
        ("/spec/names/plural", "spec.names.plural"),
        ("/spec/names/kind", "spec.names.kind"),
    ] {
        if old.pointer(pointer) != new.pointer(pointer) {
            errors.push(FieldError::invalid(field, new.pointer(pointer).unwrap_or(&Value::Null), "field is immutable"));
        }
    }
    let kept: Vec<&str> = items(&new["spec"], "versions").map(|v| text(v, "name")).collect();
    for version in items(&new["status"], "storedVersions").filter_map(Value::as_str) {
        if !kept.contains(&version) {
            errors.push(FieldError::invalid_str(
                "status.storedVersions[0]",
                version,
                "missing from spec.versions; it must remain in spec.versions until no stored objects use it",
            ));
        }
    }
}
