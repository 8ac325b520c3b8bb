//! Reaps every child: a task waits for SIGCHLD, collects the exit status of all ended processes (orphans of PID 1
//! included) and publishes it. Signals are sent under the same lock, so that a pid is never used after its process is
//! reaped.
//!
//! SIGCHLD arrives through a signalfd in the event loop instead of a separate thread: the thread that reads the last
//! output of a command also learns of its exit, which saves two task switches per command.

#![expect(unsafe_code, reason = "signal sets and waitid are C interfaces")]

use std::collections::{HashMap, HashSet};
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

impl Exit {
    /// As a shell reports it: 128 + N for a signal.
    pub fn shell_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }
}

/// Reaps ended processes. Clones share their state.
#[derive(Clone, Debug)]
pub struct Reaper {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    children: HashMap<i32, watch::Sender<Option<Exit>>>,
    /// Process groups whose remaining members are killed when the leader ends.
    kill_on_exit: HashSet<i32>,
    /// Number of launches whose child is not registered yet. While it is above zero, the exit status of unknown
    /// processes is kept in `exited_early`.
    launching: usize,
    exited_early: HashMap<i32, Exit>,
}

/// A process that this daemon launched; its pid is also its process group and session.
#[derive(Clone, Debug)]
pub struct Child {
    pid: i32,
    exit: watch::Receiver<Option<Exit>>,
    reaper: Reaper,
}

impl Reaper {
    /// Starts the reaping task. SIGCHLD must already be blocked in every thread (see [`block_signals`]).
    pub fn start() -> std::io::Result<Self> {
        let reaper = Self { state: Arc::default() };
        // SAFETY: an owned descriptor stays open and the same for as long as it is owned.
        let signals = unsafe { AsyncFd::register_with_interest(sigchld_fd()?, Interest::READABLE) }?;
        let task = reaper.clone();
        tokio::spawn(async move {
            loop {
                task.reap_all();
                // Fails only when the event loop has shut down.
                let Ok(mut ready) = signals.readable().await else { return };
                drain_signals(&signals);
                ready.clear_ready();
            }
        });
        Ok(reaper)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves the table valid; giving up here would lose the children.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn launch(&self, spawn: impl FnOnce() -> Result<i32, Errno>) -> Result<Child, Errno> {
        self.lock().launching += 1;
        let spawned = spawn();
        let mut state = self.lock();
        state.launching -= 1;
        let exited_early = spawned.ok().and_then(|pid| state.exited_early.remove(&pid));
        if state.launching == 0 {
            state.exited_early.clear();
        }
        let pid = spawned?;
        let (sender, exit) = watch::channel(exited_early);
        if exited_early.is_none() {
            state.children.insert(pid, sender);
        }
        Ok(Child { pid, exit, reaper: self.clone() })
    }

    /// Reaps every process that has ended.
    fn reap_all(&self) {
        loop {
            let mut state = self.lock();
            let Some(pid) = peek_exited() else { return };
            if state.kill_on_exit.remove(&pid) {
                // The leader is not reaped yet, so its process group id cannot have been reused.
                signal_group(pid, Signal::KILL);
            }
            let Some(exit) = reap(pid) else { continue };
            if let Some(sender) = state.children.remove(&pid) {
                sender.send_replace(Some(exit));
            } else if state.launching > 0 {
                state.exited_early.insert(pid, exit);
            }
        }
    }

    /// Number of launched processes that have not ended.
    pub fn running(&self) -> usize {
        self.lock().children.len()
    }

    /// Waits until no launched process is left.
    pub async fn all_ended(&self) {
        loop {
            let next = self.lock().children.values().next().map(watch::Sender::subscribe);
            let Some(mut exit) = next else { return };
            let _ = exit.wait_for(Option::is_some).await;
        }
    }

    /// Sends a signal to the group of every running command.
    pub fn signal_all(&self, signal: Signal) {
        for pid in self.lock().children.keys() {
            signal_group(*pid, signal);
        }
    }
}

impl Child {
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Waits until the process has ended.
    pub async fn wait(&self) -> Exit {
        let mut exit = self.exit.clone();
        match exit.wait_for(Option::is_some).await {
            Ok(value) => value.unwrap_or(Exit::Code(-1)),
            Err(_) => Exit::Code(-1),
        }
    }

    pub fn exit(&self) -> Option<Exit> {
        *self.exit.borrow()
    }

    /// Whether the process has ended, checked without waiting for SIGCHLD.
    pub fn poll_exit(&self) -> Option<Exit> {
        self.exit().or_else(|| {
            self.reaper.reap_all();
            self.exit()
        })
    }

    /// Signals the process group; `false` if the command has already ended.
    pub fn signal(&self, signal: Signal) -> bool {
        let state = self.reaper.lock();
        state.children.contains_key(&self.pid) && signal_group(self.pid, signal)
    }

    /// Signals the process alone; `false` if it has already ended.
    pub fn signal_alone(&self, signal: Signal) -> bool {
        let state = self.reaper.lock();
        let pid = Pid::from_raw(self.pid).filter(|_| state.children.contains_key(&self.pid));
        pid.is_some_and(|pid| kill_process(pid, signal).is_ok())
    }

    /// Signals the process group and has its remaining members killed when the leader ends.
    pub fn terminate_group(&self, signal: Signal) {
        let mut state = self.reaper.lock();
        if state.children.contains_key(&self.pid) {
            state.kill_on_exit.insert(self.pid);
            signal_group(self.pid, signal);
        }
    }
}

fn signal_group(pid: i32, signal: Signal) -> bool {
    let Some(pid) = Pid::from_raw(pid) else { return false };
    // A child that was just forked may not have called setsid yet.
    kill_process_group(pid, signal).or_else(|_| kill_process(pid, signal)).is_ok()
}

fn peek_exited() -> Option<i32> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` is a zeroed siginfo_t, which the call fills in or leaves zero.
    let pid = unsafe {
        if libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), flags) != 0 {
            return None;
        }
        info.assume_init().si_pid()
    };
    (pid > 0).then_some(pid)
}

fn reap(pid: i32) -> Option<Exit> {
    let mut status = 0;
    // SAFETY: a plain system call with a live out-pointer.
    let collected = unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) };
    if collected != pid {
        return None;
    }
    Some(if libc::WIFSIGNALED(status) {
        Exit::Signal(libc::WTERMSIG(status))
    } else {
        Exit::Code(libc::WEXITSTATUS(status))
    })
}

fn signal_set(signals: &[i32]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set before signals are added.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

/// Blocks SIGCHLD in this thread and in every thread it starts. Call it before any other thread exists.
pub fn block_signals() {
    let set = signal_set(&[libc::SIGCHLD]);
    // SAFETY: an initialised set; no old set is asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
}

/// A descriptor that becomes readable when a child has ended.
fn sigchld_fd() -> std::io::Result<OwnedFd> {
    let set = signal_set(&[libc::SIGCHLD]);
    // SAFETY: an initialised set; -1 asks for a new descriptor.
    let descriptor = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if descriptor < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: a new, valid descriptor that no other value owns.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Empties the signalfd. Signals of several children are merged, so that it does not matter which child a signal is
/// for.
fn drain_signals(signals: &AsyncFd<OwnedFd>) {
    let mut buffer = [0; 4 * size_of::<libc::signalfd_siginfo>()];
    while rustix::io::read(signals.get_ref(), &mut buffer).is_ok_and(|read| read == buffer.len()) {}
}
