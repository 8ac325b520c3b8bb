//! The annotations that a controller writes on a claim, as one merge patch.

use agent_sandbox_api::{
    keys::{annotations, labels},
    v1beta1::SandboxClaim,
};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// The change of the annotation that names the assigned Sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Assignment {
    #[default]
    Keep,
    Set(String),
    /// Removes it: the claim will never have the Sandbox it names.
    Drop,
}

/// Annotations to write; those that the claim already has are left alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimAnnotations {
    pub assignment: Assignment,
    pub first_observed: Option<Timestamp>,
    pub trace_context: Option<String>,
    pub first_ready: Option<String>,
}

impl ClaimAnnotations {
    /// The merge patch of the claim's metadata; `None` when everything is present.
    pub fn change(&self, claim: &SandboxClaim) -> Option<Value> {
        let mut changes = Map::new();
        let recorded = claim.annotation(annotations::SANDBOX_NAME);
        match &self.assignment {
            Assignment::Keep => {}
            Assignment::Set(name) if recorded == Some(name) => {}
            Assignment::Set(name) => {
                changes.insert(annotations::SANDBOX_NAME.to_owned(), name.as_str().into());
            }
            Assignment::Drop => {
                if recorded.is_some() {
                    changes.insert(annotations::SANDBOX_NAME.to_owned(), Value::Null);
                }
            }
        }
        let once = [
            (annotations::CONTROLLER_FIRST_OBSERVED_AT, self.first_observed.map(format_nanoseconds)),
            (annotations::TRACE_CONTEXT, self.trace_context.clone()),
            (annotations::CLAIM_FIRST_READY_AT, self.first_ready.clone()),
        ];
        for (key, value) in once {
            if let Some(value) = value.filter(|_| claim.annotation(key).is_none()) {
                changes.insert(key.to_owned(), value.into());
            }
        }
        let mut metadata = json!({});
        if !changes.is_empty() {
            metadata["annotations"] = Value::Object(changes);
        }
        let changes_assignment = self.assignment != Assignment::Keep;
        if changes_assignment && claim.label(labels::LEGACY_SANDBOX_NAME).is_some() {
            metadata["labels"][labels::LEGACY_SANDBOX_NAME] = Value::Null;
        }
        metadata.as_object().is_some_and(|metadata| !metadata.is_empty()).then_some(metadata)
    }
}

/// RFC 3339 with nine fractional digits, so that no precision is lost.
pub fn format_nanoseconds(time: Timestamp) -> String {
    format!("{time:.9}")
}
