//! Connects this process's standard streams and terminal with those of a command in a sandbox.

use crate::terminal;
use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, poll};
use std::{io::IsTerminal as _, process::ExitCode, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    signal::unix::{SignalKind, signal},
    task::JoinHandle,
};

/// Timeout for output that is still under way when the command has ended.
const LAST_OUTPUT_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout for the exit code of a command whose output is no longer read.
const EXIT_CODE_TIMEOUT: Duration = Duration::from_millis(200);
/// Exit code of a process that SIGPIPE ended, as shells report it.
const SIGPIPE_EXIT_CODE: u8 = 141;

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

/// Waits for `work`, but not longer than standard output has a reader: in `exec box -- yes | head -1` the end of `head`
/// ends the command, which `work` owns, as SIGPIPE would end a local one.
pub(crate) async fn until_output_closes(work: impl Future<Output = Result<ExitCode>>) -> Result<ExitCode> {
    let mut work = std::pin::pin!(work);
    tokio::select! {
        code = &mut work => return code,
        () = output_closed() => {}
    }
    // A command that has written everything has its own exit code: the reader may close before that code arrives.
    let ended = tokio::time::timeout(EXIT_CODE_TIMEOUT, work).await;
    ended.unwrap_or_else(|_| Ok(ExitCode::from(SIGPIPE_EXIT_CODE)))
}

/// Completes when the other end of the pipe on standard output is closed. Never completes for files.
async fn output_closed() {
    let (closed, is_closed) = tokio::sync::oneshot::channel();
    // The kernel reports errors and hang-ups whether they are requested or not. The thread ends with the process.
    std::thread::spawn(move || {
        let output = std::io::stdout();
        let mut polled = [PollFd::new(&output, PollFlags::empty())];
        while poll(&mut polled, None).is_err() {}
        closed.send(())
    });
    if is_closed.await.is_err() {
        std::future::pending().await
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
