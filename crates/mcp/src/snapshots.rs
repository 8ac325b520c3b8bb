//! The snapshot tools: a session's snapshots, which carry its label as its claims do, and the sandboxes made from them,
//! which are Sandboxes without a claim.

use crate::{
    Sandboxes,
    arguments::{Fork, Rollback, Snapshot},
    sandboxes::{Opened, ToolError, api_error, idle_annotation},
};
use agent_sandbox_api::{snapshot::SandboxSnapshot, v1beta1::OperatingMode};
use agent_sandbox_client::{self as sdk, SandboxHandle, SnapshotRequest};
use futures::future::join_all;
use kube::{Api, api::ListParams};
use serde_json::{Value, json};
use std::time::Duration;

/// Time after which the snapshot of a fork expires, beyond the fork's own waiting: this server may be killed.
const FORK_SNAPSHOT_LIFE: Duration = Duration::from_secs(3_600);

impl Sandboxes {
    pub(crate) async fn snapshot(&self, session: &str, wanted: Snapshot) -> Result<Value, ToolError> {
        let opened = self.open(session, &wanted.sandbox, wanted.timeout.0).await?;
        let life = Duration::from_secs(wanted.expires_after_seconds);
        let taken = self.take(session, &opened, life, wanted.timeout.0).await?;
        Ok(opened.result(json!({"snapshot_name": taken.name()})))
    }

    pub(crate) async fn fork(&self, session: &str, wanted: Fork) -> Result<Value, ToolError> {
        let limit = wanted.timeout.0;
        let opened = self.open(session, &wanted.sandbox, limit).await?;
        let handle = &opened.handle;
        let (snapshot, temporary) = match &wanted.snapshot_name {
            Some(name) => (self.own_snapshot(session, handle.namespace(), name).await?, false),
            None => {
                let life = limit.saturating_mul(2).saturating_add(FORK_SNAPSHOT_LIFE);
                (self.take(session, &opened, life, limit).await?, true)
            }
        };
        let idle = wanted.shutdown_after_seconds.map(Duration::from_secs);
        let made =
            join_all((0..wanted.count.0).map(|_| self.create_from(session, &opened, &snapshot, idle, limit))).await;
        if temporary {
            // The new sandboxes keep the layers. A snapshot that cannot be deleted expires.
            let _ = sdk::delete_snapshot(&self.client.cluster().client, handle.namespace(), snapshot.name()).await;
        }
        let (made, failed): (Vec<_>, Vec<_>) = made.into_iter().partition(Result::is_ok);
        let names: Vec<String> = made.into_iter().flatten().collect();
        if let Some(error) = failed.into_iter().find_map(Result::err) {
            let removals = names.iter().map(|name| self.delete_fork(handle.namespace(), name, None));
            // The error of the creation says more than that of a removal.
            let _ = join_all(removals).await;
            return Err(error);
        }
        Ok(opened.result(json!({"sandbox_claim_names": names})))
    }

    pub(crate) async fn rollback(&self, session: &str, wanted: Rollback) -> Result<Value, ToolError> {
        let limit = wanted.timeout.0;
        let opened = self.open(session, &wanted.sandbox, limit).await?;
        let (client, handle) = (&self.client.cluster().client, &opened.handle);
        let snapshot = self.own_snapshot(session, handle.namespace(), &wanted.snapshot_name).await?;
        let restored = sdk::roll_back(client, handle.namespace(), reference(handle), &snapshot, limit).await?;
        if restored.operating_mode() == OperatingMode::Running {
            sdk::sandbox_ready(client, handle.namespace(), handle.name(), limit).await?;
        }
        Ok(opened.result(json!({"snapshot_name": snapshot.name()})))
    }

    async fn take(
        &self,
        session: &str,
        opened: &Opened,
        life: Duration,
        limit: Duration,
    ) -> Result<SandboxSnapshot, ToolError> {
        let handle = &opened.handle;
        let request = SnapshotRequest {
            sandbox: reference(handle).to_owned(),
            name: None,
            labels: self.labels(session),
            expires_after: Some(life),
        };
        Ok(sdk::take_snapshot(&self.client.cluster().client, handle.namespace(), request, limit).await?)
    }

    /// A complete snapshot of the session. One of another session is reported as not found.
    async fn own_snapshot(&self, session: &str, namespace: &str, name: &str) -> Result<SandboxSnapshot, ToolError> {
        let client = &self.client.cluster().client;
        let api: Api<SandboxSnapshot> = Api::namespaced(client.clone(), namespace);
        let own = api.list_metadata(&ListParams::default().labels(&self.selector(session))).await;
        let own = own.map_err(|error| api_error(format!("list snapshots in `{namespace}`"), error))?;
        if !own.items.iter().any(|snapshot| snapshot.metadata.name.as_deref() == Some(name)) {
            return Err(ToolError::SnapshotNotFound { namespace: namespace.to_owned(), name: name.to_owned() });
        }
        Ok(sdk::find_snapshot(client, namespace, name).await?)
    }

    /// Creates a sandbox from a snapshot for the session, and returns its name when it is ready.
    async fn create_from(
        &self,
        session: &str,
        origin: &Opened,
        snapshot: &SandboxSnapshot,
        idle: Option<Duration>,
        limit: Duration,
    ) -> Result<String, ToolError> {
        let namespace = origin.handle.namespace();
        let name = format!("sandbox-{}", &uuid::Uuid::new_v4().simple().to_string()[..8]);
        let mut wanted = sdk::sandbox_from(snapshot, &name)?;
        wanted.metadata.labels = Some(self.labels(session));
        wanted.metadata.annotations.get_or_insert_default().extend(idle_annotation(idle));
        let handle = self.client.handle(namespace, &name, None)?;
        let expire = async |_| match idle {
            Some(idle) => handle.expire_after(idle + limit).await,
            None => Ok(()),
        };
        self.client.create_sandbox(namespace, wanted, limit, expire).await?;
        Ok(name)
    }
}

/// The name by which the SDK finds a sandbox: that of its claim, if it has one.
fn reference(handle: &SandboxHandle) -> &str {
    handle.claim().unwrap_or(handle.name())
}
