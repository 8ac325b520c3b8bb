//! Managed processes: they outlive the request that starts them, can be listed, written to, signalled and attached to
//! again, and are kept for a while after they have ended.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::io::Errno;
use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::launch::{Launch, LaunchError, Launched};
use super::log::{Log, Stream};
use super::reaper::{Child, Exit, Reaper};
use crate::core::history::{History, Recording};
use crate::core::terminals;

/// Number of ended processes that are kept, and for how long.
const MAX_ENDED: usize = 128;
const ENDED_RETENTION: Duration = Duration::from_secs(15 * 60);

/// As in [`super::run`]: descendants may still write after the process itself has ended.
const OUTPUT_IDLE: Duration = Duration::from_millis(400);
const OUTPUT_DRAIN_MAX: Duration = Duration::from_secs(5);

/// End of transmission, which a terminal reads as the end of input.
const END_OF_TRANSMISSION: &[u8] = b"\x04";

/// Every managed process of this daemon.
#[derive(Debug)]
pub struct Registry {
    table: Mutex<Table>,
    reaper: Reaper,
    slots: Arc<Semaphore>,
    history: Arc<History>,
    grace: Duration,
}

#[derive(Debug, Default)]
struct Table {
    last_id: i32,
    processes: BTreeMap<i32, Arc<Process>>,
}

/// Options of a managed process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessOptions {
    /// Bytes of output kept for replay.
    pub log: usize,
    pub time: Option<Duration>,
    /// Wait for the output of descendants that still hold the pipes, until they close them or the process is signalled.
    /// Otherwise the output ends soon after the process.
    pub whole_output: bool,
}

/// Why a process could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("too many processes are running")]
    TooMany,
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

/// Why a process could not be controlled.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("standard input is not available")]
    NoStdin,
    #[error("the process has no terminal")]
    NoTerminal,
    #[error("the process has ended")]
    Ended,
    #[error("{}", crate::core::errno_text(*.0))]
    Os(Errno),
}

/// How and when a process ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    pub exit: Exit,
    pub at: SystemTime,
    pub timed_out: bool,
}

/// A managed process.
#[derive(Debug)]
pub struct Process {
    pub id: i32,
    pub argv: Vec<String>,
    pub started_at: SystemTime,
    pub log: Arc<Log>,
    child: Child,
    stdin: tokio::sync::Mutex<Option<pipe::Sender>>,
    terminal: Option<Arc<OwnedFd>>,
    ended: watch::Sender<Option<Ended>>,
    timed_out: AtomicBool,
    /// Set by every signal that is sent through this handle: the process is not expected to write any more.
    signalled: CancellationToken,
    grace: Duration,
}

impl Registry {
    pub fn new(reaper: Reaper, slots: Arc<Semaphore>, history: Arc<History>, grace: Duration) -> Self {
        Self { table: Mutex::default(), reaper, slots, history, grace }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts and registers a process.
    pub fn start(&self, launch: &Launch, options: ProcessOptions) -> Result<Arc<Process>, StartError> {
        let slot = Arc::clone(&self.slots).try_acquire_owned().map_err(|_| StartError::TooMany)?;
        let recording = Recording::start(&self.history, launch);
        let launched = launch.start(&self.reaper).inspect_err(|error| recording.failed(&error.to_string()))?;
        let argv = launch.argv.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let id = self.next_id();
        let process = Process::from_launched(id, argv, launched, options, self.grace, (slot, recording))?;
        let mut table = self.lock();
        table.remove_expired();
        table.processes.insert(id, Arc::clone(&process));
        Ok(process)
    }

    fn next_id(&self) -> i32 {
        let mut table = self.lock();
        table.last_id = table.last_id.wrapping_add(1).max(1);
        table.last_id
    }

    pub fn get(&self, id: i32) -> Option<Arc<Process>> {
        self.lock().processes.get(&id).cloned()
    }

    pub fn list(&self) -> Vec<Arc<Process>> {
        let mut table = self.lock();
        table.remove_expired();
        table.processes.values().cloned().collect()
    }

    /// Removes a process from the table; the caller has to end it.
    pub fn remove(&self, id: i32) {
        self.lock().processes.remove(&id);
    }
}

impl Table {
    fn remove_expired(&mut self) {
        let now = SystemTime::now();
        let mut ended: Vec<(i32, SystemTime)> =
            self.processes.values().filter_map(|process| Some((process.id, process.ended()?.at))).collect();
        ended.sort_by_key(|(_, at)| *at);
        let surplus = ended.len().saturating_sub(MAX_ENDED);
        for (index, (id, at)) in ended.into_iter().enumerate() {
            if index < surplus || now.duration_since(at).is_ok_and(|age| age > ENDED_RETENTION) {
                self.processes.remove(&id);
            }
        }
    }
}

impl Process {
    fn from_launched(
        id: i32,
        argv: Vec<String>,
        launched: Launched,
        options: ProcessOptions,
        grace: Duration,
        held: (OwnedSemaphorePermit, Recording),
    ) -> Result<Arc<Self>, LaunchError> {
        let failed = |error: std::io::Error| LaunchError::Prepare(Errno::from_io_error(&error).unwrap_or(Errno::IO));
        let stdin = launched.stdin.map(writer).transpose().map_err(failed)?;
        let stdout = reader(launched.stdout).map_err(failed)?;
        let stderr = launched.stderr.map(reader).transpose().map_err(failed)?;
        let process = Arc::new(Self {
            id,
            argv,
            started_at: SystemTime::now(),
            log: Log::new(options.log),
            child: launched.child,
            stdin: tokio::sync::Mutex::new(stdin),
            terminal: launched.terminal,
            ended: watch::Sender::new(None),
            timed_out: AtomicBool::new(false),
            signalled: CancellationToken::new(),
            grace,
        });
        tokio::spawn(Arc::clone(&process).supervise(stdout, stderr, options, held));
        Ok(process)
    }

    /// Supervises the process until it ends: output, time limit, exit.
    async fn supervise(
        self: Arc<Self>,
        stdout: pipe::Receiver,
        stderr: Option<pipe::Receiver>,
        options: ProcessOptions,
        (slot, recording): (OwnedSemaphorePermit, Recording),
    ) {
        let recording = Arc::new(recording);
        let deadline = options.time.and_then(|time| Instant::now().checked_add(time));
        let mut pumps = tokio::task::JoinSet::new();
        pumps.spawn(pump(stdout, Arc::clone(&self.log), Arc::clone(&recording), Stream::Stdout));
        if let Some(stderr) = stderr {
            pumps.spawn(pump(stderr, Arc::clone(&self.log), Arc::clone(&recording), Stream::Stderr));
        }
        let exit = match deadline {
            None => self.child.wait().await,
            Some(deadline) => match timeout_at(deadline, self.child.wait()).await {
                Ok(exit) => exit,
                Err(_) => {
                    self.timed_out.store(true, Ordering::Relaxed);
                    self.end().await
                }
            },
        };
        if options.whole_output && !self.signalled.is_cancelled() {
            self.await_whole_output(&mut pumps, deadline).await;
        }
        self.drain_output(&mut pumps).await;
        drop(slot);
        *self.stdin.lock().await = None;
        let timed_out = self.timed_out.load(Ordering::Relaxed);
        recording.finish(exit, timed_out);
        self.ended.send_replace(Some(Ended { exit, at: SystemTime::now(), timed_out }));
        self.log.close();
        // Descendants may still hold the pipes: read and discard their output (the log is closed) until they close
        // them.
        while pumps.join_next().await.is_some() {}
    }

    /// Waits until no process holds the pipes, the process is signalled or its time is over.
    async fn await_whole_output(&self, pumps: &mut tokio::task::JoinSet<()>, deadline: Option<Instant>) {
        let time_over = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(time_over);
        loop {
            tokio::select! {
                joined = pumps.join_next() => if joined.is_none() { return },
                () = self.signalled.cancelled() => return,
                () = &mut time_over => {
                    self.timed_out.store(true, Ordering::Relaxed);
                    return;
                }
            }
        }
    }

    async fn drain_output(&self, pumps: &mut tokio::task::JoinSet<()>) {
        let latest = Instant::now() + OUTPUT_DRAIN_MAX;
        let mut seen = self.log.range().1;
        let mut quiet_since = Instant::now();
        while !pumps.is_empty() && Instant::now() < latest && quiet_since.elapsed() < OUTPUT_IDLE {
            let _ = timeout(OUTPUT_IDLE / 8, pumps.join_next()).await;
            let now = self.log.range().1;
            if now != seen {
                seen = now;
                quiet_since = Instant::now();
            }
        }
    }

    pub fn pid(&self) -> i32 {
        self.child.pid()
    }

    pub fn ended(&self) -> Option<Ended> {
        *self.ended.borrow()
    }

    /// Waits until the process has ended and its output is read.
    pub async fn wait(&self) -> Ended {
        let mut ended = self.ended.subscribe();
        match ended.wait_for(Option::is_some).await {
            Ok(value) => (*value).unwrap_or(UNKNOWN_END),
            Err(_) => UNKNOWN_END,
        }
    }

    /// Ends the process group: SIGTERM, and SIGKILL after the grace period.
    pub async fn end(&self) -> Exit {
        self.signalled.cancel();
        self.child.terminate_group(Signal::TERM);
        match timeout(self.grace, self.child.wait()).await {
            Ok(exit) => exit,
            Err(_) => {
                self.child.terminate_group(Signal::KILL);
                self.child.wait().await
            }
        }
    }

    /// Signals the process alone, without its descendants; has no effect on an ended process.
    pub fn signal_alone(&self, signal: Signal) {
        self.signalled.cancel();
        self.child.signal_alone(signal);
    }

    /// Signals the process group; has no effect on an ended process.
    pub fn signal(&self, signal: Signal) {
        self.signalled.cancel();
        if signal == Signal::KILL {
            self.child.terminate_group(signal);
        } else {
            self.child.signal(signal);
        }
    }

    pub async fn write(&self, bytes: &[u8]) -> Result<(), ControlError> {
        let mut stdin = self.stdin.lock().await;
        let writer = stdin.as_mut().ok_or(ControlError::NoStdin)?;
        let written = tokio::select! {
            written = writer.write_all(bytes) => written,
            _ = self.child.wait() => return Err(ControlError::Ended),
        };
        written.map_err(|error| ControlError::Os(Errno::from_io_error(&error).unwrap_or(Errno::IO)))
    }

    /// Ends the input: closes the pipe, or sends ^D to a terminal.
    pub async fn end_input(&self) -> Result<(), ControlError> {
        if self.terminal.is_some() {
            return self.write(END_OF_TRANSMISSION).await;
        }
        let mut stdin = self.stdin.lock().await;
        stdin.take().map(drop).ok_or(ControlError::NoStdin)
    }

    pub fn resize(&self, columns: u16, rows: u16) -> Result<(), ControlError> {
        let terminal = self.terminal.as_ref().ok_or(ControlError::NoTerminal)?;
        if self.ended().is_some() {
            return Err(ControlError::Ended);
        }
        terminals::resize(terminal, terminals::window_size(columns, rows)).map_err(ControlError::Os)
    }

    pub fn has_terminal(&self) -> bool {
        self.terminal.is_some()
    }
}

/// Reported only if the sender of the end is gone, which does not happen while a process is held.
const UNKNOWN_END: Ended = Ended { exit: Exit::Code(-1), at: SystemTime::UNIX_EPOCH, timed_out: false };

/// Ends a managed process when its only client disconnects.
#[derive(Debug)]
pub struct TerminateOnDisconnect {
    pub process: Arc<Process>,
}

impl Drop for TerminateOnDisconnect {
    fn drop(&mut self) {
        if self.process.child.exit().is_none() {
            let process = Arc::clone(&self.process);
            tokio::spawn(async move { process.end().await });
        }
    }
}

fn reader(fd: OwnedFd) -> std::io::Result<pipe::Receiver> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    // Unchecked, because the controlling side of a terminal is read with the same type.
    pipe::Receiver::from_owned_fd_unchecked(fd)
}

fn writer(fd: OwnedFd) -> std::io::Result<pipe::Sender> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    pipe::Sender::from_owned_fd_unchecked(fd)
}

async fn pump(mut from: pipe::Receiver, log: Arc<Log>, recording: Arc<Recording>, stream: Stream) {
    let mut buffer = vec![0; 32 * 1024];
    // Reading the controlling side fails with EIO after the last descriptor of the terminal is closed.
    while let Ok(read) = from.read(&mut buffer).await {
        if read == 0 {
            return;
        }
        recording.push(stream, &buffer[..read]);
        log.append(stream, &buffer[..read]).await;
    }
}
