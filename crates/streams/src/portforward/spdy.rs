//! Port-forwarding over SPDY, raw or tunnelled through a WebSocket: each connection has an error stream and a data
//! stream.

use std::collections::HashMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{CHUNK, PodDialer};
use crate::backend::Duplex;
use crate::spdy::frame::status;
use crate::spdy::session::{NewStream, Session, StreamWriter};

/// Timeout for the second stream of a connection. A client opens the two streams right after each other.
const PAIR_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of concurrent forwarded connections of one session.
const MAX_CONNECTIONS: usize = 500;

/// Serves one session until the client disconnects or `shutdown` is cancelled.
pub async fn serve(mut session: Session, dialer: PodDialer, shutdown: CancellationToken) {
    let mut unpaired = UnpairedStreams::default();
    let mut connections = JoinSet::new();
    loop {
        let next_expiry = unpaired.next_expiry();
        tokio::select! {
            stream = session.next_stream() => {
                let Some(stream) = stream else { break };
                if let Some(pair) = unpaired.add(stream).await {
                    if connections.len() >= MAX_CONNECTIONS {
                        pair.abandon().await;
                    } else {
                        connections.spawn(pair.forward(dialer.clone()));
                    }
                }
            }
            // Reaps connections that have ended.
            Some(_) = connections.join_next() => {}
            () = sleep_until(next_expiry) => unpaired.expire(Instant::now()).await,
            () = shutdown.cancelled() => break,
        }
    }
    session.close().await;
}

/// Streams whose partner has not been opened yet, by request id, with the time at which they expire.
#[derive(Default)]
struct UnpairedStreams {
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

impl UnpairedStreams {
    fn next_expiry(&self) -> Instant {
        let day = Instant::now() + Duration::from_secs(86_400);
        self.waiting.values().map(|(_, expiry)| *expiry).min().unwrap_or(day)
    }

    async fn expire(&mut self, now: Instant) {
        let expired: Vec<String> =
            self.waiting.iter().filter(|(_, (_, expiry))| *expiry <= now).map(|(id, _)| id.clone()).collect();
        for id in expired {
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
        // Clients that predate request ids open one connection at a time.
        let request = stream.header("requestid").unwrap_or_default().to_owned();
        let (reader, writer) = stream.accept().await.ok()?;
        let half = Half { port, is_error, reader, writer };
        match self.waiting.remove(&request) {
            Some((other, _)) if other.is_error != half.is_error => Some(Pair::of(other, half)),
            Some((stale, _)) => {
                stale.writer.reset(status::PROTOCOL_ERROR).await;
                self.waiting.insert(request, (half, Instant::now() + PAIR_TIMEOUT));
                None
            }
            None => {
                self.waiting.insert(request, (half, Instant::now() + PAIR_TIMEOUT));
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

    /// Closes both streams without data on the error stream, which keeps the client's session alive.
    async fn abandon(self) {
        // Fails only if the client has closed the streams already.
        let _ = self.data.1.finish().await;
        let _ = self.error.1.finish().await;
    }

    async fn forward(self, dialer: PodDialer) {
        let reset = self.data.1.reset_token();
        let connected = tokio::select! {
            connected = dialer.dial(self.port) => connected,
            () = reset.cancelled() => return,
        };
        match connected {
            Ok(connection) => {
                let Self { data: (reader, writer), error, .. } = self;
                tokio::select! {
                    () = relay(connection, reader, writer) => {}
                    () = reset.cancelled() => {}
                }
                let _ = error.1.finish().await;
            }
            Err(error) => {
                tracing::debug!(port = self.port, %error, "Could not connect to the forwarded port");
                self.abandon().await;
            }
        }
    }
}

/// Copies both directions until both have ended. Each direction ends on its own, so half-closed connections work.
async fn relay(connection: Box<dyn Duplex>, mut reader: mpsc::Receiver<Bytes>, writer: StreamWriter) {
    let (mut from_pod, mut to_pod) = tokio::io::split(connection);
    let upload = async {
        while let Some(bytes) = reader.recv().await {
            if to_pod.write_all(&bytes).await.is_err() {
                return;
            }
        }
        // Fails if the Pod closed the connection first.
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
        // The Pod has closed its direction and the client has the end-of-file. Further upload could get no response.
        () = &mut download => {}
        () = &mut upload => download.await,
    }
}
