//! The engine's control socket: requests of other commands of the same user that are not part of a Kubernetes API.
//!
//! Each connection carries one request, a line of JSON. The response is lines of JSON too: progress first, the outcome
//! last. The socket lies in the data folder, which only its owner can enter.

use crate::{
    requests::{EngineReply, EngineRequest, RequestContext, handle_request},
    tokens::{TokenContext, TokenRequest},
};
use agent_sandbox_node::runtime::{PullProgress, chain};
use serde::{Deserialize, Serialize};
use std::{
    fs, io,
    os::fd::{AsRawFd as _, OwnedFd},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use thiserror::Error;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixListener, UnixStream},
    sync::{Semaphore, watch},
};

/// Maximum number of connections at a time. People type these requests.
const MAX_CONNECTIONS: usize = 16;
/// Maximum size of a request in bytes.
const MAX_REQUEST_BYTES: u64 = 64 * 1024;
/// Timeout for reading a request, which clients send at once, and for writing a line of the response.
const IO_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a request to the running engine failed.
#[derive(Debug, Error)]
pub enum ControlError {
    #[error("cannot reach the running engine at {}", .socket.display())]
    Connect {
        socket: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot send a request to the running engine")]
    Send(#[source] io::Error),
    #[error("the running engine stopped answering")]
    Receive(#[source] io::Error),
    #[error("the running engine is of another version")]
    Version(#[source] serde_json::Error),
    #[error("the running engine ended before it answered")]
    Closed,
    /// The engine's own error message.
    #[error("{0}")]
    Failed(String),
}

/// A line of the engine's response.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum ResponseLine {
    Progress { done: u64, total: u64 },
    Done(EngineReply),
    Failed(String),
}

/// A path to a socket through /proc/self/fd, short enough for the kernel's limit (108 bytes) however long the folder's
/// own path is. It is valid while the descriptor is open.
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

/// Opens the socket. One that exists is stale and is replaced: a folder has one engine at a time.
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

/// Serves requests until dropped.
pub(crate) async fn serve(listener: UnixListener, context: RequestContext, tokens: TokenContext) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // Most likely the process is out of descriptors: wait until others are closed.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (context, tokens) = (context.clone(), tokens.clone());
        tokio::spawn(async move {
            if let Err(error) = serve_connection(stream, &context, tokens).await {
                tracing::debug!(%error, "A control connection failed");
            }
            drop(slot);
        });
    }
}

async fn serve_connection(stream: UnixStream, context: &RequestContext, tokens: TokenContext) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut text = String::new();
    let mut reader = BufReader::new(reader.take(MAX_REQUEST_BYTES));
    within_timeout("the client sent no request", reader.read_line(&mut text)).await?;
    if let Ok(request) = serde_json::from_str::<TokenRequest>(&text) {
        let outcome = tokio::task::spawn_blocking(move || tokens.handle(request)).await.map_err(io::Error::other)?;
        let line = outcome.map_or_else(ResponseLine::Failed, ResponseLine::Done);
        return send(&mut writer, &line).await;
    }
    let (progress, mut seen) = watch::channel(PullProgress::default());
    let outcome = match serde_json::from_str::<EngineRequest>(&text) {
        Err(error) => Err(format!("the engine does not know this request ({error}); are both of the same version?")),
        Ok(request) => {
            let work = handle_request(context, request, progress);
            let report = async {
                while seen.changed().await.is_ok() {
                    let PullProgress { done, total } = *seen.borrow_and_update();
                    send(&mut writer, &ResponseLine::Progress { done, total }).await?;
                }
                // The work has dropped its sender and is about to complete: `select!` takes its outcome.
                std::future::pending::<io::Result<()>>().await
            };
            tokio::select! {
                outcome = work => outcome.map_err(|error| chain(&error)),
                // The client disconnected: its request is cancelled.
                disconnected = report => return disconnected,
            }
        }
    };
    let line = outcome.map_or_else(ResponseLine::Failed, ResponseLine::Done);
    send(&mut writer, &line).await
}

async fn send(writer: &mut (impl tokio::io::AsyncWrite + Unpin), line: &ResponseLine) -> io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    within_timeout("the client does not read the response", writer.write_all(&text)).await
}

async fn within_timeout<T>(message: &'static str, operation: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let outcome = tokio::time::timeout(IO_TIMEOUT, operation).await;
    outcome.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, message)))
}

/// Sends a request to the engine of this control socket and waits for the outcome. `progress` is called for every
/// report of a pull.
pub async fn send_request(
    socket: &Path,
    request: &impl Serialize,
    mut progress: impl FnMut(PullProgress),
) -> Result<EngineReply, ControlError> {
    let stream = connect(socket).await.map_err(|source| ControlError::Connect { socket: socket.to_owned(), source })?;
    let (reader, mut writer) = stream.into_split();
    let mut text = serde_json::to_vec(request).map_err(|error| ControlError::Send(error.into()))?;
    text.push(b'\n');
    writer.write_all(&text).await.map_err(ControlError::Send)?;
    let mut lines = BufReader::new(reader).lines();
    while let Some(line) = lines.next_line().await.map_err(ControlError::Receive)? {
        match serde_json::from_str(&line).map_err(ControlError::Version)? {
            ResponseLine::Progress { done, total } => progress(PullProgress { done, total }),
            ResponseLine::Done(reply) => return Ok(reply),
            ResponseLine::Failed(text) => return Err(ControlError::Failed(text)),
        }
    }
    Err(ControlError::Closed)
}

async fn connect(socket: &Path) -> io::Result<UnixStream> {
    let (_folder, path) = short_path(socket)?;
    UnixStream::connect(&path).await
}
