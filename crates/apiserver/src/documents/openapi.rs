//! OpenAPI documents: v3 per group version, and v2 as one JSON document.
//!
//! Schemas of built-in kinds are Kubernetes' own (`data/kubernetes-schemas.json`); those of custom resources come from
//! their CRDs. Paths contain what kubectl looks for: the kind, and the parameter `fieldValidation`.

pub(crate) mod builtin;
mod v2;
mod v3;

use sha2::{Digest, Sha256};

use crate::registry::Snapshot;

/// A document and its ETag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    pub body: String,
    pub tag: String,
}

impl Document {
    fn new(body: String) -> Self {
        Self { tag: tag(&body), body }
    }
}

/// A short hash of a document.
pub fn tag(body: &str) -> String {
    Sha256::digest(body.as_bytes()).iter().take(16).map(|byte| format!("{byte:02X}")).collect()
}

/// The document at `path` below `/openapi`, or `None` if there is none.
pub fn document(snapshot: &Snapshot, path: &str) -> Option<Document> {
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    let body = match segments.as_slice() {
        ["openapi", "v3"] => v3::index(snapshot),
        ["openapi", "v3", "api", version] => v3::group_version(snapshot, "", version)?,
        ["openapi", "v3", "apis", group, version] => v3::group_version(snapshot, group, version)?,
        ["openapi", "v2"] => v2::document(snapshot),
        _ => return None,
    };
    Some(Document::new(body.to_string()))
}

/// `io.k8s.agents.v1.Thing` for `Thing` of `agents.k8s.io/v1`.
fn definition_name(group: &str, version: &str, kind: &str) -> String {
    let reversed: Vec<&str> = group.split('.').rev().collect();
    format!("{}.{version}.{kind}", reversed.join("."))
}

#[cfg(test)]
mod tests;
