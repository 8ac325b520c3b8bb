//! The engine's control socket: what other commands of the same user ask the running engine that is no business of a Kubernetes API.
//!
//! One request per connection, one line of JSON; the answer is lines of JSON too, progress first, the outcome last. The socket lies in the
//! data folder, which only its owner can enter.

use super::requests::{EngineReply, EngineRequest, Parts, perform};
use agent_sandbox_node::runtime::{PullProgress, chain};
use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    os::fd::{AsRawFd as _, OwnedFd},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixListener, UnixStream},
    sync::{Semaphore, watch},
};

/// Requests at a time; people type these.
const CONNECTIONS: usize = 16;
/// A request is a short line that is sent at once.
const LINE: u64 = 64 * 1024;
const PATIENCE: Duration = Duration::from_secs(10);

/// What the engine answers, line by line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Line {
    Progress { done: u64, total: u64 },
    Done(EngineReply),
    Failed(String),
}

/// A path to a socket that is short enough for the kernel, whatever the folder's is; it holds while the descriptor is open.
fn short_path(socket: &Path) -> io::Result<(OwnedFd, PathBuf)> {
    use rustix::fs::{Mode, OFlags};
    let (folder, name) = match (socket.parent(), socket.file_name()) {
        (Some(folder), Some(name)) => (folder, name),
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    let folder = rustix::fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let path = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
    Ok((folder, path))
}

/// Opens the socket. Whoever lay there before is gone: the folder has one engine at a time.
pub(crate) fn open(socket: &Path) -> io::Result<UnixListener> {
    let (_folder, path) = short_path(socket)?;
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Answers requests until dropped.
pub(crate) async fn serve(listener: UnixListener, parts: Parts) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, most likely: others will be closed.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let parts = parts.clone();
        tokio::spawn(async move {
            if let Err(error) = answer(stream, &parts).await {
                tracing::debug!(%error, "A control connection ended badly");
            }
            drop(slot);
        });
    }
}

async fn answer(stream: UnixStream, parts: &Parts) -> Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut text = String::new();
    let mut reader = BufReader::new(reader.take(LINE));
    tokio::time::timeout(PATIENCE, reader.read_line(&mut text)).await.context("no request came")??;
    let (progress, mut seen) = watch::channel(PullProgress::default());
    let outcome = match serde_json::from_str::<EngineRequest>(&text) {
        Err(error) => Err(format!("the engine does not know this request ({error}); are both of the same version?")),
        Ok(request) => {
            let work = perform(parts, request, progress);
            let report = async {
                while seen.changed().await.is_ok() {
                    let PullProgress { done, total } = *seen.borrow_and_update();
                    send(&mut writer, &Line::Progress { done, total }).await?;
                }
                // The work has dropped its end; its outcome comes from the other side.
                std::future::pending::<Result<()>>().await
            };
            tokio::select! {
                outcome = work => outcome.map_err(|error| chain(&error)),
                // The caller went away: the work is given up with it.
                gone = report => return gone,
            }
        }
    };
    let line = outcome.map_or_else(Line::Failed, Line::Done);
    send(&mut writer, &line).await
}

async fn send(writer: &mut (impl tokio::io::AsyncWrite + Unpin), line: &Line) -> Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    Ok(tokio::time::timeout(PATIENCE, writer.write_all(&text)).await.context("nobody reads the answer")??)
}

/// Asks the engine whose socket this is.
pub(crate) async fn ask(
    socket: &Path,
    request: &EngineRequest,
    mut progress: impl FnMut(PullProgress),
) -> Result<EngineReply> {
    let (_folder, path) = short_path(socket)?;
    let stream = UnixStream::connect(&path).await;
    let stream = stream.with_context(|| format!("cannot reach the running engine at {}", socket.display()))?;
    let (reader, mut writer) = stream.into_split();
    let mut text = serde_json::to_vec(request)?;
    text.push(b'\n');
    writer.write_all(&text).await.context("cannot ask the running engine")?;
    let mut lines = BufReader::new(reader).lines();
    while let Some(line) = lines.next_line().await.context("the running engine stopped answering")? {
        match serde_json::from_str(&line).context("the running engine is of another version")? {
            Line::Progress { done, total } => progress(PullProgress { done, total }),
            Line::Done(reply) => return Ok(reply),
            Line::Failed(text) => bail!(text),
        }
    }
    bail!("the running engine ended before it answered")
}
