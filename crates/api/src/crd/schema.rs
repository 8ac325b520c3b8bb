//! Pieces of schema that several kinds share.

use serde_json::{Value, json};

use super::kubernetes::Schemas;

pub(super) fn text() -> Value {
    json!({ "type": "string" })
}

pub(super) fn time() -> Value {
    json!({ "type": "string", "format": "date-time" })
}

pub(super) fn text_map() -> Value {
    json!({ "type": "object", "additionalProperties": { "type": "string" } })
}

/// A string enum with its default.
pub(super) fn enumeration(values: &[&str], default: &str) -> Value {
    json!({ "type": "string", "enum": values, "default": default })
}

/// Adds the description that `kubectl explain` shows.
pub(super) fn described(mut schema: Value, description: &str) -> Value {
    schema["description"] = description.into();
    schema
}

/// `{name}`, required.
pub(super) fn name_ref() -> Value {
    json!({ "type": "object", "required": ["name"], "properties": { "name": described(text(), "Its name.") } })
}

pub(super) fn pod_metadata() -> Value {
    json!({
        "type": "object",
        "properties": {
            "labels": described(text_map(), "Labels."),
            "annotations": described(text_map(), "Annotations."),
        },
    })
}

pub(super) fn pod_template(kubernetes: &Schemas) -> Value {
    let mut template = json!({
        "description": "The Pod to run.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "metadata": described(
                pod_metadata(),
                "Labels and annotations of the Pod; those of agents.x-k8s.io are reserved.",
            ),
        },
    });
    template["properties"]["spec"] = described(kubernetes.expand("PodSpec"), "The Pod's spec, as in a Pod.");
    template
}

pub(super) fn volume_claim_templates(kubernetes: &Schemas) -> Value {
    json!({
        "description": "Persistent volumes; each becomes a PersistentVolumeClaim and a volume of the Pod under its \
            name.",
        "type": "array",
        "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "object",
            "required": ["spec"],
            "properties": {
                "metadata": {
                    "description": "What the claim is called and marked with.",
                    "type": "object",
                    "properties": {
                        "name": described(text(), "The volume's name; the claim is called NAME-SANDBOX."),
                        "labels": described(text_map(), "Labels of the claim."),
                        "annotations": described(text_map(), "Annotations of the claim."),
                    },
                },
                "spec": kubernetes.expand("PersistentVolumeClaimSpec"),
            },
        },
    })
}

pub(super) fn service() -> Value {
    json!({
        "description": "True keeps a headless Service named like the Sandbox, false removes it, absent leaves it as it \
            is.",
        "type": "boolean",
    })
}

/// A list of metav1.Condition; atomic, because it has a single writer.
pub(super) fn conditions() -> Value {
    json!({
        "description": "What holds now, and why.",
        "type": "array",
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "lastTransitionTime": described(time(), "When the status last changed."),
                "message": { "description": "For people.", "type": "string", "maxLength": 32768 },
                "observedGeneration": observed_generation(),
                "reason": {
                    "description": "For programs: one stable word.",
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "status": {
                    "description": "Whether it holds.",
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                },
                "type": {
                    "description": "What the condition is about.",
                    "type": "string",
                    "maxLength": 316,
                    "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
                },
            },
        },
    })
}

/// `status.observedGeneration`.
pub(super) fn observed_generation() -> Value {
    json!({
        "description": "The generation of the spec that this is about.",
        "type": "integer",
        "format": "int64",
        "minimum": 0,
    })
}

pub(super) fn text_list() -> Value {
    json!({ "type": "array", "items": text() })
}

/// A printer column.
pub(super) fn column(name: &str, type_: &str, path: &str) -> Value {
    json!({ "name": name, "type": type_, "jsonPath": path })
}

pub(super) fn ready_column() -> Value {
    column("Ready", "string", ".status.conditions[?(@.type=='Ready')].status")
}

pub(super) fn reason_column() -> Value {
    column("Reason", "string", ".status.conditions[?(@.type=='Ready')].reason")
}

pub(super) fn age_column() -> Value {
    column("Age", "date", ".metadata.creationTimestamp")
}
