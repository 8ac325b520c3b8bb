//! A test node: commands run on this machine, ports are loopback ports, logs are fixed lines.

use std::process::Stdio;
use std::time::Duration;

use agent_sandbox_streams::backend::{
    Duplex, ExecRequest, ExitStatus, LogOptions, NodeBackend, NodeError, PodRef, ProcessSession, StreamSet,
    TerminalSize,
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use jiff::Timestamp;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

pub struct TestNode;

/// The lines of the log, a second apart.
const LINES: [&str; 4] = ["first", "second", "third", "fourth"];
/// Name of a Pod whose log can be followed without an end.
pub const ENDLESS: &str = "endless";
const START: &str = "2024-01-01T00:00:00Z";

#[async_trait]
impl NodeBackend for TestNode {
    async fn logs(
        &self,
        pod: &PodRef,
        options: LogOptions,
    ) -> Result<BoxStream<'static, std::io::Result<Bytes>>, NodeError> {
        if options.previous {
            let message = format!("previous terminated container {:?} not found", options.container);
            return Err(NodeError::BadRequest(message));
        }
        let start: Timestamp = START.parse().expect("a valid time");
        let mut lines: Vec<String> = Vec::new();
        for (second, line) in LINES.iter().enumerate() {
            let at = start + Duration::from_secs(second as u64);
            if options.since.is_none_or(|since| at >= since) {
                lines.push(if options.timestamps { format!("{at} {line}\n") } else { format!("{line}\n") });
            }
        }
        let tail = options.tail_lines.unwrap_or(u64::MAX).min(lines.len() as u64) as usize;
        let existing = stream::iter(lines.split_off(lines.len() - tail)).map(|line| Ok(Bytes::from(line)));
        if !options.follow {
            return Ok(existing.boxed());
        }
        let more = stream::unfold(0, |n| async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            (n < 2).then(|| (Ok(Bytes::from(format!("later {n}\n"))), n + 1))
        });
        let followed = existing.chain(more);
        // The container of this Pod never ends.
        if pod.name == ENDLESS { Ok(followed.chain(stream::pending()).boxed()) } else { Ok(followed.boxed()) }
    }

    async fn exec(&self, _: &PodRef, request: ExecRequest) -> Result<ProcessSession, NodeError> {
        if request.streams.tty {
            return Ok(terminal());
        }
        let (program, arguments) = request.command.split_first().expect("the API refuses an empty command");
        let pipe = |wanted: bool| if wanted { Stdio::piped() } else { Stdio::null() };
        let spawned = tokio::process::Command::new(program)
            .args(arguments)
            .stdin(pipe(request.streams.stdin))
            .stdout(pipe(request.streams.stdout))
            .stderr(pipe(request.streams.stderr))
            .kill_on_drop(true)
            .spawn();
        let mut child = spawned.map_err(|error| NodeError::Internal(format!("cannot run {program:?}: {error}")))?;
        Ok(ProcessSession {
            stdin: child.stdin.take().map(|pipe| Box::pin(pipe) as _),
            stdout: child.stdout.take().map(|pipe| Box::pin(pipe) as _),
            stderr: child.stderr.take().map(|pipe| Box::pin(pipe) as _),
            resize: None,
            exit: Box::pin(async move {
                let status = child.wait().await.map_err(|error| NodeError::Internal(error.to_string()))?;
                Ok(ExitStatus { code: status.code().unwrap_or(137) })
            }),
        })
    }

    async fn attach(&self, _: &PodRef, container: &str, streams: StreamSet) -> Result<ProcessSession, NodeError> {
        let (mut ours, theirs) = tokio::io::duplex(1024);
        let (input, from_client) = tokio::io::duplex(1024);
        let greeting = format!("attached to {container}\n");
        let exit = async move {
            let written = ours.write_all(greeting.as_bytes()).await;
            let mut lines = BufReader::new(from_client).lines();
            while let (true, Ok(Some(line))) = (streams.stdin, lines.next_line().await) {
                if ours.write_all(format!("heard {line}\n").as_bytes()).await.is_err() {
                    break;
                }
            }
            written.map(|()| ExitStatus { code: 0 }).map_err(|error| NodeError::Internal(error.to_string()))
        };
        Ok(ProcessSession {
            stdin: streams.stdin.then(|| Box::pin(input) as _),
            stdout: streams.stdout.then(|| Box::pin(theirs) as _),
            stderr: None,
            resize: None,
            exit: Box::pin(exit),
        })
    }

    async fn port_forward(&self, _: &PodRef, port: u16) -> Result<Box<dyn Duplex>, NodeError> {
        match TcpStream::connect(("127.0.0.1", port)).await {
            Ok(connection) => Ok(Box::new(connection)),
            Err(error) => Err(NodeError::Unavailable(format!("port {port}: {error}"))),
        }
    }
}

/// A simulated terminal: prints each size and each line, and exits with status 7 at the end of its input.
fn terminal() -> ProcessSession {
    let (screen, shown): (DuplexStream, DuplexStream) = tokio::io::duplex(1024);
    let (keyboard, typed) = tokio::io::duplex(1024);
    let (resize, mut sizes) = mpsc::channel::<TerminalSize>(4);
    let exit = async move {
        let mut screen = screen;
        let mut lines = BufReader::new(typed).lines();
        loop {
            let text = tokio::select! {
                Some(size) = sizes.recv() => format!("size {}x{}\r\n", size.columns, size.rows),
                line = lines.next_line() => match line {
                    Ok(Some(line)) => format!("typed {line}\r\n"),
                    _ => return Ok(ExitStatus { code: 7 }),
                },
            };
            if screen.write_all(text.as_bytes()).await.is_err() {
                return Ok(ExitStatus { code: 7 });
            }
        }
    };
    ProcessSession {
        stdin: Some(Box::pin(keyboard)),
        stdout: Some(Box::pin(shown)),
        stderr: None,
        resize: Some(resize),
        exit: Box::pin(exit),
    }
}
