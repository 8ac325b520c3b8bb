//! Commands over a WebSocket. Binary messages carry streams, selected by their first byte (0 stdin, 1 stdout, 2
//! stderr); text messages carry events and input as JSON.

use std::sync::Arc;

use agent_sandbox_protocol::native::{ErrorCode, Event, Input};
use bytes::{BufMut, Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::time::{Duration, timeout};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

use super::error::ApiError;
use super::processes::signal_named;
use super::routes::Query;
use super::stream::{Events, RawEvent};
use super::{Native, exec};
use crate::core::processes::log::{Chunk, Stream};
use crate::core::processes::managed::{Process, TerminateOnDisconnect};
use crate::http_io::body::{Body, empty};

type Socket = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

const MAX_MESSAGE: usize = 1 << 20;

/// Timeout for the first message of a client.
const FIRST_MESSAGE: Duration = Duration::from_secs(30);

/// `GET /exec`: the first text message is the request.
pub(super) fn exec(native: Arc<Native>, request: Request<Body>) -> Result<Response<Body>, ApiError> {
    upgrade(request, move |mut socket| async move {
        let first = match timeout(FIRST_MESSAGE, socket.next()).await {
            Ok(Some(Ok(Message::Text(text)))) => text,
            _ => return refuse(&mut socket, ApiError::invalid("the first message must be the request as text")).await,
        };
        let started = exec::parse(first.as_bytes()).and_then(|wanted| native.start_attached(&wanted));
        match started {
            Ok((process, guard)) => bridge(socket, process, 0, guard).await,
            Err(error) => refuse(&mut socket, error).await,
        }
    })
}

/// `GET /processes/{id}/attach`: attaches to a running process from `offset`.
pub(super) fn attach(process: Arc<Process>, query: &Query, request: Request<Body>) -> Result<Response<Body>, ApiError> {
    let offset = query.number("offset", 0)?;
    upgrade(request, move |socket| bridge(socket, process, offset, None))
}

fn upgrade<F, T>(mut request: Request<Body>, serve: F) -> Result<Response<Body>, ApiError>
where
    F: FnOnce(Socket) -> T + Send + 'static,
    T: Future<Output = ()> + Send,
{
    let accept = accept_key(request.headers())?;
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        // A failed upgrade is handled by the connection.
        let Ok(upgraded) = upgrade.await else { return };
        let config = WebSocketConfig::default().max_message_size(Some(MAX_MESSAGE)).max_frame_size(Some(MAX_MESSAGE));
        serve(WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await).await;
    });
    let mut response = empty(StatusCode::SWITCHING_PROTOCOLS);
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    Ok(response)
}

fn accept_key(headers: &HeaderMap) -> Result<HeaderValue, ApiError> {
    let is_upgrade =
        headers.get(header::UPGRADE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"));
    let version = headers.get(header::SEC_WEBSOCKET_VERSION).is_some_and(|value| value == "13");
    match headers.get(header::SEC_WEBSOCKET_KEY).filter(|_| is_upgrade && version) {
        Some(key) => HeaderValue::try_from(derive_accept_key(key.as_bytes()))
            .map_err(|_| ApiError::new(ErrorCode::Internal, "cannot accept the WebSocket")),
        None => Err(ApiError::invalid("this endpoint needs a WebSocket (version 13)")),
    }
}

async fn refuse(socket: &mut Socket, error: ApiError) {
    let event = Event::Error { code: error.code, message: error.message };
    let _ = socket.send(to_text(&event)).await;
    let _ = socket.close(None).await;
}

fn to_text(event: &Event) -> Message {
    Message::Text(Utf8Bytes::from(serde_json::to_string(event).unwrap_or_default()))
}

/// Connects a socket to a process until either ends.
async fn bridge(socket: Socket, process: Arc<Process>, offset: u64, guard: Option<TerminateOnDisconnect>) {
    let mut events = Events::new(Arc::clone(&process), offset, true, guard);
    let (mut sender, mut receiver) = socket.split();
    let outgoing = async {
        while let Some(event) = events.next_raw().await {
            if sender.send(to_message(event)).await.is_err() {
                return;
            }
        }
        let _ = sender.close().await;
    };
    let incoming = async {
        while let Some(Ok(message)) = receiver.next().await {
            if handle_message(&process, message).await.is_break() {
                return;
            }
        }
    };
    tokio::select! {
        () = outgoing => {}
        () = incoming => {}
    }
}

fn to_message(event: RawEvent) -> Message {
    match event {
        RawEvent::Event(event) => to_text(&event),
        RawEvent::Chunk(Chunk::Skipped { offset, bytes }) => to_text(&Event::Skipped { offset, bytes }),
        RawEvent::Chunk(Chunk::Output { stream, bytes, .. }) => {
            let mut message = BytesMut::with_capacity(bytes.len() + 1);
            message.put_u8(if stream == Stream::Stdout { 1 } else { 2 });
            message.put_slice(&bytes);
            Message::Binary(message.freeze())
        }
    }
}

/// Handles one message of the client. Input that an ended process no longer takes is dropped; its exit event follows.
async fn handle_message(process: &Process, message: Message) -> std::ops::ControlFlow<()> {
    match message {
        Message::Binary(bytes) => write_stdin(process, &bytes).await,
        Message::Text(text) => match serde_json::from_str::<Input>(&text) {
            Ok(Input::Stdin { text }) => drop(process.write(text.as_bytes()).await),
            Ok(Input::EndOfInput) => drop(process.end_input().await),
            Ok(Input::Resize { columns, rows }) => drop(process.resize(columns, rows)),
            Ok(Input::Signal { signal }) => {
                if let Ok(signal) = signal_named(&signal) {
                    process.signal(signal);
                }
            }
            Err(_) => return std::ops::ControlFlow::Break(()),
        },
        Message::Close(_) => return std::ops::ControlFlow::Break(()),
        Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
    }
    std::ops::ControlFlow::Continue(())
}

async fn write_stdin(process: &Process, bytes: &Bytes) {
    if let Some((0, input)) = bytes.split_first() {
        drop(process.write(input).await);
    }
}
