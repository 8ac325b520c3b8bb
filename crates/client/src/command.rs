//! Commands, their output and their events.

use agent_sandbox_protocol::native::{ExecRequest, Limits, TerminalSize};
use bytes::Bytes;
use std::time::Duration;

/// Default limit of [`crate::SandboxHandle::run`] for the output of each stream.
const OUTPUT_LIMIT: usize = 64 << 20;

/// A command and its options.
#[derive(Clone, Debug)]
pub struct Command {
    pub(crate) request: ExecRequest,
    pub(crate) key: Option<String>,
    pub(crate) boot_id: Option<String>,
    pub(crate) output_limit: usize,
    pub(crate) trace: Option<crate::TraceContext>,
}

impl Command {
    /// A command line for the sandbox's shell.
    pub fn shell(text: impl Into<String>) -> Self {
        Self::of(ExecRequest { command: Some(text.into()), ..ExecRequest::default() })
    }

    /// A program and its arguments, without a shell.
    pub fn argv(words: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::of(ExecRequest { argv: words.into_iter().map(Into::into).collect(), ..ExecRequest::default() })
    }

    fn of(request: ExecRequest) -> Self {
        Self { request, key: None, boot_id: None, output_limit: OUTPUT_LIMIT, trace: None }
    }

    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.request.env.insert(name.into(), value.into());
        self
    }

    /// Working directory, relative to the sandbox's base directory.
    pub fn cwd(mut self, folder: impl Into<String>) -> Self {
        self.request.cwd = Some(folder.into());
        self
    }

    /// User name or uid, optionally `user:group`.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.request.user = Some(user.into());
        self
    }

    /// Timeout after which the sandbox kills the command; its exit code is then 124.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.request.timeout_seconds = Some(limit.as_secs_f64());
        self
    }

    /// Complete content of standard input.
    pub fn stdin(mut self, text: impl Into<String>) -> Self {
        self.request.stdin = Some(text.into());
        self
    }

    /// Runs the command in a terminal, where both output streams are one.
    pub fn terminal(mut self, columns: u16, rows: u16) -> Self {
        self.request.terminal = Some(TerminalSize { columns, rows });
        self
    }

    pub fn limits(mut self, limits: Limits) -> Self {
        self.request.limits = limits;
        self
    }

    /// Limit for the output of each stream; more is an error of `run`. It does not apply to `stream`.
    pub fn output_limit(mut self, bytes: usize) -> Self {
        self.output_limit = bytes;
        self
    }

    /// Requests with the same key get the result of the first one. With a key, `run` retries after a broken connection.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The boot id (of [`crate::SandboxHandle::info`]) with which the key was first used, if another program may have
    /// used it before.
    pub fn boot_id(mut self, boot_id: impl Into<String>) -> Self {
        self.boot_id = Some(boot_id.into());
        self
    }

    pub fn trace(mut self, trace: Option<crate::TraceContext>) -> Self {
        self.trace = trace;
        self
    }

    pub(crate) fn time_limit(&self) -> Option<Duration> {
        self.request.timeout_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }
}

/// The result of a finished command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// 128 + N if signal N terminated the command, 124 after a timeout.
    pub exit_code: i32,
    pub signal: Option<i32>,
    pub stdout: Bytes,
    pub stderr: Bytes,
    pub timed_out: bool,
}

impl Output {
    /// Standard output as text; invalid UTF-8 is replaced.
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text; invalid UTF-8 is replaced.
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

/// One event of a running command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandEvent {
    Started {
        id: i32,
        pid: i32,
    },
    Stdout {
        offset: u64,
        data: Bytes,
    },
    Stderr {
        offset: u64,
        data: Bytes,
    },
    /// Output that was overwritten in the daemon's buffer before it was read.
    Skipped {
        offset: u64,
        bytes: u64,
    },
    Exit {
        exit_code: i32,
        signal: Option<i32>,
        timed_out: bool,
    },
}
