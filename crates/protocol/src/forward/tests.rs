//! The channel against a WebSocket server of another make, and against itself.

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

async fn pair() -> (Channel<DuplexStream>, WebSocketStream<DuplexStream>) {
    pair_of(Channel::client).await
}

type Make = fn(DuplexStream) -> Channel<DuplexStream>;

/// A client's two ways to mask.
const CLIENTS: [Make; 2] = [Channel::client, Channel::client_in_tls];

async fn pair_of(client: Make) -> (Channel<DuplexStream>, WebSocketStream<DuplexStream>) {
    // Odd, so that frames are cut at every place.
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

async fn exchange((channel, server): (Channel<DuplexStream>, WebSocketStream<DuplexStream>)) {
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
    // The answer goes out although nothing is written: reading is enough.
    let answered = async { server.next().await.unwrap().unwrap() };
    let mut more = [0; 1];
    tokio::select! {
        answer = answered => assert_eq!(answer, Message::Pong(Bytes::from_static(b"there?"))),
        read = channel.read(&mut more) => panic!("{read:?}"),
    }
}

#[tokio::test]
async fn words_on_the_error_channel_are_the_error_after_what_was_sent() {
    let (mut channel, mut server) = pair().await;
    server.send(message(DATA, b"half")).await.unwrap();
    server.send(message(DATA + 1, b"connection refused")).await.unwrap();
    let mut got = Vec::new();
    let error = channel.read_to_end(&mut got).await.unwrap_err();
    assert_eq!(got, b"half");
    assert_eq!(error.to_string(), "connection refused");
}

#[tokio::test]
async fn a_goodbye_and_a_cut_are_the_end() {
    for polite in [true, false] {
        let (mut channel, mut server) = pair().await;
        server.send(message(DATA, b"bye")).await.unwrap();
        if polite {
            server.close(None).await.unwrap();
        }
        drop(server);
        let mut got = Vec::new();
        channel.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"bye");
    }
}

#[tokio::test]
async fn nonsense_is_an_error() {
    let (near, mut far) = tokio::io::duplex(1024);
    far.write_all(&[0xf7, 0xff, 0xff, 0xff]).await.unwrap();
    assert!(Channel::client(near).read(&mut [0; 8]).await.is_err());
    let (near, mut far) = tokio::io::duplex(1024);
    far.write_all(&[0x82, 0x83, 1, 2, 3, 4, 0, 0, 0]).await.unwrap();
    let error = Channel::client(near).read(&mut [0; 8]).await.unwrap_err();
    assert!(error.to_string().contains("masked"), "{error}");
}

#[tokio::test]
async fn the_two_ends_understand_each_other() {
    for client in CLIENTS {
        let (near, far) = tokio::io::duplex(1021);
        converse(client(near), Channel::server(far, 8080)).await;
    }
}

async fn converse(mut client: Channel<DuplexStream>, mut server: Channel<DuplexStream>) {
    let content = noise(200_003);
    let asking = async {
        client.write_all(&content).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        answer
    };
    let answering = async {
        let mut got = Vec::new();
        server.read_to_end(&mut got).await.unwrap();
        // After the client's goodbye: there is still an answer to give.
        server.write_all(&got).await.unwrap();
        server.shutdown().await.unwrap();
    };
    let (answer, ()) = tokio::join!(asking, answering);
    assert!(answer == content);
}

/// Every frame of a client carries a key; inside TLS one that leaves the content alone.
#[tokio::test]
async fn content_in_tls_is_masked_with_zeros() {
    let (near, mut far) = tokio::io::duplex(1021);
    let mut client = Channel::client_in_tls(near);
    client.write_all(b"plain").await.unwrap();
    client.flush().await.unwrap();
    let mut sent = [0; 12];
    far.read_exact(&mut sent).await.unwrap();
    assert_eq!(sent, *b"\x82\x86\0\0\0\0\0plain");
}

/// Reading and writing may be the work of different tasks: neither takes the other's wake-up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn halves_in_tasks_of_their_own_get_on() {
    for client in CLIENTS {
        let (near, far) = tokio::io::duplex(1021);
        both_ways([client(near), Channel::server(far, 8080)]).await;
    }
}

async fn both_ways(ends: [Channel<DuplexStream>; 2]) {
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
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("nobody waits for ever");
}

#[tokio::test]
async fn a_complaint_is_the_clients_error() {
    let (near, far) = tokio::io::duplex(1021);
    let mut server = Channel::server(far, 1);
    server.complain("nobody listens on port 1");
    server.shutdown().await.unwrap();
    let error = Channel::client(near).read(&mut [0; 8]).await.unwrap_err();
    assert_eq!(error.to_string(), "nobody listens on port 1");
}
