//! A background process.

use crate::{
    handle::event_to_python,
    pending::{Pending, pending, pending_unit},
    stream::Stream,
    tokio_runtime::Origin,
};
use agent_sandbox_client as sdk;
use bytes::Bytes;
use pyo3::{prelude::*, pybacked::PyBackedBytes};

/// A process in a sandbox.
#[pyclass(frozen)]
pub(crate) struct Process {
    inner: sdk::Process,
    origin: Origin,
}

impl Process {
    pub(crate) fn new(inner: sdk::Process) -> Self {
        Self { inner, origin: Origin::here() }
    }

    fn inner(&self) -> PyResult<sdk::Process> {
        self.origin.check()?;
        Ok(self.inner.clone())
    }
}

#[pymethods]
impl Process {
    #[getter]
    fn id(&self) -> i32 {
        self.inner.id()
    }

    #[getter]
    fn pid(&self) -> i32 {
        self.inner.pid()
    }

    fn info(&self) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending(async move { inner.info().await }, |py, info| crate::handle::serialised(py, &info)))
    }

    fn wait(&self) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending(async move { inner.wait().await }, |py, info| crate::handle::serialised(py, &info)))
    }

    fn events(&self, offset: u64) -> PyResult<Stream> {
        Ok(Stream::new(self.inner()?.events(offset), event_to_python))
    }

    fn write(&self, data: PyBackedBytes) -> PyResult<Pending> {
        let inner = self.inner()?;
        let bytes = Bytes::from_owner(data);
        Ok(pending_unit(async move { inner.write(bytes).await }))
    }

    fn end_input(&self) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending_unit(async move { inner.end_input().await }))
    }

    fn resize(&self, columns: u16, rows: u16) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending_unit(async move { inner.resize(columns, rows).await }))
    }

    fn signal(&self, signal: String) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending_unit(async move { inner.signal(&signal).await }))
    }

    fn kill(&self) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending_unit(async move { inner.kill().await }))
    }
}
