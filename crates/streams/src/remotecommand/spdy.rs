//! Exec and attach over SPDY: one SPDY stream per stdin, stdout, stderr, error and resize, identified by the
//! `streamtype` header.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{ClientStreams, Outcome, Output, OutputStream, SizeReader, Version};
use crate::backend::{StreamSet, TerminalSize};
use crate::spdy::SpdyError;
use crate::spdy::session::{Session, StreamWriter};

/// Timeout for the client to open all streams. Clients open them right after the upgrade.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// Accepts streams until all that `wanted` implies are open.
pub async fn accept(mut session: Session, version: Version, wanted: StreamSet) -> Result<ClientStreams, SpdyError> {
    let mut opened = Opened::default();
    let missing = |opened: &Opened| {
        opened.error.is_none()
            || (wanted.stdin && opened.stdin.is_none())
            || (wanted.stdout && opened.stdout.is_none())
            || (wanted.stderr && opened.stderr.is_none())
            || (wanted.tty && version.supports_resize() && opened.resize.is_none())
    };
    let collect = async {
        while missing(&opened) {
            let Some(stream) = session.next_stream().await else {
                return Err(SpdyError::Io(io::ErrorKind::UnexpectedEof.into()));
            };
            let kind = stream.header("streamtype").unwrap_or_default().to_owned();
            if !matches!(kind.as_str(), "error" | "stdin" | "stdout" | "stderr" | "resize") {
                stream.refuse().await;
                continue;
            }
            let (reader, writer) = stream.accept().await?;
            opened.insert(&kind, reader, writer);
        }
        Ok(())
    };
    timeout(OPEN_TIMEOUT, collect).await.map_err(|_| SpdyError::Io(io::ErrorKind::TimedOut.into()))??;
    Ok(opened.into_client_streams(session, version))
}

#[derive(Default)]
struct Opened {
    error: Option<StreamWriter>,
    stdin: Option<(mpsc::Receiver<Bytes>, StreamWriter)>,
    stdout: Option<StreamWriter>,
    stderr: Option<StreamWriter>,
    resize: Option<(mpsc::Receiver<Bytes>, StreamWriter)>,
}

impl Opened {
    fn insert(&mut self, kind: &str, reader: mpsc::Receiver<Bytes>, writer: StreamWriter) {
        match kind {
            "error" => self.error = Some(writer),
            "stdin" => self.stdin = Some((reader, writer)),
            "stdout" => self.stdout = Some(writer),
            "stderr" => self.stderr = Some(writer),
            _ => self.resize = Some((reader, writer)),
        }
    }

    fn into_client_streams(self, session: Session, version: Version) -> ClientStreams {
        let disconnected = session.ended();
        let (stdin, stdin_writer) = match self.stdin {
            Some((reader, writer)) => (reader, Some(writer)),
            None => (mpsc::channel(1).1, None),
        };
        let (sizes, resize) = mpsc::channel(4);
        let mut tasks = JoinSet::new();
        let resize_writer = self.resize.map(|(reader, writer)| {
            tasks.spawn(read_sizes(reader, sizes));
            writer
        });
        let output = SpdyOutput {
            version,
            stdout: self.stdout,
            stderr: self.stderr,
            error: self.error,
            unused: [stdin_writer, resize_writer],
            session,
            _tasks: tasks,
        };
        ClientStreams { stdin, resize, output: Box::new(output), disconnected }
    }
}

async fn read_sizes(mut stream: mpsc::Receiver<Bytes>, sizes: mpsc::Sender<TerminalSize>) {
    let mut reader = SizeReader::default();
    while let Some(bytes) = stream.recv().await {
        if let Some(size) = reader.push(&bytes) {
            // If the queue is full, this size is dropped; the queued ones are newer than the process's current size.
            let _ = sizes.try_send(size);
        }
    }
}

struct SpdyOutput {
    version: Version,
    stdout: Option<StreamWriter>,
    stderr: Option<StreamWriter>,
    error: Option<StreamWriter>,
    /// The server's direction of the stdin and resize streams. Nothing is sent on them; they are closed at the end.
    unused: [Option<StreamWriter>; 2],
    session: Session,
    _tasks: JoinSet<()>,
}

#[async_trait]
impl Output for SpdyOutput {
    async fn write(&self, stream: OutputStream, bytes: Bytes) -> io::Result<()> {
        let writer = match stream {
            OutputStream::Stdout => &self.stdout,
            OutputStream::Stderr => &self.stderr,
        };
        match writer {
            Some(writer) => writer.send(bytes).await.map_err(io::Error::other),
            // The client did not request this output.
            None => Ok(()),
        }
    }

    async fn finish(self: Box<Self>, outcome: &Outcome) {
        let this = *self;
        let report = this.version.report(outcome);
        if let Some(error) = this.error {
            let sent = async {
                error.send(report).await?;
                error.finish().await
            };
            if let Err(failure) = sent.await {
                tracing::debug!(%failure, "Client disconnected before the outcome was sent");
            }
        }
        for writer in [this.stdout, this.stderr].into_iter().chain(this.unused).flatten() {
            // Fails only if the client has disconnected.
            let _ = writer.finish().await;
        }
        this.session.close().await;
    }
}
