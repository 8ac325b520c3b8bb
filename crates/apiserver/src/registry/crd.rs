//! Compiles a CustomResourceDefinition to the resource that it defines.

use std::sync::Arc;

use serde_json::Value;

use super::descriptor::{
    Conversion, Origin, PrinterColumn, Resource, ScaleSubresource, SelectableField, Subresources, Version,
    WebhookClient,
};
use crate::{
    schema::Schema,
    status::{FieldError, Path},
};

const VERBS: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// Compiles a CRD. All errors in its schemas and rules are reported, not only the first.
pub fn compile_crd(crd: &Value) -> Result<Resource, Vec<FieldError>> {
    let spec = &crd["spec"];
    let names = &spec["names"];
    let group = text(&spec["group"]);
    let plural = text(&names["plural"]);
    let kind = text(&names["kind"]);
    let mut errors = Vec::new();
    let root = Path::Root.child("spec");
    let versions_path = root.child("versions");
    let mut versions = Vec::new();
    let mut storage_version = String::new();
    for (i, raw) in spec["versions"].as_array().into_iter().flatten().enumerate() {
        let path = versions_path.index(i);
        if raw["storage"] == true {
            storage_version = format!("{group}/{}", text(&raw["name"]));
        }
        versions.push(version(&group, &kind, raw, &path, &mut errors));
    }
    versions.sort_by(|a: &Version, b| compare_versions(&b.name, &a.name));
    if !errors.is_empty() {
        return Err(errors);
    }
    Ok(Resource {
        storage: format!("{group}/{plural}").into(),
        singular: non_empty(&names["singular"]).unwrap_or_else(|| kind.to_ascii_lowercase()),
        list_kind: non_empty(&names["listKind"]).unwrap_or_else(|| format!("{kind}List")),
        short_names: strings(&names["shortNames"]),
        categories: strings(&names["categories"]),
        namespaced: spec["scope"] == "Namespaced",
        fields: selectable(&spec["versions"], &storage_version, &group),
        origin: Origin::Custom {
            crd_name: text(&crd["metadata"]["name"]),
            crd_uid: text(&crd["metadata"]["uid"]),
            crd_generation: crd["metadata"]["generation"].as_i64().unwrap_or(0),
            schema_since: text(&crd["metadata"]["resourceVersion"]).parse().unwrap_or(0),
            conversion: conversion(&spec["conversion"]),
        },
        group,
        plural,
        kind,
        storage_version,
        versions,
    })
}

fn version(group: &str, kind: &str, raw: &Value, path: &Path<'_>, errors: &mut Vec<FieldError>) -> Version {
    let name = text(&raw["name"]);
    let api_version = format!("{group}/{name}");
    let openapi = raw["schema"].get("openAPIV3Schema");
    let schema = openapi.and_then(|raw_schema| {
        let schema_path = path.child("schema");
        let schema_path = schema_path.child("openAPIV3Schema");
        match Schema::compile(raw_schema, &schema_path) {
            Ok(schema) => Some(Arc::new(schema)),
            Err(faults) => {
                errors.extend(faults);
                None
            }
        }
    });
    let deprecation_warning = (raw["deprecated"] == true).then(|| {
        non_empty(&raw["deprecationWarning"]).unwrap_or_else(|| format!("{api_version} {kind} is deprecated"))
    });
    let subresources = &raw["subresources"];
    Version {
        served: raw["served"] == true,
        deprecation_warning,
        verbs: VERBS,
        subresources: Subresources {
            status: subresources.get("status").is_some_and(Value::is_object),
            scale: subresources.get("scale").filter(|s| s.is_object()).map(scale),
            others: &[],
        },
        columns: raw["additionalPrinterColumns"].as_array().into_iter().flatten().map(column).collect(),
        schema,
        openapi: openapi.map(|raw| raw.to_string().into()),
        name,
        api_version,
    }
}

fn scale(raw: &Value) -> ScaleSubresource {
    ScaleSubresource {
        spec_replicas: json_path(&text(&raw["specReplicasPath"])),
        status_replicas: json_path(&text(&raw["statusReplicasPath"])),
        label_selector: non_empty(&raw["labelSelectorPath"]).map(|p| json_path(&p)),
    }
}

fn column(raw: &Value) -> PrinterColumn {
    PrinterColumn {
        name: text(&raw["name"]),
        kind: text(&raw["type"]),
        format: text(&raw["format"]),
        description: text(&raw["description"]),
        priority: raw["priority"].as_i64().unwrap_or(0),
        json_path: text(&raw["jsonPath"]),
    }
}

fn selectable(versions: &Value, storage_version: &str, group: &str) -> Vec<SelectableField> {
    versions
        .as_array()
        .into_iter()
        .flatten()
        .filter(|v| format!("{group}/{}", text(&v["name"])) == storage_version)
        .flat_map(|v| v["selectableFields"].as_array().into_iter().flatten())
        .map(|f| SelectableField::at(text(&f["jsonPath"]).trim_start_matches('.')))
        .collect()
}

fn conversion(raw: &Value) -> Conversion {
    if raw["strategy"] != "Webhook" {
        return Conversion::None;
    }
    let webhook = &raw["webhook"];
    let client = &webhook["clientConfig"];
    let url = non_empty(&client["url"]).unwrap_or_else(|| {
        let service = &client["service"];
        format!(
            "https://{}.{}.svc:{}{}",
            text(&service["name"]),
            text(&service["namespace"]),
            service["port"].as_i64().unwrap_or(443),
            non_empty(&service["path"]).unwrap_or_default()
        )
    });
    use base64::Engine as _;
    let ca_bundle = base64::engine::general_purpose::STANDARD.decode(text(&client["caBundle"])).unwrap_or_default();
    Conversion::Webhook(WebhookClient {
        url,
        ca_bundle,
        review_versions: strings(&webhook["conversionReviewVersions"]),
    })
}

fn json_path(raw: &str) -> Vec<String> {
    raw.split('.').filter(|s| !s.is_empty()).map(str::to_owned).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn non_empty(value: &Value) -> Option<String> {
    value.as_str().filter(|s| !s.is_empty()).map(str::to_owned)
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

/// Kubernetes' order of versions: GA before beta before alpha, newest first; other names after them, alphabetically.
pub(crate) fn compare_versions(a: &str, b: &str) -> std::cmp::Ordering {
    let (pa, pb) = (parse_version(a), parse_version(b));
    match (pa, pb) {
        (Some(x), Some(y)) => x.cmp(&y),
        (Some(_), None) => std::cmp::Ordering::Greater,
        (None, Some(_)) => std::cmp::Ordering::Less,
        (None, None) => b.cmp(a),
    }
}

/// `v1beta2` → (stability 1, major 1, minor 2); GA has stability 2.
fn parse_version(name: &str) -> Option<(u8, u64, u64)> {
    let rest = name.strip_prefix('v')?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let major = rest[..digits].parse().ok()?;
    let tail = &rest[digits..];
    if tail.is_empty() {
        return Some((2, major, 0));
    }
    let (stability, minor) = match (tail.strip_prefix("beta"), tail.strip_prefix("alpha")) {
        (Some(minor), _) => (1, minor),
        (_, Some(minor)) => (0, minor),
        _ => return None,
    };
    Some((stability, major, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_discovery_prefers_them() {
        let mut names = vec!["v1alpha1", "foo", "v1", "v2beta1", "v10", "v1beta1", "bar"];
        names.sort_by(|a, b| compare_versions(b, a));
        assert_eq!(names, ["v10", "v1", "v2beta1", "v1beta1", "v1alpha1", "bar", "foo"]);
    }
}
