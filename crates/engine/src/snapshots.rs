//! Snapshots of Sandboxes of this engine: the snapshotter over the runtime that keeps their files.

use agent_sandbox_node::kernel::{KernelRuntime, SnapshotRequest};
use agent_sandbox_node::runtime::{RuntimeError, chain};
use agent_sandbox_snapshotter::{KeptSnapshot, LayerStore, TakeError, TakeRequest, Taken};
use async_trait::async_trait;
use std::sync::Arc;

/// The layers of this engine's node.
pub(crate) struct Layers(pub(crate) Arc<KernelRuntime>);

/// The node's key of a Sandbox's files.
fn owner(namespace: &str, sandbox_uid: &str) -> String {
    agent_sandbox_node::kubelet::pod_sandbox::owner_key(Some(namespace), sandbox_uid)
}

#[async_trait]
impl LayerStore for Layers {
    fn keeps(&self, namespace: &str, sandbox_uid: &str) -> bool {
        self.0.keeps_layers_of(&owner(namespace, sandbox_uid))
    }

    async fn take(&self, request: TakeRequest) -> Result<Taken, TakeError> {
        let owner = owner(&request.namespace, &request.sandbox_uid);
        let TakeRequest { namespace, name, uid, .. } = request;
        let taken = self.0.take_snapshot(SnapshotRequest { namespace, name, uid, owner }).await;
        taken.map(|taken| Taken { bytes: taken.bytes, frozen: taken.frozen }).map_err(take_error)
    }

    async fn list(&self) -> Result<Vec<KeptSnapshot>, TakeError> {
        let runtime = Arc::clone(&self.0);
        let kept = tokio::task::spawn_blocking(move || runtime.snapshots()).await;
        let kept = kept.map_err(|error| TakeError::Transient(error.to_string()))?.map_err(take_error)?;
        Ok(kept.into_iter().map(|[namespace, name, uid]| KeptSnapshot { namespace, name, uid }).collect())
    }

    async fn remove(&self, namespace: &str, name: &str, uid: &str) -> Result<(), TakeError> {
        self.0.remove_snapshot(namespace, name, uid).await.map_err(take_error)
    }
}

fn take_error(error: RuntimeError) -> TakeError {
    match error.is_transient() {
        true => TakeError::Transient(chain(&error)),
        false => TakeError::Permanent(chain(&error)),
    }
}
