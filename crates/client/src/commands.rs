//! Running commands through the daemon's native API: to the end, as a stream, or in the background.

use crate::{
    Call, ClientError, Command, CommandEvent, Output, Process, Repeat, SandboxHandle,
    events::{Broken, Lines, decode, event},
};
use agent_sandbox_protocol::native::{
    BOOT_ID_HEADER, ErrorCode, Event, ExecRequest, ExecResult, IDEMPOTENCY_KEY_HEADER, Info, PREFIX, ProcessInfo,
    ProcessList,
};
use bytes::BytesMut;
use futures::Stream;
use http::{HeaderName, HeaderValue, Method, header};
use std::time::Duration;

/// Commands that may run longer are streamed, because routers limit how long an answer takes to begin.
const SHORT: Duration = Duration::from_secs(100);
/// Time for an answer to arrive after the command's own time is over.
const MARGIN: Duration = Duration::from_secs(10);
/// How long one attempt of a keyed command waits before it asks again with the same key.
const ATTEMPT: Duration = Duration::from_secs(60);
/// How often a keyed command is asked for again after a broken connection, and the pause between.
const REPETITIONS: u32 = 30;
const PAUSE: Duration = Duration::from_millis(500);
const RUN: &str = "run a command";

const KEY: HeaderName = HeaderName::from_static(IDEMPOTENCY_KEY_HEADER);
const BOOT: HeaderName = HeaderName::from_static(BOOT_ID_HEADER);

impl SandboxHandle {
    /// Runs a command to its end.
    ///
    /// Without an idempotency key a connection that breaks in between is an error (`OutcomeUnknown`), and the sandbox ends the command;
    /// with a key the answer is fetched over a new connection and the command runs once.
    pub async fn run(&self, command: &Command) -> Result<Output, ClientError> {
        match (&command.key, command.time_limit()) {
            (Some(key), _) => self.run_once(command, key).await,
            (None, Some(limit)) if limit <= SHORT && command.request.terminal.is_none() => {
                self.run_short(command, limit).await
            }
            (None, _) => self.run_streamed(command).await,
        }
    }

    /// Runs a command and hands out what happens as it happens. Dropping the stream ends the command.
    pub async fn stream(
        &self,
        command: &Command,
    ) -> Result<impl Stream<Item = Result<CommandEvent, ClientError>> + Send + use<>, ClientError> {
        let events = self.open(command).await?;
        Ok(futures::stream::try_unfold(events, async |mut events| {
            Ok(events.next().await?.map(|event| (event, events)))
        }))
    }

    /// Starts a command that lives on without us.
    pub async fn start(&self, command: &Command) -> Result<Process, ClientError> {
        // The start itself is repeated after a broken connection, so it always has a key.
        let key = command.key.clone().unwrap_or_else(new_key);
        let answer = self.keyed(command, &command.request, &key, "processes", "start a process").await?;
        let info: ProcessInfo = self.decode(answer, "start a process")?;
        Ok(Process::new(self.clone(), info.id, info.pid))
    }

    /// A process that was started before, by this program or another.
    pub async fn process(&self, id: i32) -> Result<Process, ClientError> {
        let call = Call::new(Method::GET, format!("{PREFIX}/processes/{id}"), "look at a process");
        let info: ProcessInfo = self.ask(call).await?;
        Ok(Process::new(self.clone(), info.id, info.pid))
    }

    /// Every process that the sandbox remembers.
    pub async fn processes(&self) -> Result<Vec<ProcessInfo>, ClientError> {
        let list: ProcessList =
            self.ask(Call::new(Method::GET, format!("{PREFIX}/processes"), "list processes")).await?;
        Ok(list.processes)
    }

    /// What the daemon says about itself.
    pub async fn info(&self) -> Result<Info, ClientError> {
        self.ask(Call::new(Method::GET, PREFIX, "ask the sandbox about itself")).await
    }

    async fn run_short(&self, command: &Command, limit: Duration) -> Result<Output, ClientError> {
        let mut call = Call::new(Method::POST, format!("{PREFIX}/exec"), RUN).json(&as_base64(command));
        call.timeout = Some(limit + MARGIN);
        call.trace = command.trace.clone();
        let bytes = self.fetch(call).await?;
        self.to_output(&bytes, command)
    }

    async fn run_streamed(&self, command: &Command) -> Result<Output, ClientError> {
        let mut events = self.open(command).await?;
        let (mut stdout, mut stderr) = (BytesMut::new(), BytesMut::new());
        while let Some(event) = events.next().await? {
            match event {
                CommandEvent::Stdout { data, .. } => stdout.extend_from_slice(&data),
                CommandEvent::Stderr { data, .. } => stderr.extend_from_slice(&data),
                CommandEvent::Exit { exit_code, signal, timed_out } => {
                    let (stdout, stderr) = (stdout.freeze(), stderr.freeze());
                    return Ok(Output { exit_code, signal, stdout, stderr, timed_out });
                }
                CommandEvent::Started { .. } | CommandEvent::Skipped { .. } => {}
            }
            if stdout.len().max(stderr.len()) > command.output_limit {
                return Err(too_much(command));
            }
        }
        Err(self.unknown("the stream ended before the command did".to_owned()))
    }

    async fn run_once(&self, command: &Command, key: &str) -> Result<Output, ClientError> {
        let bytes = self.keyed(command, &as_base64(command), key, "exec", RUN).await?;
        self.to_output(&bytes, command)
    }

    /// Sends a keyed request until it is answered. A boot that is over is asked anew only for a key that was never sent.
    async fn keyed(
        &self,
        command: &Command,
        request: &ExecRequest,
        key: &str,
        endpoint: &str,
        operation: &str,
    ) -> Result<bytes::Bytes, ClientError> {
        let fresh = command.key.is_none();
        let mut boot = match &command.boot_id {
            Some(boot) => boot.clone(),
            None => self.boot_id().await?,
        };
        let (mut sent_before, mut left) = (false, REPETITIONS);
        loop {
            let mut call = Call::new(Method::POST, format!("{PREFIX}/{endpoint}"), operation)
                .json(request)
                .header(KEY, key)?
                .header(BOOT, &boot)?;
            call.timeout = Some(ATTEMPT);
            call.repeat = Repeat::Never;
            call.trace = command.trace.clone();
            let error = match self.fetch(call).await {
                Ok(bytes) => return Ok(bytes),
                Err(error) => error,
            };
            match &error {
                ClientError::Refused { code: Some(ErrorCode::OutcomeUnknown), message, .. } => {
                    self.forget_boot();
                    if sent_before || !fresh {
                        return Err(self.unknown(message.clone()));
                    }
                    boot = self.boot_id().await?;
                    sent_before = true;
                    continue;
                }
                ClientError::Refused { status: 502..=504, .. }
                | ClientError::OutcomeUnknown { .. }
                | ClientError::CallTimeout { .. }
                | ClientError::Disconnected { .. }
                    if left > 0 => {}
                _ => return Err(error),
            }
            sent_before = true;
            // Asking again for a command that merely takes long costs none of the attempts.
            if !matches!(&error, ClientError::CallTimeout { .. } | ClientError::Refused { status: 504, .. }) {
                left -= 1;
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    async fn open(&self, command: &Command) -> Result<Events, ClientError> {
        let mut call = Call::new(Method::POST, format!("{PREFIX}/exec"), RUN).json(&command.request);
        call.headers.insert(header::ACCEPT, HeaderValue::from_static("application/x-ndjson"));
        call.trace = command.trace.clone();
        let answer = self.send(call).await?;
        let limit = command.time_limit().map(|limit| limit + MARGIN);
        let deadline = limit.map(|limit| tokio::time::Instant::now() + limit);
        Ok(Events { sandbox: self.clone(), lines: Lines::new(answer), deadline, limit })
    }

    fn to_output(&self, bytes: &[u8], command: &Command) -> Result<Output, ClientError> {
        let result: ExecResult = self.decode(bytes.to_vec().into(), RUN)?;
        let output = Output {
            exit_code: result.exit_code,
            signal: result.signal,
            stdout: decode(&result.stdout)?,
            stderr: decode(&result.stderr)?,
            timed_out: result.timed_out,
        };
        let cut = result.stdout_bytes > output.stdout.len() as u64 || result.stderr_bytes > output.stderr.len() as u64;
        if cut || output.stdout.len().max(output.stderr.len()) > command.output_limit {
            return Err(too_much(command));
        }
        Ok(output)
    }

    fn unknown(&self, message: String) -> ClientError {
        ClientError::OutcomeUnknown { name: self.name().to_owned(), operation: RUN.to_owned(), message }
    }
}

/// The events of one command that ends with us.
struct Events {
    sandbox: SandboxHandle,
    lines: Lines,
    deadline: Option<tokio::time::Instant>,
    limit: Option<Duration>,
}

impl Events {
    async fn next(&mut self) -> Result<Option<CommandEvent>, ClientError> {
        let next = self.lines.next::<Event>();
        let read = match (self.deadline, self.limit) {
            (Some(deadline), Some(after)) => {
                let name = self.sandbox.name().to_owned();
                let late = |_| ClientError::CallTimeout { name, operation: RUN.to_owned(), after };
                tokio::time::timeout_at(deadline, next).await.map_err(late)?
            }
            _ => next.await,
        };
        match read {
            Ok(Some(wire)) => event(wire, self.sandbox.name(), RUN).map(Some),
            Ok(None) => Ok(None),
            Err(Broken::Connection(message) | Broken::Content(message)) => Err(self.sandbox.unknown(message)),
        }
    }
}

fn as_base64(command: &Command) -> ExecRequest {
    ExecRequest { base64: true, ..command.request.clone() }
}

fn too_much(command: &Command) -> ClientError {
    ClientError::TooLarge { what: "the command's output".to_owned(), limit: command.output_limit as u64 }
}

pub(crate) fn new_key() -> String {
    uuid::Uuid::new_v4().to_string()
}
