//! An operation that is ready to start: waited for, or started with a callback.

use crate::{errors, runtime};
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

/// Makes the Python object of a result, with the interpreter at hand.
type Convert = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;
type Outcome = Result<Convert, ClientError>;
type Operation = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// One operation. It starts when it is waited for, and only once.
#[pyclass(frozen)]
pub(crate) struct Pending {
    operation: Mutex<Option<Operation>>,
    started: Mutex<Option<AbortHandle>>,
}

/// An operation, and how its result becomes a Python object.
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

/// An operation without a result.
pub(crate) fn pending_unit(operation: impl Future<Output = Result<(), ClientError>> + Send + 'static) -> Pending {
    pending(operation, |py, ()| Ok(py.None()))
}

/// Where the runtime leaves the outcome, and how it says so.
struct Slot {
    outcome: Mutex<Option<Outcome>>,
    ready: OwnedFd,
}

/// Says that the slot is final, also when the operation was cancelled or panicked.
struct Announce(Arc<Slot>);

impl Drop for Announce {
    fn drop(&mut self) {
        // A counter that is full is readable as well.
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
    /// Runs to the end. Other threads run meanwhile; a signal whose handler raises ends the operation at once.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let operation = self.take()?;
        let ready = eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| PyRuntimeError::new_err(errno.to_string()))?;
        let slot = Arc::new(Slot { outcome: Mutex::new(None), ready });
        let announce = Announce(Arc::clone(&slot));
        let task = runtime::spawn(async move {
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

    /// Starts, and calls `callback(ok, result or exception)` from another thread at the end.
    fn start(&self, callback: Py<PyAny>) -> PyResult<()> {
        let operation = self.take()?;
        let task = runtime::spawn(async move {
            let outcome = operation.await;
            // An interpreter that is going away has nobody left who waits.
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

    /// Ends a started operation; its callback is not called any more.
    fn cancel(&self) {
        if let Some(task) = self.started.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }
}
