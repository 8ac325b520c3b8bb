//! Records the controller's writes in the audit log: what it creates and deletes, and for whom it changes a Sandbox.

use std::sync::Arc;

use agent_sandbox_telemetry::audit::{Action, AuditLog, Decision, Record, Source};
use async_trait::async_trait;
use serde_json::Value;

use crate::{
    api_client::{ApiClient, ApiError, Lane, Request, Verb},
    cache::{Key, Kind, Object},
};

/// An [`ApiClient`] that records what it sends.
pub struct AuditedApiClient {
    pub api: Arc<dyn ApiClient>,
    pub log: AuditLog,
    /// The controller's name in the records.
    pub user: String,
}

#[async_trait]
impl ApiClient for AuditedApiClient {
    async fn send(&self, lane: Lane, request: &Request) -> Result<Option<Object>, ApiError> {
        let result = self.api.send(lane, request).await;
        if let Some(record) = record(request, &result) {
            self.log.write(Record { user: self.user.clone(), ..record });
        }
        result
    }

    async fn read(&self, lane: Lane, kind: Kind, key: &Key) -> Result<Option<Object>, ApiError> {
        self.api.read(lane, kind, key).await
    }
}

/// The record of a write; `None` for statuses and for metadata of children.
fn record(request: &Request, result: &Result<Option<Object>, ApiError>) -> Option<Record> {
    let (action, body) = match &request.verb {
        Verb::Create { body } => (Action::Create, Some(body)),
        Verb::Patch { body, .. } if request.kind == Kind::Sandbox => (Action::Patch, Some(body)),
        Verb::Patch { .. } | Verb::PatchStatus { .. } => return None,
        Verb::Delete { .. } => (Action::Delete, None),
    };
    let (decision, status) = match result {
        Ok(_) if action == Action::Create => (Decision::Allow, 201),
        Ok(_) => (Decision::Allow, 200),
        Err(ApiError::Forbidden { .. }) => (Decision::Deny, 403),
        Err(ApiError::NotFound { .. }) => (Decision::Allow, 404),
        Err(ApiError::Conflict { .. } | ApiError::AlreadyExists { .. }) => (Decision::Allow, 409),
        Err(ApiError::Invalid { .. }) => (Decision::Allow, 422),
        Err(ApiError::Busy { .. }) => (Decision::Allow, 429),
        Err(ApiError::Unknown { .. } | ApiError::NotLeader) => (Decision::Allow, 0),
    };
    let mut record = Record::new(Source::Controller, action, decision, status);
    record.resource = resource_name(request.kind);
    record.namespace = request.key.namespace.to_string();
    record.name = request.key.name.to_string();
    record.reason = match result {
        Err(error) => error.to_string(),
        Ok(_) => body.and_then(owner).unwrap_or_default(),
    };
    Some(record)
}

fn resource_name(kind: Kind) -> String {
    match kind.group_version().split_once('/') {
        Some((group, _)) => format!("{}.{group}", kind.plural()),
        None => kind.plural().to_owned(),
    }
}

/// Who the object is written for.
fn owner(body: &Value) -> Option<String> {
    let owners = body["metadata"]["ownerReferences"].as_array()?;
    let owner = owners.iter().find(|owner| owner["controller"] == true)?;
    Some(format!("for {} {}", owner["kind"].as_str()?, owner["name"].as_str()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_write_names_the_object_and_its_owner() {
        let body = json!({"metadata": {"ownerReferences": [
            {"kind": "SandboxClaim", "name": "c1", "controller": true},
        ]}});
        let key = Key { namespace: "team".into(), name: "box".into() };
        let request = Request::create(Kind::Sandbox, key.clone(), body);
        let written = record(&request, &Ok(None)).unwrap();
        assert_eq!(
            (written.resource.as_str(), written.namespace.as_str(), written.name.as_str(), written.status),
            ("sandboxes.agents.x-k8s.io", "team", "box", 201)
        );
        assert_eq!(written.reason, "for SandboxClaim c1");
        let refused = record(&request, &Err(ApiError::Forbidden { message: "exceeded quota".to_owned() })).unwrap();
        assert_eq!(
            (refused.decision, refused.status, refused.reason.as_str()),
            (Decision::Deny, 403, "exceeded quota")
        );
        let request = Request::create(Kind::Pod, key, json!({}));
        assert_eq!(record(&request, &Ok(None)).unwrap().resource, "pods");
    }
}
