//! Performs the steps of a scenario and compares the results.

use agent_sandbox_client::{
    ClaimRequest, ClientError, Command, CommandEvent, Payload, Process, SandboxClient, SandboxHandle, Source,
    native::ErrorCode,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use futures::{Stream, StreamExt, TryStreamExt};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{collections::BTreeMap, pin::pin, time::Duration};

#[derive(Debug, Deserialize)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) steps: Vec<Step>,
}

/// One step of a scenario. Fields that an operation does not use are absent.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Step {
    #[serde(rename = "do")]
    operation: String,
    command: Option<String>,
    argv: Vec<String>,
    env: BTreeMap<String, String>,
    cwd: Option<String>,
    stdin: Option<String>,
    timeout: Option<f64>,
    key: Option<String>,
    terminal: Option<(u16, u16)>,
    process: String,
    keep: String,
    signal: String,
    path: String,
    from: String,
    to: String,
    pattern: String,
    text: String,
    base64: Option<String>,
    mode: Option<String>,
    offset: Option<u64>,
    length: Option<u64>,
    max_bytes: Option<u64>,
    recursive: bool,
    port: u16,
    files: BTreeMap<String, String>,
    write: String,
    name: String,
    source: String,
    error: Option<String>,
    expect: BTreeMap<String, Value>,
}

pub(crate) struct Runner {
    client: SandboxClient,
    sandbox: SandboxHandle,
    processes: BTreeMap<String, Process>,
}

const LIMIT: Duration = Duration::from_secs(60);

impl Runner {
    pub(crate) fn new(client: SandboxClient, sandbox: SandboxHandle) -> Self {
        Self { client, sandbox, processes: BTreeMap::new() }
    }

    /// Performs a step. The error describes the difference from the expected result.
    pub(crate) async fn run_step(&mut self, step: &Step) -> Result<(), String> {
        let result = self.perform(step).await;
        if let Some(kind) = &step.error {
            return match result {
                Err(error) if error_kind(&error) == kind => Ok(()),
                other => Err(format!("{other:?} instead of {kind}")),
            };
        }
        let result = result.map_err(|error| error.full())?;
        for (name, wanted) in &step.expect {
            if result[name] != *wanted {
                return Err(format!("{name} is {}", result[name]));
            }
        }
        Ok(())
    }

    async fn perform(&mut self, step: &Step) -> Result<Value, ClientError> {
        let files = self.sandbox.files();
        let content = match &step.base64 {
            Some(encoded) => STANDARD.decode(encoded).expect("base64"),
            None => step.text.clone().into_bytes(),
        };
        match step.operation.as_str() {
            "write" => files.put(&step.path, Payload::Bytes(content.into()), step.mode.as_deref(), false).await?,
            "append" => files.put(&step.path, Payload::Bytes(content.into()), None, true).await?,
            "read" => return self.read(step).await,
            "stat" => {
                let info = files.stat(&step.path, false).await?;
                return Ok(json!({"type": info.kind, "size": info.size, "name": info.name, "mode": info.mode}));
            }
            "ports" => {
                let listening = self.sandbox.ports().await?.into_iter().filter(|found| found.port == step.port);
                let addresses: Vec<_> = listening.map(|found| found.address).collect();
                return Ok(json!({"addresses": addresses}));
            }
            "exists" => return Ok(json!({"exists": files.exists(&step.path).await?})),
            "list" => {
                let names: Vec<_> = files.list(&step.path).await?.into_iter().map(|info| info.name).collect();
                return Ok(json!({"names": names}));
            }
            "glob" => {
                let found = files.glob(&step.path, &step.pattern).await?;
                let mut names: Vec<_> = found.into_iter().map(|info| info.name).collect();
                names.sort();
                return Ok(json!({"names": names}));
            }
            "search" => {
                let found = files.search(&step.path, &step.pattern, None).await?;
                return Ok(json!({"lines": found.iter().map(|found| found.line).collect::<Vec<_>>()}));
            }
            "mkdir" => files.mkdir(&step.path).await?,
            "move" => files.rename(&step.from, &step.to, false).await?,
            "copy" => files.copy(&step.from, &step.to, false).await?,
            "remove" => files.remove(&step.path, step.recursive).await?,
            "directory_round_trip" => self.round_trip(step).await?,
            "watch_one" => return self.watch_one(step).await,
            "suspend" => self.sandbox.suspend(LIMIT).await?,
            "resume" => self.sandbox.resume(LIMIT).await?,
            "find" => drop(self.client.find("default", &step.name).await?),
            "claim" => {
                let wanted = ClaimRequest::new(Source::Named(step.source.clone()), "default");
                drop(self.client.claim(&wanted).await?);
            }
            _ => return self.command(step).await,
        }
        Ok(Value::Null)
    }

    async fn command(&mut self, step: &Step) -> Result<Value, ClientError> {
        let process = self.processes.get(&step.process).cloned();
        let process = || process.clone().expect("a process that was kept");
        match step.operation.as_str() {
            "run" => {
                let output = self.sandbox.run(&command_of(step)).await?;
                return Ok(json!({
                    "stdout": output.stdout_text(), "stderr": output.stderr_text(), "exit_code": output.exit_code,
                    "signal": output.signal, "timed_out": output.timed_out,
                    "stdout_base64": STANDARD.encode(&output.stdout),
                }));
            }
            "stream" => return collect_output(self.sandbox.stream(&command_of(step)).await?).await,
            "start" => {
                let started = self.sandbox.start(&command_of(step)).await?;
                self.processes.insert(step.keep.clone(), started);
            }
            "input" => process().write(step.text.clone()).await?,
            "end_input" => process().end_input().await?,
            "wait" => {
                let info = process().wait().await?;
                return Ok(json!({"exit_code": info.exit_code, "signal": info.signal}));
            }
            "output" => return collect_output(process().events(0)).await,
            "reattach" => return collect_output(self.sandbox.process(process().id()).await?.events(0)).await,
            "signal" => process().signal(&step.signal).await?,
            "kill" => process().kill().await?,
            other => return Err(ClientError::Invalid(format!("the runner does not know {other:?}"))),
        }
        Ok(Value::Null)
    }

    async fn read(&self, step: &Step) -> Result<Value, ClientError> {
        let files = self.sandbox.files();
        let content = match step.offset {
            Some(offset) => {
                let parts = files.read_range(&step.path, offset, step.length).await?;
                let parts: Vec<bytes::Bytes> = parts.try_collect().await.expect("the content");
                parts.concat()
            }
            None => files.read_all(&step.path, step.max_bytes).await?.to_vec(),
        };
        Ok(json!({"text": String::from_utf8_lossy(&content), "base64": STANDARD.encode(&content)}))
    }

    async fn round_trip(&self, step: &Step) -> Result<(), ClientError> {
        let (up, down) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        for (name, text) in &step.files {
            let path = up.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
            std::fs::write(path, text).expect("a file");
        }
        self.sandbox.files().upload_directory(up.path(), &step.path).await?;
        self.sandbox.files().download_directory(&step.path, down.path()).await?;
        for (name, text) in &step.files {
            assert_eq!(std::fs::read_to_string(down.path().join(name)).expect("a file"), *text);
        }
        Ok(())
    }

    async fn watch_one(&self, step: &Step) -> Result<Value, ClientError> {
        self.sandbox.files().mkdir(&step.path).await?;
        let mut changes = pin!(self.sandbox.files().watch(&step.path, false).await?);
        self.sandbox.run(&Command::shell(format!("echo 1 > {}/{}", step.path, step.write))).await?;
        let change = changes.next().await.expect("a change")?;
        Ok(json!({"kinds": [change.change]}))
    }
}

fn command_of(step: &Step) -> Command {
    let mut command = match &step.command {
        Some(text) => Command::shell(text),
        None => Command::argv(step.argv.clone()),
    };
    for (name, value) in &step.env {
        command = command.env(name, value);
    }
    if let Some(folder) = &step.cwd {
        command = command.cwd(folder);
    }
    if let Some(text) = &step.stdin {
        command = command.stdin(text);
    }
    if let Some(seconds) = step.timeout {
        command = command.timeout(Duration::from_secs_f64(seconds));
    }
    if let Some(key) = &step.key {
        command = command.idempotency_key(key);
    }
    if let Some((columns, rows)) = step.terminal {
        command = command.terminal(columns, rows);
    }
    command
}

async fn collect_output(events: impl Stream<Item = Result<CommandEvent, ClientError>>) -> Result<Value, ClientError> {
    let mut events = pin!(events);
    let (mut stdout, mut stderr, mut code) = (Vec::new(), Vec::new(), None);
    while let Some(event) = events.next().await {
        match event? {
            CommandEvent::Stdout { data, .. } => stdout.extend_from_slice(&data),
            CommandEvent::Stderr { data, .. } => stderr.extend_from_slice(&data),
            CommandEvent::Exit { exit_code, .. } => code = Some(exit_code),
            CommandEvent::Started { .. } | CommandEvent::Skipped { .. } => {}
        }
    }
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(json!({"stdout": text(stdout), "stderr": text(stderr), "exit_code": code}))
}

fn error_kind(error: &ClientError) -> &'static str {
    match error {
        ClientError::NotFound { .. } | ClientError::Refused { code: Some(ErrorCode::NotFound), .. } => "not_found",
        ClientError::NoSource { .. } => "no_source",
        ClientError::TooLarge { .. } => "too_large",
        _ => "another",
    }
}
