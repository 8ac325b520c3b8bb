//! The complete description of a command, and the handles of the launched child.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::lookup::find_program;
use super::reaper::{Child, Reaper};
use super::{fork_exec, posix_spawn};
use crate::core::terminals::{self, Winsize};

/// A command, ready to be launched.
#[derive(Clone, Debug)]
pub struct Launch {
    pub argv: Vec<OsString>,
    pub env: Arc<Environment>,
    /// Opened by the caller, so that the directory that was checked is the one that is used.
    pub cwd: Arc<OwnedFd>,
    pub stdin: Stdin,
    pub terminal: Option<Winsize>,
    pub identity: Option<Identity>,
    pub rlimits: Vec<(rustix::process::Resource, u64)>,
}

/// Standard input of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdin {
    Null,
    Pipe,
}

/// Environment variables of a command.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    variables: BTreeMap<OsString, OsString>,
}

/// The user to run as; another one than the daemon's needs CAP_SETUID and CAP_SETGID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// The daemon's handles of a running command.
#[derive(Debug)]
pub struct Launched {
    pub child: Child,
    pub stdin: Option<OwnedFd>,
    /// Both output streams, if the command has a terminal.
    pub stdout: OwnedFd,
    pub stderr: Option<OwnedFd>,
    /// The controlling side of the terminal.
    pub terminal: Option<Arc<OwnedFd>>,
}

/// Why a command was not launched.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("the command is empty")]
    Empty,
    #[error("argument or variable holds a NUL byte")]
    Nul,
    #[error("{}: '{program}'", crate::core::errno_text(*.errno))]
    Program { program: String, errno: Errno },
    #[error("cannot prepare the command: {}", crate::core::errno_text(*.0))]
    Prepare(Errno),
}

impl LaunchError {
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Program { errno, .. } | Self::Prepare(errno) => Some(*errno),
            Self::Empty | Self::Nul => None,
        }
    }
}

impl Environment {
    /// The daemon's own environment, read once at start.
    pub fn of_daemon() -> Self {
        Self { variables: std::env::vars_os().collect() }
    }

    pub fn set(&mut self, name: impl Into<OsString>, value: impl Into<OsString>) {
        self.variables.insert(name.into(), value.into());
    }

    pub fn remove(&mut self, name: &str) {
        self.variables.remove(OsStr::new(name));
    }

    pub fn get(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.variables.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }

    fn to_strings(&self) -> Result<Vec<CString>, LaunchError> {
        self.iter().map(|(name, value)| c_string(&[name.as_bytes(), b"=", value.as_bytes()])).collect()
    }
}

fn c_string(parts: &[&[u8]]) -> Result<CString, LaunchError> {
    CString::new(parts.concat()).map_err(|_| LaunchError::Nul)
}

/// The checked arguments of the system calls: only the kernel can still refuse the launch.
pub(super) struct Prepared<'a> {
    pub(super) program: CString,
    pub(super) argv: Vec<CString>,
    pub(super) env: Vec<CString>,
    pub(super) launch: &'a Launch,
}

/// The standard descriptors of a child.
pub(super) struct ChildStdio {
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

impl Launch {
    /// Starts the command with the daemon's own standard streams, as the container's main process.
    pub fn start_inheriting(&self, reaper: &Reaper) -> Result<Child, LaunchError> {
        let (prepared, failed) = self.prepare()?;
        let inherited = |fd| rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(LaunchError::Prepare);
        let stdio = ChildStdio {
            stdin: inherited(rustix::stdio::stdin())?,
            stdout: inherited(rustix::stdio::stdout())?,
            stderr: inherited(rustix::stdio::stderr())?,
        };
        reaper.launch(|| posix_spawn::spawn(&prepared, &stdio)).map_err(failed)
    }

    fn prepare(&self) -> Result<(Prepared<'_>, impl Fn(Errno) -> LaunchError + use<'_>), LaunchError> {
        let name = self.argv.first().ok_or(LaunchError::Empty)?;
        let failed = |errno| LaunchError::Program { program: name.to_string_lossy().into_owned(), errno };
        let prepared = Prepared {
            program: find_program(name, self.env.get("PATH"), self.cwd.as_fd()).map_err(failed)?,
            argv: self.argv.iter().map(|part| c_string(&[part.as_bytes()])).collect::<Result<_, _>>()?,
            env: self.env.to_strings()?,
            launch: self,
        };
        Ok((prepared, failed))
    }

    /// Starts the command in a session of its own.
    pub fn start(&self, reaper: &Reaper) -> Result<Launched, LaunchError> {
        let (prepared, failed) = self.prepare()?;
        if let Some(size) = self.terminal {
            return start_on_terminal(&prepared, size, reaper, failed);
        }
        let (stdin, parent_stdin) = match self.stdin {
            Stdin::Null => (null_input()?, None),
            Stdin::Pipe => {
                let (reader, writer) = pipe()?;
                (reader, Some(writer))
            }
        };
        let (parent_stdout, stdout) = pipe()?;
        let (parent_stderr, stderr) = pipe()?;
        let stdio = ChildStdio { stdin, stdout, stderr };
        let plain = self.identity.is_none() && self.rlimits.is_empty();
        let child = reaper
            .launch(|| {
                if plain { posix_spawn::spawn(&prepared, &stdio) } else { fork_exec::spawn(&prepared, &stdio, false) }
            })
            .map_err(failed)?;
        Ok(Launched { child, stdin: parent_stdin, stdout: parent_stdout, stderr: Some(parent_stderr), terminal: None })
    }
}

fn start_on_terminal(
    prepared: &Prepared<'_>,
    size: Winsize,
    reaper: &Reaper,
    failed: impl Fn(Errno) -> LaunchError,
) -> Result<Launched, LaunchError> {
    let (controller, terminal) = terminals::open(size).map_err(LaunchError::Prepare)?;
    let duplicate = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(LaunchError::Prepare);
    let stdio = ChildStdio { stdin: duplicate(&terminal)?, stdout: duplicate(&terminal)?, stderr: terminal };
    let child = reaper.launch(|| fork_exec::spawn(prepared, &stdio, true)).map_err(failed)?;
    Ok(Launched {
        child,
        stdin: Some(duplicate(&controller)?),
        stdout: duplicate(&controller)?,
        stderr: None,
        terminal: Some(Arc::new(controller)),
    })
}

fn pipe() -> Result<(OwnedFd, OwnedFd), LaunchError> {
    pipe_with(PipeFlags::CLOEXEC).map_err(LaunchError::Prepare)
}

/// An input that is at its end, also without `/dev/null`.
fn null_input() -> Result<OwnedFd, LaunchError> {
    use rustix::fs::{Mode, OFlags, open};
    match open(c"/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(null) => Ok(null),
        Err(_) => pipe().map(|(reader, _writer)| reader),
    }
}
