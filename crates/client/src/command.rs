//! What to run, and what came of it.

use agent_sandbox_protocol::native::{ExecRequest, Limits, TerminalSize};
use bytes::Bytes;
use std::time::Duration;

/// Output of each stream that [`crate::SandboxHandle::run`] keeps unless told otherwise.
const OUTPUT_LIMIT: usize = 64 << 20;

/// A command and everything that goes with it.
#[derive(Clone, Debug)]
pub struct Command {
    pub(crate) request: ExecRequest,
    pub(crate) key: Option<String>,
    pub(crate) boot_id: Option<String>,
    pub(crate) output_limit: usize,
    pub(crate) trace: Option<crate::TraceContext>,
}

impl Command {
    /// Text for the sandbox's shell.
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

    /// Relative to the sandbox's base directory.
    pub fn cwd(mut self, folder: impl Into<String>) -> Self {
        self.request.cwd = Some(folder.into());
        self
    }

    /// Name or number, optionally `user:group`.
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.request.user = Some(user.into());
        self
    }

    /// The sandbox ends the command after this long; its exit code is then 124.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.request.timeout_seconds = Some(limit.as_secs_f64());
        self
    }

    /// Text for standard input, which then ends.
    pub fn stdin(mut self, text: impl Into<String>) -> Self {
        self.request.stdin = Some(text.into());
        self
    }

    /// Run in a terminal. Both streams arrive as one.
    pub fn terminal(mut self, columns: u16, rows: u16) -> Self {
        self.request.terminal = Some(TerminalSize { columns, rows });
        self
    }

    pub fn limits(mut self, limits: Limits) -> Self {
        self.request.limits = limits;
        self
    }

    /// More output than this of one stream is an error of `run`; streams have no limit.
    pub fn output_limit(mut self, bytes: usize) -> Self {
        self.output_limit = bytes;
        self
    }

    /// Repetitions with the same key get the first one's result. Makes `run` repeat by itself after a broken connection.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The boot (of [`crate::SandboxHandle::info`]) that the key was first used in, when that may have been in another program.
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

/// A finished command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// 128 + N when signal N ended it, 124 when its time was over.
    pub exit_code: i32,
    pub signal: Option<i32>,
    pub stdout: Bytes,
    pub stderr: Bytes,
    pub timed_out: bool,
}

impl Output {
    /// Standard output as text; what is not UTF-8 is replaced.
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text; what is not UTF-8 is replaced.
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

/// One thing that happened to a running command.
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
    /// Output that was overwritten before it was read.
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
