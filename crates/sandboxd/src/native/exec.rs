//! `POST /exec`: run to the end and answer once, or stream while it runs; with or without an idempotency key.

use std::sync::Arc;
use std::time::Instant;

use agent_sandbox_protocol::native::{ErrorCode, ExecRequest, ExecResult};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};

use super::error::ApiError;
use super::idempotency::{Answer, Claim, outcome_unknown};
use super::{Native, request, stream};
use crate::process::capture::Capture;
use crate::process::managed::{EndWithViewer, Keeping, Process};
use crate::process::reaper::Exit;
use crate::process::run::{Bounds, Finished, run_with_input};
use crate::server::body::{self, Body};

/// A request may carry standard input.
const MAX_REQUEST: usize = 16 << 20;

/// Output kept for replay unless the request says otherwise, and the most it may say.
const LOG: usize = 1 << 20;
const MAX_LOG: usize = 64 << 20;

impl Native {
    pub(super) async fn exec(self: Arc<Self>, request: Request<Body>) -> Result<Response<Body>, ApiError> {
        let format = stream::Format::accepted(request.headers());
        let headers = request.headers().clone();
        let bytes = body::collect(request.into_body(), MAX_REQUEST).await?;
        let wanted = parse(&bytes)?;
        match format {
            Some(format) => {
                if headers.contains_key(agent_sandbox_protocol::native::IDEMPOTENCY_KEY_HEADER) {
                    let message = "idempotency keys are for answers, not for streams: start a process with the key and \
                                   read its output";
                    return Err(ApiError::invalid(message));
                }
                let (process, viewer) = self.start_attached(&wanted)?;
                Ok(stream::respond(process, 0, true, format, Some(viewer)))
            }
            None if wanted.terminal.is_some() => Err(ApiError::invalid("a terminal needs a stream or a WebSocket")),
            None => {
                let native = Arc::clone(&self);
                self.once(&headers, &bytes, async move { native.run(&wanted).await }).await
            }
        }
    }

    /// Performs `work` at most once per idempotency key.
    pub(super) async fn once<F>(
        &self,
        headers: &HeaderMap,
        request: &Bytes,
        work: F,
    ) -> Result<Response<Body>, ApiError>
    where
        F: Future<Output = Result<(StatusCode, Vec<u8>), ApiError>> + Send + 'static,
    {
        let running = match self.keys.claim(headers, request)? {
            None => return work.await.map(|(status, bytes)| body::json_bytes(status, bytes)),
            Some(Claim::Wait(waiting)) => return first_answer(waiting).await,
            Some(Claim::Run(running)) => running,
        };
        // A task of its own: the caller may go away and come back for the answer.
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
            running.finish(Answer { status, body: bytes.clone().into() });
            body::json_bytes(status, bytes)
        });
        task.await.map_err(|_| ApiError::new(ErrorCode::Internal, "the command's task ended early"))
    }

    async fn run(&self, wanted: &ExecRequest) -> Result<(StatusCode, Vec<u8>), ApiError> {
        let _slot = self
            .runtime
            .slots
            .try_acquire()
            .map_err(|_| ApiError::new(ErrorCode::Unavailable, "too many processes are running"))?;
        let launch = request::to_launch(&self.runtime, wanted, wanted.stdin.is_some())?;
        let bounds = Bounds {
            time: request::time_limit(wanted)?,
            grace: self.runtime.grace,
            output: wanted.output_limit.unwrap_or(self.runtime.output_limit).min(self.runtime.output_limit),
        };
        let input = wanted.stdin.clone().map(String::into_bytes);
        let started = Instant::now();
        let finished = run_with_input(&launch, bounds, &self.runtime.reaper, input).await?;
        let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let result = to_result(finished, wanted.base64, duration_ms, bounds.output);
        Ok((StatusCode::OK, serde_json::to_vec(&result).unwrap_or_default()))
    }

    /// `POST /processes`.
    pub(super) async fn start(self: Arc<Self>, request: Request<Body>) -> Result<Response<Body>, ApiError> {
        let headers = request.headers().clone();
        let bytes = body::collect(request.into_body(), MAX_REQUEST).await?;
        let wanted = parse(&bytes)?;
        let native = Arc::clone(&self);
        let work = async move {
            let process = native.start_process(&wanted)?;
            Ok((StatusCode::CREATED, serde_json::to_vec(&super::processes::info(&process)).unwrap_or_default()))
        };
        self.once(&headers, &bytes, work).await
    }

    /// Starts a managed process and feeds it the input it was given.
    pub(super) fn start_process(&self, wanted: &ExecRequest) -> Result<Arc<Process>, ApiError> {
        let launch = request::to_launch(&self.runtime, wanted, true)?;
        let log = wanted.output_limit.unwrap_or(LOG).clamp(64 * 1024, MAX_LOG);
        let keeping = Keeping { log, time: request::time_limit(wanted)? };
        let process = self.registry.start(&launch, keeping)?;
        if let Some(text) = wanted.stdin.clone() {
            let process = Arc::clone(&process);
            tokio::spawn(async move {
                if process.write(text.as_bytes()).await.is_ok() {
                    let _ = process.end_input().await;
                }
            });
        }
        Ok(process)
    }

    /// Starts a process that ends with its viewer unless it was asked to live on.
    pub(super) fn start_attached(
        &self,
        wanted: &ExecRequest,
    ) -> Result<(Arc<Process>, Option<EndWithViewer>), ApiError> {
        let process = self.start_process(wanted)?;
        let viewer = (!wanted.detach).then(|| EndWithViewer { process: Arc::clone(&process) });
        Ok((process, viewer))
    }
}

pub(super) fn parse(bytes: &[u8]) -> Result<ExecRequest, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| ApiError::invalid(format!("request body: {error}")))
}

async fn first_answer(mut waiting: tokio::sync::watch::Receiver<Option<Answer>>) -> Result<Response<Body>, ApiError> {
    match waiting.wait_for(Option::is_some).await.map(|answer| answer.clone()) {
        Ok(Some(answer)) => Ok(body::json_bytes(answer.status, answer.body.to_vec())),
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
        // Escapes may make text longer than bytes, but not the answer larger than the limit allows.
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
