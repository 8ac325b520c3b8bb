//! Tests of the stream against the WebSocket server of another library, and against itself.

use super::*;
use bytes::{BufMut, Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncWriteExt, DuplexStream};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        protocol::{
            Role,
            frame::{
                Frame as RawFrame,
                coding::{Data, OpCode},
            },
        },
    },
};

async fn pair() -> (PortForwardStream<DuplexStream>, WebSocketStream<DuplexStream>) {
    pair_of(PortForwardStream::client).await
}

type Make = fn(DuplexStream) -> PortForwardStream<DuplexStream>;

/// Both masking modes of a client.
const CLIENTS: [Make; 2] = [PortForwardStream::client, PortForwardStream::client_in_tls];

async fn pair_of(client: Make) -> (PortForwardStream<DuplexStream>, WebSocketStream<DuplexStream>) {
    // An odd size, so that frames are split at every position.
    let (near, far) = tokio::io::duplex(1021);
    let mut server = WebSocketStream::from_raw_socket(far, Role::Server, None).await;
    for channel in [0, 1] {
        server.send(message(channel, &8080_u16.to_le_bytes())).await.unwrap();
    }
    (client(near), server)
}

fn message(channel: u8, content: &[u8]) -> Message {
    let mut bytes = BytesMut::with_capacity(content.len() + 1);
    bytes.put_u8(channel);
    bytes.put_slice(content);
    Message::Binary(bytes.freeze())
}

fn noise(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index.wrapping_mul(2_654_435_761) >> 7) as u8).collect()
}

#[tokio::test]
async fn everything_arrives_in_both_directions() {
    for client in CLIENTS {
        exchange(pair_of(client).await).await;
    }
}

async fn exchange((channel, server): (PortForwardStream<DuplexStream>, WebSocketStream<DuplexStream>)) {
    let content = noise(300_001);
    let (mut from, mut to) = tokio::io::split(channel);
    let (mut sink, mut stream) = server.split();
    let sending = async {
        to.write_all(&content).await.unwrap();
        to.shutdown().await.unwrap();
    };
    let receiving = async {
        let mut got = Vec::new();
        while let Some(Ok(message)) = stream.next().await {
            if let Message::Binary(bytes) = message {
                assert_eq!(bytes[0], DATA);
                got.extend_from_slice(&bytes[1..]);
            }
        }
        got
    };
    let serving = async {
        for (size, piece) in [1, 7, 70_000, 229_993].into_iter().zip(0..) {
            let start = [0, 1, 8, 70_008][piece];
            sink.send(message(DATA, &content[start..start + size])).await.unwrap();
        }
    };
    let reading = async {
        let mut got = vec![0; content.len()];
        from.read_exact(&mut got).await.unwrap();
        got
    };
    let ((), got, (), read) = tokio::join!(sending, receiving, serving, reading);
    assert!(got == content, "what the client sent");
    assert!(read == content, "what the server sent");
}

#[tokio::test]
async fn pings_are_answered_between_the_frames_of_one_message() {
    let (mut channel, mut server) = pair().await;
    let part = |content: &'static [u8], opcode, last| {
        Message::Frame(RawFrame::message(Bytes::from_static(content), OpCode::Data(opcode), last))
    };
    server.send(part(b"\0ab", Data::Binary, false)).await.unwrap();
    server.send(Message::Ping(Bytes::from_static(b"there?"))).await.unwrap();
    server.send(part(b"cd", Data::Continue, true)).await.unwrap();
    let mut got = [0; 4];
    channel.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"abcd");
    // The pong is sent although nothing is written: reading is enough.
    let pong = async { server.next().await.unwrap().unwrap() };
    let mut more = [0; 1];
    tokio::select! {
        response = pong => assert_eq!(response, Message::Pong(Bytes::from_static(b"there?"))),
        read = channel.read(&mut more) => panic!("{read:?}"),
    }
}

#[tokio::test]
async fn text_on_the_error_channel_is_the_read_error_after_all_data() {
    let (mut channel, mut server) = pair().await;
    server.send(message(DATA, b"half")).await.unwrap();
    server.send(message(DATA + 1, b"connection refused")).await.unwrap();
    let mut got = Vec::new();
    let error = channel.read_to_end(&mut got).await.unwrap_err();
    assert_eq!(got, b"half");
    assert_eq!(error.to_string(), "connection refused");
}

#[tokio::test]
async fn a_close_frame_and_a_lost_connection_are_the_end() {
    for close_frame in [true, false] {
        let (mut channel, mut server) = pair().await;
        server.send(message(DATA, b"bye")).await.unwrap();
        if close_frame {
            server.close(None).await.unwrap();
        }
        drop(server);
        let mut got = Vec::new();
        channel.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"bye");
    }
}

#[tokio::test]
async fn invalid_frames_are_an_error() {
    let (near, mut far) = tokio::io::duplex(1024);
    far.write_all(&[0xf7, 0xff, 0xff, 0xff]).await.unwrap();
    assert!(PortForwardStream::client(near).read(&mut [0; 8]).await.is_err());
    let (near, mut far) = tokio::io::duplex(1024);
    far.write_all(&[0x82, 0x83, 1, 2, 3, 4, 0, 0, 0]).await.unwrap();
    let error = PortForwardStream::client(near).read(&mut [0; 8]).await.unwrap_err();
    assert!(error.to_string().contains("masked"), "{error}");
}

#[tokio::test]
async fn client_and_server_exchange_data() {
    for client in CLIENTS {
        let (near, far) = tokio::io::duplex(1021);
        converse(client(near), PortForwardStream::server(far, 8080)).await;
    }
}

async fn converse(mut client: PortForwardStream<DuplexStream>, mut server: PortForwardStream<DuplexStream>) {
    let content = noise(200_003);
    let requesting = async {
        client.write_all(&content).await.unwrap();
        client.shutdown().await.unwrap();
        let mut response = Vec::new();
        client.read_to_end(&mut response).await.unwrap();
        response
    };
    let responding = async {
        let mut got = Vec::new();
        server.read_to_end(&mut got).await.unwrap();
        // The server can still respond after the client's Close frame.
        server.write_all(&got).await.unwrap();
        server.shutdown().await.unwrap();
    };
    let (response, ()) = tokio::join!(requesting, responding);
    assert!(response == content);
}

/// Every frame of a client carries a masking key; inside TLS the key leaves the content unchanged.
#[tokio::test]
async fn content_in_tls_is_masked_with_zeros() {
    let (near, mut far) = tokio::io::duplex(1021);
    let mut client = PortForwardStream::client_in_tls(near);
    client.write_all(b"plain").await.unwrap();
    client.flush().await.unwrap();
    let mut sent = [0; 12];
    far.read_exact(&mut sent).await.unwrap();
    assert_eq!(sent, *b"\x82\x86\0\0\0\0\0plain");
}

/// Different tasks may read and write: neither takes the other's wake-up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reading_and_writing_work_in_separate_tasks() {
    for client in CLIENTS {
        let (near, far) = tokio::io::duplex(1021);
        both_ways([client(near), PortForwardStream::server(far, 8080)]).await;
    }
}

async fn both_ways(ends: [PortForwardStream<DuplexStream>; 2]) {
    let content = noise(2_000_003);
    let mut tasks = tokio::task::JoinSet::new();
    for end in ends {
        let (mut from, mut to) = tokio::io::split(end);
        let (sent, expected) = (content.clone(), content.clone());
        tasks.spawn(async move {
            to.write_all(&sent).await.unwrap();
            to.flush().await.unwrap();
        });
        tasks.spawn(async move {
            let mut got = vec![0; expected.len()];
            from.read_exact(&mut got).await.unwrap();
            assert!(got == expected);
        });
    }
    let all = async { while tasks.join_next().await.transpose().unwrap().is_some() {} };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("all tasks finish");
}

#[tokio::test]
async fn an_error_of_the_server_is_the_clients_read_error() {
    let (near, far) = tokio::io::duplex(1021);
    let mut server = PortForwardStream::server(far, 1);
    server.send_error("connection to port 1 refused");
    server.shutdown().await.unwrap();
    let error = PortForwardStream::client(near).read(&mut [0; 8]).await.unwrap_err();
    assert_eq!(error.to_string(), "connection to port 1 refused");
}
