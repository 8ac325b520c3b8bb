//! Transfers of files and directories between this machine and a sandbox: streamed, and files are written atomically.

use crate::{ClientError, Files};
use agent_sandbox_protocol::chunks::{ChunkReader, ChunkWriter};
use bytes::Bytes;
use futures::StreamExt;
use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};
use tokio::{io::AsyncWriteExt, sync::mpsc};
use tokio_util::io::ReaderStream;

/// Maximum number of queued chunks, and their size.
const MAX_QUEUED_CHUNKS: usize = 4;
const CHUNK_SIZE: usize = 256 * 1024;

impl Files<'_> {
    /// Uploads a local file.
    pub async fn upload_file(&self, local: &Path, path: &str) -> Result<(), ClientError> {
        let file = tokio::fs::File::open(local).await.map_err(failed("open", local))?;
        self.write(path, ReaderStream::with_capacity(file, CHUNK_SIZE)).await
    }

    /// Downloads a file. The local file is created atomically.
    pub async fn download_file(&self, path: &str, local: &Path) -> Result<(), ClientError> {
        let mut download = self.download(path, 0, None).await?;
        let partial = PartialFile::beside(local);
        let mut file = tokio::fs::File::create(&partial.0).await.map_err(failed("write", local))?;
        let broken = |source| ClientError::Stream { operation: format!("read `{path}`"), source };
        while let Some(chunk) = download.next().await.map_err(broken)? {
            file.write_all(&chunk).await.map_err(failed("write", local))?;
        }
        file.flush().await.map_err(failed("write", local))?;
        tokio::fs::rename(&partial.0, local).await.map_err(failed("write", local))
    }

    /// Uploads a local directory into a directory of the sandbox, which is created if it is missing.
    pub async fn upload_directory(&self, local: &Path, path: &str) -> Result<(), ClientError> {
        let folder = local.to_path_buf();
        if !tokio::fs::metadata(&folder).await.map_err(failed("read", local))?.is_dir() {
            return Err(ClientError::Invalid(format!("{} is not a directory", local.display())));
        }
        let (sender, receiver) = mpsc::channel::<io::Result<Bytes>>(MAX_QUEUED_CHUNKS);
        let packing = tokio::task::spawn_blocking(move || {
            let closed = |_| io::ErrorKind::BrokenPipe.into();
            let send = |chunk| sender.blocking_send(Ok(chunk)).map_err(closed);
            let mut archive = tar::Builder::new(ChunkWriter::new(CHUNK_SIZE, send));
            archive.follow_symlinks(false);
            // Send holes as zeros: not every tar implementation unpacks sparse entries.
            archive.sparse(false);
            let packed = archive.append_dir_all("", &folder).and_then(|()| archive.into_inner()?.flush());
            if let Err(error) = packed {
                // An error aborts the request body, so that a truncated archive is not accepted as complete.
                let _ = sender.blocking_send(Err(error));
            }
        });
        let archive = receiver_stream(receiver);
        let sent = self.write_tar(path, archive).await;
        let _ = packing.await;
        sent
    }

    /// Downloads a directory into a local one, which is created if it is missing. Entries that would be written outside
    /// of it are refused.
    pub async fn download_directory(&self, path: &str, local: &Path) -> Result<(), ClientError> {
        let mut archive = Box::pin(self.read_tar(path).await?);
        let folder = local.to_path_buf();
        let (sender, mut receiver) = mpsc::channel::<io::Result<Bytes>>(MAX_QUEUED_CHUNKS);
        let unpacking = tokio::task::spawn_blocking(move || {
            std::fs::create_dir_all(&folder)?;
            tar::Archive::new(ChunkReader::new(move || receiver.blocking_recv())).unpack(&folder)
        });
        while let Some(chunk) = archive.next().await {
            if sender.send(chunk).await.is_err() {
                break;
            }
        }
        drop(sender);
        let unpacked = unpacking.await.map_err(io::Error::other).and_then(|unpacked| unpacked);
        unpacked.map_err(failed("write", local))
    }
}

fn receiver_stream(
    receiver: mpsc::Receiver<io::Result<Bytes>>,
) -> impl futures::Stream<Item = io::Result<Bytes>> + Send {
    futures::stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)))
}

fn failed(what: &'static str, local: &Path) -> impl Fn(io::Error) -> ClientError + use<> {
    let local = local.display().to_string();
    move |source| ClientError::Stream { operation: format!("{what} {local}"), source }
}

/// A temporary file, removed on drop unless it was renamed to its target.
struct PartialFile(PathBuf);

impl PartialFile {
    fn beside(target: &Path) -> Self {
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        Self(target.with_file_name(format!(".{name}.{:08x}.partial", rand::random::<u32>())))
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
