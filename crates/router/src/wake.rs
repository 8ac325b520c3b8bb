//! What happens when a request names a Sandbox that has no live Pod, perhaps because it is suspended.

use async_trait::async_trait;

/// Called at most once per request, before the router waits for a Pod.
#[async_trait]
pub trait Wake: Send + Sync + 'static {
    /// Starts resuming the Sandbox if it is suspended. The request waits for the Pod within its own time budget.
    async fn wake(&self, namespace: &str, sandbox: &str) -> WakeOutcome;
}

/// What the hook found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeOutcome {
    /// A Pod will come; wait for it.
    Waking,
    /// Nothing to wake; the request fails as if there were no hook.
    NotSuspended,
}
