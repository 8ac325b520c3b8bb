//! One owner of every child's end: a task that waits for SIGCHLD, collects whoever ended (orphans handed to PID 1
//! included) and tells whoever asked. Signals are sent under the same lock, so that a number is never used after the
//! process it named is gone.
//!
//! SIGCHLD arrives through a descriptor in the event loop, not in a thread of its own: the worker that reads a command's
//! last output is then also the one that learns of its end, which saves two task switches a command.

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

/// Collects ended processes. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Reaper {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    children: HashMap<i32, watch::Sender<Option<Exit>>>,
    /// Groups to be killed to the last member when their leader ends.
    doomed: HashSet<i32>,
    /// Launches that have not registered their child yet; while there are any, unknown ends are kept.
    launching: usize,
    early: HashMap<i32, Exit>,
}

/// A running or ended process that this daemon launched; its number is also its group's and session's.
#[derive(Clone, Debug)]
pub struct Child {
    pid: i32,
    exit: watch::Receiver<Option<Exit>>,
    reaper: Reaper,
}

impl Reaper {
    /// Starts the collecting task. SIGCHLD must already be blocked in every thread (see [`block_signals`]).
    pub fn start() -> std::io::Result<Self> {
        let reaper = Self { state: Arc::default() };
        // SAFETY: an owned descriptor stays open and the same for as long as it is owned.
        let signals = unsafe { AsyncFd::register_with_interest(child_signals()?, Interest::READABLE) }?;
        let collector = reaper.clone();
        tokio::spawn(async move {
            loop {
                collector.collect();
                // Fails only when the event loop is gone, and we with it.
                let Ok(mut ready) = signals.readable().await else { return };
                take_signals(&signals);
                ready.clear_ready();
            }
        });
        Ok(reaper)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere does not make the table wrong; losing children would.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn launch(&self, spawn: impl FnOnce() -> Result<i32, Errno>) -> Result<Child, Errno> {
        self.lock().launching += 1;
        let spawned = spawn();
        let mut state = self.lock();
        state.launching -= 1;
        let early = spawned.ok().and_then(|pid| state.early.remove(&pid));
        if state.launching == 0 {
            state.early.clear();
        }
        let pid = spawned?;
        let (sender, exit) = watch::channel(early);
        if early.is_none() {
            state.children.insert(pid, sender);
        }
        Ok(Child { pid, exit, reaper: self.clone() })
    }

    /// Collects everything that has ended.
    fn collect(&self) {
        loop {
            let mut state = self.lock();
            let Some(pid) = peek_ended() else { return };
            if state.doomed.remove(&pid) {
                // The leader is still unreaped, so the group's number cannot mean anyone else.
                signal_group(pid, Signal::KILL);
            }
            let Some(exit) = collect_one(pid) else { continue };
            if let Some(sender) = state.children.remove(&pid) {
                sender.send_replace(Some(exit));
            } else if state.launching > 0 {
                state.early.insert(pid, exit);
            }
        }
    }

    /// How many launched processes have not ended.
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

    /// Waits for the end.
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

    /// Looks whether it has ended, without waiting for the signal that says so.
    pub fn look(&self) -> Option<Exit> {
        self.exit().or_else(|| {
            self.reaper.collect();
            self.exit()
        })
    }

    /// Signals the whole group; `false` when the command has already ended.
    pub fn signal(&self, signal: Signal) -> bool {
        let state = self.reaper.lock();
        state.children.contains_key(&self.pid) && signal_group(self.pid, signal)
    }

    /// Asks the group to end and has whatever remains of it killed when its leader does.
    pub fn doom(&self, signal: Signal) {
        let mut state = self.reaper.lock();
        if state.children.contains_key(&self.pid) {
            state.doomed.insert(self.pid);
            signal_group(self.pid, signal);
        }
    }
}

fn signal_group(pid: i32, signal: Signal) -> bool {
    let Some(pid) = Pid::from_raw(pid) else { return false };
    // The child may not have reached its setsid yet when it was just forked.
    kill_process_group(pid, signal).or_else(|_| kill_process(pid, signal)).is_ok()
}

fn peek_ended() -> Option<i32> {
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

fn collect_one(pid: i32) -> Option<Exit> {
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
fn child_signals() -> std::io::Result<OwnedFd> {
    let set = signal_set(&[libc::SIGCHLD]);
    // SAFETY: an initialised set; -1 asks for a new descriptor.
    let descriptor = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if descriptor < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: new, valid and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Empties the descriptor. Which child a signal was for does not matter: signals of several children are one.
fn take_signals(signals: &AsyncFd<OwnedFd>) {
    let mut buffer = [0; 4 * size_of::<libc::signalfd_siginfo>()];
    while rustix::io::read(signals.get_ref(), &mut buffer).is_ok_and(|read| read == buffer.len()) {}
}
