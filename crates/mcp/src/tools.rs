//! Definitions of the tools for models: names, descriptions and schemas.

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};
use std::sync::Arc;

/// All tools, in the order in which an agent needs them.
pub(crate) fn all() -> Vec<Tool> {
    vec![create(), execute(), upload(), download(), list(), exists(), delete()]
}

fn create() -> Tool {
    let map = |what: &str| json!({"type": ["object", "null"], "additionalProperties": {"type": "string"}, "description": what});
    let properties = json!({
        "warmpool": {"type": "string", "description": "Warm pool to take the sandbox from; a template's name works as well"},
        "namespace": {"type": "string", "description": "Kubernetes namespace"},
        "sandbox_ready_timeout": {"type": "integer", "minimum": 1, "default": 180, "description": "Seconds to wait until it is ready"},
        "labels": map("Labels of the claim"),
        "shutdown_after_seconds": {"type": ["integer", "null"], "minimum": 1, "default": 300, "description": "Seconds until it is deleted by itself; null keeps it until delete_sandbox"},
        "pod_labels": map("Labels of the running Pod"),
        "pod_annotations": map("Annotations of the running Pod"),
    });
    let tool = tool(
        "create_sandbox",
        "Create an isolated computer and wait until it is ready. Returns the claim name that all other tools ask for.",
        schema(properties, &["warmpool", "namespace"]),
    );
    tool.with_raw_output_schema(schema(json!({"sandbox_claim_name": {"type": "string"}}), &["sandbox_claim_name"]))
        .with_annotations(ToolAnnotations::new().destructive(false))
}

fn execute() -> Tool {
    let command = json!({"command": {"type": "string", "description": "A shell command"}});
    let tool = tool(
        "execute_command",
        "Run a shell command in a sandbox and return its exit code, standard output and standard error.",
        sandbox_tool_schema(command, &["command"], true),
    );
    let result = json!({"exit_code": {"type": "integer"}, "stdout": {"type": "string"}, "stderr": {"type": "string"}});
    tool.with_raw_output_schema(schema(result, &["exit_code", "stdout", "stderr"]))
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
    let properties = json!({"path": path("The file to read"), "binary": binary});
    let tool = tool(
        "download_file",
        "Read a file of a sandbox: as text, or as base64 when binary is true. A file that is not UTF-8 needs binary.",
        sandbox_tool_schema(properties, &["path"], true),
    );
    let result = json!({"content": {"type": "string"}, "bytes_read": {"type": "integer"}});
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

fn delete() -> Tool {
    let description = "Delete a sandbox and everything in it.";
    tool("delete_sandbox", description, sandbox_tool_schema(json!({}), &[], false))
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
        "sandbox_claim_name": {"type": "string", "description": "The name that create_sandbox returned"},
        "namespace": {"type": "string", "description": "The namespace given to create_sandbox"},
    });
    let into = all.as_object_mut().expect("written as an object above");
    into.extend(properties.as_object().cloned().unwrap_or_default());
    if timed {
        let timeout = json!({"type": "integer", "minimum": 1, "maximum": 600, "default": 60, "description": "Seconds that the call may take"});
        into.insert("timeout".to_owned(), timeout);
    }
    let required: Vec<&str> = ["sandbox_claim_name", "namespace"].into_iter().chain(required.iter().copied()).collect();
    schema(all, &required)
}

fn schema(properties: Value, required: &[&str]) -> Arc<JsonObject> {
    let schema = json!({"type": "object", "properties": properties, "required": required});
    Arc::new(schema.as_object().cloned().expect("written as an object above"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d_250_the_seven_tools_have_upstreams_names_and_defaults() {
        let tools = all();
        let mut names: Vec<&str> = tools.iter().map(|tool| tool.name.as_ref()).collect();
        names.sort_unstable();
        let expected = [
            "create_sandbox",
            "delete_sandbox",
            "download_file",
            "execute_command",
            "file_exists",
            "list_files",
            "upload_file",
        ];
        assert_eq!(names, expected);
        for tool in &tools {
            let timeout = &tool.input_schema["properties"]["timeout"];
            let timed = !matches!(tool.name.as_ref(), "create_sandbox" | "delete_sandbox");
            assert_eq!(timeout["default"] == 60 && timeout["maximum"] == 600, timed, "{}", tool.name);
        }
        assert_eq!(tools[0].input_schema["properties"]["shutdown_after_seconds"]["default"], 300);
    }
}
