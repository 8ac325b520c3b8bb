//! Connects this process's standard streams and terminal with those of a command in a sandbox.

use crate::terminal;
use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, poll};
use std::{
    io::IsTerminal as _,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    signal::unix::{SignalKind, signal},
    task::JoinHandle,
};

/// Output counts as complete when the command has ended and nothing more has arrived for this long: processes that the
/// command left in the background may hold it open.
const OUTPUT_IDLE_AFTER_EXIT: Duration = Duration::from_millis(100);

/// Timeout for the exit code of a command whose output is no longer read.
const EXIT_CODE_TIMEOUT: Duration = Duration::from_millis(200);
/// Exit code after `--timeout`, the same as that of `timeout`.
pub(crate) const TIMED_OUT: u8 = 124;
/// Exit code of a process that SIGPIPE ended, as shells report it.
const SIGPIPE_EXIT_CODE: u8 = 141;

/// Tasks that copy the command's output to this process's own.
pub(crate) struct Pumps {
    tasks: Vec<JoinHandle<std::io::Result<()>>>,
    activity: Arc<Activity>,
}

/// What the tasks are doing.
#[derive(Default)]
struct Activity {
    /// Number of chunks read so far.
    chunks: AtomicUsize,
    /// Number of tasks that wait for this process's own output to take a chunk.
    writing: AtomicUsize,
}

impl Pumps {
    /// Starts to copy in both directions, for the streams that exist.
    pub(crate) fn start(
        stdin: Option<impl AsyncWrite + Unpin + Send + 'static>,
        stdout: Option<impl AsyncRead + Unpin + Send + 'static>,
        stderr: Option<impl AsyncRead + Unpin + Send + 'static>,
    ) -> Self {
        if let Some(stdin) = stdin {
            tokio::spawn(pump(tokio::io::stdin(), stdin, Arc::default()));
        }
        let activity: Arc<Activity> = Arc::default();
        let stdout = stdout.map(|stream| tokio::spawn(pump(stream, tokio::io::stdout(), Arc::clone(&activity))));
        let stderr = stderr.map(|stream| tokio::spawn(pump(stream, tokio::io::stderr(), Arc::clone(&activity))));
        Self { tasks: stdout.into_iter().chain(stderr).collect(), activity }
    }

    /// Waits for the command's last output.
    pub(crate) async fn finish(self) {
        let mut all = futures::future::join_all(self.tasks);
        loop {
            let before = self.activity.chunks.load(Ordering::Relaxed);
            if tokio::time::timeout(OUTPUT_IDLE_AFTER_EXIT, &mut all).await.is_ok() {
                return;
            }
            let writing = self.activity.writing.load(Ordering::Relaxed) > 0;
            if !writing && self.activity.chunks.load(Ordering::Relaxed) == before {
                return;
            }
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
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    activity: Arc<Activity>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        activity.chunks.fetch_add(1, Ordering::Relaxed);
        activity.writing.fetch_add(1, Ordering::Relaxed);
        let written = async {
            to.write_all(&buffer[..count]).await?;
            to.flush().await
        };
        let written = written.await;
        activity.writing.fetch_sub(1, Ordering::Relaxed);
        written?;
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
