//! Requests to single Pods: logs, exec, attach and connections to their ports, as plain streams.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use k8s_openapi::api::core::v1::ObjectReference;
use thiserror::Error;
use tokio::io::AsyncRead;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::{NodeHandle, exec_oom};
use crate::kubelet::actor::ActorHandle;
use crate::kubelet::events::{OOM_KILLED, Severity};
use crate::kubelet::logs::{self, LogOptions};
use crate::runtime::{AttachRequest, ExecRequest, ExecSession, Exit, RuntimeError};

/// Identifies a Pod. With a uid, it never matches another Pod of the same name.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PodKey {
    pub namespace: String,
    pub name: String,
    pub uid: Option<String>,
}

/// Why a request to a Pod failed.
#[derive(Debug, Error)]
pub enum PodRequestError {
    #[error("pod {namespace}/{name} does not run on this node")]
    NoPod { namespace: String, name: String },
    #[error("container {container:?} of pod {pod} has not started")]
    NotStarted { pod: String, container: String },
    #[error("previous terminated container {container:?} in pod {pod} not found")]
    NoPrevious { pod: String, container: String },
    #[error("nothing listens on port {port} of pod {pod}")]
    NotListening {
        pod: String,
        port: u16,
        #[source]
        source: RuntimeError,
    },
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

/// The bytes of a log as they are read. Dropping the stream stops the reader.
pub type LogChunks = ReceiverStream<io::Result<Bytes>>;

/// How long a connection to a closed port is retried, because many clients treat a refused connection as a final error.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Exit codes of shells and container engines for a program that does not exist, and for one that cannot be executed.
const NO_SUCH_PROGRAM: i32 = 127;
const NOT_EXECUTABLE: i32 = 126;

impl NodeHandle {
    fn find(&self, key: &PodKey) -> Result<(String, Arc<ActorHandle>), PodRequestError> {
        let pods = self.0.registry.read();
        let found = match &key.uid {
            Some(uid) => pods.get_key_value(uid),
            None => pods.iter().find(|(_, h)| h.namespace == key.namespace && h.name == key.name),
        };
        let none = || PodRequestError::NoPod { namespace: key.namespace.clone(), name: key.name.clone() };
        found.map(|(uid, handle)| (uid.clone(), Arc::clone(handle))).ok_or_else(none)
    }

    /// Whether sandboxd runs in a container of the Pod.
    pub fn has_sandboxd(&self, key: &PodKey, container: &str) -> bool {
        let found = self.find(key);
        found.is_ok_and(|(_, handle)| handle.view.borrow().sandboxd_container.as_deref() == Some(container))
    }

    /// The log of a container: of its current attempt, or with `previous` of the one before.
    pub async fn logs(
        &self,
        key: &PodKey,
        container: &str,
        previous: bool,
        options: LogOptions,
    ) -> Result<LogChunks, PodRequestError> {
        let (uid, handle) = self.find(key)?;
        let attempt = handle.view.borrow().attempts.get(container).copied();
        let attempt = attempt
            .ok_or_else(|| PodRequestError::NotStarted { pod: key.name.clone(), container: container.to_owned() })?;
        let attempt = match (previous, attempt) {
            (false, attempt) => attempt,
            (true, 0) => {
                return Err(PodRequestError::NoPrevious { pod: key.name.clone(), container: container.to_owned() });
            }
            (true, attempt) => attempt - 1,
        };
        let path = self.0.node.log_path(&uid, container, attempt);
        let (sender, chunks) = mpsc::channel(16);
        let ended = attempt_ended(handle, container.to_owned(), attempt);
        tokio::spawn(async move {
            if let Err(error) = logs::read(path, options, ended, sender.clone()).await {
                let _ = sender.send(Err(error)).await;
            }
        });
        Ok(ReceiverStream::new(chunks))
    }

    /// Runs a command in a running container. A command that cannot be executed ends as in a shell: a message on
    /// standard error and an exit code that every client passes on.
    pub async fn exec(
        &self,
        key: &PodKey,
        container: &str,
        request: ExecRequest,
    ) -> Result<ExecSession, PodRequestError> {
        let (uid, handle) = self.find(key)?;
        let (stdout, stderr) = (request.stdout, request.stderr);
        match self.0.node.runtime.exec(&uid, container, request).await {
            Err(RuntimeError::CannotRun { command, message, missing }) => {
                let message = cannot_run(&command, &message, missing);
                let code = if missing { NO_SUCH_PROGRAM } else { NOT_EXECUTABLE };
                Ok(ended_session(message, stdout, stderr, code))
            }
            other => {
                let limit = self.0.node.runtime.memory_limit(&uid, container);
                let (recorder, container) = (self.0.node.recorder.clone(), container.to_owned());
                let report = move |reason: &str| {
                    let about = ObjectReference {
                        api_version: Some("v1".to_owned()),
                        kind: Some("Pod".to_owned()),
                        name: Some(handle.name.clone()),
                        namespace: Some(handle.namespace.clone()),
                        uid: Some(uid),
                        ..ObjectReference::default()
                    };
                    let message = format!("A command in container {container} was killed: {reason}");
                    recorder.about(about, Severity::Warning, OOM_KILLED, message);
                };
                Ok(exec_oom::explain(other?, limit, report))
            }
        }
    }

    /// Attaches to the streams of a container's first process.
    pub async fn attach(
        &self,
        key: &PodKey,
        container: &str,
        request: AttachRequest,
    ) -> Result<ExecSession, PodRequestError> {
        let (uid, _) = self.find(key)?;
        Ok(self.0.node.runtime.attach(&uid, container, request).await?)
    }

    /// Connects to a port on the Pod's loopback address, waiting up to `DIAL_TIMEOUT` for it to open.
    pub async fn dial(&self, key: &PodKey, port: u16) -> Result<TcpStream, PodRequestError> {
        let (uid, _) = self.find(key)?;
        let deadline = tokio::time::Instant::now() + DIAL_TIMEOUT;
        loop {
            match self.0.node.runtime.dial(&uid, port).await {
                Ok(stream) => return Ok(stream),
                Err(error @ (RuntimeError::UnknownPod(_) | RuntimeError::SupervisorLost(_))) => {
                    return Err(error.into());
                }
                Err(source) if tokio::time::Instant::now() >= deadline => {
                    return Err(PodRequestError::NotListening { pod: key.name.clone(), port, source });
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }
}

fn cannot_run(command: &str, message: &str, missing: bool) -> String {
    match missing && !command.contains('/') {
        true => format!("cannot run {command}: there is no such program in the sandbox's PATH\n"),
        false => format!("cannot run {command}: {message}\n"),
    }
}

/// A session that has already ended with this message and exit code. The message goes to standard error, or to standard
/// output when standard error was not requested.
fn ended_session(message: String, stdout: bool, stderr: bool, code: i32) -> ExecSession {
    let stream = |wanted: bool, text: String| {
        wanted.then(|| Box::new(io::Cursor::new(text.into_bytes())) as Box<dyn AsyncRead + Send + Unpin>)
    };
    let (out, err) = if stderr { (String::new(), message) } else { (message, String::new()) };
    let exit = Exit { code, signal: None, oom_killed: false, finished_at: jiff::Timestamp::now() };
    ExecSession {
        stdin: None,
        stdout: stream(stdout, out),
        stderr: stream(stderr, err),
        resize: None,
        exit: Box::pin(std::future::ready(Ok(exit))),
    }
}

/// Resolves when an attempt of a container, or its whole Pod, has ended.
async fn attempt_ended(handle: Arc<ActorHandle>, container: String, attempt: u32) {
    let mut view = handle.view.clone();
    let over = |view: &crate::kubelet::actor::PodView| {
        let statuses = view.status.container_statuses.iter().flatten();
        let status = statuses.chain(view.status.init_container_statuses.iter().flatten()).find(|c| c.name == container);
        status.is_none_or(|status| {
            let running = status.state.as_ref().is_some_and(|s| s.running.is_some());
            view.attempts.get(&container) != Some(&attempt) || !running
        })
    };
    let _ = view.wait_for(over).await;
}
