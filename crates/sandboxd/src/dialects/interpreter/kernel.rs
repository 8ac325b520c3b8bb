//! The process that runs the code of a context, and the lines that it and the daemon exchange.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Failure, Interpreter};
use crate::core::Sandbox;
use crate::core::files::Follow;
use crate::core::processes::lookup::find_program;
use crate::core::processes::reaper::{Child, Reaper};
use crate::core::processes::{Launch, Stdin};

/// The kernel's program.
const PROGRAM: &str = include_str!("kernel.py");

/// Reads the program from standard input, where it is preceded by its length, and runs it.
const LOADER: &str = "import os
def read(count):
    data = b''
    while len(data) < count:
        part = os.read(0, count - len(data))
        if not part:
            break
        data += part
    return data
exec(compile(read(int(read(8))), '<kernel>', 'exec'))";

/// Maximum length of a line: a result with a large picture fits.
const MAX_LINE: usize = 64 << 20;

/// A line of the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// An event for the client, as JSON.
    Event(Bytes),
    /// The run is done.
    Done,
}

/// Everything that starting a kernel needs.
#[derive(Debug)]
pub(super) struct Plan {
    launch: Launch,
    reaper: Reaper,
    slots: Arc<Semaphore>,
}

impl Plan {
    pub(super) fn new(launch: Launch, sandbox: &Sandbox) -> Self {
        Self { launch, reaper: sandbox.reaper.clone(), slots: Arc::clone(&sandbox.limits.command_slots) }
    }
}

/// A running kernel. Dropping it ends the process.
#[derive(Debug)]
pub(super) struct Kernel {
    child: Child,
    input: pipe::Sender,
    output: pipe::Receiver,
    /// Standard error of the start; the kernel replaces the descriptor when it runs.
    errors: pipe::Receiver,
    buffer: BytesMut,
    _slot: OwnedSemaphorePermit,
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.child.terminate_group(Signal::KILL);
    }
}

impl Kernel {
    pub(super) async fn start(plan: &Plan) -> Result<Self, String> {
        let slot = Arc::clone(&plan.slots).try_acquire_owned().map_err(|_| "too many processes are running")?;
        let launched = plan.launch.start(&plan.reaper).map_err(|error| error.to_string())?;
        let (Some(input), Some(errors)) = (launched.stdin, launched.stderr) else {
            return Err("the kernel has no pipes".into());
        };
        let receiver = |fd: OwnedFd| -> std::io::Result<pipe::Receiver> {
            rustix::io::ioctl_fionbio(&fd, true)?;
            pipe::Receiver::from_owned_fd_unchecked(fd)
        };
        let sender = |fd: OwnedFd| -> std::io::Result<pipe::Sender> {
            rustix::io::ioctl_fionbio(&fd, true)?;
            pipe::Sender::from_owned_fd_unchecked(fd)
        };
        let failed = |error: std::io::Error| error.to_string();
        let mut kernel = Self {
            child: launched.child,
            input: sender(input).map_err(failed)?,
            output: receiver(launched.stdout).map_err(failed)?,
            errors: receiver(errors).map_err(failed)?,
            buffer: BytesMut::new(),
            _slot: slot,
        };
        let program = format!("{:8}{PROGRAM}", PROGRAM.len());
        if kernel.input.write_all(program.as_bytes()).await.is_err() {
            return Err(kernel.death().await);
        }
        Ok(kernel)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.child.poll_exit().is_some()
    }

    /// Sends a request, a JSON object on one line.
    pub(super) async fn send(&mut self, request: &[u8]) -> std::io::Result<()> {
        self.input.write_all(request).await?;
        self.input.write_all(b"\n").await
    }

    /// The next line; `None` if the kernel has ended or wrote something else. Can be dropped and called again.
    pub(super) async fn next(&mut self) -> Option<Line> {
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer) {
                let mut line = self.buffer.split_to(at + 1).freeze();
                let rest = line.split_off(1);
                return match &line[..] {
                    b"E" => Some(Line::Event(rest)),
                    b"D" => Some(Line::Done),
                    _ => None,
                };
            }
            if self.buffer.len() > MAX_LINE {
                return None;
            }
            match self.output.read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    /// Interrupts the code that runs, and programs that it started.
    pub(super) fn interrupt(&self) {
        self.child.signal(Signal::INT);
    }

    /// How the kernel ended, for a message.
    pub(super) async fn death(&mut self) -> String {
        self.child.terminate_group(Signal::KILL);
        let exit = self.child.wait().await;
        let mut text = vec![0; 4096];
        let read = self.errors.try_read(&mut text).unwrap_or_default();
        let text = String::from_utf8_lossy(&text[..read]).trim().to_owned();
        format!("the Python process ended ({exit:?}); its variables are lost{}{text}", if read > 0 { ": " } else { "" })
    }
}

impl Interpreter {
    /// The kernel's command, if the sandbox can run it.
    pub(super) fn launch(&self, cwd: &str) -> Result<Launch, Failure> {
        let user = self.user()?;
        let invalid = |message: String| Failure::new(StatusCode::BAD_REQUEST, message);
        let path = user.resolve(&self.sandbox, cwd).map_err(|error| invalid(error.to_string()))?;
        let located = self.sandbox.paths.root().locate(&path, Follow::Link);
        let directory = located.and_then(|located| located.open_directory());
        let directory = directory.map_err(|error| invalid(format!("cwd {cwd:?}: {error}")))?;
        let mut env = user.environment(&self.sandbox, &self.settings);
        env.set("PWD", cwd);
        if find_program("python3".as_ref(), env.get("PATH"), directory.as_fd()).is_err() {
            let message = "there is no python3 in this sandbox's PATH; use an image that has it";
            return Err(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, message));
        }
        Ok(Launch {
            argv: ["python3", "-u", "-c", LOADER].map(Into::into).into(),
            env: Arc::new(env),
            cwd: Arc::new(directory),
            stdin: Stdin::Pipe,
            terminal: None,
            identity: user.identity(),
            rlimits: Vec::new(),
        })
    }
}
