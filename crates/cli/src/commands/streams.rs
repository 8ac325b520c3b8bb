//! This process's standard streams and terminal, connected with a command's somewhere else.

use crate::terminal;
use anyhow::{Context as _, Result};
use std::{io::IsTerminal as _, process::ExitCode, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    signal::unix::{SignalKind, signal},
    task::JoinHandle,
};

/// Output that is still on its way when the command's end is known gets this long to arrive.
const LAST_OUTPUT: Duration = Duration::from_secs(5);

/// The command's output on its way to ours.
pub(crate) struct Pumps(Vec<JoinHandle<std::io::Result<()>>>);

impl Pumps {
    /// Starts moving bytes in both directions, for the streams that there are.
    pub(crate) fn start(
        stdin: Option<impl AsyncWrite + Unpin + Send + 'static>,
        stdout: Option<impl AsyncRead + Unpin + Send + 'static>,
        stderr: Option<impl AsyncRead + Unpin + Send + 'static>,
    ) -> Self {
        if let Some(stdin) = stdin {
            tokio::spawn(pump(tokio::io::stdin(), stdin));
        }
        let stdout = stdout.map(|stream| tokio::spawn(pump(stream, tokio::io::stdout())));
        let stderr = stderr.map(|stream| tokio::spawn(pump(stream, tokio::io::stderr())));
        Self(stdout.into_iter().chain(stderr).collect())
    }

    /// Waits for what the command printed last.
    pub(crate) async fn finish(self) {
        for output in self.0 {
            let _ = tokio::time::timeout(LAST_OUTPUT, output).await;
        }
    }
}

/// Copies until the end, flushing whenever there is nothing more to read at once.
async fn pump(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> std::io::Result<()> {
    let mut buffer = vec![0; 32 * 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..count]).await?;
        to.flush().await?;
    }
}

/// Tells `apply` the terminal's columns and rows, now and after each change, until it wants no more.
pub(crate) async fn follow_size(mut apply: impl AsyncFnMut(u16, u16) -> Result<()>) -> Result<()> {
    let mut changes = signal(SignalKind::window_change()).context("cannot watch the terminal's size")?;
    loop {
        if let Some((columns, rows)) = terminal::size() {
            apply(columns, rows).await?;
        }
        if changes.recv().await.is_none() {
            return Ok(());
        }
    }
}

/// Refuses a terminal for the command where there is none here.
pub(crate) fn check_terminal(wanted: bool) -> Result<()> {
    anyhow::ensure!(
        !wanted || std::io::stdin().is_terminal(),
        "--tty needs a terminal on standard input; leave it out in scripts"
    );
    Ok(())
}

/// An exit code as a process can have it.
pub(crate) fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code & 0xff).unwrap_or(u8::MAX))
}
