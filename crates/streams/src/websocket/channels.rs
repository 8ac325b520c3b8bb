//! Exec and attach over WebSocket channels: the first byte of each message is the channel number.

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::{BufMut, Bytes, BytesMut};
use futures::{SinkExt, Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_util::sync::CancellationToken;

use crate::backend::TerminalSize;
use crate::remotecommand::{ClientStreams, Outcome, Output, OutputStream, SizeReader, Version};

pub const STDIN: u8 = 0;
pub const STDOUT: u8 = 1;
pub const STDERR: u8 = 2;
pub const ERROR: u8 = 3;
pub const RESIZE: u8 = 4;
/// Since protocol version 5: the client closes the channel whose number is the next byte.
pub const CLOSE: u8 = 255;

const OUTPUT_QUEUE: usize = 32;
const INPUT_QUEUE: usize = 32;
/// Interval of pongs while stdin is blocked. Clients close a connection that is silent for about ten seconds.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(4);
/// Timeout for sending the outcome and closing the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Encoding of channel messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Binary,
    /// The channel number as a digit, then the payload as base64.
    Base64,
}

impl Encoding {
    pub fn from_protocol(protocol: &str) -> Self {
        if protocol.contains("base64") { Self::Base64 } else { Self::Binary }
    }

    pub fn encode(self, channel: u8, payload: &[u8]) -> Message {
        match self {
            Self::Binary => {
                let mut bytes = BytesMut::with_capacity(payload.len() + 1);
                bytes.put_u8(channel);
                bytes.put_slice(payload);
                Message::Binary(bytes.freeze())
            }
            Self::Base64 => Message::text(format!("{}{}", channel, BASE64.encode(payload))),
        }
    }

    /// The channel and payload of a data message; `None` for any other message, which callers skip.
    pub fn decode(self, message: Message) -> Option<(u8, Bytes)> {
        let mut bytes = match message {
            Message::Binary(bytes) => bytes,
            Message::Text(text) => Bytes::from(text),
            _ => return None,
        };
        if bytes.is_empty() {
            return None;
        }
        let channel = bytes.split_to(1)[0];
        match self {
            Self::Binary => Some((channel, bytes)),
            Self::Base64 => {
                let channel = channel.checked_sub(b'0').filter(|digit| *digit < 10)?;
                Some((channel, BASE64.decode(&bytes).ok()?.into()))
            }
        }
    }
}

/// Starts the tasks that read and write `socket`, and returns the streams of one command.
pub fn client_streams<T>(socket: WebSocketStream<T>, version: Version, encoding: Encoding) -> ClientStreams
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sink, stream) = socket.split();
    let (messages, queue) = mpsc::channel(OUTPUT_QUEUE);
    let (stdin_sender, stdin) = mpsc::channel(INPUT_QUEUE);
    let (resize_sender, resize) = mpsc::channel(4);
    let disconnected = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(write_messages(queue, sink, disconnected.clone()));
    let input = Input {
        stdin: Some(stdin_sender),
        resize: resize_sender,
        sizes: SizeReader::default(),
        heartbeat: messages.clone().downgrade(),
        version,
        encoding,
        disconnected: disconnected.clone(),
    };
    tasks.spawn(input.run(stream));
    let output = Box::new(ChannelOutput { messages, version, encoding, tasks });
    ClientStreams { stdin, resize, output, disconnected }
}

/// Writes queued messages until all senders are dropped, then closes the socket.
pub(crate) async fn write_messages<W>(mut queue: mpsc::Receiver<Message>, mut sink: W, disconnected: CancellationToken)
where
    W: futures::Sink<Message, Error = tungstenite::Error> + Unpin,
{
    let _cancel_on_return = disconnected.drop_guard();
    while let Some(first) = queue.recv().await {
        let mut next = Some(first);
        while let Some(message) = next {
            if sink.feed(message).await.is_err() {
                return;
            }
            next = queue.try_recv().ok();
        }
        if sink.flush().await.is_err() {
            return;
        }
    }
    // All senders are dropped: close the socket. That fails only if the client has disconnected.
    let _ = sink.close().await;
}

struct Input {
    stdin: Option<mpsc::Sender<Bytes>>,
    resize: mpsc::Sender<TerminalSize>,
    sizes: SizeReader,
    heartbeat: mpsc::WeakSender<Message>,
    version: Version,
    encoding: Encoding,
    disconnected: CancellationToken,
}

impl Input {
    async fn run<R>(mut self, mut stream: R)
    where
        R: Stream<Item = Result<Message, tungstenite::Error>> + Unpin,
    {
        let _cancel_on_return = self.disconnected.clone().drop_guard();
        while let Some(Ok(message)) = stream.next().await {
            match self.encoding.decode(message) {
                Some((STDIN, bytes)) => self.forward_stdin(bytes).await,
                Some((RESIZE, bytes)) => {
                    if let Some(size) = self.sizes.push(&bytes) {
                        // If the queue is full, this size is dropped; the queued ones are newer than the current one.
                        let _ = self.resize.try_send(size);
                    }
                }
                Some((CLOSE, bytes)) if self.version >= Version::V5 && bytes.first() == Some(&STDIN) => {
                    self.stdin = None
                }
                _ => {}
            }
        }
    }

    /// Forwards input to the process. While the process does not read, the connection is not read either, which bounds
    /// memory; unsolicited pongs keep the client from closing the connection meanwhile.
    async fn forward_stdin(&mut self, bytes: Bytes) {
        let Some(stdin) = self.stdin.clone().filter(|_| !bytes.is_empty()) else { return };
        loop {
            tokio::select! {
                permit = stdin.reserve() => {
                    match permit {
                        Ok(permit) => permit.send(bytes),
                        // The process has closed its stdin: discard the rest, as a shell's pipe would.
                        Err(_) => self.stdin = None,
                    }
                    return;
                }
                () = self.disconnected.cancelled() => return,
                () = sleep(HEARTBEAT_INTERVAL) => {
                    if let Some(messages) = self.heartbeat.upgrade() {
                        let _ = messages.try_send(Message::Pong(Bytes::new()));
                    }
                }
            }
        }
    }
}

struct ChannelOutput {
    messages: mpsc::Sender<Message>,
    version: Version,
    encoding: Encoding,
    tasks: JoinSet<()>,
}

#[async_trait]
impl Output for ChannelOutput {
    async fn write(&self, stream: OutputStream, bytes: Bytes) -> io::Result<()> {
        let channel = match stream {
            OutputStream::Stdout => STDOUT,
            OutputStream::Stderr => STDERR,
        };
        let message = self.encoding.encode(channel, &bytes);
        self.messages.send(message).await.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    async fn finish(self: Box<Self>, outcome: &Outcome) {
        let Self { messages, version, encoding, mut tasks } = *self;
        let report = version.report(outcome);
        let close = async {
            if !report.is_empty() {
                messages.send(encoding.encode(ERROR, &report)).await.ok()?;
            }
            let frame = tungstenite::protocol::CloseFrame { code: CloseCode::Normal, reason: "".into() };
            messages.send(Message::Close(Some(frame))).await.ok()?;
            drop(messages);
            // Wait for the client's close frame: closing the connection earlier could lose the report.
            while tasks.join_next().await.is_some() {}
            Some(())
        };
        // A client that does not respond within the timeout is disconnected.
        let _ = timeout(CLOSE_TIMEOUT, close).await;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn messages_round_trip_in_both_encodings(channel in 0u8..10, payload in prop::collection::vec(any::<u8>(), 0..200)) {
            for encoding in [Encoding::Binary, Encoding::Base64] {
                let message = encoding.encode(channel, &payload);
                prop_assert_eq!(encoding.decode(message), Some((channel, Bytes::from(payload.clone()))));
            }
        }

        #[test]
        fn arbitrary_messages_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "\\PC{0,50}") {
            for encoding in [Encoding::Binary, Encoding::Base64] {
                let _ = encoding.decode(Message::Binary(bytes.clone().into()));
                let _ = encoding.decode(Message::text(text.clone()));
            }
        }
    }
}
