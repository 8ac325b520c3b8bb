//! The events of a process as one client sees them: its start, its output, signs of life, and its end.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::Stream;
use http::HeaderMap;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::core::processes::log::{Chunk, Reader, Stream as Output};
use crate::core::processes::managed::Process;
use crate::core::processes::reaper::Exit;
use crate::dialects::envd::connect::{Code, RpcError};

/// Maximum number of output bytes in one event.
const MAX_CHUNK: usize = 32 * 1024;

/// Time without events after which a sign of life is sent, unless the client asks for another.
const DEFAULT_PING: Duration = Duration::from_secs(90);
const PING_HEADER: &str = "keepalive-ping-interval";

/// The interval that a client asks for, in seconds.
pub(in super::super) fn ping_interval(headers: &HeaderMap) -> Result<Duration, RpcError> {
    let Some(value) = headers.get(PING_HEADER) else { return Ok(DEFAULT_PING) };
    let seconds = value.to_str().ok().and_then(|text| text.trim().parse::<u64>().ok()).filter(|seconds| *seconds > 0);
    seconds
        .map(Duration::from_secs)
        .ok_or_else(|| RpcError::invalid("keepalive-ping-interval is not a number of seconds above 0"))
}

/// One client's view of a process.
#[derive(Debug)]
pub(super) struct Events {
    process: Arc<Process>,
    reader: Reader,
    state: State,
    deadline: Option<Instant>,
    ping: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    Output,
    Done,
}

impl Events {
    /// The events from `offset` of the output; `deadline` ends the stream, not the process.
    pub(super) fn new(process: Arc<Process>, offset: u64, deadline: Option<Instant>, ping: Duration) -> Self {
        let reader = process.log.reader(offset, true);
        Self { process, reader, state: State::Start, deadline, ping }
    }

    pub(super) fn into_stream(self) -> impl Stream<Item = Result<Value, RpcError>> + Send {
        futures::stream::unfold(self, |mut events| async move {
            let event = events.next().await?;
            Some((event.map(|event| json!({ "event": event })), events))
        })
    }

    async fn next(&mut self) -> Option<Result<Value, RpcError>> {
        match self.state {
            State::Start => {
                self.state = State::Output;
                Some(Ok(json!({ "start": { "pid": self.process.pid() } })))
            }
            State::Output => Some(self.next_output().await),
            State::Done => None,
        }
    }

    async fn next_output(&mut self) -> Result<Value, RpcError> {
        let wake = Instant::now() + self.ping;
        let until = self.deadline.map_or(wake, |deadline| deadline.min(wake));
        loop {
            match tokio::time::timeout_at(until, self.reader.next(MAX_CHUNK)).await {
                Ok(Some(Chunk::Output { stream, bytes, .. })) => {
                    let encoded = STANDARD.encode(&bytes);
                    let data = match stream {
                        _ if self.process.has_terminal() => json!({ "pty": encoded }),
                        Output::Stdout => json!({ "stdout": encoded }),
                        Output::Stderr => json!({ "stderr": encoded }),
                    };
                    return Ok(json!({ "data": data }));
                }
                Ok(Some(Chunk::Skipped { .. })) => {}
                Ok(None) => return self.end().await,
                Err(_) if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                    self.state = State::Done;
                    return Err(RpcError::new(Code::DeadlineExceeded, "the time limit of this call is over"));
                }
                Err(_) => return Ok(json!({ "keepalive": {} })),
            }
        }
    }

    async fn end(&mut self) -> Result<Value, RpcError> {
        self.state = State::Done;
        let ended = self.process.wait().await;
        if ended.timed_out {
            let message = "the time limit of the process is over: it was ended";
            return Err(RpcError::new(Code::DeadlineExceeded, message));
        }
        Ok(json!({ "end": end_event(ended.exit) }))
    }
}

fn end_event(exit: Exit) -> Value {
    match exit {
        Exit::Code(0) => json!({ "exitCode": 0, "exited": true, "status": "exit status 0" }),
        Exit::Code(code) => {
            let status = format!("exit status {code}");
            json!({ "exitCode": code, "exited": true, "status": status, "error": status })
        }
        Exit::Signal(signal) => {
            let status = format!("signal: {}", signal_text(signal));
            json!({ "exitCode": -1, "exited": false, "status": status, "error": status })
        }
    }
}

/// The description of a signal that clients know.
fn signal_text(signal: i32) -> String {
    match signal {
        libc::SIGHUP => "hangup".into(),
        libc::SIGINT => "interrupt".into(),
        libc::SIGQUIT => "quit".into(),
        libc::SIGILL => "illegal instruction".into(),
        libc::SIGTRAP => "trace/breakpoint trap".into(),
        libc::SIGABRT => "aborted".into(),
        libc::SIGBUS => "bus error".into(),
        libc::SIGFPE => "floating point exception".into(),
        libc::SIGKILL => "killed".into(),
        libc::SIGUSR1 => "user defined signal 1".into(),
        libc::SIGSEGV => "segmentation fault".into(),
        libc::SIGUSR2 => "user defined signal 2".into(),
        libc::SIGPIPE => "broken pipe".into(),
        libc::SIGALRM => "alarm clock".into(),
        libc::SIGTERM => "terminated".into(),
        other => format!("signal {other}"),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    /// E-083
    #[test]
    fn ends_are_described_as_clients_expect() {
        assert_eq!(end_event(Exit::Code(0)).get("error"), None);
        assert_eq!(end_event(Exit::Code(3))["error"], "exit status 3");
        let killed = json!({ "exitCode": -1, "exited": false, "status": "signal: killed", "error": "signal: killed" });
        assert_eq!(end_event(Exit::Signal(9)), killed);
    }

    /// E-076
    #[test]
    fn clients_choose_the_interval_of_signs_of_life() {
        let mut headers = HeaderMap::new();
        assert_eq!(ping_interval(&headers).expect("the default"), DEFAULT_PING);
        headers.insert(PING_HEADER, HeaderValue::from_static("50"));
        assert_eq!(ping_interval(&headers).expect("a number"), Duration::from_secs(50));
        headers.insert(PING_HEADER, HeaderValue::from_static("0"));
        assert!(ping_interval(&headers).is_err());
    }
}
