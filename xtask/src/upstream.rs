//! The comparison with upstream's API: `deploy/upstream.yaml` states what upstream's newest `v1beta1` has, and every
//! difference from it with its reason.
//!
//! The list holds facts (field paths, types, defaults, columns, reasons, metric names), not upstream's files. A field of
//! ours that upstream does not have, or the reverse, is an error unless the list explains it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::Value;

const LIST: &str = "deploy/upstream.yaml";
const VERSION: &str = "v1beta1";

/// Structures of Kubernetes, which are not repeated field by field: the end of the path, and the name in the list.
const KUBERNETES: [(&str, &str); 4] = [
    ("podTemplate.spec", "PodSpec"),
    ("volumeClaimTemplates[].spec", "PersistentVolumeClaimSpec"),
    ("networkPolicy.ingress", "list of NetworkPolicyIngressRule"),
    ("networkPolicy.egress", "list of NetworkPolicyEgressRule"),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Upstream {
    /// Files and commits that the list was read from.
    sources: BTreeMap<String, String>,
    kinds: BTreeMap<String, Kind>,
    /// Reasons of conditions that upstream writes.
    reasons: Vec<String>,
    metrics: Vec<String>,
    differences: Vec<Difference>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Kind {
    subresources: BTreeSet<String>,
    columns: Vec<String>,
    fields: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Difference {
    what: String,
    /// `ours`, when upstream does not have it; `not taken`, when we do not.
    status: String,
    why: String,
    /// `Kind path` of the field it excuses, when it is one.
    #[serde(default)]
    field: Option<String>,
    /// Upstream's issue or pull request.
    #[serde(default)]
    thread: Option<String>,
}

/// Fails when our CRDs, reasons or metrics differ from the list in a way that it does not explain.
pub(crate) fn check() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default();
    let text = fs::read_to_string(root.join(LIST)).with_context(|| format!("reading {LIST}"))?;
    let upstream: Upstream = serde_saphyr::from_str(&text).with_context(|| format!("reading {LIST}"))?;
    let mut faults = entry_faults(&upstream);
    faults.extend(kind_faults(&upstream, &agent_sandbox_api::crd::crds()));
    faults.extend(missing_words(&root, "docs/reference/conditions.md", &upstream.reasons)?);
    faults.extend(missing_words(&root, "docs/reference/metrics.md", &upstream.metrics)?);
    if faults.is_empty() {
        return Ok(());
    }
    bail!("{}\ncorrect the code, or explain the difference in {LIST}", faults.join("\n"))
}

fn entry_faults(upstream: &Upstream) -> Vec<String> {
    let mut faults = Vec::new();
    for difference in &upstream.differences {
        let what = &difference.what;
        if !matches!(difference.status.as_str(), "ours" | "not taken") {
            faults.push(format!("{what}: status `{}` is neither `ours` nor `not taken`", difference.status));
        }
        if difference.why.trim().is_empty() {
            faults.push(format!("{what}: no reason is given"));
        }
        if difference.thread.as_ref().is_some_and(|thread| !thread.starts_with("kubernetes-sigs/agent-sandbox#")) {
            faults.push(format!("{what}: the thread must have the form kubernetes-sigs/agent-sandbox#NUMBER"));
        }
    }
    let is_commit = |text: &str| text.len() == 40 && text.chars().all(|c| c.is_ascii_hexdigit());
    faults.extend(
        upstream.sources.iter().filter(|(_, commit)| !is_commit(commit)).map(|(file, _)| format!("{file}: no commit")),
    );
    faults
}

fn kind_faults(upstream: &Upstream, crds: &[Value]) -> Vec<String> {
    let mut faults = Vec::new();
    for crd in crds {
        let name = crd["spec"]["names"]["kind"].as_str().unwrap_or_default();
        let Some(kind) = upstream.kinds.get(name) else {
            faults.push(format!("{name}: not in the list"));
            continue;
        };
        let versions = crd["spec"]["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let Some(version) = versions.iter().find(|version| version["name"] == VERSION) else {
            faults.push(format!("{name}: has no {VERSION}"));
            continue;
        };
        let excused = |path: &str| {
            let full = format!("{name} {path}");
            upstream.differences.iter().any(|difference| difference.field.as_deref() == Some(full.as_str()))
        };
        let mut ours = BTreeMap::new();
        for part in ["spec", "status"] {
            collect(&version["schema"]["openAPIV3Schema"]["properties"][part], part, &mut ours);
        }
        for (path, ours) in ours.iter().filter(|(path, _)| !excused(path)) {
            match kind.fields.get(path) {
                None => faults.push(format!("{name} {path}: upstream has no such field")),
                Some(theirs) if theirs != ours => {
                    faults.push(format!("{name} {path}: `{ours}` here, `{theirs}` upstream"));
                }
                Some(_) => {}
            }
        }
        for path in kind.fields.keys().filter(|path| !ours.contains_key(*path) && !excused(path)) {
            faults.push(format!("{name} {path}: upstream has it, we do not"));
        }
        let columns = version["additionalPrinterColumns"].as_array().map(Vec::as_slice).unwrap_or_default();
        let columns: Vec<String> = columns.iter().map(column).collect();
        if columns != kind.columns {
            faults.push(format!("{name}: columns {columns:?} here, {:?} upstream", kind.columns));
        }
        let subresources: BTreeSet<String> =
            version["subresources"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
        if subresources != kind.subresources {
            faults.push(format!("{name}: subresources {subresources:?} here, {:?} upstream", kind.subresources));
        }
    }
    faults
}

fn column(column: &Value) -> String {
    let text = |key: &str| column[key].as_str().unwrap_or_default().to_owned();
    format!("{} {} {}", text("name"), text("type"), text("jsonPath"))
}

/// Adds every field below a schema, as path and description.
fn collect(schema: &Value, path: &str, into: &mut BTreeMap<String, String>) {
    let required: BTreeSet<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let mark = if required.contains(name.as_str()) { " required" } else { "" };
        if let Some((_, known)) = KUBERNETES.iter().find(|(end, _)| path.ends_with(end)) {
            into.insert(path, format!("{known}{mark}"));
            continue;
        }
        // Conditions are Kubernetes' own, too.
        if name == "conditions" {
            into.insert(path, format!("list of Condition{mark}"));
            continue;
        }
        into.insert(path.clone(), format!("{}{mark}", describe(field)));
        let item = field.get("items");
        collect(item.unwrap_or(field), &format!("{path}{}", if item.is_some() { "[]" } else { "" }), into);
    }
}

fn describe(field: &Value) -> String {
    let type_ = field["type"].as_str().unwrap_or("any");
    let mut words = match (type_, field.get("items"), field.get("additionalProperties")) {
        (_, Some(items), _) => {
            let list = field["x-kubernetes-list-type"].as_str().map_or(String::new(), |list| format!("{list} "));
            format!("{list}list of {}", items["type"].as_str().unwrap_or("any"))
        }
        (_, _, Some(values)) => format!("map of {}", values["type"].as_str().unwrap_or("any")),
        _ => field["format"].as_str().unwrap_or(type_).to_owned(),
    };
    if let Some(values) = field["enum"].as_array() {
        let values: BTreeSet<&str> = values.iter().filter_map(Value::as_str).collect();
        words += &format!(" of {}", values.into_iter().collect::<Vec<_>>().join("|"));
    }
    if let Some(minimum) = field.get("minimum") {
        words += &format!(" from {minimum}");
    }
    if let Some(default) = field.get("default") {
        words += &format!(" default {}", default.as_str().map_or_else(|| default.to_string(), str::to_owned));
    }
    words
}

/// The words that a page does not have in code font.
fn missing_words(root: &Path, page: &str, words: &[String]) -> Result<Vec<String>> {
    let path: PathBuf = root.join(page);
    let text = fs::read_to_string(&path).with_context(|| format!("reading {page}"))?;
    let missing = words.iter().filter(|word| !text.contains(&format!("`{word}`")));
    Ok(missing.map(|word| format!("{word}: not in {page}")).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn list(fields: &Value, differences: &Value) -> Upstream {
        let list = json!({
            "sources": { "api.go": "0123456789abcdef0123456789abcdef01234567" },
            "kinds": { "Box": { "subresources": ["status"], "columns": ["Ready string .status.r"], "fields": fields } },
            "reasons": [], "metrics": [], "differences": differences,
        });
        serde_json::from_value(list).expect("valid")
    }

    fn crd() -> Value {
        let spec = json!({ "type": "object", "required": ["mode"], "properties": {
            "mode": { "type": "string", "enum": ["On", "Off"], "default": "On" },
            "names": { "type": "array", "x-kubernetes-list-type": "atomic", "items": { "type": "object", "properties": {
                "name": { "type": "string" },
            } } },
        } });
        json!({ "spec": { "names": { "kind": "Box" }, "versions": [{
            "name": "v1beta1",
            "subresources": { "status": {} },
            "additionalPrinterColumns": [{ "name": "Ready", "type": "string", "jsonPath": ".status.r" }],
            "schema": { "openAPIV3Schema": { "properties": { "spec": spec } } },
        }] } })
    }

    fn same() -> Value {
        json!({
            "spec.mode": "string of Off|On default On required",
            "spec.names": "atomic list of object",
            "spec.names[].name": "string",
        })
    }

    #[test]
    fn equal_lists_have_no_fault() {
        let list = list(&same(), &json!([]));
        assert_eq!(entry_faults(&list), Vec::<String>::new());
        assert_eq!(kind_faults(&list, &[crd()]), Vec::<String>::new());
    }

    #[test]
    fn a_difference_is_a_fault_unless_it_is_explained() {
        let mut fields = same();
        fields["spec.mode"] = "string required".into();
        fields["spec.age"] = "int32".into();
        fields.as_object_mut().expect("an object").remove("spec.names[].name");
        let faults = kind_faults(&list(&fields, &json!([])), &[crd()]);
        assert_eq!(faults.len(), 3, "{faults:?}");
        let explained = ["spec.mode", "spec.age", "spec.names[].name"]
            .map(|path| json!({ "what": path, "status": "ours", "why": "because", "field": format!("Box {path}") }));
        let list = list(&fields, &json!(explained));
        assert_eq!(kind_faults(&list, &[crd()]), Vec::<String>::new());
    }

    #[test]
    fn an_entry_needs_a_reason_and_a_known_status() {
        let wrong = json!([{ "what": "a", "status": "maybe", "why": " ", "thread": "1326" }]);
        assert_eq!(entry_faults(&list(&same(), &wrong)).len(), 3);
    }
}
