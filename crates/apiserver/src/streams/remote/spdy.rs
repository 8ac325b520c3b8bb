//! A command's streams over SPDY: one SPDY stream each, told apart by a header.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Outcome, Output, OutputStream, Remote, SizeReader, Version};
use crate::node::{StreamSet, TerminalSize};
use crate::streams::spdy::SpdyError;
use crate::streams::spdy::session::{Session, StreamWriter};

/// Clients open all streams at once after the upgrade.
const OPEN_LIMIT: Duration = Duration::from_secs(30);

/// Waits for the streams that `wanted` implies and answers each.
pub async fn accept(mut session: Session, version: Version, wanted: StreamSet) -> Result<Remote, SpdyError> {
    let mut opened = Opened::default();
    let missing = |opened: &Opened| {
        opened.error.is_none()
            || (wanted.stdin && opened.stdin.is_none())
            || (wanted.stdout && opened.stdout.is_none())
            || (wanted.stderr && opened.stderr.is_none())
            || (wanted.tty && version.resizes() && opened.resize.is_none())
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
            opened.keep(&kind, reader, writer);
        }
        Ok(())
    };
    timeout(OPEN_LIMIT, collect).await.map_err(|_| SpdyError::Io(io::ErrorKind::TimedOut.into()))??;
    Ok(opened.into_remote(session, version))
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
    fn keep(&mut self, kind: &str, reader: mpsc::Receiver<Bytes>, writer: StreamWriter) {
        match kind {
            "error" => self.error = Some(writer),
            "stdin" => self.stdin = Some((reader, writer)),
            "stdout" => self.stdout = Some(writer),
            "stderr" => self.stderr = Some(writer),
            _ => self.resize = Some((reader, writer)),
        }
    }

    fn into_remote(self, session: Session, version: Version) -> Remote {
        let gone = session.ended();
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
        Remote { stdin, resize, output: Box::new(output), gone }
    }
}

async fn read_sizes(mut stream: mpsc::Receiver<Bytes>, sizes: mpsc::Sender<TerminalSize>) {
    let mut reader = SizeReader::default();
    while let Some(bytes) = stream.recv().await {
        if let Some(size) = reader.push(&bytes) {
            // A full queue holds newer sizes than the process has seen anyway.
            let _ = sizes.try_send(size);
        }
    }
}

struct SpdyOutput {
    version: Version,
    stdout: Option<StreamWriter>,
    stderr: Option<StreamWriter>,
    error: Option<StreamWriter>,
    /// Our direction of the client's input streams; nothing is sent there, they are closed at the end.
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
            // The client did not ask for this output.
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
                tracing::debug!(%failure, "Client left before the outcome was sent");
            }
        }
        for writer in [this.stdout, this.stderr].into_iter().chain(this.unused).flatten() {
            // Streams of a client that has left need no end.
            let _ = writer.finish().await;
        }
        this.session.close().await;
    }
}
