//! WebSocket messages as numbered channels: the first byte of each message names the channel.

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

use crate::node::TerminalSize;
use crate::streams::remote::{Outcome, Output, OutputStream, Remote, SizeReader, Version};

pub const STDIN: u8 = 0;
pub const STDOUT: u8 = 1;
pub const STDERR: u8 = 2;
pub const ERROR: u8 = 3;
pub const RESIZE: u8 = 4;
/// Version 5: the byte after this one names a channel that the client closes.
pub const CLOSE: u8 = 255;

const OUTPUT_QUEUE: usize = 32;
const INPUT_QUEUE: usize = 32;
/// Clients give up when they hear nothing for about ten seconds.
const HEARTBEAT: Duration = Duration::from_secs(4);
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// How a channel message is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Binary,
    /// A digit, then base64 text.
    Base64,
}

impl Encoding {
    pub fn named(protocol: &str) -> Self {
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

    /// The channel and payload of a data message; `None` for anything that is not one (it is skipped).
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

/// Starts moving messages of `socket`; the returned streams are those of one command.
pub fn remote<T>(socket: WebSocketStream<T>, version: Version, encoding: Encoding) -> Remote
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sink, stream) = socket.split();
    let (messages, queue) = mpsc::channel(OUTPUT_QUEUE);
    let (stdin_sender, stdin) = mpsc::channel(INPUT_QUEUE);
    let (resize_sender, resize) = mpsc::channel(4);
    let gone = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(write_messages(queue, sink, gone.clone()));
    let input = Input {
        stdin: Some(stdin_sender),
        resize: resize_sender,
        sizes: SizeReader::default(),
        heartbeat: messages.clone().downgrade(),
        version,
        encoding,
        gone: gone.clone(),
    };
    tasks.spawn(input.run(stream));
    let output = Box::new(ChannelOutput { messages, version, encoding, tasks });
    Remote { stdin, resize, output, gone }
}

pub(in crate::streams) async fn write_messages<W>(
    mut queue: mpsc::Receiver<Message>,
    mut sink: W,
    gone: CancellationToken,
) where
    W: futures::Sink<Message, Error = tungstenite::Error> + Unpin,
{
    let _end = gone.drop_guard();
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
    // The socket is being closed; a client that has already left needs no goodbye.
    let _ = sink.close().await;
}

struct Input {
    stdin: Option<mpsc::Sender<Bytes>>,
    resize: mpsc::Sender<TerminalSize>,
    sizes: SizeReader,
    heartbeat: mpsc::WeakSender<Message>,
    version: Version,
    encoding: Encoding,
    gone: CancellationToken,
}

impl Input {
    async fn run<R>(mut self, mut stream: R)
    where
        R: Stream<Item = Result<Message, tungstenite::Error>> + Unpin,
    {
        let _end = self.gone.clone().drop_guard();
        while let Some(Ok(message)) = stream.next().await {
            match self.encoding.decode(message) {
                Some((STDIN, bytes)) => self.type_in(bytes).await,
                Some((RESIZE, bytes)) => {
                    if let Some(size) = self.sizes.push(&bytes) {
                        // A full queue holds newer sizes than the process has seen anyway.
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

    /// Hands input on. While the process does not read, the connection is not read either, so that memory stays
    /// bounded; unasked-for pongs tell the client that we are still here.
    async fn type_in(&mut self, bytes: Bytes) {
        let Some(stdin) = self.stdin.clone().filter(|_| !bytes.is_empty()) else { return };
        loop {
            tokio::select! {
                permit = stdin.reserve() => {
                    match permit {
                        Ok(permit) => permit.send(bytes),
                        // The process has closed its input: the rest is thrown away, as a shell's pipe would.
                        Err(_) => self.stdin = None,
                    }
                    return;
                }
                () = self.gone.cancelled() => return,
                () = sleep(HEARTBEAT) => {
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
        let goodbye = async {
            if !report.is_empty() {
                messages.send(encoding.encode(ERROR, &report)).await.ok()?;
            }
            let close = tungstenite::protocol::CloseFrame { code: CloseCode::Normal, reason: "".into() };
            messages.send(Message::Close(Some(close))).await.ok()?;
            drop(messages);
            // Until the client has answered the close: closing the connection earlier could lose the report.
            while tasks.join_next().await.is_some() {}
            Some(())
        };
        // A client that does not answer is cut off.
        let _ = timeout(CLOSE_LIMIT, goodbye).await;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn messages_survive_both_encodings(channel in 0u8..10, payload in prop::collection::vec(any::<u8>(), 0..200)) {
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
