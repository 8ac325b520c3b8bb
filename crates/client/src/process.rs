//! A background process: its events, input, exit and signals, independent of any connection.

use crate::{
    Call, ClientError, CommandEvent, Payload, Retry, SandboxHandle,
    events::{JsonLines, LinesError, command_event},
};
use agent_sandbox_protocol::native::{Event, PREFIX, ProcessInfo, SignalRequest, TerminalSize};
use bytes::Bytes;
use futures::Stream;
use http::{HeaderValue, Method, header};
use std::time::Duration;

/// Server-side timeout of one wait request; then another one follows.
const WAIT_TIMEOUT: Duration = Duration::from_secs(50);
/// Additional time for a response to arrive after the wait.
const RESPONSE_MARGIN: Duration = Duration::from_secs(10);
/// Maximum number of consecutive reattachments of a broken stream without any output, and the delay between them.
const MAX_REATTACHES: u32 = 20;
const REATTACH_DELAY: Duration = Duration::from_millis(500);
const WATCH_PROCESS: &str = "watch a process";

/// A process in a sandbox, identified by its id.
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

    /// The id with which [`SandboxHandle::process`] finds the process again.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// The process id inside the sandbox.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    pub async fn info(&self) -> Result<ProcessInfo, ClientError> {
        self.sandbox.fetch_json(self.call(Method::GET, "", "look at a process")).await
    }

    /// Waits until the process has exited.
    pub async fn wait(&self) -> Result<ProcessInfo, ClientError> {
        loop {
            let path = format!("/wait?timeoutSeconds={}", WAIT_TIMEOUT.as_secs());
            let info: ProcessInfo =
                self.sandbox.fetch_json(self.call(Method::GET, &path, "wait for a process")).await?;
            if !info.running {
                return Ok(info);
            }
        }
    }

    /// Waits until the process has exited, or for `limit`. The daemon waits at most ten minutes.
    pub async fn wait_for(&self, limit: Duration) -> Result<ProcessInfo, ClientError> {
        let path = format!("/wait?timeoutSeconds={}", limit.as_secs_f64().max(0.001));
        let mut call = self.call(Method::GET, &path, "wait for a process");
        call.timeout = Some(limit + RESPONSE_MARGIN);
        self.sandbox.fetch_json(call).await
    }

    /// The events from the output offset `offset` up to now, without waiting for more.
    pub async fn output(&self, offset: u64) -> Result<Vec<CommandEvent>, ClientError> {
        let mut call = self.call(Method::GET, &format!("/output?offset={offset}"), WATCH_PROCESS);
        call.headers.insert(header::ACCEPT, HeaderValue::from_static("application/x-ndjson"));
        let mut lines = JsonLines::new(self.sandbox.send(call).await?);
        let mut events = Vec::new();
        loop {
            match lines.next::<Event>().await {
                Ok(Some(wire)) => events.push(command_event(wire, self.sandbox.name(), WATCH_PROCESS)?),
                Ok(None) => return Ok(events),
                Err(LinesError::Connection(message) | LinesError::Content(message)) => {
                    let name = self.sandbox.name().to_owned();
                    return Err(ClientError::Disconnected { name, operation: WATCH_PROCESS.to_owned(), message });
                }
            }
        }
    }

    /// Streams events from the output offset `offset` until the process exits. After a broken connection the stream
    /// reattaches where it broke.
    pub fn events(&self, offset: u64) -> impl Stream<Item = Result<CommandEvent, ClientError>> + Send + use<> {
        let stream = EventStream {
            process: self.clone(),
            offset,
            lines: None,
            left: MAX_REATTACHES,
            started: false,
            done: false,
        };
        futures::stream::try_unfold(stream, async |mut stream| Ok(stream.next().await?.map(|event| (event, stream))))
    }

    /// Writes to standard input.
    pub async fn write(&self, bytes: impl Into<Bytes>) -> Result<(), ClientError> {
        self.input("/stdin", bytes.into()).await
    }

    /// Closes standard input.
    pub async fn end_input(&self) -> Result<(), ClientError> {
        self.input("/stdin?eof=true", Bytes::new()).await
    }

    /// Resizes the terminal.
    pub async fn resize(&self, columns: u16, rows: u16) -> Result<(), ClientError> {
        let mut call = self.call(Method::POST, "/resize", "resize a terminal").json(&TerminalSize { columns, rows });
        call.retry = Retry::Safe;
        self.sandbox.send(call).await.map(drop)
    }

    /// Sends a signal: `TERM`, `SIGTERM` or `15`.
    pub async fn signal(&self, signal: &str) -> Result<(), ClientError> {
        let request = SignalRequest { signal: signal.to_owned() };
        self.sandbox.send(self.call(Method::POST, "/signal", "send a signal").json(&request)).await.map(drop)
    }

    /// Kills the process and its descendants, and removes its record.
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

/// An event stream that reattaches after broken connections.
struct EventStream {
    process: Process,
    offset: u64,
    lines: Option<JsonLines>,
    left: u32,
    started: bool,
    done: bool,
}

impl EventStream {
    async fn next(&mut self) -> Result<Option<CommandEvent>, ClientError> {
        while !self.done {
            let mut lines = match self.lines.take() {
                Some(lines) => lines,
                None => self.attach().await?,
            };
            match lines.next::<Event>().await {
                Ok(Some(wire)) => {
                    self.lines = Some(lines);
                    let event = command_event(wire, self.process.sandbox.name(), WATCH_PROCESS)?;
                    if let Some(event) = self.record(event) {
                        return Ok(Some(event));
                    }
                }
                Err(LinesError::Content(message)) => return Err(self.disconnected(message)),
                // A stream that ends without an exit event has been cut off.
                Ok(None) => self.wait_to_reattach("the stream ended early".to_owned()).await?,
                Err(LinesError::Connection(message)) => self.wait_to_reattach(message).await?,
            }
        }
        Ok(None)
    }

    /// Updates the position. A second `Started` event, after reattaching, is dropped.
    fn record(&mut self, event: CommandEvent) -> Option<CommandEvent> {
        match &event {
            CommandEvent::Started { .. } if std::mem::replace(&mut self.started, true) => return None,
            CommandEvent::Started { .. } => {}
            CommandEvent::Stdout { offset, data } | CommandEvent::Stderr { offset, data } => {
                self.offset = offset + data.len() as u64;
                self.left = MAX_REATTACHES;
            }
            CommandEvent::Skipped { offset, bytes } => self.offset = offset + bytes,
            CommandEvent::Exit { .. } => self.done = true,
        }
        Some(event)
    }

    async fn attach(&self) -> Result<JsonLines, ClientError> {
        let endpoint = format!("/output?follow=true&offset={}", self.offset);
        let mut call = self.process.call(Method::GET, &endpoint, WATCH_PROCESS);
        call.headers.insert(header::ACCEPT, HeaderValue::from_static("application/x-ndjson"));
        self.process.sandbox.send(call).await.map(JsonLines::new)
    }

    async fn wait_to_reattach(&mut self, message: String) -> Result<(), ClientError> {
        if self.left == 0 {
            return Err(self.disconnected(message));
        }
        self.left -= 1;
        tokio::time::sleep(REATTACH_DELAY).await;
        Ok(())
    }

    fn disconnected(&self, message: String) -> ClientError {
        let name = self.process.sandbox.name().to_owned();
        ClientError::Disconnected { name, operation: WATCH_PROCESS.to_owned(), message }
    }
}
