//! Whole sessions over in-memory pipes: with a well-behaved client, a slow one, and arbitrary input.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{SinkExt, StreamExt};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_util::io::ReaderStream;
use tokio_util::sync::CancellationToken;

use crate::backend::{
    Duplex, ExecRequest, ExitStatus, LogOptions, NodeBackend, NodeError, PodRef, ProcessSession, StreamSet,
};
use crate::portforward::{self, PodDialer};
use crate::remotecommand::Version;
use crate::spdy::frame::{Frame, FrameReader, FrameWriter};
use crate::spdy::session::Session;
use crate::websocket::{self, channels, tunnel};
use crate::{process, remotecommand};

const TEST_TIMEOUT: Duration = Duration::from_secs(20);
const ECHO: u16 = 1;
const REFUSED: u16 = 2;
const NEVER_READS: u16 = 3;

/// A backend with three ports: one echoes, one refuses, one accepts and never reads.
struct TestBackend;

#[async_trait]
impl NodeBackend for TestBackend {
    async fn logs(&self, _: &PodRef, _: LogOptions) -> Result<BoxStream<'static, io::Result<Bytes>>, NodeError> {
        Err(NodeError::Internal("no logs here".into()))
    }

    async fn exec(&self, _: &PodRef, _: ExecRequest) -> Result<ProcessSession, NodeError> {
        Ok(echo_process())
    }

    async fn attach(&self, _: &PodRef, _: &str, _: StreamSet) -> Result<ProcessSession, NodeError> {
        Ok(echo_process())
    }

    async fn port_forward(&self, _: &PodRef, port: u16) -> Result<Box<dyn Duplex>, NodeError> {
        let (ours, theirs) = tokio::io::duplex(4096);
        match port {
            ECHO => {
                let (mut reader, mut writer) = tokio::io::split(theirs);
                tokio::spawn(async move {
                    tokio::io::copy(&mut reader, &mut writer).await.ok();
                    writer.shutdown().await.ok();
                });
            }
            NEVER_READS => {
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_secs(3600)).await;
                    drop(theirs);
                });
            }
            other => return Err(NodeError::Unavailable(format!("no process listens on port {other}"))),
        }
        Ok(Box::new(ours))
    }
}

/// Echoes its input; exits with 0 at the end of input.
fn echo_process() -> ProcessSession {
    let (stdin, mut input) = tokio::io::duplex(4096);
    let (mut output, stdout) = tokio::io::duplex(4096);
    let exit = async move {
        tokio::io::copy(&mut input, &mut output).await.ok();
        Ok(ExitStatus { code: 0 })
    };
    ProcessSession {
        stdin: Some(Box::pin(stdin)),
        stdout: Some(Box::pin(stdout)),
        stderr: None,
        resize: None,
        exit: Box::pin(exit),
    }
}

fn dialer() -> PodDialer {
    let pod = PodRef { namespace: "ns".into(), name: "p".into(), uid: "u".into() };
    PodDialer { backend: Arc::new(TestBackend), pod }
}

/// The client's end of a SPDY connection to the port-forward server.
struct Client {
    pipe: DuplexStream,
    reader: FrameReader,
    writer: FrameWriter,
}

impl Client {
    fn connect() -> (Self, tokio::task::JoinHandle<()>) {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let (source, sink) = tokio::io::split(far);
        let sink = tokio_util::codec::FramedWrite::new(sink, tokio_util::codec::BytesCodec::new());
        let session = Session::with_stall_timeout(ReaderStream::new(source), sink, Duration::from_millis(500));
        let serving = tokio::spawn(portforward::spdy::serve(session, dialer(), CancellationToken::new()));
        (Self { pipe: near, reader: FrameReader::default(), writer: FrameWriter::default() }, serving)
    }

    async fn send(&mut self, frame: Frame) {
        let bytes = self.writer.encode(&frame).unwrap();
        self.pipe.write_all(&bytes).await.unwrap();
    }

    async fn next(&mut self) -> Frame {
        let read = async {
            loop {
                if let Some(frame) = self.reader.next().unwrap() {
                    return frame;
                }
                let mut buffer = [0; 4096];
                let length = self.pipe.read(&mut buffer).await.unwrap();
                assert!(length > 0, "the connection ended");
                self.reader.push(&buffer[..length]);
            }
        };
        timeout(TEST_TIMEOUT, read).await.expect("a frame in time")
    }

    /// Opens the two streams of a forwarded connection; ids are `first` and `first + 2`.
    async fn open(&mut self, first: u32, port: u16) {
        for (id, kind) in [(first, "error"), (first + 2, "data")] {
            let headers = vec![
                ("streamtype".to_owned(), kind.to_owned()),
                ("port".to_owned(), port.to_string()),
                ("requestid".to_owned(), first.to_string()),
            ];
            self.send(Frame::SynStream { id, headers, fin: kind == "error" }).await;
            // Closing frames of an earlier stream may arrive in between.
            while !matches!(self.next().await, Frame::SynReply { id: replied, .. } if replied == id) {}
        }
    }
}

fn data(id: u32, payload: &'static [u8], fin: bool) -> Frame {
    Frame::Data { id, payload: Bytes::from_static(payload), fin }
}

#[tokio::test]
async fn a_connection_echoes_half_closes_and_ends_without_an_error_message() {
    let (mut client, _serving) = Client::connect();
    client.open(1, ECHO).await;
    client.send(data(3, b"hello", true)).await;
    assert_eq!(client.next().await, data(3, b"hello", false));
    assert_eq!(client.next().await, data(3, b"", true));
    assert_eq!(client.next().await, data(1, b"", true));
    client.send(Frame::Ping(7)).await;
    assert_eq!(client.next().await, Frame::Ping(7));
}

/// D-224, D-225: idle connections and refusing ports do not end the session.
#[tokio::test]
async fn idle_and_refused_connections_do_not_end_the_session() {
    let (mut client, _serving) = Client::connect();
    client.open(1, ECHO).await;
    client.send(data(3, b"", true)).await;
    assert_eq!(client.next().await, data(3, b"", true));
    assert_eq!(client.next().await, data(1, b"", true));
    client.open(5, REFUSED).await;
    client.send(data(7, b"anyone?", false)).await;
    assert_eq!(client.next().await, data(7, b"", true));
    assert_eq!(client.next().await, data(5, b"", true));
    client.open(9, ECHO).await;
    client.send(Frame::RstStream { id: 11, status: 5 }).await;
    client.open(13, ECHO).await;
    client.send(data(15, b"still fine", false)).await;
    loop {
        match client.next().await {
            Frame::Data { id: 15, payload, .. } => break assert_eq!(&payload[..], b"still fine"),
            other => assert_eq!(other, data(9, b"", true)),
        }
    }
}

/// A Pod that does not read blocks its connection, and all others of the session until its stream is reset.
#[tokio::test]
async fn the_stream_of_a_pod_that_never_reads_is_reset() {
    let (mut client, _serving) = Client::connect();
    client.open(1, NEVER_READS).await;
    let (mut reader, mut writer) = tokio::io::split(client.pipe);
    let piece = client.writer.encode(&data(3, &[7; 16_000], false)).unwrap();
    let flood = tokio::spawn(async move {
        for _ in 0..1000 {
            if writer.write_all(&piece).await.is_err() {
                return;
            }
        }
    });
    let reset = async {
        loop {
            if let Some(frame) = client.reader.next().unwrap() {
                return frame;
            }
            let mut buffer = [0; 4096];
            let length = reader.read(&mut buffer).await.unwrap();
            client.reader.push(&buffer[..length]);
        }
    };
    let frame = timeout(TEST_TIMEOUT, reset).await.expect("a reset in time");
    assert!(matches!(frame, Frame::RstStream { id: 3, .. }), "{frame:?}");
    flood.await.unwrap();
}

#[tokio::test]
async fn streams_with_invalid_headers_are_refused_individually() {
    let (mut client, _serving) = Client::connect();
    for (id, headers) in [
        (1, vec![]),
        (3, vec![("streamtype", "data"), ("port", "0")]),
        (5, vec![("streamtype", "other"), ("port", "1")]),
    ] {
        let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        client.send(Frame::SynStream { id, headers, fin: false }).await;
        assert!(matches!(client.next().await, Frame::RstStream { id: reset, status: 3 } if reset == id));
    }
}

/// D-223: SPDY works over WebSocket messages of any size, including empty ones and single bytes.
#[tokio::test]
async fn a_tunnel_works_with_single_byte_messages() {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let (source, sink) = tunnel::split(websocket::accept(far).await);
    tokio::spawn(portforward::spdy::serve(Session::start(source, sink), dialer(), CancellationToken::new()));
    let mut socket = WebSocketStream::from_raw_socket(near, Role::Client, None).await;
    let mut writer = FrameWriter::default();
    let mut bytes = Vec::new();
    for (id, kind) in [(1, "error"), (3, "data")] {
        let headers = vec![("streamtype".to_owned(), kind.to_owned()), ("port".to_owned(), ECHO.to_string())];
        bytes.extend_from_slice(&writer.encode(&Frame::SynStream { id, headers, fin: false }).unwrap());
    }
    bytes.extend_from_slice(&writer.encode(&data(3, b"tiny", false)).unwrap());
    for byte in bytes {
        socket.send(Message::Binary(Bytes::new())).await.unwrap();
        socket.send(Message::Binary(Bytes::copy_from_slice(&[byte]))).await.unwrap();
    }
    let mut reader = FrameReader::default();
    let echoed = async {
        loop {
            while let Some(frame) = reader.next().unwrap() {
                if let Frame::Data { id: 3, payload, .. } = frame {
                    return payload;
                }
            }
            if let Message::Binary(bytes) = socket.next().await.unwrap().unwrap() {
                reader.push(&bytes);
            }
        }
    };
    assert_eq!(timeout(TEST_TIMEOUT, echoed).await.expect("an echo in time"), Bytes::from_static(b"tiny"));
}

/// Closing channel 0 is the end of input (version 5), and the outcome is sent before the close frame.
#[tokio::test]
async fn a_command_over_channels_runs_until_it_exits() {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let client = channels::client_streams(websocket::accept(far).await, Version::V5, channels::Encoding::Binary);
    tokio::spawn(process::run(async { Ok(echo_process()) }, client));
    let mut socket = WebSocketStream::from_raw_socket(near, Role::Client, None).await;
    socket.send(Message::Binary(Bytes::from_static(b"\x00typed"))).await.unwrap();
    socket.send(Message::Binary(Bytes::from_static(&[255, 0]))).await.unwrap();
    let mut seen = Vec::new();
    while let Some(Ok(message)) = timeout(TEST_TIMEOUT, socket.next()).await.expect("a message in time") {
        seen.push(message);
    }
    assert_eq!(seen[0], Message::Binary(Bytes::from_static(b"\x01typed")));
    assert_eq!(seen[1], Message::Binary(Bytes::from_static(b"\x03{\"metadata\":{},\"status\":\"Success\"}")));
    assert!(matches!(&seen[2], Message::Close(Some(frame)) if u16::from(frame.code) == 1000));
}

/// While a process does not read, the client gets pongs, and buffering is bounded.
#[tokio::test]
async fn a_process_that_does_not_read_applies_backpressure_to_its_client() {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let client = channels::client_streams(websocket::accept(far).await, Version::V5, channels::Encoding::Binary);
    let (stdin, _never_read) = tokio::io::duplex(16);
    let session = ProcessSession {
        stdin: Some(Box::pin(stdin)),
        stdout: None,
        stderr: None,
        resize: None,
        exit: Box::pin(std::future::pending()),
    };
    tokio::spawn(process::run(async { Ok(session) }, client));
    let socket = WebSocketStream::from_raw_socket(near, Role::Client, None).await;
    let (mut sink, mut stream) = socket.split();
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = sent.clone();
    let flood = tokio::spawn(async move {
        while sink.send(Message::Binary(Bytes::from(vec![0; 1024]))).await.is_ok() {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    let pong = async { while !matches!(stream.next().await, Some(Ok(Message::Pong(_)))) {} };
    timeout(Duration::from_secs(30), pong).await.expect("a pong in time");
    assert!(sent.load(Ordering::Relaxed) < 1000, "the client was held back");
    flood.abort();
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let id = 1u32..30;
    let header = prop_oneof![
        Just(("streamtype", "data")),
        Just(("streamtype", "error")),
        Just(("port", "1")),
        Just(("port", "2")),
        Just(("port", "x")),
        Just(("requestid", "0")),
        Just(("requestid", "1")),
    ];
    let headers = prop::collection::vec(header, 0..4).prop_map(|pairs| {
        pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect::<Vec<_>>()
    });
    prop_oneof![
        (id.clone(), headers.clone(), any::<bool>()).prop_map(|(id, headers, fin)| Frame::SynStream {
            id,
            headers,
            fin
        }),
        (id.clone(), headers, any::<bool>()).prop_map(|(id, headers, fin)| Frame::SynReply { id, headers, fin }),
        (id.clone(), 1u32..9).prop_map(|(id, status)| Frame::RstStream { id, status }),
        any::<u32>().prop_map(Frame::Ping),
        Just(Frame::GoAway { last_stream: 0 }),
        (id, prop::collection::vec(any::<u8>(), 0..100), any::<bool>()).prop_map(|(id, payload, fin)| Frame::Data {
            id,
            payload: payload.into(),
            fin
        }),
    ]
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any order of frames, the session ends soon after the client disconnects.
    #[test]
    fn a_session_tolerates_any_frames_and_ends(frames in prop::collection::vec(any_frame(), 0..40), tail in prop::collection::vec(any::<u8>(), 0..40)) {
        run(async {
            let (mut client, serving) = Client::connect();
            for frame in frames {
                let bytes = client.writer.encode(&frame).unwrap();
                if client.pipe.write_all(&bytes).await.is_err() {
                    break;
                }
            }
            client.pipe.write_all(&tail).await.ok();
            drop(client);
            timeout(TEST_TIMEOUT, serving).await.expect("the session ends").unwrap();
        });
    }

    /// For any bytes on the connection, the command ends at the latest when the client disconnects.
    #[test]
    fn a_command_tolerates_any_websocket_bytes_and_ends(bytes in prop::collection::vec(any::<u8>(), 0..400), base64 in any::<bool>()) {
        run(async {
            let (mut near, far) = tokio::io::duplex(64 * 1024);
            let encoding = if base64 { channels::Encoding::Base64 } else { channels::Encoding::Binary };
            let client: remotecommand::ClientStreams = channels::client_streams(websocket::accept(far).await, Version::V4, encoding);
            let running = tokio::spawn(process::run(async { Ok(echo_process()) }, client));
            near.write_all(&bytes).await.ok();
            drop(near);
            timeout(TEST_TIMEOUT, running).await.expect("the command ends").unwrap();
        });
    }

    /// Valid messages on any channel, in any order, with any content.
    #[test]
    fn a_command_tolerates_any_channel_messages(messages in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..60)), 0..30)) {
        run(async {
            let (near, far) = tokio::io::duplex(64 * 1024);
            let client = channels::client_streams(websocket::accept(far).await, Version::V5, channels::Encoding::Binary);
            let running = tokio::spawn(process::run(async { Ok(echo_process()) }, client));
            let mut socket = WebSocketStream::from_raw_socket(near, Role::Client, None).await;
            for (channel, payload) in messages {
                if socket.send(channels::Encoding::Binary.encode(channel, &payload)).await.is_err() {
                    break;
                }
            }
            drop(socket);
            timeout(TEST_TIMEOUT, running).await.expect("the command ends").unwrap();
        });
    }
}
