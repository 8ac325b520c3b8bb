//! A few HTTP/1.1 connections for requests that a user waits for.
//!
//! A request with a connection to itself is answered sooner than one on a shared connection: there are no frames to
//! decode and no queues to pass, on either side (measured: about half a millisecond of the ten that a claim takes).
//! When no connection is free, the request uses a shared connection and one more direct connection is opened in the
//! background, so that no request waits for a handshake and a burst opens no more than [`MAX_CONNECTIONS`].

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use kube::client::Body;
use parking_lot::Mutex;
use tower::{Service, ServiceExt};
use tracing::debug;

/// Maximum number of direct connections: enough for two claims at once, with two writes each.
pub(super) const MAX_CONNECTIONS: usize = 4;
/// Maximum idle time of a connection. Servers close idle connections after about a minute and a half; a request must
/// not run into that.
const MAX_IDLE: Duration = Duration::from_secs(60);

/// A response from a direct or a shared connection.
pub(super) type DirectResponse = http::Response<UnsyncBoxBody<Bytes, hyper::Error>>;

pub(super) struct DirectConnections {
    connector: HttpsConnector<HttpConnector>,
    idle: Mutex<Vec<Connection>>,
    /// Connections that are open or being opened.
    open: AtomicUsize,
}

struct Connection {
    sender: SendRequest<Body>,
    used: Instant,
    // Counts the connection for as long as it exists.
    _slot: ConnectionSlot,
}

/// One of the [`MAX_CONNECTIONS`] slots.
struct ConnectionSlot(Weak<DirectConnections>);

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        if let Some(direct) = self.0.upgrade() {
            direct.open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The outcome of an attempt to send a request directly.
pub(super) enum SendOutcome {
    Response(Result<DirectResponse, hyper::Error>),
    /// No connection was free; nothing was sent.
    NotSent(http::Request<Body>),
}

impl DirectConnections {
    /// `connector` must not offer HTTP/2.
    pub(super) fn new(connector: HttpsConnector<HttpConnector>) -> Arc<Self> {
        Arc::new(Self { connector, idle: Mutex::default(), open: AtomicUsize::new(0) })
    }

    /// Sends the request if a connection is free; otherwise opens a connection for later requests.
    pub(super) async fn send(self: &Arc<Self>, mut request: http::Request<Body>) -> SendOutcome {
        let address = request.uri().clone();
        let host = address.authority().and_then(|to| http::HeaderValue::from_str(to.as_str()).ok());
        let (Some(host), Some(path)) = (host, address.path_and_query()) else { return SendOutcome::NotSent(request) };
        while let Some(mut connection) = self.take() {
            // Without a proxy an HTTP/1.1 request has a path, and the host in a header.
            request.headers_mut().insert(http::header::HOST, host.clone());
            *request.uri_mut() = path.clone().into();
            match connection.sender.try_send_request(request).await {
                Ok(response) => {
                    connection.used = Instant::now();
                    return SendOutcome::Response(Ok(self.return_when_read(response, connection)));
                }
                Err(mut refused) => match refused.take_message() {
                    Some(unsent) => request = with_full_uri(unsent, &address),
                    None => return SendOutcome::Response(Err(refused.into_error())),
                },
            }
        }
        self.open_another(address);
        SendOutcome::NotSent(request)
    }

    /// The free connection that was used last.
    fn take(&self) -> Option<Connection> {
        let mut idle = self.idle.lock();
        idle.retain(|connection| !connection.sender.is_closed() && connection.used.elapsed() < MAX_IDLE);
        let free = idle.iter().rposition(|connection| connection.sender.is_ready())?;
        Some(idle.remove(free))
    }

    /// The response; its connection is free again once the body was read.
    fn return_when_read(
        self: &Arc<Self>,
        response: http::Response<hyper::body::Incoming>,
        connection: Connection,
    ) -> DirectResponse {
        let back = ReturnOnDrop { to: self.clone(), connection: Some(connection) };
        response.map(|body| {
            let held = body.map_frame(move |frame| {
                let _until_read = &back;
                frame
            });
            held.boxed_unsync()
        })
    }

    fn open_another(self: &Arc<Self>, address: http::Uri) {
        let slot = |open: usize| (open < MAX_CONNECTIONS).then_some(open + 1);
        if self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, slot).is_err() {
            return;
        }
        let (direct, slot) = (self.clone(), ConnectionSlot(Arc::downgrade(self)));
        tokio::spawn(async move {
            match direct.connect(address).await {
                Ok(sender) => {
                    let connection = Connection { sender, used: Instant::now(), _slot: slot };
                    direct.idle.lock().push(connection);
                }
                Err(error) => debug!(error, "Could not open a direct connection"),
            }
        });
    }

    async fn connect(&self, address: http::Uri) -> Result<SendRequest<Body>, tower::BoxError> {
        let stream = self.connector.clone().ready().await?.call(address).await?;
        let (sender, connection) = http1::handshake(stream).await?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// Returns a connection when the response has been read or dropped; one in the middle of a response closes by itself.
struct ReturnOnDrop {
    to: Arc<DirectConnections>,
    connection: Option<Connection>,
}

impl Drop for ReturnOnDrop {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.to.idle.lock().push(connection);
        }
    }
}

/// The request with its original URI.
fn with_full_uri(mut request: http::Request<Body>, address: &http::Uri) -> http::Request<Body> {
    request.headers_mut().remove(http::header::HOST);
    *request.uri_mut() = address.clone();
    request
}

#[cfg(test)]
mod tests;
