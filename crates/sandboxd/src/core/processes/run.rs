//! Runs one command to its end without interaction: bounded output, a time limit, and termination when the caller
//! disconnects.

use std::os::fd::OwnedFd;
use std::time::Duration;

use agent_sandbox_protocol::capture::Capture;
use rustix::io::Errno;
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::time::{Instant, timeout, timeout_at};

use super::launch::{Launch, LaunchError, Launched};
use super::reaper::{Child, Exit, Reaper};

/// After the command has ended, its descendants may still write: output is awaited until this time passes without any …
const OUTPUT_IDLE: Duration = Duration::from_millis(400);
/// … and for this time in total.
const OUTPUT_DRAIN_MAX: Duration = Duration::from_secs(5);

/// How long a launch is retried while there are too many processes, and the pause between attempts.
const SPAWN_RETRY_MAX: Duration = Duration::from_secs(5);
const SPAWN_RETRY_PAUSE: Duration = Duration::from_millis(10);

/// Limits of one run.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub time: Option<Duration>,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Maximum number of bytes kept of each stream.
    pub output: usize,
}

/// The result of a run.
#[derive(Debug)]
pub struct Finished {
    pub exit: Exit,
    pub stdout: Capture,
    pub stderr: Capture,
    pub timed_out: bool,
}

/// Launches a command and waits for its end. Dropping the future ends the command's process group.
pub async fn run(launch: &Launch, bounds: Bounds, reaper: &Reaper) -> Result<Finished, LaunchError> {
    run_with_input(launch, bounds, reaper, None).await
}

/// As [`run`]; `input` is written to a piped standard input, which is then closed.
pub async fn run_with_input(
    launch: &Launch,
    bounds: Bounds,
    reaper: &Reaper,
    input: Option<Vec<u8>>,
) -> Result<Finished, LaunchError> {
    let Launched { child, stdin, stdout, stderr, .. } = start(launch, reaper).await?;
    let _writer = stdin.zip(input).map(|(stdin, input)| AbortOnDrop(tokio::spawn(feed(stdin, input))));
    let mut guard = TerminateOnDrop { child: Some(child.clone()), grace: bounds.grace };
    let mut outputs = Outputs::new(stdout, stderr, bounds.output).map_err(LaunchError::Prepare)?;
    let deadline = bounds.time.map(|time| Instant::now() + time);
    let mut timed_out = false;
    let exit = tokio::select! {
        exit = outputs.until_exit(&child) => exit,
        () = until(deadline) => {
            timed_out = true;
            child.terminate_group(Signal::TERM);
            match timeout(bounds.grace, outputs.until_exit(&child)).await {
                Ok(exit) => exit,
                Err(_) => {
                    child.terminate_group(Signal::KILL);
                    outputs.until_exit(&child).await
                }
            }
        }
    };
    guard.child = None;
    outputs.drain_output().await;
    let (stdout, stderr) = outputs.finish();
    Ok(Finished { exit, stdout, stderr, timed_out })
}

/// Launches a command and retries for a while if the sandbox is at its process limit. The usual cause, a fork bomb at
/// worst, frees and takes processes all the time, so that one of the attempts succeeds.
async fn start(launch: &Launch, reaper: &Reaper) -> Result<Launched, LaunchError> {
    let latest = Instant::now() + SPAWN_RETRY_MAX;
    loop {
        match launch.start(reaper) {
            Err(error) if error.errno() == Some(Errno::AGAIN) && Instant::now() < latest => {
                tokio::time::sleep(SPAWN_RETRY_PAUSE).await;
            }
            result => return result,
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Writes the input and closes the pipe. It is not an error if a command does not read all of it.
async fn feed(stdin: OwnedFd, input: Vec<u8>) {
    if let Ok(mut pipe) = pipe::Sender::from_owned_fd(stdin) {
        let _ = pipe.write_all(&input).await;
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Ends a command whose caller has disconnected.
#[derive(Debug)]
pub(crate) struct TerminateOnDrop {
    pub(crate) child: Option<Child>,
    pub(crate) grace: Duration,
}

impl Drop for TerminateOnDrop {
    fn drop(&mut self) {
        let Some(child) = self.child.take() else { return };
        child.terminate_group(Signal::TERM);
        let grace = self.grace;
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if timeout(grace, child.wait()).await.is_err() {
                    child.terminate_group(Signal::KILL);
                }
            });
        }
    }
}

struct Outputs {
    stdout: Output,
    stderr: Output,
}

struct Output {
    pipe: Option<pipe::Receiver>,
    kept: Capture,
    buffer: Vec<u8>,
}

impl Outputs {
    fn new(stdout: OwnedFd, stderr: Option<OwnedFd>, limit: usize) -> Result<Self, Errno> {
        Ok(Self { stdout: Output::new(Some(stdout), limit)?, stderr: Output::new(stderr, limit)? })
    }

    /// Reads both streams until the process ends, which may be after both are closed.
    async fn until_exit(&mut self, child: &Child) -> Exit {
        let exit = child.wait();
        tokio::pin!(exit);
        loop {
            tokio::select! {
                biased;
                exit = &mut exit => return exit,
                () = self.read_some(), if self.open() => {}
            }
            // Streams usually close because the process has ended: check for its exit at once.
            if !self.open()
                && let Some(exit) = child.poll_exit()
            {
                return exit;
            }
        }
    }

    fn open(&self) -> bool {
        self.stdout.pipe.is_some() || self.stderr.pipe.is_some()
    }

    async fn read_some(&mut self) {
        tokio::select! {
            () = self.stdout.read() => {}
            () = self.stderr.read() => {}
        }
    }

    /// Reads what is left in the pipes; a descendant that keeps one open does not hold back the response.
    async fn drain_output(&mut self) {
        self.stdout.take_ready();
        self.stderr.take_ready();
        let latest = Instant::now() + OUTPUT_DRAIN_MAX;
        while self.open() {
            let next = latest.min(Instant::now() + OUTPUT_IDLE);
            if timeout_at(next, self.read_some()).await.is_err() {
                break;
            }
        }
    }

    fn finish(self) -> (Capture, Capture) {
        (self.stdout.finish(), self.stderr.finish())
    }
}

impl Output {
    fn new(pipe: Option<OwnedFd>, limit: usize) -> Result<Self, Errno> {
        let pipe = pipe
            .map(pipe::Receiver::from_owned_fd)
            .transpose()
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(Self { pipe, kept: Capture::new(limit), buffer: Vec::new() })
    }

    async fn read(&mut self) {
        let Some(pipe) = &mut self.pipe else { return std::future::pending().await };
        if pipe.readable().await.is_err() {
            self.pipe = None;
            return;
        }
        self.take_ready();
    }

    /// Reads what is available, up to a limit, so that one busy stream cannot starve the other.
    fn take_ready(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        if self.buffer.is_empty() {
            self.buffer.resize(FIRST_READ, 0);
        }
        for _ in 0..READS_IN_A_ROW {
            match pipe.try_read(&mut self.buffer) {
                Ok(0) => {
                    self.pipe = None;
                    return;
                }
                Ok(read) => {
                    self.kept.push(&self.buffer[..read]);
                    if read == self.buffer.len() {
                        self.buffer.resize(READ_SIZE, 0);
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.pipe = None;
                    return;
                }
            }
        }
    }

    /// Reads and discards the output of descendants that still hold the pipe, so that they neither block nor get
    /// SIGPIPE.
    fn finish(self) -> Capture {
        if let Some(mut pipe) = self.pipe {
            tokio::spawn(async move {
                let mut buffer = vec![0; 4096];
                while pipe.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
            });
        }
        self.kept
    }
}

/// Size of the first read buffer: most commands print little.
const FIRST_READ: usize = 4096;
/// Size of later read buffers: the default capacity of a pipe.
const READ_SIZE: usize = 64 * 1024;
const READS_IN_A_ROW: usize = 16;
