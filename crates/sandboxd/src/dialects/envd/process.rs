//! The service `process.Process`: start, connect, list, input, signals, terminal size.

mod events;
mod wire;

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use http::{HeaderMap, Request, Response};
use serde_json::json;
use tokio::time::Instant;

use super::connect::{self, Code, Messages, RpcError};
use super::settings::is_variable;
use super::{Envd, User};
use crate::core::files::Follow;
use crate::core::processes::managed::{ControlError, Process, ProcessOptions, StartError};
use crate::core::processes::{Launch, Stdin};
use crate::core::terminals::window_size;
use crate::http_io::body::Body;
use events::Events;
pub(super) use events::ping_interval;
use wire::{Config, Connect, Input, Selector, SendInput, SendSignal, Start, StreamInput, Update};

/// Output that a process may be ahead of its clients; a client that reads slower holds the process back.
const LOG: usize = 256 * 1024;

/// How long the end of a process can still be asked for.
const END_RETENTION: Duration = Duration::from_secs(30);

/// The shell that clients name, and that small images do not have.
const CLIENT_SHELL: &str = "/bin/bash";

/// What a client said when it started a process, by the process's number in the registry.
#[derive(Debug, Default)]
pub(super) struct Started {
    table: Mutex<HashMap<i32, (Config, Option<String>)>>,
}

impl Started {
    fn insert(&self, id: i32, config: Config, tag: Option<String>) {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).insert(id, (config, tag));
    }

    fn get(&self, id: i32) -> Option<(Config, Option<String>)> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    fn retain(&self, processes: &[Arc<Process>]) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.retain(|id, _| processes.iter().any(|process| process.id == *id));
    }
}

impl Envd {
    pub(super) async fn process_call(&self, name: &str, request: Request<Body>) -> Response<Body> {
        let headers = request.headers().clone();
        match name {
            "Start" | "Connect" => {
                let messages = Messages::new(request.into_body());
                let opened = if name == "Start" {
                    self.start(messages, &headers).await
                } else {
                    self.connect(messages, &headers).await
                };
                match opened {
                    Ok(events) => connect::respond(connect::responses(events.into_stream())),
                    Err(error) => error.into_stream_response(),
                }
            }
            "StreamInput" => match self.stream_input(Messages::new(request.into_body())).await {
                Ok(()) => connect::respond(connect::responses(futures::stream::iter([Ok(json!({}))]))),
                Err(error) => error.into_stream_response(),
            },
            "List" => connect::unary(Ok(self.list())),
            "Update" => connect::unary(self.update(request).await),
            "SendInput" => connect::unary(self.send_input(request).await),
            "SendSignal" => connect::unary(self.send_signal(request).await),
            _ => connect::unary(self.close_stdin(request).await),
        }
    }

    async fn start(&self, messages: Messages, headers: &HeaderMap) -> Result<Events, RpcError> {
        let start: Start = messages.only().await?;
        let time = connect::time_limit(headers)?;
        let user = User::of_request(&self.sandbox, &self.settings, headers)?;
        let launch = self.launch(&start, &user)?;
        let options = ProcessOptions { log: LOG, time, whole_output: true };
        let process = self.sandbox.registry.start(&launch, options).map_err(|error| match error {
            StartError::TooMany => RpcError::new(Code::ResourceExhausted, error.to_string()),
            StartError::Launch(error) => RpcError::invalid(error.to_string()),
        })?;
        self.started.retain(&self.sandbox.registry.list());
        self.started.insert(process.id, start.process, start.tag);
        Ok(Events::new(process, 0, None, ping_interval(headers)?))
    }

    fn launch(&self, start: &Start, user: &User) -> Result<Launch, RpcError> {
        let config = &start.process;
        if config.cmd.is_empty() {
            return Err(RpcError::invalid("process.cmd is empty"));
        }
        let cwd = self.working_directory(config.cwd.as_deref().unwrap_or_default(), user)?;
        let mut env = user.environment(&self.sandbox, &self.settings);
        env.set("PWD", cwd.1);
        for (name, value) in &config.envs {
            if !is_variable(name) {
                return Err(RpcError::invalid(format!("process.envs: {name:?} is not a variable's name")));
            }
            env.set(name, value);
        }
        let terminal = start.pty.as_ref().map(|pty| pty.window().map(|(columns, rows)| window_size(columns, rows)));
        Ok(Launch {
            argv: self.argv(config),
            env: Arc::new(env),
            cwd: Arc::new(cwd.0),
            stdin: if start.stdin.unwrap_or(true) { Stdin::Pipe } else { Stdin::Null },
            terminal: terminal.transpose()?,
            identity: user.identity(),
            rlimits: Vec::new(),
        })
    }

    /// Program and arguments. Clients run commands with bash; an image without it runs them with the sandbox's shell.
    fn argv(&self, config: &Config) -> Vec<OsString> {
        let missing_shell = config.cmd == CLIENT_SHELL && !Path::new(CLIENT_SHELL).exists();
        let program = if missing_shell { self.sandbox.shell.clone() } else { OsString::from(&config.cmd) };
        std::iter::once(program).chain(config.args.iter().map(OsString::from)).collect()
    }

    fn working_directory(&self, given: &str, user: &User) -> Result<(OwnedFd, std::path::PathBuf), RpcError> {
        let path = user.resolve(&self.sandbox, given)?;
        let root = self.sandbox.paths.root();
        let opened = root.locate(&path, Follow::Link).and_then(|located| located.open_directory());
        let absolute = self.sandbox.paths.absolute(&path);
        match opened {
            Ok(directory) => Ok((directory, absolute)),
            Err(error) if error.is_missing() => {
                Err(RpcError::invalid(format!("cwd '{}' does not exist", absolute.display())))
            }
            Err(error) => Err(RpcError::invalid(format!("cwd '{}': {error}", absolute.display()))),
        }
    }

    async fn connect(&self, messages: Messages, headers: &HeaderMap) -> Result<Events, RpcError> {
        let request: Connect = messages.only().await?;
        let process = self.selected(request.process)?;
        let deadline = connect::time_limit(headers)?.map(|limit| Instant::now() + limit);
        let offset = process.log.range().1;
        Ok(Events::new(process, offset, deadline, ping_interval(headers)?))
    }

    /// The process that a selector names: a running one, or one whose end can still be asked for.
    fn selected(&self, selector: Option<Selector>) -> Result<Arc<Process>, RpcError> {
        let processes = self.sandbox.registry.list();
        let (pid, tag) = match selector {
            Some(Selector { pid: Some(pid), .. }) => (Some(i64::from(pid)), None),
            Some(Selector { tag: Some(tag), .. }) => (None, Some(tag)),
            _ => return Err(RpcError::invalid("process: a pid or a tag is required")),
        };
        let is_selected = |process: &&Arc<Process>| match pid {
            Some(pid) => i64::from(process.pid()) == pid,
            None => self.started.get(process.id).is_some_and(|(_, given)| given == tag),
        };
        let recent = |process: &&Arc<Process>| {
            let ended = process.ended();
            ended.is_none_or(|ended| SystemTime::now().duration_since(ended.at).is_ok_and(|age| age < END_RETENTION))
        };
        // The latest one: the kernel gives the numbers of ended processes to new ones.
        let found = processes.iter().rev().filter(recent).find(is_selected);
        found.cloned().ok_or_else(|| {
            let what = pid.map_or_else(|| format!("tag {:?}", tag.unwrap_or_default()), |pid| format!("pid {pid}"));
            RpcError::new(Code::NotFound, format!("no process with {what}"))
        })
    }

    fn running(&self, selector: Option<Selector>) -> Result<Arc<Process>, RpcError> {
        let process = self.selected(selector)?;
        match process.ended() {
            None => Ok(process),
            Some(_) => Err(RpcError::new(Code::NotFound, format!("process {} has ended", process.pid()))),
        }
    }

    fn list(&self) -> serde_json::Value {
        let processes = self.sandbox.registry.list();
        self.started.retain(&processes);
        let running = processes.iter().filter(|process| process.ended().is_none());
        let entries: Vec<_> = running
            .map(|process| {
                let (config, tag) = self.started.get(process.id).unwrap_or_else(|| (Config::of(&process.argv), None));
                let mut entry = json!({ "config": config, "pid": process.pid() });
                if let Some(tag) = tag {
                    entry["tag"] = tag.into();
                }
                entry
            })
            .collect();
        json!({ "processes": entries })
    }

    async fn update(&self, request: Request<Body>) -> Result<serde_json::Value, RpcError> {
        let update: Update = connect::message(request).await?;
        let process = self.running(update.process)?;
        if let Some(pty) = update.pty {
            let (columns, rows) = pty.window()?;
            process.resize(columns, rows).map_err(|error| control_error(&error))?;
        }
        Ok(json!({}))
    }

    async fn send_input(&self, request: Request<Body>) -> Result<serde_json::Value, RpcError> {
        let send: SendInput = connect::message(request).await?;
        write(&*self.running(send.process)?, send.input).await?;
        Ok(json!({}))
    }

    /// Input as a stream of messages: the first names the process.
    async fn stream_input(&self, mut messages: Messages) -> Result<(), RpcError> {
        let mut process: Option<Arc<Process>> = None;
        while let Some(message) = messages.next::<StreamInput>().await? {
            if let Some(start) = message.start {
                process = Some(self.running(start.process)?);
            }
            if let Some(data) = message.data {
                let process = process.as_ref().ok_or_else(|| RpcError::invalid("data before the start message"))?;
                write(process, data.input).await?;
            }
        }
        Ok(())
    }

    async fn send_signal(&self, request: Request<Body>) -> Result<serde_json::Value, RpcError> {
        let send: SendSignal = connect::message(request).await?;
        let signal = send.signal()?;
        self.running(send.process)?.signal_alone(signal);
        Ok(json!({}))
    }

    async fn close_stdin(&self, request: Request<Body>) -> Result<serde_json::Value, RpcError> {
        let close: Connect = connect::message(request).await?;
        let process = self.running(close.process)?;
        if process.has_terminal() {
            let message = "the input of a terminal cannot be closed; send ^D (\\x04) instead";
            return Err(RpcError::new(Code::Internal, message));
        }
        match process.end_input().await {
            // Closed before, or never open.
            Ok(()) | Err(ControlError::NoStdin) => Ok(json!({})),
            Err(error) => Err(control_error(&error)),
        }
    }
}

async fn write(process: &Process, input: Option<Input>) -> Result<(), RpcError> {
    let input = input.unwrap_or_default();
    let bytes = match (input.stdin, input.pty, process.has_terminal()) {
        (Some(bytes), None, false) | (None, Some(bytes), true) => bytes,
        (Some(_), None, true) => {
            return Err(RpcError::new(Code::Internal, "the process has a terminal: send the input as pty"));
        }
        (None, Some(_), false) => {
            return Err(RpcError::new(Code::Internal, "the process has no terminal: send the input as stdin"));
        }
        _ => return Err(RpcError::invalid("input: either stdin or pty is required")),
    };
    process.write(&bytes.0).await.map_err(|error| control_error(&error))
}

fn control_error(error: &ControlError) -> RpcError {
    let code = if matches!(error, ControlError::Ended) { Code::NotFound } else { Code::Internal };
    RpcError::new(code, error.to_string())
}

/// Reads the messages of a client as each kind of message.
#[cfg(any(test, fuzzing))]
pub(super) async fn fuzz_frames(body: impl Fn() -> Body) {
    let mut starts = Messages::new(body());
    while let Ok(Some(Start { pty, .. })) = starts.next().await {
        let _ = pty.map(|pty| pty.window().is_ok());
    }
    let mut inputs = Messages::new(body());
    while let Ok(Some(StreamInput { .. })) = inputs.next().await {}
    let _ = Messages::new(body()).only::<SendSignal>().await.map(|message| message.signal().is_ok());
    let _ = Messages::new(body()).only::<Update>().await.is_ok();
    let _ = Messages::new(body()).only::<SendInput>().await.is_ok();
}
