//! A WebSocket as a byte stream: the payloads of its binary messages, concatenated. Messages may have any size, even
//! zero.

use std::io;

use bytes::Bytes;
use futures::{Sink, SinkExt, Stream, StreamExt, future};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error, Message};

/// The two directions of the tunnel. A text message ends it with an error; no client sends one.
pub fn split<T>(
    socket: WebSocketStream<T>,
) -> (impl Stream<Item = io::Result<Bytes>> + Send + Unpin, impl Sink<Bytes, Error = io::Error> + Send + Unpin)
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sink, stream) = socket.split();
    let incoming = stream.filter_map(|message| {
        future::ready(match message {
            Ok(Message::Binary(bytes)) => Some(Ok(bytes)),
            Ok(Message::Text(_)) => {
                Some(Err(io::Error::new(io::ErrorKind::InvalidData, "text message in a byte tunnel")))
            }
            Ok(_) => None,
            Err(error) => Some(Err(to_io(error))),
        })
    });
    let outgoing =
        sink.sink_map_err(to_io).with(|bytes: Bytes| future::ready(Ok::<_, io::Error>(Message::Binary(bytes))));
    (incoming, outgoing)
}

pub(super) fn to_io(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        other => io::Error::other(other),
    }
}
