//! Takes and removes the snapshots that SandboxSnapshot objects ask for, beside one node.
//!
//! The node keeps the files and knows nothing of this kind; this crate watches the objects, decides what to do for each
//! ([`plan`]), asks the node through [`LayerStore`], and reports in the objects' status. Nothing is remembered here: a
//! restarted process repeats what was not reported.

mod orphans;
mod plan;
mod reconcile;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kube::Client;

/// Serves the snapshots of one node until the future is dropped.
pub async fn run(client: Client, store: Arc<dyn LayerStore>, node_name: String) {
    let orphans = orphans::remove_all(client.clone(), Arc::clone(&store));
    futures::future::join(reconcile::run(client, store, node_name), orphans).await;
}

/// A snapshot that a node keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptSnapshot {
    pub namespace: String,
    /// Name and uid of the SandboxSnapshot that it was taken for.
    pub name: String,
    pub uid: String,
}

/// Names the files of a Sandbox and the snapshot to take of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakeRequest {
    pub namespace: String,
    /// Name and uid of the SandboxSnapshot. A repeated request returns the same snapshot.
    pub name: String,
    pub uid: String,
    /// Uid of the Sandbox.
    pub sandbox_uid: String,
}

/// A snapshot that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    pub bytes: u64,
    pub frozen: Option<Duration>,
}

/// Why a snapshot was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TakeError {
    /// A later attempt may succeed.
    #[error("{0}")]
    Transient(String),
    #[error("{0}")]
    Permanent(String),
}

/// The node's part.
#[async_trait]
pub trait LayerStore: Send + Sync + 'static {
    /// Whether this node keeps files of a Sandbox.
    fn keeps(&self, namespace: &str, sandbox_uid: &str) -> bool;

    async fn list(&self) -> Result<Vec<KeptSnapshot>, TakeError>;

    async fn take(&self, request: TakeRequest) -> Result<Taken, TakeError>;

    /// Removes a snapshot; a missing one is removed already.
    async fn remove(&self, namespace: &str, name: &str, uid: &str) -> Result<(), TakeError>;
}
