//! Running code that keeps its variables from one run to the next, through the daemon's native API.

use crate::{
    Call, ClientError, SandboxHandle,
    events::{JsonLines, LinesError},
};
use agent_sandbox_protocol::code::{
    CodeContext, CodeContexts, CodeError, CodeEvent, CodeRequest, CodeResult, NewCodeContext,
};
use agent_sandbox_protocol::native::PREFIX;
use futures::Stream;
use http::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use std::{collections::BTreeMap, time::Duration};

const RUN_CODE: &str = "run code";
/// Maximum size of one event: a result with a large picture fits.
const MAX_EVENT: usize = 64 << 20;
/// Maximum size of all output and results of a run that [`SandboxHandle::run_code`] collects.
const MAX_EXECUTION: usize = 256 << 20;

/// Where and how code runs.
#[derive(Clone, Debug, Default)]
pub struct CodeOptions {
    /// Id of a context; without one it is the default one.
    pub context: Option<String>,
    /// Variables of the environment for this run only.
    pub env: BTreeMap<String, String>,
    /// Time after which the code is interrupted; its context stays usable.
    pub timeout: Option<Duration>,
}

/// What code printed and showed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Execution {
    pub stdout: String,
    pub stderr: String,
    /// Everything that was displayed, and the value of the last expression.
    pub results: Vec<CodeResult>,
    /// The exception that ended the code.
    pub error: Option<CodeError>,
    /// How many runs the context has begun.
    pub execution_count: Option<u64>,
}

impl Execution {
    /// The value of the last expression as text.
    pub fn text(&self) -> Option<&str> {
        self.results.iter().find(|result| result.is_main_result)?.text()
    }

    fn add(&mut self, event: CodeEvent) -> usize {
        match event {
            CodeEvent::Stdout { text } => {
                self.stdout.push_str(&text);
                text.len()
            }
            CodeEvent::Stderr { text } => {
                self.stderr.push_str(&text);
                text.len()
            }
            CodeEvent::Result(result) => {
                let size = result.formats.values().map(|value| value.as_str().map_or(64, str::len)).sum();
                self.results.push(result);
                size
            }
            CodeEvent::Error(error) => {
                self.error = Some(error);
                0
            }
            CodeEvent::NumberOfExecutions { execution_count } => {
                self.execution_count = Some(execution_count);
                0
            }
            CodeEvent::Keepalive | CodeEvent::EndOfExecution | CodeEvent::Unknown => 0,
        }
    }
}

impl SandboxHandle {
    /// Runs Python code to its end. Its variables stay for the next run in the same context, until the sandbox or the
    /// context ends. An exception of the code is part of the result, not an error.
    pub async fn run_code(&self, code: &str, options: &CodeOptions) -> Result<Execution, ClientError> {
        let mut events = self.open_code(code, options).await?;
        let (mut execution, mut size) = (Execution::default(), 0);
        while let Some(event) = events.next().await? {
            size += execution.add(event);
            if size > MAX_EXECUTION {
                let limit = MAX_EXECUTION as u64;
                return Err(ClientError::TooLarge { what: "the code's output".to_owned(), limit });
            }
        }
        Ok(execution)
    }

    /// Runs Python code and streams its events, without those that only say that it is alive. Dropping the stream
    /// interrupts the code.
    pub async fn stream_code(
        &self,
        code: &str,
        options: &CodeOptions,
    ) -> Result<impl Stream<Item = Result<CodeEvent, ClientError>> + Send + use<>, ClientError> {
        let events = self.open_code(code, options).await?;
        Ok(futures::stream::try_unfold(events, async |mut events| {
            Ok(events.next().await?.map(|event| (event, events)))
        }))
    }

    /// Makes a context, with variables of its own and this working directory.
    pub async fn create_code_context(&self, cwd: Option<&str>) -> Result<CodeContext, ClientError> {
        let wanted = NewCodeContext { cwd: cwd.map(str::to_owned), language: None };
        let call = Call::new(Method::POST, format!("{PREFIX}/code/contexts"), "make a code context").json(&wanted);
        self.fetch_json(call).await
    }

    /// All code contexts of the sandbox, with the default one.
    pub async fn code_contexts(&self) -> Result<Vec<CodeContext>, ClientError> {
        let call = Call::new(Method::GET, format!("{PREFIX}/code/contexts"), "list code contexts");
        Ok(self.fetch_json::<CodeContexts>(call).await?.contexts)
    }

    /// Ends the process of a context: its variables are lost, its id stays.
    pub async fn restart_code_context(&self, id: &str) -> Result<(), ClientError> {
        let path = format!("{PREFIX}/code/contexts/restart?context={}", utf8_percent_encode(id, NON_ALPHANUMERIC));
        self.fetch(Call::new(Method::POST, path, "restart a code context")).await.map(drop)
    }

    /// Removes a context and ends its process.
    pub async fn remove_code_context(&self, id: &str) -> Result<(), ClientError> {
        let path = format!("{PREFIX}/code/contexts?context={}", utf8_percent_encode(id, NON_ALPHANUMERIC));
        // A repetition would not find what the first attempt removed.
        let call = Call { retry: crate::Retry::Never, ..Call::new(Method::DELETE, path, "remove a code context") };
        self.fetch(call).await.map(drop)
    }

    async fn open_code(&self, code: &str, options: &CodeOptions) -> Result<CodeEvents, ClientError> {
        let request = CodeRequest { code: code.to_owned(), context: options.context.clone(), env: options.env.clone() };
        let deadline = options.timeout.map(|limit| tokio::time::Instant::now() + limit);
        let response = self.send(Call::new(Method::POST, format!("{PREFIX}/code"), RUN_CODE).json(&request)).await?;
        let lines = JsonLines::with_limit(response, MAX_EVENT);
        Ok(CodeEvents { sandbox: self.clone(), lines, deadline, limit: options.timeout, ended: false })
    }
}

/// The events of a run, which is interrupted when this is dropped.
struct CodeEvents {
    sandbox: SandboxHandle,
    lines: JsonLines,
    deadline: Option<tokio::time::Instant>,
    limit: Option<Duration>,
    ended: bool,
}

impl CodeEvents {
    /// The next event; `None` after the last one.
    async fn next(&mut self) -> Result<Option<CodeEvent>, ClientError> {
        while !self.ended {
            let (name, operation) = (self.sandbox.name().to_owned(), RUN_CODE.to_owned());
            let next = self.lines.next::<CodeEvent>();
            let read = match (self.deadline, self.limit) {
                (Some(deadline), Some(after)) => match tokio::time::timeout_at(deadline, next).await {
                    Ok(read) => read,
                    Err(_) => return Err(ClientError::CallTimeout { name, operation, after }),
                },
                _ => next.await,
            };
            match read {
                Ok(Some(CodeEvent::Keepalive | CodeEvent::Unknown)) => {}
                Ok(Some(CodeEvent::EndOfExecution)) => self.ended = true,
                Ok(Some(event)) => return Ok(Some(event)),
                Ok(None) => {
                    let message = "the stream ended before the code did".to_owned();
                    return Err(ClientError::OutcomeUnknown { name, operation, message });
                }
                Err(LinesError::Connection(message) | LinesError::Content(message)) => {
                    return Err(ClientError::OutcomeUnknown { name, operation, message });
                }
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_add_up_to_an_execution() {
        let mut execution = Execution::default();
        let shown = serde_json::json!({ "text": "shown" });
        let main = serde_json::json!({ "is_main_result": true, "text": "21" });
        for event in [
            CodeEvent::NumberOfExecutions { execution_count: 2 },
            CodeEvent::Stdout { text: "a".into() },
            CodeEvent::Stdout { text: "b".into() },
            CodeEvent::Result(serde_json::from_value(shown).expect("a result")),
            CodeEvent::Result(serde_json::from_value(main).expect("a result")),
        ] {
            execution.add(event);
        }
        assert_eq!(
            (execution.stdout.as_str(), execution.text(), execution.execution_count),
            ("ab", Some("21"), Some(2))
        );
        assert_eq!((execution.results.len(), execution.error), (2, None));
    }
}
