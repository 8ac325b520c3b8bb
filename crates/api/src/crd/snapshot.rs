//! `sandboxsnapshots.agent-sandbox.github.io`: only engines with our node have it.

use serde_json::{Value, json};

use super::schema;
use crate::{groups, snapshot};

pub(super) fn definition() -> Value {
    // A name that no Sandbox can have would be looked for again and again.
    let pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
    let name = json!({"type": "string", "minLength": 1, "maxLength": 253, "pattern": pattern});
    let time = |description: &str| json!({"type": "string", "format": "date-time", "description": description});
    let mut spec = json!({
        "type": "object",
        "required": ["sandboxName"],
        "x-kubernetes-validations": [{
            "rule": "self.sandboxName == oldSelf.sandboxName",
            "message": "sandboxName is immutable",
        }],
    });
    spec["properties"] = json!({
        "sandboxName": schema::described(name, "The Sandbox, of the same namespace, whose files are kept."),
        "expiresAt": time("When the snapshot is deleted. Sandboxes that were made from it stay."),
    });
    let count = |description: &str| json!({"type": "integer", "format": "int64", "description": description});
    let mut status = json!({"type": "object"});
    status["properties"] = json!({
        "conditions": schema::conditions(),
        "takenAt": time("When the files were as they are in the snapshot."),
        "nodeName": {"type": "string", "description": "The node that keeps the files."},
        "sizeBytes": count("Bytes on disk, those shared with other snapshots included."),
        "frozenMilliseconds": count("How long the Sandbox was frozen; absent if it was suspended."),
        "parent": {"type": "string", "description": "The snapshot that the Sandbox was made from."},
        "sandbox": {
            "description": "The Sandbox as it was: what a Sandbox from this snapshot is made with.",
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": true,
        },
    });
    let column = |name: &str, kind: &str, path: &str| json!({"name": name, "type": kind, "jsonPath": path});
    let mut version = json!({
        "name": groups::V1ALPHA1,
        "served": true,
        "storage": true,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            column("Sandbox", "string", ".spec.sandboxName"),
            column("Ready", "string", ".status.conditions[?(@.type=='Ready')].status"),
            column("Reason", "string", ".status.conditions[?(@.type=='Ready')].reason"),
            column("Bytes", "integer", ".status.sizeBytes"),
            column("Parent", "string", ".status.parent"),
            column("Age", "date", ".metadata.creationTimestamp"),
        ],
        "schema": {"openAPIV3Schema": {
            "description": "SandboxSnapshot keeps the files of a Sandbox as they were at one moment.",
            "type": "object",
            "required": ["spec"],
        }},
    });
    version["schema"]["openAPIV3Schema"]["properties"] = json!({
        "apiVersion": schema::text(),
        "kind": schema::text(),
        "metadata": {"type": "object"},
        "spec": spec,
        "status": status,
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{}.{}", snapshot::PLURAL, groups::OWN)},
        "spec": {
            "group": groups::OWN,
            "names": {
                "kind": groups::SANDBOX_SNAPSHOT,
                "listKind": "SandboxSnapshotList",
                "plural": snapshot::PLURAL,
                "singular": "sandboxsnapshot",
                "shortNames": ["snap"],
            },
            "scope": "Namespaced",
            "versions": [version],
        },
    })
}
