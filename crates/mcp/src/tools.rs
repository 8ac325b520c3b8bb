//! Definitions of the tools for models: names, descriptions and schemas.

use crate::{
    arguments::{DOWNLOAD_BYTES, FORK_IDLE_SECONDS, SNAPSHOT_SECONDS},
    sandboxes::Defaults,
};
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};
use std::sync::Arc;

/// All tools, in the order in which an agent needs them. `local` adds those for a client on this machine.
pub(crate) fn all(defaults: &Defaults, local: bool) -> Vec<Tool> {
    let mut tools = vec![
        create(defaults),
        execute(),
        run_code(),
        run_python(),
        start_command(),
        command_output(),
        stop_command(),
        list_ports(),
        upload(),
        download(),
        list(),
        exists(),
        snapshot(),
        fork(),
        rollback(),
        delete(),
    ];
    if local {
        tools.push(open_port());
    }
    for tool in &mut tools {
        state_default_namespace(tool, &defaults.namespace);
    }
    tools
}

fn create(defaults: &Defaults) -> Tool {
    let map = |what: &str| json!({"type": ["object", "null"], "additionalProperties": {"type": "string"}, "description": what});
    let properties = json!({
        "warmpool": {"type": "string", "default": defaults.source, "description": "Warm pool to take the sandbox from; a template's name works as well"},
        "namespace": {"type": "string", "description": "Kubernetes namespace"},
        "sandbox_ready_timeout": {"type": "integer", "minimum": 1, "default": 180, "description": "Seconds to wait until it is ready"},
        "labels": map("Labels of the claim"),
        "shutdown_after_seconds": {"type": ["integer", "null"], "minimum": 1, "default": 300, "description": "Seconds without a call after which it is deleted; null keeps it until delete_sandbox"},
        "pod_labels": map("Labels of the running Pod"),
        "pod_annotations": map("Annotations of the running Pod"),
    });
    let tool = tool(
        "create_sandbox",
        "Create a further isolated computer and wait until it is ready. Returns its claim name, which the other tools take; without a name they use the newest one.",
        schema(properties, &[]),
    );
    tool.with_raw_output_schema(schema(json!({"sandbox_claim_name": {"type": "string"}}), &["sandbox_claim_name"]))
        .with_annotations(ToolAnnotations::new().destructive(false))
}

fn execute() -> Tool {
    let command = json!({"command": {"type": "string", "description": "A shell command"}});
    let tool = tool(
        "execute_command",
        "Run a shell command in a sandbox and return its exit code, standard output and standard error. Output longer than 30000 bytes is shortened in the middle; stdout_file or stderr_file then names a file of the sandbox with all of it: search it with commands, or read parts with download_file.",
        sandbox_tool_schema(command, &["command"], true),
    );
    tool.with_raw_output_schema(command_result())
}

fn run_code() -> Tool {
    let properties = json!({
        "code": {"type": "string", "description": "Python 3 source; the value of its last expression is returned too"},
        "restart": {"type": "boolean", "default": false, "description": "Forget all variables first"},
    });
    let tool = tool(
        "run_code",
        "Run Python code like a cell of a notebook: variables, imports and functions stay for the next call in the same sandbox. A call that takes longer than its timeout is interrupted; the variables stay. Texts longer than 30000 bytes are shortened in the middle; stdout_file, stderr_file, text_file or traceback_file then names a file of the sandbox with all of it.",
        sandbox_tool_schema(properties, &["code"], true),
    );
    let result = json!({"type": "object", "description": "One thing that the code showed, by format: text, html, png (base64) and others"});
    let error = json!({"type": "object", "properties": {"name": {"type": "string"}, "value": {"type": "string"}, "traceback": {"type": "string"}, "value_file": {"type": "string"}, "traceback_file": {"type": "string"}}});
    let output = json!({
        "text": {"type": "string"}, "stdout": {"type": "string"}, "stderr": {"type": "string"},
        "text_file": {"type": "string"}, "stdout_file": {"type": "string"}, "stderr_file": {"type": "string"},
        "displayed": {"type": "array", "items": result}, "error": error,
    });
    tool.with_raw_output_schema(schema(output, &["stdout", "stderr", "displayed"]))
}

fn run_python() -> Tool {
    let code = json!({"code": {"type": "string", "description": "Python 3 source; print what you want to see"}});
    let tool = tool(
        "run_python",
        "Run Python code in a new interpreter in a sandbox; files stay, variables do not. The result is like that of execute_command.",
        sandbox_tool_schema(code, &["code"], true),
    );
    tool.with_raw_output_schema(command_result())
}

fn start_command() -> Tool {
    let command = json!({"command": {"type": "string", "description": "A shell command, such as a server"}});
    let tool = tool(
        "start_command",
        "Start a shell command in the background and return its command_id for command_output and stop_command.",
        sandbox_tool_schema(command, &["command"], false),
    );
    tool.with_raw_output_schema(schema(json!({"command_id": {"type": "integer"}}), &["command_id"]))
}

fn command_output() -> Tool {
    let properties = json!({
        "command_id": command_id(),
        "offset": {"type": "integer", "minimum": 0, "default": 0, "description": "Where to begin: next_offset of the call before"},
        "wait_seconds": {"type": "integer", "minimum": 0, "maximum": 600, "default": 0, "description": "Wait this long for its end first"},
    });
    let tool = tool(
        "command_output",
        "Output of a background command from an offset on, standard output and standard error together, at most 30000 bytes; more tells whether to call again with next_offset. The last MiB is kept.",
        sandbox_tool_schema(properties, &["command_id"], false),
    );
    let result = json!({"running": {"type": "boolean"}, "exit_code": {"type": "integer"}, "output": {"type": "string"}, "next_offset": {"type": "integer"}, "more": {"type": "boolean"}});
    tool.with_raw_output_schema(schema(result, &["running", "output", "next_offset", "more"]))
        .with_annotations(read_only())
}

fn stop_command() -> Tool {
    let tool = tool(
        "stop_command",
        "Stop a background command and everything that it started.",
        sandbox_tool_schema(json!({"command_id": command_id()}), &["command_id"], false),
    );
    let result = json!({"running": {"type": "boolean"}, "exit_code": {"type": "integer"}});
    tool.with_raw_output_schema(schema(result, &["running"])).with_annotations(ToolAnnotations::new().idempotent(true))
}

fn list_ports() -> Tool {
    let tool =
        tool("list_ports", "Ports on which programs in a sandbox listen.", sandbox_tool_schema(json!({}), &[], false));
    let port = json!({"type": "object", "properties": {"port": {"type": "integer"}, "address": {"type": "string"}}, "required": ["port", "address"]});
    tool.with_raw_output_schema(schema(json!({"ports": {"type": "array", "items": port}}), &["ports"]))
        .with_annotations(read_only())
}

fn open_port() -> Tool {
    let port =
        json!({"port": {"type": "integer", "minimum": 1, "maximum": 65535, "description": "Port in the sandbox"}});
    let tool = tool(
        "open_port",
        "Make a port of a sandbox reachable for the user, at an address of the user's own machine, until this server ends.",
        sandbox_tool_schema(port, &["port"], false),
    );
    tool.with_raw_output_schema(schema(json!({"url": {"type": "string"}}), &["url"]))
}

fn command_id() -> Value {
    json!({"type": "integer", "description": "The number that start_command returned"})
}

fn command_result() -> Arc<JsonObject> {
    let result = json!({"exit_code": {"type": "integer"}, "stdout": {"type": "string"}, "stderr": {"type": "string"}, "stdout_file": {"type": "string"}, "stderr_file": {"type": "string"}});
    schema(result, &["exit_code", "stdout", "stderr"])
}

fn upload() -> Tool {
    let properties = json!({
        "path": path("Where to write the file"),
        "content": {"type": "string", "description": "The text, or base64 when binary is true"},
        "binary": {"type": "boolean", "default": false, "description": "Whether content is base64"},
    });
    let tool = tool(
        "upload_file",
        "Write a file in a sandbox. Folders above it are made; an existing file is replaced.",
        sandbox_tool_schema(properties, &["path", "content"], true),
    );
    tool.with_raw_output_schema(schema(json!({"bytes_written": {"type": "integer"}}), &["bytes_written"]))
}

fn download() -> Tool {
    let binary = json!({"type": "boolean", "default": false, "description": "Return base64 instead of text"});
    let properties = json!({
        "path": path("The file to read"),
        "binary": binary,
        "offset": {"type": "integer", "minimum": 0, "default": 0, "description": "First byte to return"},
        "max_bytes": {"type": ["integer", "null"], "minimum": 1, "default": DOWNLOAD_BYTES, "description": "Number of bytes to return at most; null for everything"},
    });
    let tool = tool(
        "download_file",
        "Read a file of a sandbox: as text, or as base64 when binary is true. A file that is not UTF-8 needs binary. Of a larger file than max_bytes the beginning is returned, with its size as total_bytes: continue with offset.",
        sandbox_tool_schema(properties, &["path"], true),
    );
    let result =
        json!({"content": {"type": "string"}, "bytes_read": {"type": "integer"}, "total_bytes": {"type": "integer"}});
    tool.with_raw_output_schema(schema(result, &["content", "bytes_read"])).with_annotations(read_only())
}

fn list() -> Tool {
    let entries = json!({"type": "integer", "minimum": 1, "maximum": 10000, "default": 1000, "description": "At most this many entries are returned"});
    let properties = json!({"path": path("The directory"), "max_entries": entries});
    let tool = tool("list_files", "List a directory of a sandbox.", sandbox_tool_schema(properties, &["path"], true));
    let entry = json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "size": {"type": "integer"}, "type": {"enum": ["file", "directory"]}, "mod_time": {"type": "number"}},
        "required": ["name", "size", "type", "mod_time"],
    });
    let result = json!({"entries": {"type": "array", "items": entry}, "total_entries": {"type": "integer"}, "truncated": {"type": "boolean"}});
    tool.with_raw_output_schema(schema(result, &["entries", "total_entries", "truncated"]))
        .with_annotations(read_only())
}

fn exists() -> Tool {
    let tool = tool(
        "file_exists",
        "Whether a file or directory exists in a sandbox.",
        sandbox_tool_schema(json!({"path": path("The path")}), &["path"], true),
    );
    tool.with_raw_output_schema(schema(json!({"exists": {"type": "boolean"}}), &["exists"]))
        .with_annotations(read_only())
}

fn snapshot() -> Tool {
    let life = json!({"type": "integer", "minimum": 1, "default": SNAPSHOT_SECONDS, "description": "Seconds after which the snapshot is deleted"});
    let tool = tool(
        "snapshot_sandbox",
        "Keep the files of a sandbox as they are now, before trying something. Returns the name of the snapshot for rollback_sandbox and fork_sandbox. Processes and variables are not in it.",
        sandbox_tool_schema(json!({"expires_after_seconds": life}), &[], true),
    );
    tool.with_raw_output_schema(schema(json!({"snapshot_name": {"type": "string"}}), &["snapshot_name"]))
        .with_annotations(ToolAnnotations::new().destructive(false))
}

fn fork() -> Tool {
    let properties = json!({
        "count": {"type": "integer", "minimum": 1, "maximum": 10, "default": 1, "description": "How many sandboxes to make"},
        "snapshot_name": {"type": "string", "description": "Make them from this snapshot instead of the sandbox's present files"},
        "shutdown_after_seconds": {"type": ["integer", "null"], "minimum": 1, "default": FORK_IDLE_SECONDS, "description": "Seconds without a call after which each is deleted; null keeps it until delete_sandbox"},
    });
    let tool = tool(
        "fork_sandbox",
        "Make sandboxes with the files that a sandbox has now, to try several ways at the same time. Pass one of the returned names as sandbox_claim_name to the other tools; calls without a name do not use them.",
        sandbox_tool_schema(properties, &[], true),
    );
    let names = json!({"sandbox_claim_names": {"type": "array", "items": {"type": "string"}}});
    tool.with_raw_output_schema(schema(names, &["sandbox_claim_names"]))
        .with_annotations(ToolAnnotations::new().destructive(false))
}

fn rollback() -> Tool {
    let name = json!({"snapshot_name": {"type": "string", "description": "The name that snapshot_sandbox returned"}});
    let tool = tool(
        "rollback_sandbox",
        "Set a sandbox back to a snapshot of it. What was written since is lost, and its processes end.",
        sandbox_tool_schema(name, &["snapshot_name"], true),
    );
    tool.with_raw_output_schema(schema(json!({"snapshot_name": {"type": "string"}}), &["snapshot_name"]))
        .with_annotations(ToolAnnotations::new().destructive(true))
}

fn delete() -> Tool {
    let description = "Delete a sandbox and everything in it.";
    tool("delete_sandbox", description, sandbox_tool_schema(json!({}), &["sandbox_claim_name"], false))
        .with_annotations(ToolAnnotations::new().destructive(true).idempotent(true))
}

fn tool(name: &'static str, description: &'static str, input: Arc<JsonObject>) -> Tool {
    Tool::new(name, description, input)
}

fn read_only() -> ToolAnnotations {
    ToolAnnotations::new().read_only(true)
}

fn path(what: &str) -> Value {
    json!({"type": "string", "description": format!("{what}, relative to the sandbox's working directory")})
}

/// The input schema of a tool that acts on one sandbox.
fn sandbox_tool_schema(properties: Value, required: &[&str], timed: bool) -> Arc<JsonObject> {
    let mut all = json!({
        "sandbox_claim_name": {"type": "string", "description": "The name that create_sandbox or fork_sandbox returned. Without it: this session's newest sandbox; if there is none, one is created, which is deleted after an hour without a call, and the result has its name"},
        "namespace": {"type": "string", "description": "The namespace given to create_sandbox"},
    });
    let into = all.as_object_mut().expect("written as an object above");
    into.extend(properties.as_object().cloned().unwrap_or_default());
    if timed {
        let timeout = json!({"type": "integer", "minimum": 1, "maximum": 600, "default": 60, "description": "Seconds that the call may take"});
        into.insert("timeout".to_owned(), timeout);
    }
    schema(all, required)
}

/// Adds the namespace that is used without the argument.
fn state_default_namespace(tool: &mut Tool, namespace: &str) {
    let schema = Arc::make_mut(&mut tool.input_schema);
    if let Some(argument) = schema.get_mut("properties").and_then(|properties| properties.get_mut("namespace")) {
        argument["default"] = json!(namespace);
    }
}

fn schema(properties: Value, required: &[&str]) -> Arc<JsonObject> {
    let schema = json!({"type": "object", "properties": properties, "required": required});
    Arc::new(schema.as_object().cloned().expect("written as an object above"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(local: bool) -> Vec<Tool> {
        all(&Defaults { namespace: "team".to_owned(), source: "pool".to_owned() }, local)
    }

    #[test]
    fn d_250_upstreams_seven_tools_have_their_names_and_defaults() {
        let tools = tools(false);
        let upstream = [
            ("create_sandbox", false),
            ("delete_sandbox", false),
            ("download_file", true),
            ("execute_command", true),
            ("file_exists", true),
            ("list_files", true),
            ("upload_file", true),
        ];
        for (name, timed) in upstream {
            let tool = tools.iter().find(|tool| tool.name == name).expect("upstream's tool");
            let timeout = &tool.input_schema["properties"]["timeout"];
            assert_eq!(timeout["default"] == 60 && timeout["maximum"] == 600, timed, "{name}");
        }
        assert_eq!(tools[0].input_schema["properties"]["shutdown_after_seconds"]["default"], 300);
    }

    #[test]
    fn the_descriptions_state_the_defaults() {
        for tool in tools(true) {
            assert_eq!(tool.input_schema["properties"]["namespace"]["default"], "team", "{}", tool.name);
            let required = tool.input_schema["required"].to_string();
            assert!(!required.contains("namespace") && !required.contains("warmpool"), "{}: {required}", tool.name);
        }
        assert_eq!(tools(true)[0].input_schema["properties"]["warmpool"]["default"], "pool");
        let has_open_port = |local| tools(local).iter().any(|tool| tool.name == "open_port");
        assert!(has_open_port(true) && !has_open_port(false));
    }
}
