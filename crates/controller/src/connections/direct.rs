//! A few HTTP/1.1 connections for requests that somebody waits for.
//!
//! A request that has a connection to itself is answered sooner than one on a shared one: there are no frames to take apart and no queues
//! to pass, on either side (measured: about half a millisecond of the ten that a claim takes). Who finds none free goes the shared way, and one more
//! is opened beside it, so that no request waits for a handshake and a burst opens no more than a few.

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

/// Two claims at once, with two writes each.
pub(super) const MOST: usize = 4;
/// Servers close idle connections after about a minute and a half; a request must not meet with that.
const FRESH: Duration = Duration::from_secs(60);

/// An answer that arrived on a connection of either kind.
pub(super) type Answer = http::Response<UnsyncBoxBody<Bytes, hyper::Error>>;

pub(super) struct Direct {
    connector: HttpsConnector<HttpConnector>,
    idle: Mutex<Vec<Connection>>,
    /// Connections that are open or being opened.
    open: AtomicUsize,
}

struct Connection {
    sender: SendRequest<Body>,
    used: Instant,
    // Counts the connection for as long as it is kept.
    _place: Place,
}

/// One of the [`MOST`].
struct Place(Weak<Direct>);

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(direct) = self.0.upgrade() {
            direct.open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// What came of an attempt to send a request at once.
pub(super) enum Sent {
    Answered(Result<Answer, hyper::Error>),
    /// No connection was free; nothing was sent.
    Not(http::Request<Body>),
}

impl Direct {
    /// `connector` must not offer HTTP/2.
    pub(super) fn new(connector: HttpsConnector<HttpConnector>) -> Arc<Self> {
        Arc::new(Self { connector, idle: Mutex::default(), open: AtomicUsize::new(0) })
    }

    /// Sends the request if a connection is free; opens one for later if none is.
    pub(super) async fn send(self: &Arc<Self>, mut request: http::Request<Body>) -> Sent {
        let address = request.uri().clone();
        let host = address.authority().and_then(|to| http::HeaderValue::from_str(to.as_str()).ok());
        let (Some(host), Some(path)) = (host, address.path_and_query()) else { return Sent::Not(request) };
        while let Some(mut connection) = self.take() {
            // On a connection of its own a request has a path, and the host in a header.
            request.headers_mut().insert(http::header::HOST, host.clone());
            *request.uri_mut() = path.clone().into();
            match connection.sender.try_send_request(request).await {
                Ok(answer) => {
                    connection.used = Instant::now();
                    return Sent::Answered(Ok(self.returning(answer, connection)));
                }
                Err(mut refused) => match refused.take_message() {
                    Some(unsent) => request = addressed(unsent, &address),
                    None => return Sent::Answered(Err(refused.into_error())),
                },
            }
        }
        self.open_another(address);
        Sent::Not(request)
    }

    /// A connection that is free, the one used last.
    fn take(&self) -> Option<Connection> {
        let mut idle = self.idle.lock();
        idle.retain(|connection| !connection.sender.is_closed() && connection.used.elapsed() < FRESH);
        let free = idle.iter().rposition(|connection| connection.sender.is_ready())?;
        Some(idle.remove(free))
    }

    /// The answer, whose connection is free again when it was read.
    fn returning(self: &Arc<Self>, answer: http::Response<hyper::body::Incoming>, connection: Connection) -> Answer {
        let back = Back { to: self.clone(), connection: Some(connection) };
        answer.map(|body| {
            let held = body.map_frame(move |frame| {
                let _until_read = &back;
                frame
            });
            held.boxed_unsync()
        })
    }

    fn open_another(self: &Arc<Self>, address: http::Uri) {
        let place = |open: usize| (open < MOST).then_some(open + 1);
        if self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, place).is_err() {
            return;
        }
        let (direct, place) = (self.clone(), Place(Arc::downgrade(self)));
        tokio::spawn(async move {
            match direct.connect(address).await {
                Ok(sender) => {
                    let connection = Connection { sender, used: Instant::now(), _place: place };
                    direct.idle.lock().push(connection);
                }
                Err(error) => debug!(error, "No connection of its own for a request"),
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

/// Gives a connection back when an answer has been read or is not wanted any more; one in the middle of an answer closes by itself.
struct Back {
    to: Arc<Direct>,
    connection: Option<Connection>,
}

impl Drop for Back {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.to.idle.lock().push(connection);
        }
    }
}

/// The request in the form it came.
fn addressed(mut request: http::Request<Body>, address: &http::Uri) -> http::Request<Body> {
    request.headers_mut().remove(http::header::HOST);
    *request.uri_mut() = address.clone();
    request
}

#[cfg(test)]
mod tests;
