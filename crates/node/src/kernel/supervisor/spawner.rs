//! The spawner: a single-threaded helper that the node starts once and that forks a supervisor for each Pod. Forking a
//! small process that is already loaded takes a fraction of a millisecond; executing the whole program again for each
//! Pod would take several, and every supervisor would have its own copy of all relocated pages.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use crate::kernel::config::HelperProgram;
use crate::kernel::container::seccomp::Filters;
use crate::kernel::host::process;
use crate::kernel::supervisor::{self, protocol};
use crate::kernel::sys;

/// `argv[0]` of the spawner. No program is started under this name by accident.
const HELPER_NAME: &str = "agent-sandbox-helper";

/// Requests to the spawner, each with a descriptor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum SpawnerRequest {
    /// Fork a supervisor; sent with its control socket, on which it receives its plans.
    Spawn,
    /// Keep a descriptor open until the spawner exits, because closing it takes long and the node should not wait for
    /// that.
    Hold,
}

/// The node's side of a running spawner.
pub(crate) struct Spawner {
    socket: OwnedFd,
}

impl Spawner {
    /// Starts a spawner from a view of the helper program that cannot be written: a read-only mount if mounting is
    /// allowed, otherwise a sealed copy. Helpers enter sandboxes, where their program can be found through `/proc`.
    pub(crate) fn start(helper: &HelperProgram) -> io::Result<Self> {
        let (socket, theirs) = socket_pair()?;
        let mut source = fs::File::open(helper.path())?;
        let program = match sys::read_only_mount(source.as_fd()) {
            Ok(view) => view,
            Err(_) => sys::sealed_copy(&mut source, c"agent-sandbox")?,
        };
        Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
            .arg0(HELPER_NAME)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            // Supervisors outlive this process: an inherited terminal or pipe would never reach its end of file.
            .stderr(Stdio::null())
            .spawn()
            .map(|mut child| {
                // The spawner exits when the socket closes; this thread only reaps it.
                std::thread::Builder::new().name("spawner-reaper".into()).spawn(move || child.wait()).map(drop)
            })??;
        Ok(Self { socket })
    }

    /// Forks a supervisor; returns the node's end of its control socket.
    pub(crate) fn spawn(&self) -> io::Result<OwnedFd> {
        let (control, theirs) = socket_pair()?;
        protocol::send(&self.socket, &SpawnerRequest::Spawn, &[theirs.as_fd()])?;
        Ok(control)
    }

    /// Has a descriptor closed after this process has exited.
    pub(crate) fn hold(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        protocol::send(&self.socket, &SpawnerRequest::Hold, &[descriptor])
    }
}

fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Runs the spawner and exits when this process was started as one.
#[expect(clippy::exit, reason = "a helper must never return into the embedding program's main")]
pub(crate) fn run_if_helper() {
    if std::env::args_os().next().is_some_and(|name| name == HELPER_NAME) {
        std::process::exit(spawner_main());
    }
}

fn spawner_main() -> i32 {
    let Some(stdin) = sys::take_inherited_fd(0) else { return 2 };
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
    // Inherited by all forked supervisors.
    sys::reset_signals();
    sys::ignore_sigchld();
    // Computed once; supervisors share the pages.
    let filters = Filters::new();
    let _ = process::boot_id();
    let mut held = Vec::new();
    loop {
        match protocol::receive::<SpawnerRequest>(&socket) {
            Ok(Some((SpawnerRequest::Hold, descriptors))) => held.extend(descriptors),
            Ok(Some((SpawnerRequest::Spawn, descriptors))) => {
                let Ok([control]) = <[OwnedFd; 1]>::try_from(descriptors) else { continue };
                if let Ok(sys::Fork::Child) = sys::fork_with(0) {
                    drop((socket, held));
                    return supervisor_main(control, filters);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(None) | Err(_) => return 0,
        }
    }
}

fn supervisor_main(control: OwnedFd, filters: Filters) -> i32 {
    sys::default_signals(&[libc::SIGCHLD]);
    if rustix::process::setsid().is_err() || sys::set_process_name(c"asb-supervisor").is_err() {
        return 2;
    }
    supervisor::main(control, filters)
}
