//! Running one command to its end with nobody attached: bounded output, a time limit, and an end when the caller goes.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::time::{Instant, timeout, timeout_at};

use super::capture::Capture;
use super::launch::{Launch, LaunchError, Launched};
use super::reaper::{Child, Exit, Reaper};

/// What others still write after the command itself has ended is awaited this long without news …
const SETTLE: Duration = Duration::from_millis(400);
/// … and this long in all.
const SETTLE_MAX: Duration = Duration::from_secs(5);

/// How long, and how often, a launch is tried again when there are too many processes.
const CROWDED_MAX: Duration = Duration::from_secs(5);
const CROWDED_PAUSE: Duration = Duration::from_millis(10);

/// The bounds of one run.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub time: Option<Duration>,
    /// Between the polite signal and the final one.
    pub grace: Duration,
    /// Bytes kept of each stream.
    pub output: usize,
}

/// A finished run.
#[derive(Debug)]
pub struct Finished {
    pub exit: Exit,
    pub stdout: Capture,
    pub stderr: Capture,
    pub timed_out: bool,
}

/// Launches and waits. Dropping the future ends the command's whole group.
pub async fn run(launch: &Launch, bounds: Bounds, reaper: &Reaper) -> Result<Finished, LaunchError> {
    run_with_input(launch, bounds, reaper, None).await
}

/// As [`run`]; `input` is written to a piped standard input, which then ends.
pub async fn run_with_input(
    launch: &Launch,
    bounds: Bounds,
    reaper: &Reaper,
    input: Option<Vec<u8>>,
) -> Result<Finished, LaunchError> {
    let Launched { child, stdin, stdout, stderr, .. } = start(launch, reaper).await?;
    let _writer = stdin.zip(input).map(|(stdin, input)| AbortOnDrop(tokio::spawn(feed(stdin, input))));
    let mut guard = EndOnDrop { child: Some(child.clone()), grace: bounds.grace };
    let mut outputs = Outputs::new(stdout, stderr, bounds.output).map_err(LaunchError::Prepare)?;
    let deadline = bounds.time.map(|time| Instant::now() + time);
    let mut timed_out = false;
    let exit = tokio::select! {
        exit = outputs.until_exit(&child) => exit,
        () = until(deadline) => {
            timed_out = true;
            child.doom(Signal::TERM);
            match timeout(bounds.grace, outputs.until_exit(&child)).await {
                Ok(exit) => exit,
                Err(_) => {
                    child.doom(Signal::KILL);
                    outputs.until_exit(&child).await
                }
            }
        }
    };
    guard.child = None;
    outputs.settle().await;
    let (stdout, stderr) = outputs.finish();
    Ok(Finished { exit, stdout, stderr, timed_out })
}

/// Launches; while the sandbox is at its limit of processes, tries again for a while. What brings it there (a fork bomb,
/// at worst) frees and takes places all the time, so that a patient caller gets one.
async fn start(launch: &Launch, reaper: &Reaper) -> Result<Launched, LaunchError> {
    let latest = Instant::now() + CROWDED_MAX;
    loop {
        match launch.start(reaper) {
            Err(error) if error.errno() == Some(Errno::AGAIN) && Instant::now() < latest => {
                tokio::time::sleep(CROWDED_PAUSE).await;
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

/// Writes everything and closes. A command that reads only part of its input is not wrong.
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

/// Ends a command whose caller went away.
#[derive(Debug)]
pub(crate) struct EndOnDrop {
    pub(crate) child: Option<Child>,
    pub(crate) grace: Duration,
}

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        let Some(child) = self.child.take() else { return };
        child.doom(Signal::TERM);
        let grace = self.grace;
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if timeout(grace, child.wait()).await.is_err() {
                    child.doom(Signal::KILL);
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

    /// Reads both streams until the process ends (which may be after both were closed).
    async fn until_exit(&mut self, child: &Child) -> Exit {
        let exit = child.wait();
        tokio::pin!(exit);
        loop {
            tokio::select! {
                biased;
                exit = &mut exit => return exit,
                () = self.read_some(), if self.open() => {}
            }
            // Streams usually close because their process ends: it may be over already.
            if !self.open()
                && let Some(exit) = child.look()
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

    /// Takes what is still in the pipes; a daemon that keeps one open does not keep the answer.
    async fn settle(&mut self) {
        self.stdout.take_ready();
        self.stderr.take_ready();
        let latest = Instant::now() + SETTLE_MAX;
        while self.open() {
            let next = latest.min(Instant::now() + SETTLE);
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

    /// Reads without waiting, a bounded amount, so that one busy stream cannot starve the other.
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

    /// A pipe that others still hold is read into nothing until they let go, so that they never block or break.
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

/// Most commands say little.
const FIRST_READ: usize = 4096;
/// A pipe's default capacity.
const READ_SIZE: usize = 64 * 1024;
const READS_IN_A_ROW: usize = 16;
