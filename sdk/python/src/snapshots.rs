//! Snapshots: the options as Python passes them, sandboxes made from snapshots, and the way back to one.

use crate::handle::duration;
use agent_sandbox_api::{snapshot::SandboxSnapshot, v1beta1::OperatingMode};
use agent_sandbox_client::{self as sdk, ClientError, SandboxClient, SandboxHandle, SnapshotRequest};
use futures::future::join_all;
use pyo3::prelude::*;
use std::{collections::BTreeMap, time::Duration};

/// Time after which the snapshot of a fork expires, beyond the fork's own waiting: the program may be killed.
const FORK_SNAPSHOT_LIFE: Duration = Duration::from_secs(3_600);

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct SnapshotOptions {
    namespace: String,
    sandbox: String,
    name: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    expires_after: Option<f64>,
    timeout: f64,
}

impl SnapshotOptions {
    /// The namespace, what to take a snapshot of, and the timeout.
    pub(crate) fn into_request(self) -> PyResult<(String, SnapshotRequest, Duration)> {
        let request = SnapshotRequest {
            sandbox: self.sandbox,
            name: self.name,
            labels: self.labels.unwrap_or_default(),
            expires_after: self.expires_after.map(duration).transpose()?,
        };
        Ok((self.namespace, request, duration(self.timeout)?))
    }
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct NewSandboxOptions {
    namespace: String,
    labels: Option<BTreeMap<String, String>>,
    expires_after: Option<f64>,
    ready_timeout: f64,
}

impl NewSandboxOptions {
    pub(crate) fn with_client(self, client: SandboxClient) -> PyResult<NewSandboxes> {
        Ok(NewSandboxes {
            client,
            namespace: self.namespace,
            labels: self.labels.unwrap_or_default(),
            expires_after: self.expires_after.map(duration).transpose()?,
            limit: duration(self.ready_timeout)?,
        })
    }
}

/// What new sandboxes of one snapshot have in common.
pub(crate) struct NewSandboxes {
    client: SandboxClient,
    namespace: String,
    labels: BTreeMap<String, String>,
    expires_after: Option<Duration>,
    limit: Duration,
}

impl NewSandboxes {
    /// Creates a sandbox from a snapshot and waits until it is ready. If that fails or the future is dropped, the
    /// sandbox is deleted again.
    pub(crate) async fn create(&self, snapshot: &str, name: &str) -> Result<SandboxHandle, ClientError> {
        let snapshot = sdk::find_snapshot(&self.client.cluster().client, &self.namespace, snapshot).await?;
        self.create_from(&snapshot, name).await
    }

    async fn create_from(&self, snapshot: &SandboxSnapshot, name: &str) -> Result<SandboxHandle, ClientError> {
        let mut wanted = sdk::sandbox_from(snapshot, name)?;
        wanted.metadata.labels = Some(self.labels.clone());
        let handle = self.client.handle(&self.namespace, name, None)?;
        let expire = async |_| match self.expires_after {
            Some(time) => handle.expire_after(time).await,
            None => Ok(()),
        };
        self.client.create_sandbox(&self.namespace, wanted, self.limit, expire).await?;
        Ok(handle)
    }

    /// Creates sandboxes with the files that a sandbox has now, and waits until all of them are ready. If one cannot
    /// be made, the others are deleted again.
    pub(crate) async fn fork(&self, sandbox: String, names: &[String]) -> Result<Vec<SandboxHandle>, ClientError> {
        let api = &self.client.cluster().client;
        let life = self.limit.saturating_mul(2).saturating_add(FORK_SNAPSHOT_LIFE);
        let request = SnapshotRequest { sandbox, expires_after: Some(life), ..SnapshotRequest::default() };
        let taken = sdk::take_snapshot(api, &self.namespace, request, self.limit).await?;
        let made = join_all(names.iter().map(|name| self.create_from(&taken, name))).await;
        // The new sandboxes keep the layers. A snapshot that cannot be deleted expires.
        let _ = sdk::delete_snapshot(api, &self.namespace, taken.name()).await;
        let (made, failed): (Vec<_>, Vec<_>) = made.into_iter().partition(Result::is_ok);
        let made: Vec<SandboxHandle> = made.into_iter().flatten().collect();
        let Some(error) = failed.into_iter().find_map(Result::err) else { return Ok(made) };
        // The error of the creation says more than that of a removal.
        let _ = join_all(made.iter().map(SandboxHandle::delete)).await;
        Err(error)
    }
}

/// Sets a sandbox back to a snapshot. One that ran is ready again when this ends.
pub(crate) async fn roll_back(
    client: &kube::Client,
    namespace: &str,
    sandbox: &str,
    snapshot: &str,
    limit: Duration,
) -> Result<(), ClientError> {
    let snapshot = sdk::find_snapshot(client, namespace, snapshot).await?;
    let restored = sdk::roll_back(client, namespace, sandbox, &snapshot, limit).await?;
    if restored.operating_mode() == OperatingMode::Running {
        sdk::sandbox_ready(client, namespace, sandbox, limit).await?;
    }
    Ok(())
}
