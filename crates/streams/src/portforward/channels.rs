//! Port-forwarding over WebSocket channels. The URL lists the ports; the `i`-th uses channel `2i` for data and `2i + 1`
//! for errors. Each port gets one connection.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;

use super::{CHUNK, PodDialer};
use crate::websocket::channels::{Encoding, write_messages};

/// Maximum number of queued messages, per direction and port.
const QUEUE: usize = 64;
/// Timeout for sending the closing frames.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves the ports until the client disconnects, all ports have closed, or `shutdown` is cancelled.
pub async fn serve<T>(
    socket: WebSocketStream<T>,
    encoding: Encoding,
    ports: Vec<u16>,
    dialer: PodDialer,
    shutdown: CancellationToken,
) where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sink, mut stream) = socket.split();
    let (messages, queue) = mpsc::channel(QUEUE);
    let disconnected = CancellationToken::new();
    let mut writer = JoinSet::new();
    writer.spawn(write_messages(queue, sink, disconnected.clone()));
    let mut connections = JoinSet::new();
    let mut inputs: Vec<Option<mpsc::Sender<Bytes>>> = Vec::with_capacity(ports.len());
    for (index, port) in ports.into_iter().enumerate() {
        let (input, bytes) = mpsc::channel(QUEUE);
        inputs.push(Some(input));
        let channel = PortChannel { encoding, data: index as u8 * 2, port, messages: messages.clone() };
        connections.spawn(channel.forward(dialer.clone(), bytes));
    }
    drop(messages);
    loop {
        tokio::select! {
            message = stream.next() => {
                let Some(Ok(message)) = message else { break };
                let Some((channel, bytes)) = encoding.decode(message) else { continue };
                let index = usize::from(channel / 2);
                if channel % 2 == 0
                    && let Some(Some(input)) = inputs.get(index)
                    && input.send(bytes).await.is_err()
                {
                    inputs[index] = None;
                }
            }
            ended = connections.join_next() => if ended.is_none() { break },
            () = disconnected.cancelled() => break,
            () = shutdown.cancelled() => break,
        }
    }
    connections.shutdown().await;
    // With the last sender dropped, the writer sends the closing frames; the timeout is for a client that reads
    // nothing.
    let _ = timeout(CLOSE_TIMEOUT, writer.join_next()).await;
}

struct PortChannel {
    encoding: Encoding,
    /// Number of the data channel; the error channel is the next one.
    data: u8,
    port: u16,
    messages: mpsc::Sender<Message>,
}

impl PortChannel {
    async fn send(&self, channel: u8, payload: &[u8]) -> Option<()> {
        self.messages.send(self.encoding.encode(channel, payload)).await.ok()
    }

    async fn forward(self, dialer: PodDialer, mut input: mpsc::Receiver<Bytes>) -> Option<()> {
        // The first message of each channel is the port number.
        self.send(self.data, &self.port.to_le_bytes()).await?;
        self.send(self.data + 1, &self.port.to_le_bytes()).await?;
        let connection = match dialer.dial(self.port).await {
            Ok(connection) => connection,
            Err(error) => return self.send(self.data + 1, error.to_string().as_bytes()).await,
        };
        let (mut from_pod, mut to_pod) = tokio::io::split(connection);
        let upload = async {
            while let Some(bytes) = input.recv().await {
                if to_pod.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            let _ = to_pod.shutdown().await;
        };
        let download = async {
            let mut buffer = BytesMut::new();
            loop {
                buffer.reserve(CHUNK);
                let Ok(1..) = from_pod.read_buf(&mut buffer).await else { return };
                if self.send(self.data, &buffer.split()).await.is_none() {
                    return;
                }
            }
        };
        tokio::pin!(upload, download);
        tokio::select! {
            () = &mut download => {}
            () = &mut upload => download.await,
        }
        Some(())
    }
}
