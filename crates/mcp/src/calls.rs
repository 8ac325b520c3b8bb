//! The tools that act in a sandbox: commands, Python, background commands, files. Output is limited for models; what is
//! left out stays in a file of the sandbox.

use crate::{
    Sandboxes,
    arguments::{
        CommandOutput, Download, Execute, Exists, List, ListPorts, RunCode, RunPython, StartCommand, StopCommand,
        Upload,
    },
    runtime_api,
    sandboxes::{Opened, ToolError},
};
use agent_sandbox_client::{CodeOptions, Command, CommandEvent, Execution, SandboxHandle, native::ProcessInfo};
use agent_sandbox_protocol::{capture::Capture, router_headers::DEFAULT_PORT, runtime::ExecuteResponse};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Number of bytes of each output stream that a result holds: about 8,000 tokens. Also of a background command's new
/// output.
pub(crate) const OUTPUT_LIMIT: usize = 30_000;

/// Folder for complete outputs and for Python code, in the sandbox's working directory.
const FOLDER: &str = ".agent-sandbox";

/// Timeout for requests of tools without a timeout of their own.
const SHORT_CALL: Duration = Duration::from_secs(60);

/// Time between SIGTERM and SIGKILL for a background command.
const STOP_GRACE: Duration = Duration::from_secs(5);

impl Sandboxes {
    pub(crate) async fn execute(&self, session: &str, wanted: Execute) -> Result<Value, ToolError> {
        let sandbox = self.open(session, &wanted.sandbox, wanted.timeout.0).await?;
        let done = runtime_api::execute(&sandbox.handle, wanted.command, wanted.timeout.0).await?;
        Ok(sandbox.result(limited(&sandbox.handle, done).await))
    }

    pub(crate) async fn run_code(&self, session: &str, wanted: RunCode) -> Result<Value, ToolError> {
        let sandbox = self.open(session, &wanted.sandbox, wanted.timeout.0).await?;
        if wanted.restart
            && let Some(default) = sandbox.handle.code_contexts().await?.into_iter().next()
        {
            sandbox.handle.restart_code_context(&default.id).await?;
        }
        let options = CodeOptions { timeout: Some(wanted.timeout.0), ..CodeOptions::default() };
        let done = sandbox.handle.run_code(&wanted.code, &options).await?;
        Ok(sandbox.result(shown(&sandbox.handle, done).await))
    }

    pub(crate) async fn run_python(&self, session: &str, wanted: RunPython) -> Result<Value, ToolError> {
        let sandbox = self.open(session, &wanted.sandbox, wanted.timeout.0).await?;
        let file = format!("{FOLDER}/{}.py", uuid::Uuid::new_v4().simple());
        runtime_api::upload(&sandbox.handle, &file, wanted.code.as_bytes(), SHORT_CALL).await?;
        // Read from standard input, so that modules of the working directory can be imported.
        let command = format!("sh -c 'python3 - < {file}; code=$?; rm -f {file}; exit $code'");
        let done = runtime_api::execute(&sandbox.handle, command, wanted.timeout.0).await?;
        Ok(sandbox.result(limited(&sandbox.handle, done).await))
    }

    pub(crate) async fn start_command(&self, session: &str, wanted: StartCommand) -> Result<Value, ToolError> {
        let sandbox = self.open(session, &wanted.sandbox, SHORT_CALL).await?;
        let process = sandbox.handle.start(&Command::shell(wanted.command)).await?;
        Ok(sandbox.result(json!({"command_id": process.id()})))
    }

    pub(crate) async fn command_output(&self, session: &str, wanted: CommandOutput) -> Result<Value, ToolError> {
        let sandbox = self.open(session, &wanted.sandbox, wanted.wait_seconds.0).await?;
        let process = sandbox.handle.process(wanted.command_id).await?;
        let info = match wanted.wait_seconds.0.is_zero() {
            true => process.info().await?,
            false => process.wait_for(wanted.wait_seconds.0).await?,
        };
        let (output, next) = read_output(&process.output(wanted.offset).await?, wanted.offset);
        let mut result = state(&info);
        result["output"] = json!(output);
        result["next_offset"] = json!(next);
        result["more"] = json!(next < info.output_end);
        Ok(result)
    }

    pub(crate) async fn stop_command(&self, session: &str, wanted: StopCommand) -> Result<Value, ToolError> {
        let sandbox = self.open(session, &wanted.sandbox, SHORT_CALL).await?;
        let process = sandbox.handle.process(wanted.command_id).await?;
        process.signal("TERM").await?;
        let mut info = process.wait_for(STOP_GRACE).await?;
        if info.running {
            process.signal("KILL").await?;
            info = process.wait_for(SHORT_CALL).await?;
        }
        Ok(state(&info))
    }

    pub(crate) async fn list_ports(&self, session: &str, wanted: ListPorts) -> Result<Value, ToolError> {
        let sandbox = self.open(session, &wanted.sandbox, SHORT_CALL).await?;
        let ports = sandbox.handle.ports().await?;
        // The daemon's own port is not the model's business.
        let ports = ports.iter().filter(|port| port.port != DEFAULT_PORT);
        let ports: Vec<Value> = ports.map(|port| json!({"port": port.port, "address": port.address})).collect();
        Ok(sandbox.result(json!({"ports": ports})))
    }

    pub(crate) async fn upload(&self, session: &str, wanted: Upload) -> Result<Value, ToolError> {
        let content = match wanted.binary {
            true => STANDARD.decode(wanted.content.as_bytes()).map_err(ToolError::Base64)?,
            false => wanted.content.into_bytes(),
        };
        let sandbox = self.open(session, &wanted.sandbox, wanted.timeout.0).await?;
        runtime_api::upload(&sandbox.handle, &wanted.path, &content, wanted.timeout.0).await?;
        Ok(sandbox.result(json!({"bytes_written": content.len()})))
    }

    pub(crate) async fn download(&self, session: &str, wanted: Download) -> Result<Value, ToolError> {
        let sandbox = self.open(session, &wanted.sandbox, wanted.timeout.0).await?;
        let bytes = runtime_api::download(&sandbox.handle, &wanted.path, wanted.timeout.0).await?;
        let total = bytes.len();
        let from = usize::try_from(wanted.offset).unwrap_or(usize::MAX).min(total);
        let until = wanted.max_bytes.0.and_then(|count| from.checked_add(usize::try_from(count).ok()?));
        let part = &bytes[from..until.unwrap_or(total).min(total)];
        let (content, read) = match wanted.binary {
            true => (STANDARD.encode(part), part.len()),
            false => text_part(part, part.len() < total).ok_or(ToolError::NotText(wanted.path))?,
        };
        let mut result = json!({"content": content, "bytes_read": read});
        if from + read < total || from > 0 {
            result["total_bytes"] = json!(total);
        }
        Ok(sandbox.result(result))
    }

    pub(crate) async fn list(&self, session: &str, wanted: List) -> Result<Value, ToolError> {
        let sandbox = self.open(session, &wanted.sandbox, wanted.timeout.0).await?;
        let mut entries = runtime_api::list(&sandbox.handle, &wanted.path, wanted.timeout.0).await?;
        let total = entries.len();
        entries.truncate(wanted.max_entries.0);
        let truncated = entries.len() < total;
        Ok(sandbox.result(json!({"entries": entries, "total_entries": total, "truncated": truncated})))
    }

    pub(crate) async fn exists(&self, session: &str, wanted: Exists) -> Result<Value, ToolError> {
        let sandbox: Opened = self.open(session, &wanted.sandbox, wanted.timeout.0).await?;
        let exists = runtime_api::exists(&sandbox.handle, &wanted.path, wanted.timeout.0).await?;
        Ok(sandbox.result(json!({"exists": exists})))
    }
}

/// The result of a command.
async fn limited(sandbox: &SandboxHandle, done: ExecuteResponse) -> Value {
    let mut result = Map::from_iter([("exit_code".to_owned(), json!(done.exit_code))]);
    add_text(&mut result, sandbox, "stdout", done.stdout).await;
    add_text(&mut result, sandbox, "stderr", done.stderr).await;
    Value::Object(result)
}

/// Adds a text to a result. One that is longer than the limit is shortened, and written to a file of the sandbox, which
/// the member `NAME_file` names.
async fn add_text(result: &mut Map<String, Value>, sandbox: &SandboxHandle, name: &str, text: String) {
    if text.len() <= OUTPUT_LIMIT {
        result.insert(name.to_owned(), json!(text));
        return;
    }
    let file = format!("{FOLDER}/{}.{name}", uuid::Uuid::new_v4().simple());
    match runtime_api::upload(sandbox, &file, text.as_bytes(), SHORT_CALL).await {
        Ok(()) => drop(result.insert(format!("{name}_file"), json!(file))),
        // Without a file the model still gets both ends.
        Err(error) => tracing::warn!(%error, "Cannot keep the complete output of a call"),
    }
    result.insert(name.to_owned(), json!(shortened(&text)));
}

/// Both ends of a text that is longer than the limit.
fn shortened(text: &str) -> String {
    let mut kept = Capture::new(OUTPUT_LIMIT);
    kept.push(text.as_bytes());
    String::from_utf8_lossy(&kept.into_bytes()).into_owned()
}

/// What code printed and showed. Pictures and other formats that are longer than the limit are left out.
async fn shown(sandbox: &SandboxHandle, done: Execution) -> Value {
    let mut result = Map::new();
    if let Some(text) = done.text() {
        add_text(&mut result, sandbox, "text", text.to_owned()).await;
    }
    add_text(&mut result, sandbox, "stdout", done.stdout).await;
    add_text(&mut result, sandbox, "stderr", done.stderr).await;
    // The value of the last expression is in `text` already, unless it has more formats.
    let displayed = done.results.into_iter().filter(|one| !one.is_main_result || one.formats.len() > 1);
    let mut all = Vec::new();
    for one in displayed {
        let mut formats = Map::new();
        for (format, value) in one.formats {
            match value {
                // It is in the result itself.
                Value::String(text) if format == "text" && one.is_main_result => {
                    formats.insert(format, json!(shortened(&text)));
                }
                Value::String(text) if format == "text" => add_text(&mut formats, sandbox, "text", text).await,
                Value::String(text) if text.len() > OUTPUT_LIMIT => {
                    let left_out = format!("[{} bytes left out; save it to a file and read that]", text.len());
                    formats.insert(format, json!(left_out));
                }
                value => drop(formats.insert(format, value)),
            }
        }
        all.push(Value::Object(formats));
    }
    result.insert("displayed".to_owned(), Value::Array(all));
    if let Some(error) = done.error {
        let mut parts = Map::from_iter([("name".to_owned(), json!(error.name))]);
        add_text(&mut parts, sandbox, "value", error.value).await;
        add_text(&mut parts, sandbox, "traceback", error.traceback).await;
        result.insert("error".to_owned(), Value::Object(parts));
    }
    Value::Object(result)
}

/// The text of output events up to the limit, and the offset after it.
fn read_output(events: &[CommandEvent], offset: u64) -> (String, u64) {
    let (mut bytes, mut next) = (Vec::new(), offset);
    for event in events {
        match event {
            CommandEvent::Stdout { offset, data } | CommandEvent::Stderr { offset, data } => {
                let room = OUTPUT_LIMIT.saturating_sub(bytes.len());
                let taken = &data[..data.len().min(room)];
                bytes.extend_from_slice(taken);
                next = offset + taken.len() as u64;
                if taken.len() < data.len() {
                    break;
                }
            }
            CommandEvent::Skipped { offset, bytes: missing } => {
                bytes.extend_from_slice(format!("[... {missing} bytes of output left out ...]\n").as_bytes());
                next = offset + missing;
            }
            CommandEvent::Started { .. } | CommandEvent::Exit { .. } => {}
        }
    }
    (String::from_utf8_lossy(&bytes).into_owned(), next)
}

fn state(info: &ProcessInfo) -> Value {
    let mut state = json!({"running": info.running});
    if let Some(code) = info.exit_code {
        state["exit_code"] = json!(code);
    }
    state
}

/// A part of a file as text. A character that the end of a part cuts is left to the next one.
fn text_part(part: &[u8], cut: bool) -> Option<(String, usize)> {
    match std::str::from_utf8(part) {
        Ok(text) => Some((text.to_owned(), part.len())),
        Err(error) if cut && error.error_len().is_none() => {
            let valid = error.valid_up_to();
            Some((String::from_utf8_lossy(&part[..valid]).into_owned(), valid))
        }
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_ends_at_the_limit_and_says_where_to_continue() {
        let chunk = |offset: u64, length: usize| CommandEvent::Stdout { offset, data: vec![b'x'; length].into() };
        let (text, next) = read_output(&[chunk(5, 20_000), chunk(20_005, 20_000)], 5);
        assert_eq!((text.len(), next), (OUTPUT_LIMIT, 5 + OUTPUT_LIMIT as u64));
        let (text, next) = read_output(&[CommandEvent::Skipped { offset: 0, bytes: 7 }, chunk(7, 1)], 0);
        assert_eq!((text.as_str(), next), ("[... 7 bytes of output left out ...]\nx", 8));
        assert_eq!(read_output(&[], 9), (String::new(), 9));
    }

    #[test]
    fn parts_of_a_text_end_at_characters() {
        assert_eq!(text_part("aé".as_bytes(), false), Some(("aé".to_owned(), 3)));
        assert_eq!(text_part(&"aé".as_bytes()[..2], true), Some(("a".to_owned(), 1)));
        assert_eq!(text_part(&"aé".as_bytes()[..2], false), None);
        assert_eq!(text_part(b"\xff", true), None);
    }
}
