//! The end of a container as its status shows it. Pure.

use crate::kubelet::events::OOM_KILLED;
use crate::kubelet::model::{Run, Termination};
use crate::runtime::Exit;

/// The container id as `containerID` shows it, prefixed with the name of the runtime.
pub(crate) fn container_id(raw: &str) -> String {
    if raw.contains("://") { raw.to_owned() } else { format!("agent-sandbox://{raw}") }
}

/// An exit as `state.terminated` shows it.
pub(crate) fn termination(run: &Run, exit: &Exit, message: Option<String>) -> Termination {
    let reason = match (exit.oom_killed, exit.code) {
        (true, _) => OOM_KILLED,
        (false, 0) => "Completed",
        (false, _) => "Error",
    };
    Termination {
        id: run.id.clone(),
        exit_code: exit.code,
        signal: exit.signal,
        reason: reason.to_owned(),
        message,
        started_at: Some(run.started_at),
        finished_at: exit.finished_at,
    }
}
