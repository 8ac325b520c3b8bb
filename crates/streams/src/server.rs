//! Handles streaming requests for stored Pods: negotiates the protocol, upgrades the connection, and serves it from the
//! node.

use std::io;
use std::sync::Arc;
use std::time::Duration;

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

use crate::backend::{ExecRequest, NodeBackend, NodeError, PodRef, ProcessSession, StreamSet};
use crate::body::{self, Body};
use crate::portforward::{self, PodDialer};
use crate::process;
use crate::remotecommand::{self, ClientStreams, Version};
use crate::request::{self, Query, RequestError};
use crate::spdy::session::Session;
use crate::upgrade::Offer;
use crate::websocket::{self, channels, tunnel};

const EXEC_SPDY: [&str; 5] =
    ["v5.channel.k8s.io", "v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];
const EXEC_WEBSOCKET: [&str; 5] =
    ["v5.channel.k8s.io", "v4.channel.k8s.io", "v4.base64.channel.k8s.io", "channel.k8s.io", "base64.channel.k8s.io"];
const FORWARD_SPDY: [&str; 1] = ["portforward.k8s.io"];
const FORWARD_TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
const FORWARD_WEBSOCKET: [&str; 3] = [FORWARD_TUNNEL, "v4.channel.k8s.io", "v4.base64.channel.k8s.io"];

/// Maximum number of concurrent upgraded connections; each holds a few buffers and a process or some connections.
const MAX_SESSIONS: usize = 512;

/// Interval at which the user of an open session is checked again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The streaming subresources of Pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    Log,
    Exec,
    Attach,
    PortForward,
}

/// Why a streaming request failed.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error("too many exec, attach and port-forward sessions are open; close some and try again")]
    Busy,
}

/// The parts of an HTTP request that streaming needs.
pub struct StreamRequest<'a> {
    pub method: &'a Method,
    pub headers: &'a HeaderMap,
    pub query: Option<&'a str>,
    /// `None` if the connection cannot be upgraded.
    pub upgrade: Option<OnUpgrade>,
    /// The stored Pod.
    pub pod: &'a Value,
    /// The node, on behalf of the authenticated user.
    pub backend: Arc<dyn NodeBackend>,
    /// Asked once a second while a session is open; the session ends when it is not allowed any more.
    pub still_allowed: Option<StillAllowed>,
}

/// Whether the user of an open session may still have it.
pub type StillAllowed = Arc<dyn Fn() -> bool + Send + Sync>;

/// Serves streaming requests and owns the tasks of upgraded connections.
#[derive(Clone)]
pub struct StreamServer {
    tasks: TaskTracker,
    shutdown: CancellationToken,
    sessions: Arc<Semaphore>,
}

impl Default for StreamServer {
    fn default() -> Self {
        Self {
            tasks: TaskTracker::new(),
            shutdown: CancellationToken::new(),
            sessions: Arc::new(Semaphore::new(MAX_SESSIONS)),
        }
    }
}

impl StreamServer {
    /// Ends all streaming connections and waits until each has sent its closing frames.
    pub async fn close(&self) {
        self.shutdown.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    pub async fn handle(&self, kind: StreamKind, request: StreamRequest<'_>) -> Result<Response<Body>, StreamError> {
        match kind {
            StreamKind::Log => self.logs(&request).await,
            StreamKind::Exec | StreamKind::Attach => self.process(kind, request),
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
        let mut response = Response::new(body::stream(lines));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        Ok(response)
    }

    fn process(&self, kind: StreamKind, request: StreamRequest<'_>) -> Result<Response<Body>, StreamError> {
        let query = Query::parse(request.query);
        let process_request = match kind {
            StreamKind::Exec => ProcessRequest::Exec(request::exec_request(&query, request.pod)?),
            _ => {
                let (container, streams) = request::attach_request(&query, request.pod)?;
                ProcessRequest::Attach(container, streams)
            }
        };
        let (offer, upgrade) = read_offer(&request)?;
        let supported: &[&str] = match &offer {
            Offer::WebSocket { .. } => &EXEC_WEBSOCKET,
            Offer::Spdy { .. } => &EXEC_SPDY,
        };
        let protocol = negotiate(&offer, supported)?;
        let (backend, pod) = (request.backend, pod_ref(request.pod));
        let (permit, allowed) = (self.permit()?, request.still_allowed);
        let response = offer.accept(protocol);
        let name = if protocol.is_empty() { "channel.k8s.io" } else { protocol };
        self.spawn(upgrade, permit, allowed, move |connection, shutdown| async move {
            let streams = process_request.streams();
            let Some(client) = open_client_streams(offer, connection, name, streams).await else { return };
            let start = process_request.start(backend.as_ref(), &pod);
            tokio::select! {
                () = process::run(start, client) => {}
                () = shutdown.cancelled() => {}
            }
        });
        Ok(response)
    }

    fn port_forward(&self, request: StreamRequest<'_>) -> Result<Response<Body>, StreamError> {
        let (offer, upgrade) = read_offer(&request)?;
        let supported: &[&str] = match &offer {
            Offer::WebSocket { .. } => &FORWARD_WEBSOCKET,
            Offer::Spdy { .. } => &FORWARD_SPDY,
        };
        let protocol = negotiate(&offer, supported)?;
        let channels = matches!(offer, Offer::WebSocket { .. }) && protocol != FORWARD_TUNNEL;
        let ports = if channels { request::forwarded_ports(&Query::parse(request.query))? } else { Vec::new() };
        let dialer = PodDialer { backend: request.backend, pod: pod_ref(request.pod) };
        let (permit, allowed) = (self.permit()?, request.still_allowed);
        let response = offer.accept(protocol);
        let protocol = protocol.to_owned();
        self.spawn(upgrade, permit, allowed, move |connection, shutdown| async move {
            match offer {
                Offer::Spdy { .. } => portforward::spdy::serve(raw_session(connection), dialer, shutdown).await,
                Offer::WebSocket { .. } if channels => {
                    let encoding = channels::Encoding::from_protocol(&protocol);
                    if let ([port], channels::Encoding::Binary) = (ports.as_slice(), encoding) {
                        return portforward::single::serve(connection, *port, dialer, shutdown).await;
                    }
                    let socket = websocket::accept(connection).await;
                    portforward::channels::serve(socket, encoding, ports, dialer, shutdown).await;
                }
                Offer::WebSocket { .. } => {
                    let (source, sink) = tunnel::split(websocket::accept(connection).await);
                    portforward::spdy::serve(Session::start(source, sink), dialer, shutdown).await;
                }
            }
        });
        Ok(response)
    }

    fn permit(&self) -> Result<OwnedSemaphorePermit, StreamError> {
        self.sessions.clone().try_acquire_owned().map_err(|_| StreamError::Busy)
    }

    /// Spawns `serve` on the connection once the `101` response has been sent.
    fn spawn<F, Fut>(&self, upgrade: OnUpgrade, permit: OwnedSemaphorePermit, allowed: Option<StillAllowed>, serve: F)
    where
        F: FnOnce(Connection, CancellationToken) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send,
    {
        let shutdown = self.shutdown.clone();
        self.tasks.spawn(async move {
            let _permit = permit;
            match upgrade.await {
                Ok(connection) => tokio::select! {
                    () = serve(TokioIo::new(connection), shutdown) => {}
                    () = until_disallowed(allowed) => tracing::debug!("Ended a session whose user lost access"),
                },
                Err(error) => tracing::debug!(%error, "Client disconnected during the upgrade"),
            }
        });
    }
}

/// Returns when a session is no longer allowed.
async fn until_disallowed(allowed: Option<StillAllowed>) {
    let Some(allowed) = allowed else { return std::future::pending().await };
    loop {
        tokio::time::sleep(RECHECK_INTERVAL).await;
        if !allowed() {
            return;
        }
    }
}

type Connection = TokioIo<hyper::upgrade::Upgraded>;

enum ProcessRequest {
    Exec(ExecRequest),
    Attach(String, StreamSet),
}

impl ProcessRequest {
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

fn read_offer(request: &StreamRequest<'_>) -> Result<(Offer, OnUpgrade), RequestError> {
    let offer = Offer::read(request.method, request.headers)?;
    match request.upgrade.clone() {
        Some(upgrade) => Ok((offer, upgrade)),
        None => Err(RequestError::BadRequest("this connection cannot be upgraded; use HTTP/1.1".into())),
    }
}

/// The sub-protocol to use. A client that offers none gets the oldest, and the response then names none.
fn negotiate<'a>(offer: &Offer, supported: &[&'a str]) -> Result<&'a str, RequestError> {
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

async fn open_client_streams(
    offer: Offer,
    connection: Connection,
    protocol: &str,
    streams: StreamSet,
) -> Option<ClientStreams> {
    let version = Version::from_protocol(protocol);
    match offer {
        Offer::WebSocket { .. } => {
            let socket = websocket::accept(connection).await;
            Some(channels::client_streams(socket, version, channels::Encoding::from_protocol(protocol)))
        }
        Offer::Spdy { .. } => match remotecommand::spdy::accept(raw_session(connection), version, streams).await {
            Ok(client) => Some(client),
            Err(error) => {
                tracing::debug!(%error, "Client did not open the required streams");
                None
            }
        },
    }
}

fn pod_ref(pod: &Value) -> PodRef {
    let text = |pointer: &str| pod.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    PodRef { namespace: text("/metadata/namespace"), name: text("/metadata/name"), uid: text("/metadata/uid") }
}

/// Ends the stream after `limit` bytes, even if the node ignores the limit.
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
