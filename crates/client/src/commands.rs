//! Running commands through the daemon's native API: to completion, as a stream, or in the background.

use crate::{
    Call, ClientError, Command, CommandEvent, Output, Process, Retry, SandboxHandle,
    events::{JsonLines, LinesError, command_event, decode},
};
use agent_sandbox_protocol::history::{Entry, History};
use agent_sandbox_protocol::native::{
    BOOT_ID_HEADER, ErrorCode, Event, ExecRequest, ExecResult, IDEMPOTENCY_KEY_HEADER, Info, PREFIX, Port, Ports,
    ProcessInfo, ProcessList,
};
use bytes::BytesMut;
use futures::Stream;
use http::{HeaderName, HeaderValue, Method, header};
use std::time::Duration;

/// Maximum timeout of commands that run as one request. Longer ones are streamed, because routers limit the time until
/// a response begins.
const MAX_UNARY_TIMEOUT: Duration = Duration::from_secs(100);
/// Additional time for the response to arrive after the command's timeout.
const MARGIN: Duration = Duration::from_secs(10);
/// Timeout for one attempt of a command with a key, after which it is sent again with the same key.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of retries of a command with a key after broken connections, and the delay between them.
const MAX_RETRIES: u32 = 30;
const RETRY_DELAY: Duration = Duration::from_millis(500);
const RUN_COMMAND: &str = "run a command";

const KEY: HeaderName = HeaderName::from_static(IDEMPOTENCY_KEY_HEADER);
const BOOT: HeaderName = HeaderName::from_static(BOOT_ID_HEADER);

impl SandboxHandle {
    /// Runs a command to completion.
    ///
    /// Without an idempotency key, a connection that breaks meanwhile is an error (`OutcomeUnknown`), and the sandbox
    /// kills the command. With a key, the result is fetched over a new connection, and the command runs once.
    pub async fn run(&self, command: &Command) -> Result<Output, ClientError> {
        match (&command.key, command.time_limit()) {
            (Some(key), _) => self.run_with_key(command, key).await,
            (None, Some(limit)) if limit <= MAX_UNARY_TIMEOUT && command.request.terminal.is_none() => {
                self.run_short(command, limit).await
            }
            (None, _) => self.run_streamed(command).await,
        }
    }

    /// Runs a command and streams its events. Dropping the stream kills the command.
    pub async fn stream(
        &self,
        command: &Command,
    ) -> Result<impl Stream<Item = Result<CommandEvent, ClientError>> + Send + use<>, ClientError> {
        let events = self.open(command).await?;
        Ok(futures::stream::try_unfold(events, async |mut events| {
            Ok(events.next().await?.map(|event| (event, events)))
        }))
    }

    /// Starts a command in the background, independent of the connection.
    pub async fn start(&self, command: &Command) -> Result<Process, ClientError> {
        // The start request is retried after a broken connection, so it always has a key.
        let key = command.key.clone().unwrap_or_else(new_key);
        let response = self.send_with_key(command, &command.request, &key, "processes", "start a process").await?;
        let info: ProcessInfo = self.decode(response, "start a process")?;
        Ok(Process::new(self.clone(), info.id, info.pid))
    }

    /// A process that this or another program started before.
    pub async fn process(&self, id: i32) -> Result<Process, ClientError> {
        let call = Call::new(Method::GET, format!("{PREFIX}/processes/{id}"), "look at a process");
        let info: ProcessInfo = self.fetch_json(call).await?;
        Ok(Process::new(self.clone(), info.id, info.pid))
    }

    /// All processes that the daemon has records of.
    pub async fn processes(&self) -> Result<Vec<ProcessInfo>, ClientError> {
        let list: ProcessList =
            self.fetch_json(Call::new(Method::GET, format!("{PREFIX}/processes"), "list processes")).await?;
        Ok(list.processes)
    }

    /// Information about the daemon.
    pub async fn info(&self) -> Result<Info, ClientError> {
        self.fetch_json(Call::new(Method::GET, PREFIX, "get information about the sandbox")).await
    }

    /// The ports on which processes of the sandbox listen.
    pub async fn ports(&self) -> Result<Vec<Port>, ClientError> {
        let call = Call::new(Method::GET, format!("{PREFIX}/ports"), "list the ports");
        Ok(self.fetch_json::<Ports>(call).await?.ports)
    }

    /// The last `limit` commands that have ended in the sandbox, oldest first, without their output.
    pub async fn history(&self, limit: Option<u32>) -> Result<Vec<Entry>, ClientError> {
        let query = limit.map(|limit| format!("?limit={limit}")).unwrap_or_default();
        let call = Call::new(Method::GET, format!("{PREFIX}/history{query}"), "read the history");
        Ok(self.fetch_json::<History>(call).await?.entries)
    }

    /// One command of the history, with what is kept of its output.
    pub async fn history_entry(&self, id: i32) -> Result<Entry, ClientError> {
        self.fetch_json(Call::new(Method::GET, format!("{PREFIX}/history/{id}"), "read the history")).await
    }

    async fn run_short(&self, command: &Command, limit: Duration) -> Result<Output, ClientError> {
        let mut call =
            Call::new(Method::POST, format!("{PREFIX}/exec"), RUN_COMMAND).json(&with_base64_output(command));
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
                return Err(output_too_large(command));
            }
        }
        Err(self.outcome_unknown("the stream ended before the command did".to_owned()))
    }

    async fn run_with_key(&self, command: &Command, key: &str) -> Result<Output, ClientError> {
        let bytes = self.send_with_key(command, &with_base64_output(command), key, "exec", RUN_COMMAND).await?;
        self.to_output(&bytes, command)
    }

    /// Sends a request with a key until there is a response. If the daemon has restarted, the request is sent to the
    /// new boot only if the key was never sent before.
    async fn send_with_key(
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
        let (mut sent_before, mut left) = (false, MAX_RETRIES);
        loop {
            let mut call = Call::new(Method::POST, format!("{PREFIX}/{endpoint}"), operation)
                .json(request)
                .header(KEY, key)?
                .header(BOOT, &boot)?;
            call.timeout = Some(ATTEMPT_TIMEOUT);
            call.retry = Retry::Never;
            call.trace = command.trace.clone();
            let error = match self.fetch(call).await {
                Ok(bytes) => return Ok(bytes),
                Err(error) => error,
            };
            match &error {
                ClientError::Refused { code: Some(ErrorCode::OutcomeUnknown), message, .. } => {
                    self.forget_boot();
                    if sent_before || !fresh {
                        return Err(self.outcome_unknown(message.clone()));
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
            // Retrying because the command takes long does not count as a retry after a broken connection.
            if !matches!(&error, ClientError::CallTimeout { .. } | ClientError::Refused { status: 504, .. }) {
                left -= 1;
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }

    async fn open(&self, command: &Command) -> Result<Events, ClientError> {
        let mut call = Call::new(Method::POST, format!("{PREFIX}/exec"), RUN_COMMAND).json(&command.request);
        call.headers.insert(header::ACCEPT, HeaderValue::from_static("application/x-ndjson"));
        call.trace = command.trace.clone();
        let response = self.send(call).await?;
        let limit = command.time_limit().map(|limit| limit + MARGIN);
        let deadline = limit.map(|limit| tokio::time::Instant::now() + limit);
        Ok(Events { sandbox: self.clone(), lines: JsonLines::new(response), deadline, limit })
    }

    fn to_output(&self, bytes: &[u8], command: &Command) -> Result<Output, ClientError> {
        let result: ExecResult = self.decode(bytes.to_vec().into(), RUN_COMMAND)?;
        let output = Output {
            exit_code: result.exit_code,
            signal: result.signal,
            stdout: decode(&result.stdout)?,
            stderr: decode(&result.stderr)?,
            timed_out: result.timed_out,
        };
        let cut = result.stdout_bytes > output.stdout.len() as u64 || result.stderr_bytes > output.stderr.len() as u64;
        if cut || output.stdout.len().max(output.stderr.len()) > command.output_limit {
            return Err(output_too_large(command));
        }
        Ok(output)
    }

    fn outcome_unknown(&self, message: String) -> ClientError {
        ClientError::OutcomeUnknown { name: self.name().to_owned(), operation: RUN_COMMAND.to_owned(), message }
    }
}

/// The event stream of a command that is killed when the stream is dropped.
struct Events {
    sandbox: SandboxHandle,
    lines: JsonLines,
    deadline: Option<tokio::time::Instant>,
    limit: Option<Duration>,
}

impl Events {
    async fn next(&mut self) -> Result<Option<CommandEvent>, ClientError> {
        let next = self.lines.next::<Event>();
        let read = match (self.deadline, self.limit) {
            (Some(deadline), Some(after)) => {
                let name = self.sandbox.name().to_owned();
                let late = |_| ClientError::CallTimeout { name, operation: RUN_COMMAND.to_owned(), after };
                tokio::time::timeout_at(deadline, next).await.map_err(late)?
            }
            _ => next.await,
        };
        match read {
            Ok(Some(wire)) => command_event(wire, self.sandbox.name(), RUN_COMMAND).map(Some),
            Ok(None) => Ok(None),
            Err(LinesError::Connection(message) | LinesError::Content(message)) => {
                Err(self.sandbox.outcome_unknown(message))
            }
        }
    }
}

fn with_base64_output(command: &Command) -> ExecRequest {
    ExecRequest { base64: true, ..command.request.clone() }
}

fn output_too_large(command: &Command) -> ClientError {
    ClientError::TooLarge { what: "the command's output".to_owned(), limit: command.output_limit as u64 }
}

pub(crate) fn new_key() -> String {
    uuid::Uuid::new_v4().to_string()
}
