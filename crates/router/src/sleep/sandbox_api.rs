//! Reads Sandboxes and writes their annotations.

use std::time::Duration;

use agent_sandbox_api::keys::annotations;
use agent_sandbox_api::sleep;
use agent_sandbox_api::v1beta1::{OperatingMode, Sandbox};
use jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use crate::resolve::index::LivePod;

/// Timeout for one request to the API: a request of a client may wait for it.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Why a Sandbox could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SandboxApiError {
    #[error("the sandbox changed at the same time")]
    Conflict,
    #[error("the sandbox does not exist")]
    Absent,
    #[error("the API did not respond within {TIMEOUT:?}")]
    Timeout,
    #[error(transparent)]
    Api(Box<kube::Error>),
}

impl From<kube::Error> for SandboxApiError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 409 => Self::Conflict,
            kube::Error::Api(status) if status.code == 404 => Self::Absent,
            other => Self::Api(Box::new(other)),
        }
    }
}

#[derive(Clone)]
pub(crate) struct SandboxApi {
    client: Client,
}

impl SandboxApi {
    pub(super) fn new(client: Client) -> Self {
        Self { client }
    }

    pub(super) async fn get(&self, namespace: &str, name: &str) -> Result<Sandbox, SandboxApiError> {
        let api: Api<Sandbox> = Api::namespaced(self.client.clone(), namespace);
        let sandbox = tokio::time::timeout(TIMEOUT, api.get(name)).await.map_err(|_| SandboxApiError::Timeout)?;
        Ok(sandbox?)
    }

    /// Records the use of a Pod's Sandbox; returns whether the Sandbox is to run. The record orders this use before or
    /// after an idle suspension, which is valid for one version of the Sandbox only.
    pub(super) async fn record_activity(&self, pod: &LivePod, at: Timestamp) -> Result<bool, SandboxApiError> {
        let metadata = json!({
            "uid": &*pod.sandbox_uid,
            "annotations": { annotations::LAST_ACTIVITY_AT: sleep::format_time(at) },
        });
        let sandbox = self.patch(&pod.namespace, &pod.sandbox, metadata).await?;
        Ok(sandbox.operating_mode() == OperatingMode::Running)
    }

    /// Sets an annotation of exactly this version of the Sandbox to the current time.
    pub(super) async fn stamp(&self, sandbox: &Sandbox, key: &str) -> Result<(), SandboxApiError> {
        let metadata = json!({
            "uid": sandbox.uid(),
            "resourceVersion": sandbox.resource_version(),
            "annotations": { key: sleep::format_time(Timestamp::now()) },
        });
        self.patch(sandbox.namespace(), sandbox.name(), metadata).await.map(drop)
    }

    async fn patch(
        &self,
        namespace: &str,
        name: &str,
        metadata: serde_json::Value,
    ) -> Result<Sandbox, SandboxApiError> {
        let api: Api<Sandbox> = Api::namespaced(self.client.clone(), namespace);
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let params = PatchParams::default();
        let written = tokio::time::timeout(TIMEOUT, api.patch(name, &params, &patch)).await;
        Ok(written.map_err(|_| SandboxApiError::Timeout)??)
    }
}
