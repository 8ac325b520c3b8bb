//! Directories as one tar stream: connects asynchronous bodies to the blocking packer and unpacker.

use std::io;
use std::sync::{Arc, LazyLock};

use agent_sandbox_protocol::chunks::{ChunkReader, ChunkWriter};
use agent_sandbox_protocol::native::{ErrorCode, Unpacked};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::locate;
use crate::core::Sandbox;
use crate::core::files::archive::{ArchiveError, pack, unpack};
use crate::core::files::{FileError, Follow, blocking};
use crate::core::paths::Purpose;
use crate::dialects::native::error::{ApiError, with_path};
use crate::dialects::native::routes::Query;
use crate::http_io::body::{self, Body};

/// Limit on simultaneous archives: each occupies a thread until its client is done.
static SLOTS: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(4)));

/// Number of chunks in flight, and their size.
const IN_FLIGHT: usize = 4;
const CHUNK: usize = 128 * 1024;

fn slot() -> Result<tokio::sync::OwnedSemaphorePermit, ApiError> {
    let busy = |_| ApiError::new(ErrorCode::Unavailable, "too many archives are being transferred");
    Arc::clone(&SLOTS).try_acquire_owned().map_err(busy)
}

pub(super) async fn download(sandbox: Arc<Sandbox>, query: &Query) -> Result<Response<Body>, ApiError> {
    let path = query.get("path").unwrap_or_default().to_owned();
    let failed = with_path(&path);
    let opened = blocking(move || locate(&sandbox, &path, Purpose::List, Follow::Link)?.1.open_directory());
    let directory = opened.await.map_err(failed)?;
    let slot = slot()?;
    let (sender, receiver) = mpsc::channel::<Result<Bytes, FileError>>(IN_FLIGHT);
    tokio::task::spawn_blocking(move || {
        let closed = |_| io::ErrorKind::BrokenPipe.into();
        let mut writer = ChunkWriter::new(CHUNK, |chunk| sender.blocking_send(Ok(chunk)).map_err(closed));
        if let Err(error) = pack(&directory, &mut writer) {
            // Abort the body, so that the client does not take a truncated archive for a complete one.
            let _ = sender.blocking_send(Err(error));
        }
        drop(slot);
    });
    let frames = ReceiverStream::new(receiver).map(|chunk| chunk.map(Frame::data));
    Ok(body::with_type(StatusCode::OK, "application/x-tar", Body::new(StreamBody::new(frames))))
}

pub(super) async fn upload(
    sandbox: Arc<Sandbox>,
    query: &Query,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let given = query.get("path").unwrap_or_default();
    let path = sandbox.paths.resolve(given.as_bytes(), Purpose::Write)?;
    let slot = slot()?;
    let (sender, mut receiver) = mpsc::channel::<io::Result<Bytes>>(IN_FLIGHT);
    let unpacking = tokio::task::spawn_blocking(move || {
        let mut reader = ChunkReader::new(|| receiver.blocking_recv());
        let unpacked = unpack(sandbox.paths.root(), &path, &mut reader);
        drop(slot);
        unpacked
    });
    let mut incoming = request.into_body();
    while let Some(frame) = incoming.frame().await {
        let chunk = match frame {
            Ok(frame) => match frame.into_data() {
                Ok(bytes) => Ok(bytes),
                Err(_) => continue,
            },
            Err(_) => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        };
        if sender.send(chunk).await.is_err() {
            break;
        }
    }
    drop(sender);
    match unpacking.await {
        Ok(Ok(unpacked)) => Ok(body::json(StatusCode::OK, &Unpacked { files: unpacked.files, bytes: unpacked.bytes })),
        Ok(Err(error)) => Err(archive_error(error)),
        Err(_) => Err(ApiError::new(ErrorCode::Internal, "unpacking ended early")),
    }
}

fn archive_error(error: ArchiveError) -> ApiError {
    let message = error.to_string();
    match error {
        ArchiveError::Entry { source, .. } => ApiError { message, ..ApiError::from(source) },
        ArchiveError::Broken(_) => ApiError::invalid(message),
        ArchiveError::Type(_) => ApiError::new(ErrorCode::Denied, message),
    }
}
