//! The hook for a request to a Sandbox without a live Pod, which may be suspended.

use async_trait::async_trait;

/// Called at most once per request, before the router waits for a Pod.
#[async_trait]
pub trait Wake: Send + Sync + 'static {
    /// Starts resuming the Sandbox if it is suspended. The request waits for the Pod within its own time budget.
    async fn wake(&self, namespace: &str, sandbox: &str) -> WakeOutcome;
}

/// The result of the hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeOutcome {
    /// A Pod will appear; the request waits for it.
    Waking,
    /// The Sandbox is not suspended; the request fails as it would without the hook.
    NotSuspended,
}
