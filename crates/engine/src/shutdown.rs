//! Stopping an engine from outside: the process that runs on a data folder, sandboxes without an engine, and the data
//! itself.

use crate::{
    DataDir, Engine, EngineConfig, ListenConfig, NodeConfig, Persistence, RunningEngine, StopError,
    data_dir::start_ticks, engine::STOP_SANDBOXES_TIMEOUT,
};
use rustix::process::{Pid, Signal};
use std::{fs, io, time::Duration};

/// Timeout for an engine's process to end: its sandboxes first, then the process.
const STOP_PROCESS_TIMEOUT: Duration = STOP_SANDBOXES_TIMEOUT.saturating_add(Duration::from_secs(5));
/// Interval between checks whether the process has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Tells the running engine to stop its sandboxes and to end (SIGINT), and waits until its process is gone.
pub async fn stop_running(data: &DataDir, running: &RunningEngine) -> Result<(), StopError> {
    let pid = i32::try_from(running.pid).ok().and_then(Pid::from_raw).ok_or(StopError::NoProcessId)?;
    rustix::process::kill_process(pid, Signal::INT).map_err(|error| match error {
        rustix::io::Errno::PERM => StopError::NotPermitted { pid: running.pid },
        error => StopError::Signal { pid: running.pid, source: error.into() },
    })?;
    let ended = async {
        while start_ticks(running.pid) == Some(running.start_ticks) {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    let waited = tokio::time::timeout(STOP_PROCESS_TIMEOUT, ended).await;
    waited.map_err(|_| StopError::ProcessTimeout { pid: running.pid, log: data.log() })
}

/// Stops the sandboxes that an engine left running when it crashed or was terminated: starts an engine only for that.
pub async fn stop_leftovers(data: &DataDir) -> Result<(), StopError> {
    let config = EngineConfig {
        audit: None,
        persistence: Persistence::Folder(data.clone()),
        listen: ListenConfig::default(),
        node: NodeConfig { images: Some(data.images()), ..NodeConfig::default() },
    };
    let engine = Engine::start(config).await?;
    engine.stop_sandboxes().await?;
    engine.shutdown().await;
    Ok(())
}

/// Deletes what the engine created, and the folder if nothing else is in it.
pub fn purge(data: &DataDir) -> Result<(), StopError> {
    for path in data.contents() {
        // `std::fs::remove_dir_all` would fail: files of sandboxes may be unreadable or belong to other user ids.
        let removed = agent_sandbox_node::kernel::remove_data(&path);
        match removed {
            Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(StopError::Delete { path, source }),
            _ => {}
        }
    }
    // Fails, as it should, when the user keeps other files in the folder.
    let _ = fs::remove_dir(data.path());
    Ok(())
}
