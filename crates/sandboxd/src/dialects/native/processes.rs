//! Background processes: list, describe, wait, read output again, write input, signal, resize, end.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use agent_sandbox_protocol::native::{ErrorCode, ProcessInfo, ProcessList, SignalRequest, TerminalSize};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use rustix::process::Signal;

use super::error::ApiError;
use super::routes::Query;
use super::{Native, json_body, stream};
use crate::core::processes::managed::Process;
use crate::core::processes::reaper::Exit;
use crate::http_io::body::{self, Body};

const MAX_REQUEST: usize = 64 * 1024;

/// Maximum time of one wait request; the client then repeats it.
const MAX_WAIT: Duration = Duration::from_secs(600);

impl Native {
    pub(super) fn process(&self, id: i32) -> Result<Arc<Process>, ApiError> {
        let unknown = || ApiError::new(ErrorCode::NotFound, format!("no process {id}"));
        self.sandbox.registry.get(id).ok_or_else(unknown)
    }

    pub(super) fn list_processes(&self) -> Response<Body> {
        let processes = self.sandbox.registry.list().iter().map(|process| info(process)).collect();
        body::json(StatusCode::OK, &ProcessList { processes })
    }

    /// Ends the process if it still runs, and removes it from the table.
    pub(super) async fn delete_process(&self, id: i32) -> Result<Response<Body>, ApiError> {
        let process = self.process(id)?;
        process.end().await;
        self.sandbox.registry.remove(id);
        Ok(body::empty(StatusCode::NO_CONTENT))
    }
}

pub(super) fn info(process: &Process) -> ProcessInfo {
    let ended = process.ended();
    let (output_start, output_end) = process.log.range();
    ProcessInfo {
        id: process.id,
        pid: process.pid(),
        argv: process.argv.clone(),
        running: ended.is_none(),
        terminal: process.has_terminal(),
        exit_code: ended.map(|ended| if ended.timed_out { 124 } else { ended.exit.shell_code() }),
        signal: ended.and_then(|ended| match ended.exit {
            Exit::Signal(signal) => Some(signal),
            Exit::Code(_) => None,
        }),
        timed_out: ended.is_some_and(|ended| ended.timed_out),
        started_at: timestamp(process.started_at),
        ended_at: ended.map(|ended| timestamp(ended.at)),
        output_start,
        output_end,
    }
}

pub(super) fn timestamp(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_string()
}

pub(super) fn describe(process: &Process) -> Response<Body> {
    body::json(StatusCode::OK, &info(process))
}

/// Responds when the process has ended, or after `timeoutSeconds` while it still runs.
pub(super) async fn wait(process: Arc<Process>, query: &Query) -> Result<Response<Body>, ApiError> {
    let seconds: f64 = query.number("timeoutSeconds", 60.0)?;
    let limit = Duration::try_from_secs_f64(seconds)
        .map_err(|_| ApiError::invalid(format!("timeoutSeconds: {seconds} is not a number above 0")))?;
    let _ = tokio::time::timeout(limit.min(MAX_WAIT), process.wait()).await;
    Ok(describe(&process))
}

pub(super) fn output(
    process: Arc<Process>,
    query: &Query,
    request: &Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let format = stream::Format::accepted(request.headers()).unwrap_or(stream::Format::Lines);
    let offset = query.number("offset", 0)?;
    Ok(stream::respond(process, offset, query.flag("follow")?, format, None))
}

/// Appends the body to standard input as it arrives; `eof=true` closes the input afterwards.
pub(super) async fn stdin(
    process: Arc<Process>,
    query: &Query,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let end = query.flag("eof")?;
    let mut incoming = request.into_body();
    while let Some(frame) = incoming.frame().await {
        let frame = frame.map_err(|_| ApiError::invalid("body ended early"))?;
        if let Ok(bytes) = frame.into_data() {
            process.write(&bytes).await?;
        }
    }
    if end {
        process.end_input().await?;
    }
    Ok(body::empty(StatusCode::NO_CONTENT))
}

pub(super) async fn signal(process: Arc<Process>, request: Request<Body>) -> Result<Response<Body>, ApiError> {
    let request: SignalRequest = json_body::read(request, MAX_REQUEST).await?;
    process.signal(signal_named(&request.signal)?);
    Ok(body::empty(StatusCode::NO_CONTENT))
}

pub(super) async fn resize(process: Arc<Process>, request: Request<Body>) -> Result<Response<Body>, ApiError> {
    let size: TerminalSize = json_body::read(request, MAX_REQUEST).await?;
    process.resize(size.columns, size.rows)?;
    Ok(body::empty(StatusCode::NO_CONTENT))
}

/// Parses `TERM`, `SIGTERM`, `sigterm` or `15`.
pub(super) fn signal_named(name: &str) -> Result<Signal, ApiError> {
    const NAMES: [(&str, Signal); 13] = [
        ("HUP", Signal::HUP),
        ("INT", Signal::INT),
        ("QUIT", Signal::QUIT),
        ("ABRT", Signal::ABORT),
        ("KILL", Signal::KILL),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
        ("PIPE", Signal::PIPE),
        ("ALRM", Signal::ALARM),
        ("TERM", Signal::TERM),
        ("CONT", Signal::CONT),
        ("STOP", Signal::STOP),
        ("WINCH", Signal::WINCH),
    ];
    let upper = name.to_ascii_uppercase();
    let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
    let found = NAMES.iter().find(|(known, signal)| *known == bare || signal.as_raw().to_string() == bare);
    found.map(|(_, signal)| *signal).ok_or_else(|| ApiError::invalid(format!("{name:?} is not a signal")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for name in ["TERM", "SIGTERM", "sigterm", "15"] {
            assert_eq!(signal_named(name).expect("a signal"), Signal::TERM);
        }
        for name in ["", "0", "99", "SIG", "CHLD"] {
            assert!(signal_named(name).is_err(), "{name}");
        }
    }
}
