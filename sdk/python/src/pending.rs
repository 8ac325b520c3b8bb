//! An operation that has not started yet; it can be waited for, or started with a callback.

use crate::{errors, tokio_runtime};
use agent_sandbox_client::ClientError;
use pyo3::{exceptions::PyRuntimeError, prelude::*};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    fd::OwnedFd,
    io::Errno,
};
use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::task::AbortHandle;

/// Converts a result to a Python object while the GIL is held.
type Convert = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;
type Outcome = Result<Convert, ClientError>;
type Operation = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// One operation. It starts when it is waited for or started with a callback, and only once.
#[pyclass(frozen)]
pub(crate) struct Pending {
    operation: Mutex<Option<Operation>>,
    started: Mutex<Option<AbortHandle>>,
}

/// Wraps an operation and the conversion of its result to a Python object.
pub(crate) fn pending<T: Send + 'static>(
    operation: impl Future<Output = Result<T, ClientError>> + Send + 'static,
    convert: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
) -> Pending {
    let operation: Operation = Box::pin(async move {
        let value = operation.await?;
        let convert: Convert = Box::new(move |py| convert(py, value));
        Ok(convert)
    });
    Pending { operation: Mutex::new(Some(operation)), started: Mutex::new(None) }
}

/// Wraps an operation without a result.
pub(crate) fn pending_unit(operation: impl Future<Output = Result<(), ClientError>> + Send + 'static) -> Pending {
    pending(operation, |py, ()| Ok(py.None()))
}

/// The place where the runtime stores the outcome, and the eventfd that signals it.
struct Slot {
    outcome: Mutex<Option<Outcome>>,
    ready: OwnedFd,
}

/// Signals on drop that the slot is final, also when the operation was cancelled or panicked.
struct SignalOnDrop(Arc<Slot>);

impl Drop for SignalOnDrop {
    fn drop(&mut self) {
        // The write can fail only when the eventfd's counter is full, and then it is readable anyway.
        let _ = rustix::io::write(&self.0.ready, &1_u64.to_ne_bytes());
    }
}

impl Pending {
    fn take(&self) -> PyResult<Operation> {
        let taken = self.operation.lock().unwrap_or_else(PoisonError::into_inner).take();
        taken.ok_or_else(|| PyRuntimeError::new_err("this operation was started already"))
    }
}

#[pymethods]
impl Pending {
    /// Runs the operation to its end, with the GIL released. A signal whose handler raises cancels the operation.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let operation = self.take()?;
        let ready = eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| PyRuntimeError::new_err(errno.to_string()))?;
        let slot = Arc::new(Slot { outcome: Mutex::new(None), ready });
        let announce = SignalOnDrop(Arc::clone(&slot));
        let task = tokio_runtime::spawn(async move {
            let outcome = operation.await;
            *announce.0.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        })?;
        loop {
            let woken = py.detach(|| poll(&mut [PollFd::new(&slot.ready, PollFlags::IN)], None));
            match woken {
                Ok(_) => break,
                Err(Errno::INTR) => {
                    if let Err(raised) = py.check_signals() {
                        task.abort();
                        return Err(raised);
                    }
                }
                Err(errno) => {
                    task.abort();
                    return Err(PyRuntimeError::new_err(format!("cannot wait: {errno}")));
                }
            }
        }
        let outcome = slot.outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
        match outcome {
            Some(Ok(convert)) => convert(py),
            Some(Err(error)) => Err(errors::raise(py, &error)),
            None => Err(PyRuntimeError::new_err("the operation ended without a result; please report this")),
        }
    }

    /// Starts the operation, and calls `callback(ok, result or exception)` from another thread when it ends.
    fn start(&self, callback: Py<PyAny>) -> PyResult<()> {
        let operation = self.take()?;
        let task = tokio_runtime::spawn(async move {
            let outcome = operation.await;
            // When the interpreter is shutting down, the callback is not called.
            Python::try_attach(|py| {
                let result = match outcome {
                    Ok(convert) => convert(py),
                    Err(error) => Err(errors::raise(py, &error)),
                };
                let called = match result {
                    Ok(value) => callback.call1(py, (true, value)),
                    Err(error) => callback.call1(py, (false, error)),
                };
                if let Err(error) = called {
                    error.write_unraisable(py, None);
                }
            });
        })?;
        *self.started.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.abort_handle());
        Ok(())
    }

    /// Cancels a started operation; its callback is not called.
    fn cancel(&self) {
        if let Some(task) = self.started.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }
}
