//! The process service (start with a stream, execute to the end, write input, signal, resize) and the attach service.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_protocol::grpc::attach::attach_response::Event as AttachEvent;
use agent_sandbox_protocol::grpc::attach::attach_service_server::AttachService;
use agent_sandbox_protocol::grpc::attach::{AttachRequest, AttachResponse, ListRequest, ListResponse, ProcessSummary};
use agent_sandbox_protocol::grpc::process::process_service_server::ProcessService;
use agent_sandbox_protocol::grpc::process::start_response::Event;
use agent_sandbox_protocol::grpc::process::write_stdin_request::Payload;
use agent_sandbox_protocol::grpc::process::{
    ExecuteRequest, ExecuteResponse, ExitEvent, InitEvent, ProcessConfig, Pty, ResizeTtyRequest, ResizeTtyResponse,
    SendSignalRequest, SendSignalResponse, Signal, StartRequest, StartResponse, WriteStdinRequest, WriteStdinResponse,
};
use futures::stream::BoxStream;
use rustix::io::Errno;
use tonic::{Request, Response, Status};

use super::Workspace;
use crate::core::files::{FileError, Follow};
use crate::core::processes::launch::LaunchError;
use crate::core::processes::log::{Chunk, Reader, Stream};
use crate::core::processes::managed::{ControlError, Process, ProcessOptions, StartError, TerminateOnDisconnect};
use crate::core::processes::run::Bounds;
use crate::core::processes::{Launch, Stdin};
use crate::core::terminals::{Winsize, window_size};

/// Maximum number of bytes kept of each stream, so that both stay below the 4 MiB at which client libraries refuse a
/// message.
const EXECUTE_OUTPUT: usize = (4 << 20) / 2 - 16 * 1024;

/// Number of output bytes kept for attaching again.
const LOG: usize = 1 << 20;

/// Maximum number of bytes per message of an attached client.
const ATTACH_CHUNK: usize = 16 * 1024;

impl Workspace {
    fn launch(&self, config: Option<ProcessConfig>, pty: Option<Pty>, stdin: Stdin) -> Result<Launch, Status> {
        let config = config.ok_or_else(|| Status::invalid_argument("config is required"))?;
        if config.command.is_empty() || config.command[0].is_empty() {
            return Err(Status::invalid_argument("command is required"));
        }
        let directory = self
            .resolve(config.cwd.as_deref().unwrap_or_default().as_bytes())
            .and_then(|path| self.root.locate(&path, Follow::Link)?.open_directory())
            .map_err(|error| cwd_status(&error))?;
        let terminal = pty.map(terminal_size).transpose()?;
        let mut env = (*self.sandbox.env).clone();
        env.remove("PWD");
        if terminal.is_some() {
            env.set("TERM", "xterm-256color");
        }
        for (name, value) in config.env_vars {
            if name.is_empty() || name.contains('=') {
                return Err(Status::invalid_argument(format!("{name:?} is not a variable's name")));
            }
            env.set(name, value);
        }
        Ok(Launch {
            argv: config.command.into_iter().map(OsString::from).collect(),
            env: Arc::new(env),
            cwd: Arc::new(directory),
            stdin,
            terminal,
            identity: None,
            rlimits: Vec::new(),
        })
    }

    /// A process that still runs; for an ended one, the same error as for an unknown one.
    fn running(&self, id: i32) -> Result<Arc<Process>, Status> {
        let process = self.sandbox.registry.get(id).filter(|process| process.ended().is_none());
        process.ok_or_else(|| Status::not_found(format!("process {id} not found")))
    }
}

fn terminal_size(pty: Pty) -> Result<Winsize, Status> {
    let side = |value: u32| {
        u16::try_from(value)
            .map_err(|_| Status::invalid_argument(format!("{value} is not a terminal size up to 65535")))
    };
    Ok(window_size(side(pty.cols)?, side(pty.rows)?))
}

fn cwd_status(error: &FileError) -> Status {
    match error {
        FileError::Escapes | FileError::Refused(_) | FileError::Os(Errno::ACCESS) => {
            Status::permission_denied(format!("cwd: {error}"))
        }
        error if error.is_missing() => Status::not_found(format!("cwd: {error}")),
        error => Status::internal(format!("cwd: {error}")),
    }
}

fn launch_status(error: &LaunchError) -> Status {
    let message = error.to_string();
    match error {
        LaunchError::Empty | LaunchError::Nul => Status::invalid_argument(message),
        LaunchError::Program { errno: Errno::NOENT | Errno::NOTDIR, .. } => Status::not_found(message),
        LaunchError::Program { errno: Errno::ACCESS | Errno::PERM, .. } => Status::permission_denied(message),
        LaunchError::Program { .. } | LaunchError::Prepare(_) => Status::internal(message),
    }
}

fn control_status(error: &ControlError) -> Status {
    match error {
        ControlError::NoStdin | ControlError::NoTerminal | ControlError::Ended => {
            Status::failed_precondition(error.to_string())
        }
        ControlError::Os(_) => Status::internal(error.to_string()),
    }
}

/// The client's deadline, so that a command ends even if the connection does not report that the client is gone.
fn deadline<T>(request: &Request<T>) -> Option<Duration> {
    let text = request.metadata().get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = number.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number.saturating_mul(3600)),
        "M" => Duration::from_secs(number.saturating_mul(60)),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[tonic::async_trait]
impl ProcessService for Workspace {
    type StartStream = BoxStream<'static, Result<StartResponse, Status>>;

    async fn start(&self, request: Request<StartRequest>) -> Result<Response<Self::StartStream>, Status> {
        let time = deadline(&request);
        let request = request.into_inner();
        let launch = self.launch(request.config, request.pty, Stdin::Pipe)?;
        let process =
            self.sandbox.registry.start(&launch, ProcessOptions { log: LOG, time, whole_output: false }).map_err(
                |error| match error {
                    StartError::TooMany => Status::resource_exhausted(error.to_string()),
                    StartError::Launch(error) => launch_status(&error),
                },
            )?;
        let events = StartEvents {
            reader: process.log.reader(0, true),
            guard: TerminateOnDisconnect { process },
            chunk: self.chunk_size,
            signal_as_minus_one: self.signal_exit_minus_one,
            state: State::Init,
        };
        Ok(Response::new(Box::pin(futures::stream::unfold(events, |mut events| async move {
            let event = events.next().await?;
            Some((Ok(StartResponse { event: Some(event) }), events))
        }))))
    }

    async fn execute(&self, request: Request<ExecuteRequest>) -> Result<Response<ExecuteResponse>, Status> {
        let time = deadline(&request);
        let launch = self.launch(request.into_inner().config, None, Stdin::Null)?;
        let _slot = self
            .sandbox
            .limits
            .command_slots
            .try_acquire()
            .map_err(|_| Status::resource_exhausted("too many processes are running"))?;
        let bounds = Bounds { time, grace: self.sandbox.limits.kill_grace, output: EXECUTE_OUTPUT };
        let finished = self.sandbox.run(&launch, bounds, None).await.map_err(|error| launch_status(&error))?;
        if finished.timed_out {
            return Err(Status::deadline_exceeded("the command was ended at its deadline"));
        }
        Ok(Response::new(ExecuteResponse {
            exit_code: self.exit_code(finished.exit),
            stdout: finished.stdout.into_bytes().into(),
            stderr: finished.stderr.into_bytes().into(),
        }))
    }

    async fn write_stdin(&self, request: Request<WriteStdinRequest>) -> Result<Response<WriteStdinResponse>, Status> {
        let request = request.into_inner();
        let process = self.running(request.process_id)?;
        let done = match request.payload {
            Some(Payload::Input(input)) if !input.is_empty() => process.write(&input).await,
            Some(Payload::Eof(())) => process.end_input().await,
            Some(Payload::Input(_)) | None => Ok(()),
        };
        done.map_err(|error| control_status(&error))?;
        Ok(Response::new(WriteStdinResponse {}))
    }

    async fn send_signal(&self, request: Request<SendSignalRequest>) -> Result<Response<SendSignalResponse>, Status> {
        let request = request.into_inner();
        let process = self.running(request.process_id)?;
        let known = Signal::try_from(request.signal).ok().filter(|signal| *signal != Signal::Unspecified);
        let signal = known.and_then(|signal| rustix::process::Signal::from_named_raw(signal.into()));
        let signal =
            signal.ok_or_else(|| Status::invalid_argument(format!("signal {} is not known", request.signal)))?;
        process.signal(signal);
        Ok(Response::new(SendSignalResponse {}))
    }

    async fn resize_tty(&self, request: Request<ResizeTtyRequest>) -> Result<Response<ResizeTtyResponse>, Status> {
        let request = request.into_inner();
        let process = self.running(request.process_id)?;
        let size = terminal_size(Pty { cols: request.cols, rows: request.rows })?;
        process.resize(size.ws_col, size.ws_row).map_err(|error| control_status(&error))?;
        Ok(Response::new(ResizeTtyResponse {}))
    }
}

/// The event stream of one `Start`: init, output, exit. Dropping it ends the process.
struct StartEvents {
    guard: TerminateOnDisconnect,
    reader: Reader,
    chunk: usize,
    signal_as_minus_one: bool,
    state: State,
}

enum State {
    Init,
    Output,
    Done,
}

impl StartEvents {
    async fn next(&mut self) -> Option<Event> {
        match self.state {
            State::Init => {
                self.state = State::Output;
                Some(Event::Init(InitEvent { process_id: self.guard.process.id }))
            }
            State::Output => loop {
                match self.reader.next(self.chunk).await {
                    Some(Chunk::Output { stream: Stream::Stdout, bytes, .. }) => return Some(Event::Stdout(bytes)),
                    Some(Chunk::Output { stream: Stream::Stderr, bytes, .. }) => return Some(Event::Stderr(bytes)),
                    // A lossless reader skips nothing.
                    Some(Chunk::Skipped { .. }) => {}
                    None => {
                        self.state = State::Done;
                        let exit = self.guard.process.wait().await.exit;
                        let code = match exit {
                            crate::core::processes::Exit::Signal(_) if self.signal_as_minus_one => -1,
                            exit => exit.shell_code(),
                        };
                        return Some(Event::Exit(ExitEvent { exit_code: code }));
                    }
                }
            },
            State::Done => None,
        }
    }
}

#[tonic::async_trait]
impl AttachService for Workspace {
    async fn list(&self, _: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        let summary = |process: &Arc<Process>| ProcessSummary {
            process_id: process.id,
            command: process.argv.clone(),
            running: process.ended().is_none(),
            exit_code: process.ended().map(|ended| self.exit_code(ended.exit)).unwrap_or_default(),
        };
        Ok(Response::new(ListResponse { processes: self.sandbox.registry.list().iter().map(summary).collect() }))
    }

    type AttachStream = BoxStream<'static, Result<AttachResponse, Status>>;

    async fn attach(&self, request: Request<AttachRequest>) -> Result<Response<Self::AttachStream>, Status> {
        let request = request.into_inner();
        let process = self.sandbox.registry.get(request.process_id);
        let process = process.ok_or_else(|| Status::not_found(format!("process {} not found", request.process_id)))?;
        let reader = process.log.reader(request.offset, false);
        let signal_as_minus_one = self.signal_exit_minus_one;
        let stream = futures::stream::unfold(Some((process, reader)), move |state| async move {
            let (process, mut reader) = state?;
            let offset = reader.offset();
            let (event, rest) = match reader.next(ATTACH_CHUNK).await {
                Some(Chunk::Output { stream: Stream::Stdout, bytes, .. }) => {
                    (AttachEvent::Stdout(bytes), Some((process, reader)))
                }
                Some(Chunk::Output { stream: Stream::Stderr, bytes, .. }) => {
                    (AttachEvent::Stderr(bytes), Some((process, reader)))
                }
                Some(Chunk::Skipped { bytes, .. }) => (AttachEvent::Skipped(bytes), Some((process, reader))),
                None => {
                    let exit = process.wait().await.exit;
                    let signalled = matches!(exit, crate::core::processes::Exit::Signal(_));
                    (AttachEvent::ExitCode(if signalled && signal_as_minus_one { -1 } else { exit.shell_code() }), None)
                }
            };
            Some((Ok(AttachResponse { event: Some(event), offset }), rest))
        });
        Ok(Response::new(Box::pin(stream)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_have_units() {
        for (text, expected) in [
            ("5S", Some(Duration::from_secs(5))),
            ("250m", Some(Duration::from_millis(250))),
            ("1H", Some(Duration::from_secs(3600))),
            ("x", None),
            ("", None),
            ("5", None),
            ("-1S", None),
        ] {
            let mut request = Request::new(());
            request.metadata_mut().insert("grpc-timeout", text.parse().expect("ascii"));
            assert_eq!(deadline(&request), expected, "{text}");
        }
    }
}
