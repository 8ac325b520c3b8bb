//! The one runtime behind all calls: made at first use, ended at exit, made anew in a forked child.
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

/// Work at exit that is waited for: creations that are being undone.
const SETTLE: Duration = Duration::from_secs(10);
const STOP: Duration = Duration::from_secs(1);
/// One thread moves the bytes, one is there while it is busy.
const WORKERS: usize = 2;

/// Only ever locked while the interpreter is held, and never across a release: a fork cannot leave it locked.
static RUNTIME: Mutex<Option<Held>> = Mutex::new(None);

struct Held {
    /// The process whose threads these are.
    owner: u32,
    runtime: Runtime,
    /// Ends operations that nobody waits for any more, so that what they began is undone.
    over: CancellationToken,
}

/// The process that an object was made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin(u32);

impl Origin {
    pub(crate) fn here() -> Self {
        Self(std::process::id())
    }

    /// Connections do not survive a fork: the child would read what its parent asked for.
    pub(crate) fn check(self) -> PyResult<()> {
        if self == Self::here() {
            return Ok(());
        }
        let message = "this object was made before a fork and cannot be used in the child; make a new client there";
        Err(PyRuntimeError::new_err(message))
    }
}

/// The runtime of this process.
pub(crate) fn handle() -> PyResult<Handle> {
    with_runtime(|held| held.runtime.handle().clone())
}

/// Starts an operation, which the end of the interpreter ends.
pub(crate) fn spawn(operation: impl Future<Output = ()> + Send + 'static) -> PyResult<JoinHandle<()>> {
    with_runtime(|held| {
        let over = held.over.clone();
        held.runtime.spawn(async move {
            over.run_until_cancelled(operation).await;
        })
    })
}

fn with_runtime<T>(action: impl FnOnce(&Held) -> T) -> PyResult<T> {
    let mut held = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    let owner = std::process::id();
    if held.as_ref().is_some_and(|held| held.owner != owner) {
        // Its threads exist in the parent only; ending it here would wait for them for ever.
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
        *held = Some(Held { owner, runtime, over: CancellationToken::new() });
    }
    Ok(action(held.as_ref().expect("made above")))
}

fn block_signals() {
    // SAFETY: both calls write to and read from a local set only; the mask is this thread's own.
    unsafe {
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
}

/// Ends every thread. Called at exit; a later call starts anew.
#[pyfunction]
pub(crate) fn shutdown(py: Python<'_>) {
    let taken = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(held) = taken else { return };
    if held.owner != std::process::id() {
        std::mem::forget(held);
        return;
    }
    py.detach(move || {
        held.over.cancel();
        held.runtime.block_on(agent_sandbox_client::settle(SETTLE));
        held.runtime.shutdown_timeout(STOP);
    });
}
