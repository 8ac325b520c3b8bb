//! One sandbox: commands, suspend, resume and delete, and raw requests in other dialects.

use crate::{
    content::Content,
    convert,
    files::Files,
    pending::{Pending, pending, pending_unit},
    process::Process,
    stream::{Stream, Upload},
    tokio_runtime::Origin,
};
use agent_sandbox_client::{self as sdk, Call, ClientError, Command, CommandEvent, Payload, Retry, SandboxHandle};
use agent_sandbox_protocol::grpc::process::{ExecuteRequest, ExecuteResponse, ProcessConfig};
use bytes::Bytes;
use futures::TryStreamExt;
use http::{HeaderName, HeaderValue, Method};
use http_body_util::{BodyExt, BodyStream};
use hyper::body::{Body as _, Incoming};
use prost::Message;
use pyo3::{exceptions::PyValueError, prelude::*, pybacked::PyBackedBytes, types::PyBytes};
use std::{collections::BTreeMap, io::Write as _, time::Duration};

/// A sandbox to work with.
#[pyclass(frozen)]
pub(crate) struct Handle {
    pub(crate) inner: SandboxHandle,
    origin: Origin,
}

/// Options of a command, as Python passes them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct CommandOptions {
    command: Option<String>,
    argv: Option<Vec<String>>,
    env: Option<BTreeMap<String, String>>,
    cwd: Option<String>,
    user: Option<String>,
    timeout: Option<f64>,
    stdin: Option<String>,
    terminal: Option<(u16, u16)>,
    output_limit: Option<usize>,
    key: Option<String>,
    boot_id: Option<String>,
    traceparent: Option<String>,
}

impl CommandOptions {
    fn into_command(self) -> PyResult<Command> {
        let mut command = match (self.command, self.argv) {
            (Some(text), None) => Command::shell(text),
            (None, Some(words)) if !words.is_empty() => Command::argv(words),
            _ => return Err(PyValueError::new_err("a command is either text or a list of words, and not empty")),
        };
        for (name, value) in self.env.unwrap_or_default() {
            command = command.env(name, value);
        }
        if let Some(folder) = self.cwd {
            command = command.cwd(folder);
        }
        if let Some(user) = self.user {
            command = command.user(user);
        }
        if let Some(seconds) = self.timeout {
            command = command.timeout(duration(seconds)?);
        }
        if let Some(text) = self.stdin {
            command = command.stdin(text);
        }
        if let Some((columns, rows)) = self.terminal {
            command = command.terminal(columns, rows);
        }
        if let Some(limit) = self.output_limit {
            command = command.output_limit(limit);
        }
        if let Some(key) = self.key {
            command = command.idempotency_key(key);
        }
        if let Some(boot) = self.boot_id {
            command = command.boot_id(boot);
        }
        Ok(command.trace(self.traceparent.and_then(|parent| sdk::TraceContext::parse(&parent, None))))
    }
}

impl Handle {
    pub(crate) fn new(inner: SandboxHandle) -> Self {
        Self { inner, origin: Origin::here() }
    }

    fn inner(&self) -> PyResult<SandboxHandle> {
        self.origin.check()?;
        Ok(self.inner.clone())
    }
}

#[pymethods]
impl Handle {
    #[getter]
    fn name(&self) -> &str {
        self.inner.name()
    }

    #[getter]
    fn namespace(&self) -> &str {
        self.inner.namespace()
    }

    #[getter]
    fn claim(&self) -> Option<&str> {
        self.inner.claim()
    }

    fn files(&self) -> PyResult<Files> {
        Ok(Files::new(self.inner()?))
    }

    /// `(exit code, signal or None, stdout, stderr, timed out)`.
    fn run(&self, options: CommandOptions) -> PyResult<Pending> {
        let (inner, command) = (self.inner()?, options.into_command()?);
        Ok(pending(async move { inner.run(&command).await }, |py, output| {
            let (stdout, stderr) = (PyBytes::new(py, &output.stdout), PyBytes::new(py, &output.stderr));
            let parts = (output.exit_code, output.signal, stdout, stderr, output.timed_out);
            Ok(parts.into_pyobject(py)?.into_any().unbind())
        }))
    }

    fn stream(&self, options: CommandOptions) -> PyResult<Pending> {
        let (inner, command) = (self.inner()?, options.into_command()?);
        Ok(pending(async move { inner.stream(&command).await }, |py, events| {
            Ok(Py::new(py, Stream::new(events, event_to_python))?.into_any())
        }))
    }

    fn start(&self, options: CommandOptions) -> PyResult<Pending> {
        let (inner, command) = (self.inner()?, options.into_command()?);
        Ok(pending(async move { inner.start(&command).await }, process_to_python))
    }

    fn process(&self, id: i32) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending(async move { inner.process(id).await }, process_to_python))
    }

    fn processes(&self) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending(async move { inner.processes().await }, |py, list| serialised(py, &list)))
    }

    fn history(&self, limit: Option<u32>) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending(async move { inner.history(limit).await }, |py, list| serialised(py, &list)))
    }

    fn history_entry(&self, id: i32) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending(async move { inner.history_entry(id).await }, |py, entry| serialised(py, &entry)))
    }

    fn run_code(
        &self,
        code: String,
        context: Option<String>,
        env: BTreeMap<String, String>,
        timeout: Option<f64>,
    ) -> PyResult<Pending> {
        let options = sdk::CodeOptions { context, env, timeout: timeout.map(duration).transpose()? };
        let inner = self.inner()?;
        Ok(pending(async move { inner.run_code(&code, &options).await }, |py, execution| serialised(py, &execution)))
    }

    fn create_code_context(&self, cwd: Option<String>) -> PyResult<Pending> {
        let inner = self.inner()?;
        let made = async move { inner.create_code_context(cwd.as_deref()).await };
        Ok(pending(made, |py, context| serialised(py, &context)))
    }

    fn code_contexts(&self) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending(async move { inner.code_contexts().await }, |py, list| serialised(py, &list)))
    }

    fn restart_code_context(&self, id: String) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending_unit(async move { inner.restart_code_context(&id).await }))
    }

    fn remove_code_context(&self, id: String) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending_unit(async move { inner.remove_code_context(&id).await }))
    }

    fn ports(&self) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending(async move { inner.ports().await }, |py, list| serialised(py, &list)))
    }

    fn info(&self) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending(async move { inner.info().await }, |py, info| serialised(py, &info)))
    }

    /// The current Sandbox object.
    fn object(&self) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending(async move { inner.object().await }, |py, object| serialised(py, &object)))
    }

    fn suspend(&self, seconds: f64) -> PyResult<Pending> {
        let (inner, limit) = (self.inner()?, duration(seconds)?);
        Ok(pending_unit(async move { inner.suspend(limit).await }))
    }

    fn resume(&self, seconds: f64) -> PyResult<Pending> {
        let (inner, limit) = (self.inner()?, duration(seconds)?);
        Ok(pending_unit(async move { inner.resume(limit).await }))
    }

    fn delete(&self) -> PyResult<Pending> {
        let inner = self.inner()?;
        Ok(pending_unit(async move { inner.delete().await }))
    }

    fn expire_after(&self, seconds: f64) -> PyResult<Pending> {
        let (inner, time) = (self.inner()?, duration(seconds)?);
        Ok(pending_unit(async move { inner.expire_after(time).await }))
    }

    /// One HTTP request in any dialect: `(status, headers, body)`, where the body is bytes, or a stream when `stream`.
    #[pyo3(signature = (method, path, headers, parts, timeout, repeat, stream=false, port=None))]
    #[expect(clippy::too_many_arguments, reason = "the parts of an HTTP request")]
    fn request(
        &self,
        method: &str,
        path: String,
        headers: Vec<(String, String)>,
        parts: Vec<PyBackedBytes>,
        timeout: Option<f64>,
        repeat: bool,
        stream: bool,
        port: Option<u16>,
    ) -> PyResult<Pending> {
        let inner = self.inner()?;
        let mut call = request_call(method, path, headers, timeout, repeat)?;
        call.port = port;
        call.payload = payload(parts);
        let operation = call.operation.clone();
        Ok(pending(
            async move {
                let response = inner.transport().send(call).await?;
                let status = response.status().as_u16();
                let headers: Vec<(String, String)> = response
                    .headers()
                    .iter()
                    .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
                    .collect();
                let body = if stream {
                    let broken = move |error| broken(&operation, error);
                    let frames = TryStreamExt::map_err(BodyStream::new(response.into_body()), broken);
                    let chunks = frames.try_filter_map(|frame| std::future::ready(Ok(frame.into_data().ok())));
                    Body::Stream(Stream::new(chunks, |py, chunk: Bytes| {
                        Ok(PyBytes::new(py, &chunk).into_any().unbind())
                    }))
                } else {
                    Body::Whole(whole(response.into_body(), &operation).await?)
                };
                Ok((status, headers, body))
            },
            |py, (status, headers, body)| {
                let body = match body {
                    Body::Whole(content) => content.into_object(py)?,
                    Body::Stream(stream) => Py::new(py, stream)?.into_any(),
                };
                Ok((status, headers, body).into_pyobject(py)?.into_any().unbind())
            },
        ))
    }

    /// A request whose body is sent in chunks through the returned upload. A status of 400 or more is an error of
    /// `finish`.
    #[pyo3(signature = (method, path, headers, timeout=None, length=None))]
    fn upload(
        &self,
        method: &str,
        path: String,
        headers: Vec<(String, String)>,
        timeout: Option<f64>,
        length: Option<u64>,
    ) -> PyResult<Upload> {
        let inner = self.inner()?;
        let mut call = request_call(method, path, headers, timeout, false)?;
        call.raw = false;
        let (upload, body, done) = Upload::new();
        call.payload = Payload::Stream(body, length);
        crate::tokio_runtime::handle()?.spawn(async move {
            let sent = inner.transport().send(call).await;
            let _ = done.send(sent.map(drop));
        });
        Ok(upload)
    }

    /// Runs one command through sandboxd's gRPC process service: `(exit code, stdout, stderr)`.
    #[pyo3(signature = (command, timeout, port, env=None, cwd=None))]
    fn grpc_execute(
        &self,
        command: String,
        timeout: f64,
        port: u16,
        env: Option<std::collections::HashMap<String, String>>,
        cwd: Option<String>,
    ) -> PyResult<Pending> {
        let (inner, limit) = (self.inner()?, duration(timeout)?);
        let mut config = ProcessConfig { command: vec!["/bin/sh".into(), "-c".into(), command], ..Default::default() };
        config.env_vars = env.unwrap_or_default().into_iter().collect();
        config.cwd = cwd;
        let message = ExecuteRequest { config: Some(config) }.encode_to_vec();
        let path = "/process.v1.ProcessService/Execute";
        Ok(pending(
            async move {
                let response = inner.transport().grpc(port, path, message, limit, "run a command").await?;
                let malformed = |_| ClientError::Unsupported { operation: "run a command".to_owned() };
                ExecuteResponse::decode(response).map_err(malformed)
            },
            |py, response| {
                let parts =
                    (response.exit_code, PyBytes::new(py, &response.stdout), PyBytes::new(py, &response.stderr));
                Ok(parts.into_pyobject(py)?.into_any().unbind())
            },
        ))
    }
}

enum Body {
    Whole(Content),
    Stream(Stream),
}

/// Reads a whole response body directly into the object that Python gets.
async fn whole(mut body: Incoming, operation: &str) -> Result<Content, ClientError> {
    let size = body.size_hint().exact().unwrap_or_default();
    let made = usize::try_from(size).ok().and_then(|size| Content::of_length(size).ok());
    let no_memory = || ClientError::OutOfMemory { what: format!("the response to {operation}"), size };
    let mut content = made.ok_or_else(no_memory)?;
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(|error| broken(operation, error))?.into_data() {
            content.write_all(&data).map_err(|error| broken(operation, error))?;
        }
    }
    Ok(content)
}

fn broken(operation: &str, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ClientError {
    ClientError::Stream { operation: operation.to_owned(), source: std::io::Error::other(error) }
}

fn request_call(
    method: &str,
    path: String,
    headers: Vec<(String, String)>,
    timeout: Option<f64>,
    repeat: bool,
) -> PyResult<Call> {
    let invalid = |what: &str| PyValueError::new_err(format!("{what} cannot be sent"));
    let method = Method::from_bytes(method.as_bytes()).map_err(|_| invalid(method))?;
    let operation = format!("{method} {path}");
    let mut call = Call::new(method, path, operation);
    for (name, value) in headers {
        let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid(&name))?;
        call.headers.insert(parsed, HeaderValue::from_str(&value).map_err(|_| invalid(&name))?);
    }
    call.timeout = timeout.map(duration).transpose()?;
    call.retry = if repeat { Retry::Safe } else { Retry::Never };
    call.raw = true;
    Ok(call)
}

fn payload(mut parts: Vec<PyBackedBytes>) -> Payload {
    match parts.len() {
        0 => Payload::Empty,
        1 => Payload::Bytes(Bytes::from_owner(parts.remove(0))),
        _ => {
            let length = parts.iter().map(|part| part.len() as u64).sum();
            let chunks = parts.into_iter().map(|part| Ok(Bytes::from_owner(part)));
            Payload::Stream(Box::pin(futures::stream::iter(chunks)), Some(length))
        }
    }
}

fn process_to_python(py: Python<'_>, process: sdk::Process) -> PyResult<Py<PyAny>> {
    Ok(Py::new(py, Process::new(process))?.into_any())
}

/// A wire type as dict and list.
pub(crate) fn serialised(py: Python<'_>, value: &impl serde::Serialize) -> PyResult<Py<PyAny>> {
    let value = serde_json::to_value(value).map_err(|error| PyValueError::new_err(error.to_string()))?;
    convert::to_python(py, &value)
}

/// `(kind, offset or id, bytes or pid, …)`, the tuple that the Python side unpacks.
pub(crate) fn event_to_python(py: Python<'_>, event: CommandEvent) -> PyResult<Py<PyAny>> {
    Ok(match event {
        CommandEvent::Started { id, pid } => ("started", id, pid).into_pyobject(py)?.into_any().unbind(),
        CommandEvent::Stdout { offset, data } => {
            ("stdout", offset, PyBytes::new(py, &data)).into_pyobject(py)?.into_any().unbind()
        }
        CommandEvent::Stderr { offset, data } => {
            ("stderr", offset, PyBytes::new(py, &data)).into_pyobject(py)?.into_any().unbind()
        }
        CommandEvent::Skipped { offset, bytes } => ("skipped", offset, bytes).into_pyobject(py)?.into_any().unbind(),
        CommandEvent::Exit { exit_code, signal, timed_out } => {
            ("exit", exit_code, signal, timed_out).into_pyobject(py)?.into_any().unbind()
        }
    })
}

pub(crate) fn duration(seconds: f64) -> PyResult<Duration> {
    let limit = Duration::try_from_secs_f64(seconds).ok().filter(|limit| !limit.is_zero());
    limit.ok_or_else(|| PyValueError::new_err(format!("{seconds} is not a number of seconds above 0")))
}
