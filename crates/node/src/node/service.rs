//! Logs, commands, attachment and connections into Pods, as plain streams.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use tokio::io::AsyncRead;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::NodeHandle;
use crate::logs::{self, LogOptions};
use crate::pods::actor::Handle;
use crate::runtime::{AttachRequest, ExecRequest, ExecSession, Exit, RuntimeError};

/// Which Pod. The uid, when given, tells two Pods of one name apart.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PodKey {
    pub namespace: String,
    pub name: String,
    pub uid: Option<String>,
}

/// Why a request into a Pod was not served.
#[derive(Debug, Error)]
pub enum ServiceError {
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

/// A log as it is read. Dropping it ends the reading.
pub type LogChunks = ReceiverStream<io::Result<Bytes>>;

/// A port that opens in a moment is waited for this long, because clients take a refusal for the end of everything.
const DIAL_PATIENCE: Duration = Duration::from_secs(2);

/// What shells and container engines answer for a program that is not there, and for one that cannot be executed.
const NO_SUCH_PROGRAM: i32 = 127;
const NOT_EXECUTABLE: i32 = 126;

impl NodeHandle {
    fn find(&self, key: &PodKey) -> Result<(String, Arc<Handle>), ServiceError> {
        let pods = self.0.registry.read();
        let found = match &key.uid {
            Some(uid) => pods.get_key_value(uid),
            None => pods.iter().find(|(_, h)| h.namespace == key.namespace && h.name == key.name),
        };
        let none = || ServiceError::NoPod { namespace: key.namespace.clone(), name: key.name.clone() };
        found.map(|(uid, handle)| (uid.clone(), Arc::clone(handle))).ok_or_else(none)
    }

    /// The output of a container: of its present attempt, or with `previous` of the one before.
    pub async fn logs(
        &self,
        key: &PodKey,
        container: &str,
        previous: bool,
        options: LogOptions,
    ) -> Result<LogChunks, ServiceError> {
        let (uid, handle) = self.find(key)?;
        let attempt = handle.view.borrow().attempts.get(container).copied();
        let attempt = attempt
            .ok_or_else(|| ServiceError::NotStarted { pod: key.name.clone(), container: container.to_owned() })?;
        let attempt = match (previous, attempt) {
            (false, attempt) => attempt,
            (true, 0) => {
                return Err(ServiceError::NoPrevious { pod: key.name.clone(), container: container.to_owned() });
            }
            (true, attempt) => attempt - 1,
        };
        let path = self.0.shared.log_path(&uid, container, attempt);
        let (sender, chunks) = mpsc::channel(16);
        let ended = attempt_ended(handle, container.to_owned(), attempt);
        tokio::spawn(async move {
            if let Err(error) = logs::read(path, options, ended, sender.clone()).await {
                let _ = sender.send(Err(error)).await;
            }
        });
        Ok(ReceiverStream::new(chunks))
    }

    /// Runs a command in a running container. One that cannot be run ends as it would in a shell: words on standard error, and
    /// an exit code that every client passes on.
    pub async fn exec(&self, key: &PodKey, container: &str, request: ExecRequest) -> Result<ExecSession, ServiceError> {
        let (uid, _) = self.find(key)?;
        let (stdout, stderr) = (request.stdout, request.stderr);
        match self.0.shared.runtime.exec(&uid, container, request).await {
            Err(RuntimeError::CannotRun { command, message, missing }) => {
                let words = cannot_run(&command, &message, missing);
                let code = if missing { NO_SUCH_PROGRAM } else { NOT_EXECUTABLE };
                Ok(ended_session(words, stdout, stderr, code))
            }
            other => Ok(other?),
        }
    }

    /// Joins the streams of a container's own process.
    pub async fn attach(
        &self,
        key: &PodKey,
        container: &str,
        request: AttachRequest,
    ) -> Result<ExecSession, ServiceError> {
        let (uid, _) = self.find(key)?;
        Ok(self.0.shared.runtime.attach(&uid, container, request).await?)
    }

    /// Connects to a port on the Pod's own loopback address, waiting a moment for it to open.
    pub async fn dial(&self, key: &PodKey, port: u16) -> Result<TcpStream, ServiceError> {
        let (uid, _) = self.find(key)?;
        let deadline = tokio::time::Instant::now() + DIAL_PATIENCE;
        loop {
            match self.0.shared.runtime.dial(&uid, port).await {
                Ok(stream) => return Ok(stream),
                Err(error @ (RuntimeError::UnknownPod(_) | RuntimeError::SupervisorLost(_))) => {
                    return Err(error.into());
                }
                Err(source) if tokio::time::Instant::now() >= deadline => {
                    return Err(ServiceError::NotListening { pod: key.name.clone(), port, source });
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

/// A session that is over before it began: its last words, where they are asked for, and its exit code.
fn ended_session(words: String, stdout: bool, stderr: bool, code: i32) -> ExecSession {
    let stream = |wanted: bool, text: String| {
        wanted.then(|| Box::new(io::Cursor::new(text.into_bytes())) as Box<dyn AsyncRead + Send + Unpin>)
    };
    let (out, err) = if stderr { (String::new(), words) } else { (words, String::new()) };
    let exit = Exit { code, signal: None, oom_killed: false, finished_at: jiff::Timestamp::now() };
    ExecSession {
        stdin: None,
        stdout: stream(stdout, out),
        stderr: stream(stderr, err),
        resize: None,
        exit: Box::pin(std::future::ready(Ok(exit))),
    }
}

/// Resolves when an attempt of a container is over (or its Pod is).
async fn attempt_ended(handle: Arc<Handle>, container: String, attempt: u32) {
    let mut view = handle.view.clone();
    let over = |view: &crate::pods::actor::View| {
        let statuses = view.status.container_statuses.iter().flatten();
        let status = statuses.chain(view.status.init_container_statuses.iter().flatten()).find(|c| c.name == container);
        status.is_none_or(|status| {
            let running = status.state.as_ref().is_some_and(|s| s.running.is_some());
            view.attempts.get(&container) != Some(&attempt) || !running
        })
    };
    let _ = view.wait_for(over).await;
}
