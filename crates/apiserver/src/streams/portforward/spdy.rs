//! Port-forwarding over SPDY, raw or tunnelled: an error stream and a data stream per connection.

use std::collections::HashMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{CHUNK, Target};
use crate::node::Duplex;
use crate::streams::spdy::frame::status;
use crate::streams::spdy::session::{NewStream, Session, StreamWriter};

/// A client opens the two streams of a connection right after each other.
const PAIR_LIMIT: Duration = Duration::from_secs(30);
const MAX_CONNECTIONS: usize = 500;

/// Serves one session until the client leaves or `shutdown` fires.
pub async fn serve(mut session: Session, target: Target, shutdown: CancellationToken) {
    let mut pairs = Pairs::default();
    let mut connections = JoinSet::new();
    loop {
        let next_expiry = pairs.next_expiry();
        tokio::select! {
            stream = session.next_stream() => {
                let Some(stream) = stream else { break };
                if let Some(pair) = pairs.add(stream).await {
                    if connections.len() >= MAX_CONNECTIONS {
                        pair.abandon().await;
                    } else {
                        connections.spawn(pair.forward(target.clone()));
                    }
                }
            }
            // Finished connections are collected as they end.
            Some(_) = connections.join_next() => {}
            () = sleep_until(next_expiry) => pairs.expire(Instant::now()).await,
            () = shutdown.cancelled() => break,
        }
    }
    session.close().await;
}

/// Streams whose partner has not arrived yet, by request id.
#[derive(Default)]
struct Pairs {
    waiting: HashMap<String, (Half, Instant)>,
}

struct Half {
    port: u16,
    is_error: bool,
    reader: mpsc::Receiver<Bytes>,
    writer: StreamWriter,
}

struct Pair {
    port: u16,
    data: (mpsc::Receiver<Bytes>, StreamWriter),
    error: (mpsc::Receiver<Bytes>, StreamWriter),
}

impl Pairs {
    fn next_expiry(&self) -> Instant {
        let day = Instant::now() + Duration::from_secs(86_400);
        self.waiting.values().map(|(_, expiry)| *expiry).min().unwrap_or(day)
    }

    async fn expire(&mut self, now: Instant) {
        let late: Vec<String> =
            self.waiting.iter().filter(|(_, (_, expiry))| *expiry <= now).map(|(id, _)| id.clone()).collect();
        for id in late {
            if let Some((half, _)) = self.waiting.remove(&id) {
                half.writer.reset(status::CANCEL).await;
            }
        }
    }

    async fn add(&mut self, stream: NewStream) -> Option<Pair> {
        let port = stream.header("port").and_then(|port| port.parse().ok()).filter(|port: &u16| *port > 0);
        let is_error = match stream.header("streamtype") {
            Some("error") => Some(true),
            Some("data") => Some(false),
            _ => None,
        };
        let (Some(port), Some(is_error)) = (port, is_error) else {
            stream.refuse().await;
            return None;
        };
        // Clients older than request ids open one connection at a time.
        let request = stream.header("requestid").unwrap_or_default().to_owned();
        let (reader, writer) = stream.accept().await.ok()?;
        let half = Half { port, is_error, reader, writer };
        match self.waiting.remove(&request) {
            Some((other, _)) if other.is_error != half.is_error => Some(Pair::of(other, half)),
            Some((stale, _)) => {
                stale.writer.reset(status::PROTOCOL_ERROR).await;
                self.waiting.insert(request, (half, Instant::now() + PAIR_LIMIT));
                None
            }
            None => {
                self.waiting.insert(request, (half, Instant::now() + PAIR_LIMIT));
                None
            }
        }
    }
}

impl Pair {
    fn of(first: Half, second: Half) -> Self {
        let (error, data) = if first.is_error { (first, second) } else { (second, first) };
        Self { port: data.port, data: (data.reader, data.writer), error: (error.reader, error.writer) }
    }

    /// Ends the connection without a word on the error stream, which keeps the client's session alive.
    async fn abandon(self) {
        // A client that has already closed the streams does not mind.
        let _ = self.data.1.finish().await;
        let _ = self.error.1.finish().await;
    }

    async fn forward(self, target: Target) {
        let reset = self.data.1.reset_token();
        let dialled = tokio::select! {
            dialled = target.dial(self.port) => dialled,
            () = reset.cancelled() => return,
        };
        match dialled {
            Ok(connection) => {
                let Self { data: (reader, writer), error, .. } = self;
                tokio::select! {
                    () = exchange(connection, reader, writer) => {}
                    () = reset.cancelled() => {}
                }
                let _ = error.1.finish().await;
            }
            Err(error) => {
                tracing::debug!(port = self.port, %error, "Forwarded connection found nobody listening");
                self.abandon().await;
            }
        }
    }
}

/// Both directions until both have ended. Each direction ends on its own, so half-closed connections work.
async fn exchange(connection: Box<dyn Duplex>, mut reader: mpsc::Receiver<Bytes>, writer: StreamWriter) {
    let (mut from_pod, mut to_pod) = tokio::io::split(connection);
    let upload = async {
        while let Some(bytes) = reader.recv().await {
            if to_pod.write_all(&bytes).await.is_err() {
                return;
            }
        }
        // The Pod may have closed first.
        let _ = to_pod.shutdown().await;
    };
    let download = async {
        let mut buffer = BytesMut::new();
        loop {
            buffer.reserve(CHUNK);
            let Ok(1..) = from_pod.read_buf(&mut buffer).await else { break };
            if writer.send(buffer.split().freeze()).await.is_err() {
                break;
            }
        }
        let _ = writer.finish().await;
    };
    tokio::pin!(upload, download);
    tokio::select! {
        // The Pod has sent everything and the client was told; what the client still sends has no reader that answers.
        () = &mut download => {}
        () = &mut upload => download.await,
    }
}
