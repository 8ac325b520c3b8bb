//! `POST /exec`: run a command to its end and respond once, or stream its output; with or without an idempotency key.

use std::sync::Arc;
use std::time::Instant;

use agent_sandbox_protocol::capture::Capture;
use agent_sandbox_protocol::native::{ErrorCode, ExecRequest, ExecResult};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};

use super::error::ApiError;
use super::idempotency::{Reservation, StoredResponse, outcome_unknown};
use super::{Native, json_body, request, stream};
use crate::core::processes::managed::{Process, ProcessOptions, TerminateOnDisconnect};
use crate::core::processes::reaper::Exit;
use crate::core::processes::run::{Bounds, Finished};
use crate::http_io::body::{self, Body};

/// Maximum size of a request, which may carry standard input.
const MAX_REQUEST: usize = 16 << 20;

/// Default and maximum number of output bytes kept for replay.
const DEFAULT_LOG_BYTES: usize = 1 << 20;
const MAX_LOG_BYTES: usize = 64 << 20;

impl Native {
    pub(super) async fn exec(self: Arc<Self>, request: Request<Body>) -> Result<Response<Body>, ApiError> {
        let format = stream::Format::accepted(request.headers());
        let headers = request.headers().clone();
        let bytes = json_body::collect(request, MAX_REQUEST).await?;
        let request = parse(&bytes)?;
        match format {
            Some(format) => {
                if headers.contains_key(agent_sandbox_protocol::native::IDEMPOTENCY_KEY_HEADER) {
                    let message = "an idempotency key cannot be used with a stream: start a process with the key and \
                                   read its output";
                    return Err(ApiError::invalid(message));
                }
                let (process, guard) = self.start_attached(&request)?;
                Ok(stream::respond(process, 0, true, format, Some(guard)))
            }
            None if request.terminal.is_some() => Err(ApiError::invalid("a terminal needs a stream or a WebSocket")),
            None => {
                let native = Arc::clone(&self);
                self.run_once(&headers, &bytes, async move { native.run(&request).await }).await
            }
        }
    }

    /// Runs `work` at most once per idempotency key.
    pub(super) async fn run_once<F>(
        &self,
        headers: &HeaderMap,
        request: &Bytes,
        work: F,
    ) -> Result<Response<Body>, ApiError>
    where
        F: Future<Output = Result<(StatusCode, Vec<u8>), ApiError>> + Send + 'static,
    {
        let in_flight = match self.keys.reserve(headers, request)? {
            None => return work.await.map(|(status, bytes)| body::json_bytes(status, bytes)),
            Some(Reservation::Wait(waiting)) => return await_first_response(waiting).await,
            Some(Reservation::Run(in_flight)) => in_flight,
        };
        // A separate task: the client may disconnect and fetch the response later.
        let task = tokio::spawn(async move {
            let outcome = work.await;
            let (status, bytes) = match &outcome {
                Ok((status, bytes)) => (*status, bytes.clone()),
                Err(error) => {
                    let body =
                        agent_sandbox_protocol::native::ErrorBody { code: error.code, message: error.to_string() };
                    (error.code.status(), serde_json::to_vec(&body).unwrap_or_default())
                }
            };
            in_flight.finish(StoredResponse { status, body: bytes.clone().into() });
            body::json_bytes(status, bytes)
        });
        task.await.map_err(|_| ApiError::new(ErrorCode::Internal, "the command's task ended early"))
    }

    async fn run(&self, request: &ExecRequest) -> Result<(StatusCode, Vec<u8>), ApiError> {
        let _slot = self
            .sandbox
            .limits
            .command_slots
            .try_acquire()
            .map_err(|_| ApiError::new(ErrorCode::Unavailable, "too many processes are running"))?;
        let launch = request::to_launch(&self.sandbox, request, request.stdin.is_some())?;
        let bounds = Bounds {
            time: request::time_limit(request)?,
            grace: self.sandbox.limits.kill_grace,
            output: request
                .output_limit
                .unwrap_or(self.sandbox.limits.output_bytes)
                .min(self.sandbox.limits.output_bytes),
        };
        let input = request.stdin.clone().map(String::into_bytes);
        let started = Instant::now();
        let finished = self.sandbox.run(&launch, bounds, input).await?;
        let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let result = to_result(finished, request.base64, duration_ms, bounds.output);
        Ok((StatusCode::OK, serde_json::to_vec(&result).unwrap_or_default()))
    }

    /// `POST /processes`.
    pub(super) async fn start(self: Arc<Self>, request: Request<Body>) -> Result<Response<Body>, ApiError> {
        let headers = request.headers().clone();
        let bytes = json_body::collect(request, MAX_REQUEST).await?;
        let request = parse(&bytes)?;
        let native = Arc::clone(&self);
        let work = async move {
            let process = native.start_process(&request)?;
            Ok((StatusCode::CREATED, serde_json::to_vec(&super::processes::info(&process)).unwrap_or_default()))
        };
        self.run_once(&headers, &bytes, work).await
    }

    /// Starts a managed process and writes the standard input from the request.
    pub(super) fn start_process(&self, request: &ExecRequest) -> Result<Arc<Process>, ApiError> {
        let launch = request::to_launch(&self.sandbox, request, true)?;
        let log = request.output_limit.unwrap_or(DEFAULT_LOG_BYTES).clamp(64 * 1024, MAX_LOG_BYTES);
        let options = ProcessOptions { log, time: request::time_limit(request)?, whole_output: false };
        let process = self.sandbox.registry.start(&launch, options)?;
        if let Some(text) = request.stdin.clone() {
            let process = Arc::clone(&process);
            tokio::spawn(async move {
                if process.write(text.as_bytes()).await.is_ok() {
                    let _ = process.end_input().await;
                }
            });
        }
        Ok(process)
    }

    /// Starts a process that is ended when the client disconnects, unless the request detaches it.
    pub(super) fn start_attached(
        &self,
        request: &ExecRequest,
    ) -> Result<(Arc<Process>, Option<TerminateOnDisconnect>), ApiError> {
        let process = self.start_process(request)?;
        let guard = (!request.detach).then(|| TerminateOnDisconnect { process: Arc::clone(&process) });
        Ok((process, guard))
    }
}

pub(super) fn parse(bytes: &[u8]) -> Result<ExecRequest, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| ApiError::invalid(format!("request body: {error}")))
}

async fn await_first_response(
    mut waiting: tokio::sync::watch::Receiver<Option<StoredResponse>>,
) -> Result<Response<Body>, ApiError> {
    match waiting.wait_for(Option::is_some).await.map(|response| response.clone()) {
        Ok(Some(response)) => Ok(body::json_bytes(response.status, response.body.to_vec())),
        _ => Err(outcome_unknown()),
    }
}

fn to_result(finished: Finished, base64: bool, duration_ms: u64, limit: usize) -> ExecResult {
    let signal = match finished.exit {
        Exit::Signal(signal) => Some(signal),
        Exit::Code(_) => None,
    };
    let (stdout_bytes, stderr_bytes) = (finished.stdout.total(), finished.stderr.total());
    let encode = |capture: Capture| {
        // Escapes may make text longer than its bytes, but not the response larger than twice the limit.
        if base64 { STANDARD.encode(capture.into_bytes()) } else { capture.into_json_text(limit.max(1024) * 2) }
    };
    ExecResult {
        exit_code: if finished.timed_out { 124 } else { finished.exit.shell_code() },
        signal,
        stdout: encode(finished.stdout),
        stderr: encode(finished.stderr),
        stdout_bytes,
        stderr_bytes,
        timed_out: finished.timed_out,
        duration_ms,
    }
}
