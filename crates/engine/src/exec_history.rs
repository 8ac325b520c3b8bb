//! Records commands of `exec` requests in the history of their sandbox: they run beside sandboxd, which keeps the
//! history. Nothing is recorded for Pods without sandboxd, or whose sandboxd requires a token.

use agent_sandbox_node::{NodeHandle, PodKey, kubelet::container::sandboxd};
use agent_sandbox_protocol::{
    capture::Capture,
    history::{Entry, OUTPUT_LIMIT},
    native::PREFIX,
};
use agent_sandbox_streams::backend::{BoxReader, ProcessSession};
use bytes::Bytes;
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncRead, ReadBuf},
    sync::watch,
};

/// Timeout for the output of a command that has exited, before its exit is reported. Its children may hold the output
/// open: it is then recorded when the session ends.
const OUTPUT_TIMEOUT: Duration = Duration::from_millis(20);
/// How long the exit of a command waits until it is recorded, so that the next request finds it in the history.
const WAIT: Duration = Duration::from_millis(250);
/// Timeout for recording.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Exit code of a command whose client disconnected: the node kills it.
const KILLED: i32 = 137;

/// What is recorded of one output stream.
type Captured = Arc<Mutex<Capture>>;

/// The session, which is recorded when it ends.
pub(crate) fn record(session: ProcessSession, command: &[String], node: NodeHandle, pod: PodKey) -> ProcessSession {
    let ProcessSession { stdin, stdout, stderr, resize, exit } = session;
    let (open, mut closed) = watch::channel(());
    let capture = || Captured::new(Mutex::new(Capture::new(OUTPUT_LIMIT)));
    let (out, err) = (capture(), capture());
    let tee = |inner: Option<BoxReader>, captured: &Captured| {
        inner.map(|inner| Box::pin(Tee { inner, captured: captured.clone(), open: Some(open.clone()) }) as BoxReader)
    };
    let (stdout, stderr) = (tee(stdout, &out), tee(stderr, &err));
    drop(open);
    let mut recording = Recording {
        entry: Some(Entry::started(command, jiff::Timestamp::now().to_string())),
        since: Instant::now(),
        output: (out, err),
        node,
        pod,
    };
    let exit = async move {
        let outcome = exit.await;
        let code = outcome.as_ref().map_or(KILLED, |exit| exit.code);
        let read = tokio::time::timeout(OUTPUT_TIMEOUT, async { while closed.changed().await.is_ok() {} }).await;
        let ended = recording.since.elapsed();
        let sending = tokio::spawn(async move {
            while closed.changed().await.is_ok() {}
            recording.finish(code, ended).await;
        });
        if read.is_ok() {
            let _ = tokio::time::timeout(WAIT, sending).await;
        }
        outcome
    };
    ProcessSession { stdin, stdout, stderr, resize, exit: Box::pin(exit) }
}

/// A reader that keeps a part of what it reads.
struct Tee {
    inner: BoxReader,
    captured: Captured,
    /// Dropped at the end of the stream.
    open: Option<watch::Sender<()>>,
}

impl AsyncRead for Tee {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(self.inner.as_mut().poll_read(context, buffer));
        let new = &buffer.filled()[before..];
        if new.is_empty() {
            self.open = None;
        } else {
            self.captured.lock().unwrap_or_else(PoisonError::into_inner).push(new);
        }
        Poll::Ready(read)
    }
}

/// A command that is recorded when it ends, or when its session is dropped.
struct Recording {
    entry: Option<Entry>,
    since: Instant,
    output: (Captured, Captured),
    node: NodeHandle,
    pod: PodKey,
}

impl Recording {
    async fn finish(&mut self, exit_code: i32, took: Duration) {
        if let Some(entry) = self.complete(exit_code, took) {
            send(self.node.clone(), self.pod.clone(), entry).await;
        }
    }

    fn complete(&mut self, exit_code: i32, took: Duration) -> Option<Entry> {
        let entry = self.entry.take()?;
        let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        let lock = |captured: &Captured| captured.lock().unwrap_or_else(PoisonError::into_inner).excerpt(OUTPUT_LIMIT);
        Some(Entry { exit_code, duration_ms, ..entry }.with_output(&lock(&self.output.0), &lock(&self.output.1)))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let took = self.since.elapsed();
        let Some(entry) = self.complete(KILLED, took) else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(send(self.node.clone(), self.pod.clone(), entry));
        }
    }
}

async fn send(node: NodeHandle, pod: PodKey, entry: Entry) {
    let sent = tokio::time::timeout(TIMEOUT, post(&node, &pod, &entry)).await;
    let failure = match sent {
        Ok(Ok(status)) if status.is_success() => return,
        Ok(Ok(status)) => status.to_string(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "timeout".to_owned(),
    };
    tracing::debug!(namespace = pod.namespace, pod = pod.name, failure, "Cannot record a command");
}

type PostError = Box<dyn std::error::Error + Send + Sync>;

async fn post(node: &NodeHandle, pod: &PodKey, entry: &Entry) -> Result<http::StatusCode, PostError> {
    let connection = TokioIo::new(node.dial(pod, sandboxd::PORT).await?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(connection).await?;
    let serving = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(connection));
    let request = http::Request::post(format!("{PREFIX}/history"))
        .header(http::header::HOST, "localhost")
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(serde_json::to_vec(entry)?)))?;
    let status = sender.send_request(request).await?.status();
    drop(serving);
    Ok(status)
}
