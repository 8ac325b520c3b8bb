//! Ties a streaming request, a stored Pod and the node together.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, Method, Response};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::codec::{BytesCodec, FramedRead, FramedWrite};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::portforward::{self, Target};
use super::process;
use super::remote::{self, Remote, Version};
use super::request::{self, Query, RequestError};
use super::spdy::session::Session;
use super::upgrade::Offer;
use super::websocket::{self, channels, tunnel};
use crate::node::{NodeBackend, NodeError, PodRef, ProcessSession, StreamSet};
use crate::render::{self, Body};

const EXEC_SPDY: [&str; 5] =
    ["v5.channel.k8s.io", "v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];
const EXEC_WEBSOCKET: [&str; 5] =
    ["v5.channel.k8s.io", "v4.channel.k8s.io", "v4.base64.channel.k8s.io", "channel.k8s.io", "base64.channel.k8s.io"];
const FORWARD_SPDY: [&str; 1] = ["portforward.k8s.io"];
const FORWARD_TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
const FORWARD_WEBSOCKET: [&str; 3] = [FORWARD_TUNNEL, "v4.channel.k8s.io", "v4.base64.channel.k8s.io"];

/// Upgraded connections at a time; each holds a few buffers and a process or some connections.
const MAX_SESSIONS: usize = 512;

/// Which streaming subresource is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    Log,
    Exec,
    Attach,
    PortForward,
}

/// Why a streaming request was answered with an error.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error("too many exec, attach and port-forward sessions are open; close some and try again")]
    Busy,
}

/// What the handler needs of a request.
pub struct StreamRequest<'a> {
    pub method: &'a Method,
    pub headers: &'a HeaderMap,
    pub query: Option<&'a str>,
    /// Present when the connection can be upgraded.
    pub upgrade: Option<OnUpgrade>,
    /// The stored Pod.
    pub pod: &'a Value,
    /// The node, on behalf of the authenticated user.
    pub backend: Arc<dyn NodeBackend>,
}

/// Serves streaming requests and owns the connections that they turn into.
#[derive(Clone)]
pub struct Streams {
    tasks: TaskTracker,
    shutdown: CancellationToken,
    sessions: Arc<Semaphore>,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            tasks: TaskTracker::new(),
            shutdown: CancellationToken::new(),
            sessions: Arc::new(Semaphore::new(MAX_SESSIONS)),
        }
    }
}

impl Streams {
    /// Ends all streaming connections and waits until they have said goodbye.
    pub async fn close(&self) {
        self.shutdown.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    pub async fn handle(&self, kind: StreamKind, request: StreamRequest<'_>) -> Result<Response<Body>, StreamError> {
        match kind {
            StreamKind::Log => self.logs(&request).await,
            StreamKind::Exec | StreamKind::Attach => self.command(kind, request),
            StreamKind::PortForward => self.port_forward(request),
        }
    }

    async fn logs(&self, request: &StreamRequest<'_>) -> Result<Response<Body>, StreamError> {
        let query = Query::parse(request.query);
        let options = request::log_options(&query, request.pod, Timestamp::now())?;
        let limit = options.limit_bytes;
        let lines = request.backend.logs(&pod_ref(request.pod), options).await?;
        let shutdown = self.shutdown.clone().cancelled_owned();
        let lines = limited(lines, limit).take_until(shutdown);
        let mut response = Response::new(render::stream(lines));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        Ok(response)
    }

    fn command(&self, kind: StreamKind, request: StreamRequest<'_>) -> Result<Response<Body>, StreamError> {
        let query = Query::parse(request.query);
        let job = match kind {
            StreamKind::Exec => Job::Exec(request::exec_request(&query, request.pod)?),
            _ => {
                let (container, streams) = request::attach_request(&query, request.pod)?;
                Job::Attach(container, streams)
            }
        };
        let (offer, upgrade) = offer(&request)?;
        let supported: &[&str] = match &offer {
            Offer::WebSocket { .. } => &EXEC_WEBSOCKET,
            Offer::Spdy { .. } => &EXEC_SPDY,
        };
        let protocol = agree(&offer, supported)?;
        let (backend, pod) = (request.backend, pod_ref(request.pod));
        let permit = self.permit()?;
        let response = offer.accept(protocol);
        let name = if protocol.is_empty() { "channel.k8s.io" } else { protocol };
        self.run(upgrade, permit, move |connection, shutdown| async move {
            let Some(remote) = remote_of(offer, connection, name, job.streams()).await else { return };
            let start = job.start(backend.as_ref(), &pod);
            tokio::select! {
                () = process::run(start, remote) => {}
                () = shutdown.cancelled() => {}
            }
        });
        Ok(response)
    }

    fn port_forward(&self, request: StreamRequest<'_>) -> Result<Response<Body>, StreamError> {
        let (offer, upgrade) = offer(&request)?;
        let supported: &[&str] = match &offer {
            Offer::WebSocket { .. } => &FORWARD_WEBSOCKET,
            Offer::Spdy { .. } => &FORWARD_SPDY,
        };
        let protocol = agree(&offer, supported)?;
        let channels = matches!(offer, Offer::WebSocket { .. }) && protocol != FORWARD_TUNNEL;
        let ports = if channels { request::forwarded_ports(&Query::parse(request.query))? } else { Vec::new() };
        let target = Target { backend: request.backend, pod: pod_ref(request.pod) };
        let permit = self.permit()?;
        let response = offer.accept(protocol);
        let protocol = protocol.to_owned();
        self.run(upgrade, permit, move |connection, shutdown| async move {
            match offer {
                Offer::Spdy { .. } => portforward::spdy::serve(raw_session(connection), target, shutdown).await,
                Offer::WebSocket { .. } if channels => {
                    let encoding = channels::Encoding::named(&protocol);
                    if let ([port], channels::Encoding::Binary) = (ports.as_slice(), encoding) {
                        return portforward::single::serve(connection, *port, target, shutdown).await;
                    }
                    let socket = websocket::accept(connection).await;
                    portforward::channels::serve(socket, encoding, ports, target, shutdown).await;
                }
                Offer::WebSocket { .. } => {
                    let (source, sink) = tunnel::split(websocket::accept(connection).await);
                    portforward::spdy::serve(Session::start(source, sink), target, shutdown).await;
                }
            }
        });
        Ok(response)
    }

    fn permit(&self) -> Result<OwnedSemaphorePermit, StreamError> {
        self.sessions.clone().try_acquire_owned().map_err(|_| StreamError::Busy)
    }

    /// Runs `work` on the connection once the `101` answer has been sent.
    fn run<F, Fut>(&self, upgrade: OnUpgrade, permit: OwnedSemaphorePermit, work: F)
    where
        F: FnOnce(Connection, CancellationToken) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send,
    {
        let shutdown = self.shutdown.clone();
        self.tasks.spawn(async move {
            let _permit = permit;
            match upgrade.await {
                Ok(connection) => work(TokioIo::new(connection), shutdown).await,
                Err(error) => tracing::debug!(%error, "Client left during the upgrade"),
            }
        });
    }
}

type Connection = TokioIo<hyper::upgrade::Upgraded>;

enum Job {
    Exec(crate::node::ExecRequest),
    Attach(String, StreamSet),
}

impl Job {
    fn streams(&self) -> StreamSet {
        match self {
            Self::Exec(request) => request.streams,
            Self::Attach(_, streams) => *streams,
        }
    }

    async fn start(self, backend: &dyn NodeBackend, pod: &PodRef) -> Result<ProcessSession, NodeError> {
        match self {
            Self::Exec(request) => backend.exec(pod, request).await,
            Self::Attach(container, streams) => backend.attach(pod, &container, streams).await,
        }
    }
}

fn offer(request: &StreamRequest<'_>) -> Result<(Offer, OnUpgrade), RequestError> {
    let offer = Offer::read(request.method, request.headers)?;
    match request.upgrade.clone() {
        Some(upgrade) => Ok((offer, upgrade)),
        None => Err(RequestError::BadRequest("this connection cannot be upgraded; use HTTP/1.1".into())),
    }
}

/// The protocol to speak; a client that names none gets the oldest, which has no name in the answer.
fn agree<'a>(offer: &Offer, supported: &[&'a str]) -> Result<&'a str, RequestError> {
    match offer {
        Offer::WebSocket { protocols, .. } | Offer::Spdy { protocols } if protocols.is_empty() => Ok(""),
        _ => offer.choose(supported).ok_or_else(|| offer.unsupported(supported)),
    }
}

fn raw_session(connection: Connection) -> Session {
    let (reader, writer) = tokio::io::split(connection);
    let source = FramedRead::with_capacity(reader, BytesCodec::new(), 32 * 1024);
    let sink = FramedWrite::new(writer, BytesCodec::new());
    Session::start(source.map(|piece| piece.map(Into::into)), sink)
}

async fn remote_of(offer: Offer, connection: Connection, protocol: &str, streams: StreamSet) -> Option<Remote> {
    let version = Version::named(protocol);
    match offer {
        Offer::WebSocket { .. } => {
            let socket = websocket::accept(connection).await;
            Some(channels::remote(socket, version, channels::Encoding::named(protocol)))
        }
        Offer::Spdy { .. } => match remote::spdy::accept(raw_session(connection), version, streams).await {
            Ok(remote) => Some(remote),
            Err(error) => {
                tracing::debug!(%error, "Client did not open its streams");
                None
            }
        },
    }
}

fn pod_ref(pod: &Value) -> PodRef {
    let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    PodRef { namespace: text("/metadata/namespace"), name: text("/metadata/name"), uid: text("/metadata/uid") }
}

/// Ends the stream after `limit` bytes, whatever the node does with the limit.
fn limited(lines: BoxStream<'static, io::Result<Bytes>>, limit: Option<u64>) -> impl Stream<Item = io::Result<Bytes>> {
    stream::unfold((lines, limit.unwrap_or(u64::MAX)), |(mut lines, left)| async move {
        if left == 0 {
            return None;
        }
        let mut piece = lines.next().await?;
        let mut rest = left;
        if let Ok(bytes) = &mut piece {
            bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            rest = left - bytes.len() as u64;
        }
        Some((piece, (lines, rest)))
    })
}
