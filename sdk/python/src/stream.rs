//! Streams in both directions: items received from a sandbox, and uploads sent to it in chunks.

use crate::{
    pending::{Pending, pending, pending_unit},
    tokio_runtime::Origin,
};
use agent_sandbox_client::{ByteStream, ClientError};
use bytes::Bytes;
use futures::{Stream as Items, StreamExt, stream::BoxStream};
use pyo3::{exceptions::PyRuntimeError, prelude::*, pybacked::PyBackedBytes};
use std::sync::Arc;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;

/// Converts one item to a Python object.
type Item = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// The received items; `None` once the stream has ended or was closed.
type Arriving = Option<BoxStream<'static, Result<Item, ClientError>>>;
/// The outcome of an upload; `None` once `finish` has taken it.
type UploadOutcome = Option<oneshot::Receiver<Result<(), ClientError>>>;

/// Maximum number of chunks that are queued for sending.
const IN_FLIGHT: usize = 4;

/// A stream of received items. Closing it ends the operation that produces them.
#[pyclass(frozen)]
pub(crate) struct Stream {
    items: Arc<Mutex<Arriving>>,
    origin: Origin,
}

impl Stream {
    pub(crate) fn new<T: Send + 'static>(
        items: impl Items<Item = Result<T, ClientError>> + Send + 'static,
        convert: impl Fn(Python<'_>, T) -> PyResult<Py<PyAny>> + Clone + Send + Sync + 'static,
    ) -> Self {
        let items = items.map(move |item| {
            let convert = convert.clone();
            item.map(|value| Box::new(move |py: Python<'_>| convert(py, value)) as Item)
        });
        Self { items: Arc::new(Mutex::new(Some(items.boxed()))), origin: Origin::here() }
    }
}

#[pymethods]
impl Stream {
    /// The next item, or None at the end.
    fn next(&self) -> PyResult<Pending> {
        self.origin.check()?;
        let items = Arc::clone(&self.items);
        let next = async move {
            let mut held = items.lock().await;
            let Some(stream) = held.as_mut() else { return Ok(None) };
            match stream.next().await {
                Some(Ok(item)) => Ok(Some(item)),
                Some(Err(error)) => {
                    *held = None;
                    Err(error)
                }
                None => {
                    *held = None;
                    Ok(None)
                }
            }
        };
        Ok(pending(next, |py, item| item.map_or_else(|| Ok(py.None()), |item| item(py))))
    }

    fn close(&self) -> PyResult<Pending> {
        self.origin.check()?;
        let items = Arc::clone(&self.items);
        Ok(pending_unit(async move {
            *items.lock().await = None;
            Ok(())
        }))
    }
}

/// An upload in chunks. Without `finish` nothing is stored.
#[pyclass(frozen)]
pub(crate) struct Upload {
    sender: Arc<Mutex<Option<mpsc::Sender<std::io::Result<Bytes>>>>>,
    result: Arc<Mutex<UploadOutcome>>,
    origin: Origin,
}

impl Upload {
    /// The upload, the body to send, and the channel that reports the outcome.
    pub(crate) fn new() -> (Self, ByteStream, oneshot::Sender<Result<(), ClientError>>) {
        let (sender, receiver) = mpsc::channel(IN_FLIGHT);
        let (done, result) = oneshot::channel();
        let upload = Self {
            sender: Arc::new(Mutex::new(Some(sender))),
            result: Arc::new(Mutex::new(Some(result))),
            origin: Origin::here(),
        };
        (upload, Box::pin(ReceiverStream::new(receiver)), done)
    }
}

#[pymethods]
impl Upload {
    /// Sends a chunk. False when the other side accepts no more: `finish` then reports why.
    fn send(&self, data: PyBackedBytes) -> PyResult<Pending> {
        self.origin.check()?;
        let sender = Arc::clone(&self.sender);
        let bytes = Bytes::from_owner(data);
        let send = async move {
            let held = sender.lock().await;
            Ok(match held.as_ref() {
                Some(sender) => sender.send(Ok(bytes)).await.is_ok(),
                None => false,
            })
        };
        Ok(pending(send, |py, taken| Ok(taken.into_pyobject(py)?.to_owned().into_any().unbind())))
    }

    /// Ends the upload and waits until it is stored.
    fn finish(&self) -> PyResult<Pending> {
        self.origin.check()?;
        let (sender, result) = (Arc::clone(&self.sender), Arc::clone(&self.result));
        let Some(result) = result.try_lock().ok().and_then(|mut held| held.take()) else {
            return Err(PyRuntimeError::new_err("this upload is already finished"));
        };
        Ok(pending_unit(async move {
            sender.lock().await.take();
            result.await.unwrap_or_else(|_| Err(ClientError::Invalid("the upload was aborted".to_owned())))
        }))
    }

    /// Aborts the upload: the data sent so far is discarded.
    fn abort(&self) -> PyResult<Pending> {
        self.origin.check()?;
        let sender = Arc::clone(&self.sender);
        Ok(pending_unit(async move {
            if let Some(sender) = sender.lock().await.take() {
                let _ = sender.send(Err(std::io::Error::other("upload aborted"))).await;
            }
            Ok(())
        }))
    }
}
