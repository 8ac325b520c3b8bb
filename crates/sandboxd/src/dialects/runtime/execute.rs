//! `POST /execute`: runs one command to its end and responds once.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_protocol::runtime::{ExecuteResponse, LAUNCH_FAILURE_PREFIX, ValidationError, ValidationProblem};
use agent_sandbox_protocol::web::BodyKind;
use http::{Request, Response, StatusCode};
use serde_json::{Value, json};

use super::split::split_words;
use super::{ExecMode, Runtime, message};
use crate::core::paths::Mode;
use crate::core::processes::reaper::Exit;
use crate::core::processes::run::{Bounds, Finished, run};
use crate::core::processes::{Launch, Stdin};
use crate::http_io::body::{self, Body};

/// Maximum size of a request, which is one command line. The kernel takes no argument longer than 128 KiB.
const MAX_REQUEST: usize = 4 << 20;

/// Maximum size of one stream in the response, so that the whole stays below the 16 MiB at which a published client
/// stops decoding.
const MAX_STREAM_IN_JSON: usize = (16 << 20) / 2 - 4096;

/// Timeout for the syntax check by `sh -n`.
const SYNTAX_CHECK: Duration = Duration::from_secs(5);

struct Command {
    text: String,
    limit: Option<Duration>,
}

impl Runtime {
    pub(super) async fn execute(&self, request: Request<Body>) -> Response<Body> {
        let is_json = matches!(BodyKind::of(request.headers()), BodyKind::Json | BodyKind::Unnamed);
        let bytes = match body::collect(request.into_body(), MAX_REQUEST).await {
            Ok(bytes) => bytes,
            Err(_) => return message(StatusCode::PAYLOAD_TOO_LARGE, "command is too long"),
        };
        let command = match parse(&bytes, is_json) {
            Ok(command) => command,
            Err(error) => return invalid(error),
        };
        let Ok(_slot) = self.sandbox.limits.command_slots.try_acquire() else {
            return message(StatusCode::SERVICE_UNAVAILABLE, "too many commands are running");
        };
        body::json(StatusCode::OK, &self.execute_command(&command).await)
    }

    async fn execute_command(&self, command: &Command) -> ExecuteResponse {
        let limit = command.limit.map_or(self.time_limit, |limit| limit.min(self.time_limit));
        let argv = match self.argv_of(&command.text) {
            Ok(argv) => argv,
            Err(error) => return launch_failure(&error, 1),
        };
        let described = describe(&argv, self.exec_mode);
        let launched = match self.launch(argv) {
            Ok(launch) => self.sandbox.run(&launch, self.bounds(limit), None).await.map_err(|error| error.to_string()),
            Err(error) => Err(error),
        };
        let finished = match launched {
            Ok(finished) => finished,
            Err(error) => return launch_failure(&error, 1),
        };
        let bad_syntax = self.exec_mode == ExecMode::Shell
            && finished.exit == Exit::Code(2)
            && !finished.timed_out
            && self.is_bad_syntax(&command.text).await;
        self.describe(finished, limit, bad_syntax, &described)
    }

    fn argv_of(&self, text: &str) -> Result<Vec<OsString>, String> {
        match self.exec_mode {
            ExecMode::Shell => Ok(vec![self.sandbox.shell.clone(), "-c".into(), text.into()]),
            ExecMode::Argv => {
                let words = split_words(text)?;
                if words.is_empty() {
                    return Err("list index out of range".into());
                }
                Ok(words.into_iter().map(OsString::from).collect())
            }
        }
    }

    fn launch(&self, argv: Vec<OsString>) -> Result<Launch, String> {
        let base = self.sandbox.paths.open_base().map_err(|error| format!("working directory: {error}"))?;
        Ok(Launch {
            argv,
            env: Arc::clone(&self.sandbox.env),
            cwd: Arc::new(base),
            stdin: Stdin::Null,
            terminal: None,
            identity: None,
            rlimits: Vec::new(),
        })
    }

    fn bounds(&self, limit: Duration) -> Bounds {
        Bounds { time: Some(limit), grace: self.sandbox.limits.kill_grace, output: self.sandbox.limits.output_bytes }
    }

    /// A shell exits with 2 for a syntax error, but so do many programs: ask the shell to check the text.
    async fn is_bad_syntax(&self, text: &str) -> bool {
        let check = vec![self.sandbox.shell.clone(), "-n".into(), "-c".into(), text.into()];
        let Ok(check) = self.launch(check) else { return false };
        // Not a command of the user's: it is not recorded.
        let checked = run(&check, self.bounds(SYNTAX_CHECK), &self.sandbox.reaper).await;
        checked.is_ok_and(|finished| finished.exit == Exit::Code(2))
    }

    fn describe(&self, finished: Finished, limit: Duration, bad_syntax: bool, command: &str) -> ExecuteResponse {
        let stdout = finished.stdout.into_json_text(MAX_STREAM_IN_JSON);
        let mut stderr = finished.stderr.into_json_text(MAX_STREAM_IN_JSON - 4096);
        let strict = self.mode == Mode::Strict;
        if finished.timed_out {
            let error = if strict {
                format!("Command '{command}' timed out after {:?} seconds", limit.as_secs_f64())
            } else {
                format!("Command timed out after {} seconds", limit.as_secs_f64())
            };
            if !stderr.is_empty() && !stderr.ends_with('\n') {
                stderr.push('\n');
            }
            stderr.push_str(LAUNCH_FAILURE_PREFIX);
            stderr.push_str(&error);
            return ExecuteResponse { stdout, stderr, exit_code: if strict { 1 } else { 124 }, timed_out: true };
        }
        if bad_syntax {
            stderr.insert_str(0, LAUNCH_FAILURE_PREFIX);
            return ExecuteResponse { stdout, stderr, exit_code: 1, timed_out: false };
        }
        let exit_code = match finished.exit {
            Exit::Signal(signal) if strict => -signal,
            exit => exit.shell_code(),
        };
        ExecuteResponse { stdout, stderr, exit_code, timed_out: false }
    }
}

fn describe(argv: &[OsString], mode: ExecMode) -> String {
    if mode == ExecMode::Shell {
        return String::new();
    }
    let words: Vec<String> = argv.iter().map(|word| format!("'{}'", word.to_string_lossy())).collect();
    format!("[{}]", words.join(", "))
}

fn launch_failure(error: &str, exit_code: i32) -> ExecuteResponse {
    ExecuteResponse { stderr: format!("{LAUNCH_FAILURE_PREFIX}{error}"), exit_code, ..Default::default() }
}

fn parse(bytes: &[u8], is_json: bool) -> Result<Command, ValidationProblem> {
    let error = |kind: &str, loc: Value, msg: &str, input: Value| ValidationProblem {
        kind: kind.into(),
        loc: loc.as_array().cloned().unwrap_or_default(),
        msg: msg.into(),
        input,
    };
    if !is_json {
        let input = Value::from(String::from_utf8_lossy(bytes));
        let msg = "Input should be a valid dictionary or object to extract fields from";
        return Err(error("model_attributes_type", json!(["body"]), msg, input));
    }
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|json| error("json_invalid", json!(["body", json.column()]), "JSON decode error", json!({})))?;
    let Value::Object(members) = &value else {
        let msg = "Input should be a valid dictionary or object to extract fields from";
        return Err(error("model_attributes_type", json!(["body"]), msg, value));
    };
    let text = match members.get("command") {
        Some(Value::String(text)) => text.clone(),
        Some(other) => {
            let msg = "Input should be a valid string";
            return Err(error("string_type", json!(["body", "command"]), msg, other.clone()));
        }
        None => return Err(error("missing", json!(["body", "command"]), "Field required", value)),
    };
    // An unusable number counts as no limit of the client; the server's own limit always holds.
    let seconds = members.get("timeout_seconds").and_then(Value::as_f64).filter(|seconds| *seconds > 0.0);
    let limit = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    Ok(Command { text, limit })
}

pub(super) fn invalid(error: ValidationProblem) -> Response<Body> {
    body::json(StatusCode::UNPROCESSABLE_ENTITY, &ValidationError { detail: vec![error] })
}
