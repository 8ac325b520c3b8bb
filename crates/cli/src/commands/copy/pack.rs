//! Folders as tar streams. A blocking thread packs or unpacks.

use anyhow::{Context as _, Result};
use bytes::Bytes;
use futures::{Stream, TryStreamExt};
use std::{fs, io, path::PathBuf};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::io::{StreamReader, SyncIoBridge};

/// Maximum number of chunks between the thread that packs and the connection.
const QUEUE: usize = 16;
const CHUNK: usize = 256 * 1024;

/// Packs a folder's content; links are packed as links, never followed.
pub(crate) fn pack(folder: PathBuf) -> Result<impl Stream<Item = io::Result<Bytes>> + Send + Sync + 'static> {
    fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let (sender, chunks) = mpsc::channel(QUEUE);
    tokio::task::spawn_blocking(move || {
        let mut archive = tar::Builder::new(io::BufWriter::with_capacity(CHUNK, Chunks(sender.clone())));
        archive.follow_symlinks(false);
        // Sparse files are sent with zeros in their holes: sandboxd does not unpack entries for sparse files.
        archive.sparse(false);
        let packed = archive
            .append_dir_all(".", &folder)
            .and_then(|()| archive.into_inner())
            .and_then(|mut rest| io::Write::flush(&mut rest));
        if let Err(error) = packed {
            // The receiver is gone when the transfer has already failed.
            let _ = sender.blocking_send(Err(error));
        }
    });
    Ok(ReceiverStream::new(chunks))
}

struct Chunks(mpsc::Sender<io::Result<Bytes>>);

impl io::Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let chunk = Bytes::copy_from_slice(bytes);
        self.0.blocking_send(Ok(chunk)).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Unpacks into a folder, which is created when it is missing. `tar` refuses entries that would leave it.
pub(crate) async fn unpack(
    archive: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    folder: PathBuf,
) -> Result<()> {
    let reader = SyncIoBridge::new(StreamReader::new(Box::pin(archive.into_stream())));
    let shown = folder.display().to_string();
    let unpacking = tokio::task::spawn_blocking(move || {
        fs::create_dir_all(&folder)?;
        let mut archive = tar::Archive::new(reader);
        archive.set_preserve_ownerships(false);
        archive.unpack(&folder)
    });
    unpacking.await.context("the thread that unpacks panicked")?.with_context(|| format!("cannot unpack into {shown}"))
}
