//! Adds a problem of this machine to an error about a sandbox that did not start.

use agent_sandbox_engine::host_check;

/// Adds the machine's problem, if `host_check` finds one, to an error about a sandbox that did not start.
pub(crate) fn with_host_problem(error: impl Into<anyhow::Error>) -> anyhow::Error {
    match host_check::diagnose() {
        Some(problem) => error.into().context(problem),
        None => error.into(),
    }
}
