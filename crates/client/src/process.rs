//! A background process: watched, written to, waited for, ended; from any connection, at any time.

use crate::{
    Call, ClientError, CommandEvent, Payload, Repeat, SandboxHandle,
    events::{Broken, Lines, event},
};
use agent_sandbox_protocol::native::{Event, PREFIX, ProcessInfo, SignalRequest, TerminalSize};
use bytes::Bytes;
use futures::Stream;
use http::{HeaderValue, Method, header};
use std::time::Duration;

/// One wait asks for this long, then again: no answer is long in coming.
const WAIT: Duration = Duration::from_secs(50);
/// How often a stream that broke is taken up again without having brought anything, and the pause between.
const REATTACH: u32 = 20;
const PAUSE: Duration = Duration::from_millis(500);
const WATCH: &str = "watch a process";

/// A process in a sandbox, by its number.
#[derive(Clone)]
pub struct Process {
    sandbox: SandboxHandle,
    id: i32,
    pid: i32,
}

impl Process {
    pub(crate) fn new(sandbox: SandboxHandle, id: i32, pid: i32) -> Self {
        Self { sandbox, id, pid }
    }

    /// What to give to [`SandboxHandle::process`] to find it again.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// Its number inside the sandbox.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    pub async fn info(&self) -> Result<ProcessInfo, ClientError> {
        self.sandbox.ask(self.call(Method::GET, "", "look at a process")).await
    }

    /// Waits for its end.
    pub async fn wait(&self) -> Result<ProcessInfo, ClientError> {
        loop {
            let path = format!("/wait?timeoutSeconds={}", WAIT.as_secs());
            let info: ProcessInfo = self.sandbox.ask(self.call(Method::GET, &path, "wait for a process")).await?;
            if !info.running {
                return Ok(info);
            }
        }
    }

    /// Everything from `offset` on, until its end. A broken connection is taken up again where it broke.
    pub fn events(&self, offset: u64) -> impl Stream<Item = Result<CommandEvent, ClientError>> + Send + use<> {
        let following =
            Following { process: self.clone(), offset, lines: None, left: REATTACH, begun: false, done: false };
        futures::stream::try_unfold(following, async |mut following| {
            Ok(following.next().await?.map(|event| (event, following)))
        })
    }

    /// Writes to its standard input.
    pub async fn write(&self, bytes: impl Into<Bytes>) -> Result<(), ClientError> {
        self.input("/stdin", bytes.into()).await
    }

    /// Ends its standard input.
    pub async fn end_input(&self) -> Result<(), ClientError> {
        self.input("/stdin?eof=true", Bytes::new()).await
    }

    /// Changes the size of its terminal.
    pub async fn resize(&self, columns: u16, rows: u16) -> Result<(), ClientError> {
        let mut call = self.call(Method::POST, "/resize", "resize a terminal").json(&TerminalSize { columns, rows });
        call.repeat = Repeat::Harmless;
        self.sandbox.send(call).await.map(drop)
    }

    /// Sends a signal: `TERM`, `SIGTERM` or `15`.
    pub async fn signal(&self, signal: &str) -> Result<(), ClientError> {
        let request = SignalRequest { signal: signal.to_owned() };
        self.sandbox.send(self.call(Method::POST, "/signal", "send a signal").json(&request)).await.map(drop)
    }

    /// Ends it, and everything that it started, and forgets it.
    pub async fn kill(&self) -> Result<(), ClientError> {
        let mut call = self.call(Method::DELETE, "", "end a process");
        call.accept = &[404];
        self.sandbox.send(call).await.map(drop)
    }

    async fn input(&self, endpoint: &str, bytes: Bytes) -> Result<(), ClientError> {
        let mut call = self.call(Method::POST, endpoint, "write to a process");
        call.payload = Payload::Bytes(bytes);
        self.sandbox.send(call).await.map(drop)
    }

    fn call(&self, method: Method, endpoint: &str, operation: &str) -> Call {
        Call::new(method, format!("{PREFIX}/processes/{}{endpoint}", self.id), operation)
    }
}

/// A stream that survives its connections.
struct Following {
    process: Process,
    offset: u64,
    lines: Option<Lines>,
    left: u32,
    begun: bool,
    done: bool,
}

impl Following {
    async fn next(&mut self) -> Result<Option<CommandEvent>, ClientError> {
        while !self.done {
            let mut lines = match self.lines.take() {
                Some(lines) => lines,
                None => self.attach().await?,
            };
            match lines.next::<Event>().await {
                Ok(Some(wire)) => {
                    self.lines = Some(lines);
                    let event = event(wire, self.process.sandbox.name(), WATCH)?;
                    if let Some(event) = self.take(event) {
                        return Ok(Some(event));
                    }
                }
                Err(Broken::Content(message)) => return Err(self.broken(message)),
                // The end of a stream that did not say how the process ended is a break, too.
                Ok(None) => self.pause("the stream ended early".to_owned()).await?,
                Err(Broken::Connection(message)) => self.pause(message).await?,
            }
        }
        Ok(None)
    }

    /// Keeps count; a second `Started`, after taking up the stream again, is nobody's news.
    fn take(&mut self, event: CommandEvent) -> Option<CommandEvent> {
        match &event {
            CommandEvent::Started { .. } if std::mem::replace(&mut self.begun, true) => return None,
            CommandEvent::Started { .. } => {}
            CommandEvent::Stdout { offset, data } | CommandEvent::Stderr { offset, data } => {
                self.offset = offset + data.len() as u64;
                self.left = REATTACH;
            }
            CommandEvent::Skipped { offset, bytes } => self.offset = offset + bytes,
            CommandEvent::Exit { .. } => self.done = true,
        }
        Some(event)
    }

    async fn attach(&self) -> Result<Lines, ClientError> {
        let endpoint = format!("/output?follow=true&offset={}", self.offset);
        let mut call = self.process.call(Method::GET, &endpoint, WATCH);
        call.headers.insert(header::ACCEPT, HeaderValue::from_static("application/x-ndjson"));
        self.process.sandbox.send(call).await.map(Lines::new)
    }

    async fn pause(&mut self, message: String) -> Result<(), ClientError> {
        if self.left == 0 {
            return Err(self.broken(message));
        }
        self.left -= 1;
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }

    fn broken(&self, message: String) -> ClientError {
        let name = self.process.sandbox.name().to_owned();
        ClientError::Disconnected { name, operation: WATCH.to_owned(), message }
    }
}
