//! A sandbox's files.

use crate::{
    content::Content,
    handle::serialised,
    pending::{Pending, pending, pending_unit},
    stream::{Stream, Upload},
    tokio_runtime::Origin,
};
use agent_sandbox_client::{ClientError, Payload, SandboxHandle};
use bytes::Bytes;
use futures::TryStreamExt;
use pyo3::{prelude::*, pybacked::PyBackedBytes, types::PyBytes};

/// Files of one sandbox.
#[pyclass(frozen)]
pub(crate) struct Files {
    inner: SandboxHandle,
    origin: Origin,
}

impl Files {
    pub(crate) fn new(inner: SandboxHandle) -> Self {
        Self { inner, origin: Origin::here() }
    }

    fn inner(&self) -> PyResult<SandboxHandle> {
        self.origin.check()?;
        Ok(self.inner.clone())
    }
}

fn chunk(py: Python<'_>, bytes: Bytes) -> PyResult<Py<PyAny>> {
    Ok(PyBytes::new(py, &bytes).into_any().unbind())
}

#[pymethods]
impl Files {
    fn read(&self, path: String, limit: Option<u64>) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending(async move { inner.files().read_into(&path, limit, Content::of_length).await }, |py, content| {
            content.into_object(py)
        }))
    }

    /// `(stream, size or None)`.
    fn open(&self, path: String, offset: u64, length: Option<u64>) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending(
            async move {
                let download = inner.files().download(&path, offset, length).await?;
                let size = download.size();
                let broken = move |source| ClientError::Stream { operation: format!("read `{path}`"), source };
                Ok((Stream::new(download.into_stream().map_err(broken), chunk), size))
            },
            |py, (stream, size)| Ok((Py::new(py, stream)?, size).into_pyobject(py)?.into_any().unbind()),
        ))
    }

    #[pyo3(signature = (path, content, mode=None, append=false))]
    fn write(&self, path: String, content: PyBackedBytes, mode: Option<String>, append: bool) -> PyResult<Pending> {
        let inner = self.inner()?;
        let payload = Payload::Bytes(Bytes::from_owner(content));
        Ok(pending_unit(async move { inner.files().put(&path, payload, mode.as_deref(), append).await }))
    }

    /// An upload in chunks; the file appears atomically at `finish`.
    #[pyo3(signature = (path, mode=None, append=false))]
    fn upload(&self, path: String, mode: Option<String>, append: bool) -> PyResult<Upload> {
        let inner = self.inner()?;
        let (upload, body, done) = Upload::new();
        crate::tokio_runtime::handle()?.spawn(async move {
            let payload = Payload::Stream(body, None);
            let _ = done.send(inner.files().put(&path, payload, mode.as_deref(), append).await);
        });
        Ok(upload)
    }

    fn stat(&self, path: String, follow: bool) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending(async move { inner.files().stat(&path, follow).await }, |py, info| serialised(py, &info)))
    }

    fn exists(&self, path: String) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending(async move { inner.files().exists(&path).await }, |py, there| {
            Ok(there.into_pyobject(py)?.to_owned().into_any().unbind())
        }))
    }

    fn list(&self, path: String) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending(async move { inner.files().list(&path).await }, |py, list| serialised(py, &list)))
    }

    fn glob(&self, path: String, pattern: String) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending(async move { inner.files().glob(&path, &pattern).await }, |py, list| serialised(py, &list)))
    }

    fn search(&self, path: String, pattern: String, glob: Option<String>) -> PyResult<Pending> {
        let inner = self.inner()?;
        let search = async move { inner.files().search(&path, &pattern, glob.as_deref()).await };
        Ok(pending(search, |py, list| serialised(py, &list)))
    }

    fn remove(&self, path: String, recursive: bool) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending_unit(async move { inner.files().remove(&path, recursive).await }))
    }

    fn mkdir(&self, path: String) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending_unit(async move { inner.files().mkdir(&path).await }))
    }

    fn rename(&self, source: String, target: String, overwrite: bool) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending_unit(async move { inner.files().rename(&source, &target, overwrite).await }))
    }

    fn copy(&self, source: String, target: String, overwrite: bool) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending_unit(async move { inner.files().copy(&source, &target, overwrite).await }))
    }

    fn chmod(&self, path: String, mode: String) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending_unit(async move { inner.files().chmod(&path, &mode).await }))
    }

    fn watch(&self, path: String, recursive: bool) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending(async move { inner.files().watch(&path, recursive).await }, |py, changes| {
            Ok(Py::new(py, Stream::new(changes, |py, change| serialised(py, &change)))?.into_any())
        }))
    }

    /// Copies a local directory into a directory of the sandbox.
    fn upload_directory(&self, local: String, path: String) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending_unit(async move { inner.files().upload_directory(local.as_ref(), &path).await }))
    }

    /// Copies a directory of the sandbox into a local one.
    fn download_directory(&self, path: String, local: String) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending_unit(async move { inner.files().download_directory(&path, local.as_ref()).await }))
    }

    /// Copies a local file into the sandbox, without passing the content through Python.
    fn upload_file(&self, local: String, path: String) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending_unit(async move { inner.files().upload_file(local.as_ref(), &path).await }))
    }

    /// Copies a file of the sandbox into a local one, which appears atomically.
    fn download_file(&self, path: String, local: String) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending_unit(async move { inner.files().download_file(&path, local.as_ref()).await }))
    }
}
