//! Short manifests, as introductions to the product write them, and their full forms.
//!
//! | short | full |
//! |---|---|
//! | SandboxTemplate with `spec.template` | `spec.podTemplate` |
//! | SandboxClaim with `spec.template: NAME` | v1alpha1 `spec.sandboxTemplateRef.name` |
//! | SandboxWarmPool with `spec.size` and `spec.template: NAME` | `spec.replicas` and `spec.sandboxTemplateRef.name` |
//!
//! All three are in group `agents.x-k8s.io`; the full forms are in `extensions.agents.x-k8s.io`. A pool without a name
//! gets the name of its template.

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};

const SHORT_GROUP: &str = "agents.x-k8s.io/";
const POOLS: &str = "extensions.agents.x-k8s.io/v1beta1";
const CLAIMS: &str = "extensions.agents.x-k8s.io/v1alpha1";

/// A full manifest.
#[derive(Debug, PartialEq)]
pub(crate) struct Expanded {
    pub(crate) object: Value,
    /// Whether the document was a short form.
    pub(crate) was_short: bool,
}

/// Expands a short manifest; returns any other document unchanged.
pub(crate) fn expand(document: Value) -> Result<Expanded> {
    let api_version = document["apiVersion"].as_str().unwrap_or_default();
    let kind = document["kind"].as_str().unwrap_or_default().to_owned();
    let short = api_version.starts_with(SHORT_GROUP) && kind.starts_with("Sandbox") && kind != "Sandbox";
    if !short {
        return Ok(Expanded { object: document, was_short: false });
    }
    let object = match kind.as_str() {
        "SandboxTemplate" => template(document)?,
        "SandboxClaim" => claim(document)?,
        "SandboxWarmPool" => pool(document)?,
        other => bail!(
            "`{other}` is not a kind of {api_version}; there are SandboxTemplate, SandboxClaim and SandboxWarmPool"
        ),
    };
    Ok(Expanded { object, was_short: true })
}

fn template(mut document: Value) -> Result<Value> {
    let spec = spec_of(&mut document)?;
    if let Some(pod) = spec.remove("template") {
        spec.insert("podTemplate".to_owned(), pod);
    }
    document["apiVersion"] = json!(POOLS);
    Ok(document)
}

fn claim(mut document: Value) -> Result<Value> {
    let spec = spec_of(&mut document)?;
    if let Some(name) = take_name(spec)? {
        spec.insert("sandboxTemplateRef".to_owned(), json!({"name": name}));
    }
    document["apiVersion"] = json!(CLAIMS);
    Ok(document)
}

fn pool(mut document: Value) -> Result<Value> {
    let spec = spec_of(&mut document)?;
    let template = take_name(spec)?;
    if let Some(name) = &template {
        spec.insert("sandboxTemplateRef".to_owned(), json!({"name": name}));
    }
    if let Some(size) = spec.remove("size") {
        spec.insert("replicas".to_owned(), size);
    }
    let unnamed = document["metadata"]["name"].as_str().unwrap_or_default().is_empty();
    if unnamed {
        let Some(name) = template else { bail!("a SandboxWarmPool needs metadata.name or spec.template") };
        document["metadata"]["name"] = json!(name);
    }
    document["apiVersion"] = json!(POOLS);
    Ok(document)
}

fn spec_of(document: &mut Value) -> Result<&mut Map<String, Value>> {
    let kind = document["kind"].as_str().unwrap_or_default().to_owned();
    match document.get_mut("spec").and_then(Value::as_object_mut) {
        Some(spec) => Ok(spec),
        None => bail!("this {kind} has no spec"),
    }
}

fn take_name(spec: &mut Map<String, Value>) -> Result<Option<String>> {
    match spec.remove("template") {
        None => Ok(None),
        Some(Value::String(name)) => Ok(Some(name)),
        Some(other) => bail!("spec.template must be the name of a template here, not {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(document: Value) -> Value {
        let expanded = expand(document).unwrap();
        assert!(expanded.was_short);
        expanded.object
    }

    #[test]
    fn a_template_moves_to_its_group_and_field() {
        let pod = json!({"spec": {"containers": [{"name": "agent", "image": "python:3.11"}]}});
        let short = json!({"apiVersion": "agents.x-k8s.io/v1alpha1", "kind": "SandboxTemplate", "metadata": {"name": "t"}, "spec": {"template": pod}});
        assert_eq!(
            full(short),
            json!({"apiVersion": POOLS, "kind": "SandboxTemplate", "metadata": {"name": "t"}, "spec": {"podTemplate": pod}})
        );
    }

    #[test]
    fn a_claim_names_its_template() {
        let short = json!({"apiVersion": "agents.x-k8s.io/v1alpha1", "kind": "SandboxClaim", "metadata": {"name": "c"}, "spec": {"template": "t"}});
        assert_eq!(full(short)["spec"], json!({"sandboxTemplateRef": {"name": "t"}}));
    }

    #[test]
    fn a_pool_without_a_name_gets_the_name_of_its_template() {
        let short = json!({"apiVersion": "agents.x-k8s.io/v1alpha1", "kind": "SandboxWarmPool", "spec": {"size": 3, "template": "t"}});
        let pool = full(short);
        assert_eq!(pool["metadata"]["name"], "t");
        assert_eq!(pool["spec"], json!({"replicas": 3, "sandboxTemplateRef": {"name": "t"}}));
    }

    #[test]
    fn full_manifests_and_sandboxes_are_unchanged() {
        for (api_version, kind) in [
            ("agents.x-k8s.io/v1beta1", "Sandbox"),
            ("extensions.agents.x-k8s.io/v1beta1", "SandboxClaim"),
            ("v1", "Pod"),
        ] {
            let document = json!({"apiVersion": api_version, "kind": kind, "spec": {"template": "x"}});
            assert_eq!(expand(document.clone()).unwrap(), Expanded { object: document, was_short: false });
        }
    }

    /// Rows of the page: kind, short field, full field.
    #[test]
    fn the_documentation_has_every_short_form() {
        let page = include_str!("../../../../../docs/claims-and-pools.md");
        let section = page.split("## Short forms").nth(1).unwrap().split("\n## ").next().unwrap();
        let rows: Vec<Vec<String>> = section
            .lines()
            .filter(|line| line.starts_with("| `"))
            .map(|line| line.split('|').filter_map(|cell| cell.split('`').nth(1).map(str::to_owned)).collect())
            .collect();
        let pointer = |field: &str| format!("/{}", field.replace('.', "/"));
        for row in &rows {
            let [kind, short, full_field] = &row[..] else { panic!("{row:?}") };
            let field = short.strip_prefix("spec.").unwrap();
            let document = json!({"apiVersion": "agents.x-k8s.io/v1alpha1", "kind": kind, "metadata": {"name": "x"},
                "spec": {field: "value"}});
            let object = full(document);
            assert_eq!(object.pointer(&pointer(full_field)), Some(&json!("value")), "{row:?}");
            assert_eq!(object.pointer(&pointer(short)), None, "{row:?}");
            let version = object["apiVersion"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
            assert_eq!(section.contains(&format!("`{full_field}`, of version {version}")), version == "v1alpha1");
        }
        assert_eq!(rows.len(), 4, "{rows:?}");
    }

    #[test]
    fn errors_name_the_mistake() {
        let no_spec = json!({"apiVersion": "agents.x-k8s.io/v1alpha1", "kind": "SandboxClaim"});
        assert!(expand(no_spec).unwrap_err().to_string().contains("no spec"));
        let nameless =
            json!({"apiVersion": "agents.x-k8s.io/v1alpha1", "kind": "SandboxWarmPool", "spec": {"size": 1}});
        assert!(expand(nameless).unwrap_err().to_string().contains("metadata.name"));
        let wrong = json!({"apiVersion": "agents.x-k8s.io/v1alpha1", "kind": "SandboxClaim", "spec": {"template": {"spec": 1}}});
        assert!(expand(wrong).unwrap_err().to_string().contains("name of a template"));
    }
}
