//! The spawner: a single-threaded helper that the node starts once and that forks a supervisor for each Pod. Forking a
//! small process that is already loaded costs a fraction of a millisecond; executing the whole program again for each Pod
//! would cost several, and every supervisor would hold its own copy of all relocated pages.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use super::config::HelperProgram;
use super::{supervisor, sys, wire};

/// `argv[0]` of helpers. Nobody starts a program under this name by accident.
const HELPER_NAME: &str = "agent-sandbox-helper";

/// What the spawner is asked for, each with a descriptor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Ask {
    /// A supervisor; goes with its control socket, on which it is told the rest.
    Spawn,
    /// To keep a descriptor open for as long as it lives, because closing it takes long and the node should not wait for that.
    Hold,
}

/// The node's end of a running spawner.
pub(crate) struct Spawner {
    socket: OwnedFd,
}

impl Spawner {
    /// Starts a spawner from a view of the helper program that nobody can write through: a read-only mount of its own where we may
    /// mount, else a sealed copy. Helpers enter sandboxes, where their program can be found through `/proc`.
    pub(crate) fn start(helper: &HelperProgram) -> io::Result<Self> {
        let (socket, theirs) = socket_pair()?;
        let mut source = fs::File::open(helper.path())?;
        let program = match sys::read_only_view(source.as_fd()) {
            Ok(view) => view,
            Err(_) => sys::sealed_copy(&mut source, c"agent-sandbox")?,
        };
        Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
            .arg0(HELPER_NAME)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            // Supervisors outlive us: holding our terminal or pipe open would keep whoever reads it waiting.
            .stderr(Stdio::null())
            .spawn()
            .map(|mut child| {
                // It ends when our socket closes; this thread only keeps it from staying a zombie.
                std::thread::Builder::new().name("spawner-reaper".into()).spawn(move || child.wait()).map(drop)
            })??;
        Ok(Self { socket })
    }

    /// Forks a supervisor; gives our end of its control socket.
    pub(crate) fn spawn(&self) -> io::Result<OwnedFd> {
        let (control, theirs) = socket_pair()?;
        wire::send(&self.socket, &Ask::Spawn, &[theirs.as_fd()])?;
        Ok(control)
    }

    /// Has a descriptor closed after us.
    pub(crate) fn hold(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        wire::send(&self.socket, &Ask::Hold, &[descriptor])
    }
}

fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Becomes the spawner when this process was started as one.
#[expect(clippy::exit, reason = "a helper must never return into the embedding program's main")]
pub(crate) fn take_over() {
    if std::env::args_os().next().is_some_and(|name| name == HELPER_NAME) {
        std::process::exit(spawner_main());
    }
}

fn spawner_main() -> i32 {
    let Some(stdin) = sys::adopt_descriptor(0) else { return 2 };
    // Descriptor 0 is overwritten by /dev/null so that no child takes the socket for its input.
    let Ok(socket) = rustix::io::fcntl_dupfd_cloexec(&stdin, 3) else { return 2 };
    let null = match fs::File::open("/dev/null") {
        Ok(null) => null,
        Err(_) => return 2,
    };
    std::mem::forget(stdin);
    if sys::dup_onto(null.as_fd(), 0).is_err() || sys::set_process_name(c"asb-spawner").is_err() {
        return 2;
    }
    // For all that are forked from here on.
    sys::reset_signals();
    sys::ignore_children();
    // Worked out once; supervisors share its pages.
    let filter = super::seccomp::program();
    let _ = supervisor::records::boot_id();
    let mut held = Vec::new();
    loop {
        match wire::receive::<Ask>(&socket) {
            Ok(Some((Ask::Hold, descriptors))) => held.extend(descriptors),
            Ok(Some((Ask::Spawn, descriptors))) => {
                let Ok([control]) = <[OwnedFd; 1]>::try_from(descriptors) else { continue };
                if let Ok(sys::Fork::Child) = sys::fork_with(0) {
                    drop((socket, held));
                    return supervisor_main(control, filter);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(None) | Err(_) => return 0,
        }
    }
}

fn supervisor_main(control: OwnedFd, filter: Vec<libc::sock_filter>) -> i32 {
    sys::default_signals(&[libc::SIGCHLD]);
    if rustix::process::setsid().is_err() || sys::set_process_name(c"asb-supervisor").is_err() {
        return 2;
    }
    supervisor::main(control, filter)
}
