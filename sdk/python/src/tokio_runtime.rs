//! The Tokio runtime of the process: created at first use, shut down at exit, created again in a forked child.
#![expect(unsafe_code, reason = "worker threads block signals, so that Python's main thread gets them")]

use pyo3::{exceptions::PyRuntimeError, prelude::*};
use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

/// Timeout at exit for deleting objects of cancelled creations.
const UNDO_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout at exit for stopping the runtime's threads.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of worker threads: one can move bytes while the other handles requests.
const WORKERS: usize = 2;

/// Only locked while the GIL is held, and never across a release of it, so that a fork cannot leave it locked.
static RUNTIME: Mutex<Option<ProcessRuntime>> = Mutex::new(None);

struct ProcessRuntime {
    /// Id of the process that the runtime's threads belong to.
    owner: u32,
    runtime: Runtime,
    /// Cancelled at exit: ends operations that are still running, so that unfinished creations are undone.
    shutdown: CancellationToken,
}

/// The process in which an object was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin(u32);

impl Origin {
    pub(crate) fn here() -> Self {
        Self(std::process::id())
    }

    /// Fails in a forked child. Connections do not survive a fork: the child would read the responses of its parent.
    pub(crate) fn check(self) -> PyResult<()> {
        if self == Self::here() {
            return Ok(());
        }
        let message =
            "this object was created before a fork and cannot be used in the child; create a new client there";
        Err(PyRuntimeError::new_err(message))
    }
}

/// The runtime of this process.
pub(crate) fn handle() -> PyResult<Handle> {
    with_runtime(|held| held.runtime.handle().clone())
}

/// Starts an operation, which is cancelled at exit.
pub(crate) fn spawn(operation: impl Future<Output = ()> + Send + 'static) -> PyResult<JoinHandle<()>> {
    with_runtime(|held| {
        let shutdown = held.shutdown.clone();
        held.runtime.spawn(async move {
            shutdown.run_until_cancelled(operation).await;
        })
    })
}

fn with_runtime<T>(action: impl FnOnce(&ProcessRuntime) -> T) -> PyResult<T> {
    let mut held = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    let owner = std::process::id();
    if held.as_ref().is_some_and(|held| held.owner != owner) {
        // The runtime's threads exist in the parent only; dropping it here would wait for them forever.
        std::mem::forget(held.take());
    }
    if held.is_none() {
        let built = Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_name("agent-sandbox")
            .on_thread_start(block_signals)
            .enable_all()
            .build();
        let runtime = built.map_err(|error| PyRuntimeError::new_err(format!("cannot start threads: {error}")))?;
        *held = Some(ProcessRuntime { owner, runtime, shutdown: CancellationToken::new() });
    }
    Ok(action(held.as_ref().expect("created above")))
}

fn block_signals() {
    // SAFETY: both calls write to and read from a local set only; the mask is this thread's own.
    unsafe {
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
}

/// Ends every thread. Called at exit; a later operation creates a new runtime.
#[pyfunction]
pub(crate) fn shutdown(py: Python<'_>) {
    let taken = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(held) = taken else { return };
    if held.owner != std::process::id() {
        std::mem::forget(held);
        return;
    }
    py.detach(move || {
        held.shutdown.cancel();
        held.runtime.block_on(agent_sandbox_client::wait_for_cleanup(UNDO_TIMEOUT));
        held.runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    });
}
