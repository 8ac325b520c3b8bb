//! Connects this process's standard streams and terminal with those of a command in a sandbox.

use crate::terminal;
use anyhow::{Context as _, Result};
use std::{io::IsTerminal as _, process::ExitCode, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    signal::unix::{SignalKind, signal},
    task::JoinHandle,
};

/// Timeout for output that is still under way when the command has ended.
const LAST_OUTPUT_TIMEOUT: Duration = Duration::from_secs(5);

/// Tasks that copy the command's output to this process's own.
pub(crate) struct Pumps(Vec<JoinHandle<std::io::Result<()>>>);

impl Pumps {
    /// Starts to copy in both directions, for the streams that exist.
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

    /// Waits for the command's last output.
    pub(crate) async fn finish(self) {
        for output in self.0 {
            let _ = tokio::time::timeout(LAST_OUTPUT_TIMEOUT, output).await;
        }
    }
}

/// Copies until the end of the stream. Flushes whenever no more bytes can be read without waiting.
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

/// Calls `apply` with the terminal's columns and rows, now and after each change, until it returns an error.
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

/// Returns an error when a terminal is requested and standard input is none.
pub(crate) fn check_terminal(wanted: bool) -> Result<()> {
    anyhow::ensure!(
        !wanted || std::io::stdin().is_terminal(),
        "--tty needs a terminal on standard input; leave it out in scripts"
    );
    Ok(())
}

/// The exit code of this process for a command's exit code: its low 8 bits.
pub(crate) fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code & 0xff).unwrap_or(u8::MAX))
}
