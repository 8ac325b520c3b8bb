//! Code that keeps its variables from one run to the next: requests and events of `/sandbox/v1/code`. The events are
//! those of E2B's code interpreter.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Body of `POST /sandbox/v1/code`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct CodeRequest {
    pub code: String,
    /// Id of the context whose variables the code sees; without one it is the default context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// Variables of the environment for this run only.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

/// Body of `POST /sandbox/v1/code/contexts`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct NewCodeContext {
    /// Working directory; relative paths begin in the sandbox's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Only `python` is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
}

/// A context: variables and a working directory of their own.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct CodeContext {
    pub id: String,
    pub language: String,
    pub cwd: String,
}

/// Response of `GET /sandbox/v1/code/contexts`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct CodeContexts {
    pub contexts: Vec<CodeContext>,
}

/// One line of the response to `POST /sandbox/v1/code`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CodeEvent {
    /// How many runs the context has begun.
    NumberOfExecutions {
        execution_count: u64,
    },
    Stdout {
        text: String,
    },
    Stderr {
        text: String,
    },
    Result(CodeResult),
    Error(CodeError),
    /// Sent while nothing else is.
    Keepalive,
    /// The last line.
    EndOfExecution,
    /// A line of a later version.
    #[serde(other)]
    Unknown,
}

/// What code shows: the value of its last expression, or something that it displays.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct CodeResult {
    /// It is the value of the last expression.
    #[serde(default)]
    pub is_main_result: bool,
    /// The same in several formats: `text`, `html`, `markdown`, `svg`, `png` and `jpeg` and `pdf` (base64), `latex`,
    /// `json`, `javascript`, `data`, `chart`; others by media type in `extra`.
    #[serde(flatten)]
    pub formats: Map<String, Value>,
}

impl CodeResult {
    /// The result as plain text.
    pub fn text(&self) -> Option<&str> {
        self.formats.get("text").and_then(Value::as_str)
    }
}

/// The exception that ended the code.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct CodeError {
    pub name: String,
    pub value: String,
    pub traceback: String,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// E-112
    #[test]
    fn events_of_the_code_interpreter_are_read() {
        let read = |value: Value| serde_json::from_value::<CodeEvent>(value).expect("an event");
        let result = read(json!({ "type": "result", "is_main_result": true, "text": "21", "png": "cG5n" }));
        let CodeEvent::Result(result) = result else { panic!("{result:?}") };
        assert_eq!((result.is_main_result, result.text(), &result.formats["png"]), (true, Some("21"), &json!("cG5n")));
        assert_eq!(
            read(json!({ "type": "stdout", "text": "x", "timestamp": 1 })),
            CodeEvent::Stdout { text: "x".into() }
        );
        assert_eq!(read(json!({ "type": "end_of_execution" })), CodeEvent::EndOfExecution);
        assert_eq!(read(json!({ "type": "of_the_future", "more": 1 })), CodeEvent::Unknown);
    }
}
