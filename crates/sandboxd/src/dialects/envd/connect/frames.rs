//! Frames of Connect streams: a byte of flags, the length as four big-endian bytes, and the message.

use bytes::{Buf, Bytes, BytesMut};
use futures::Stream;
use http_body_util::BodyExt as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Code, MAX_MESSAGE, RpcError, parse};
use crate::http_io::body::Body;

const PREFIX: usize = 5;
const COMPRESSED: u8 = 1;
const END: u8 = 2;

/// The messages that a client streams.
#[derive(Debug)]
pub(in super::super) struct Messages {
    body: Body,
    buffer: BytesMut,
}

impl Messages {
    pub(in super::super) fn new(body: Body) -> Self {
        Self { body, buffer: BytesMut::new() }
    }

    /// The next message; `None` at the end of the stream.
    pub(in super::super) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, RpcError> {
        loop {
            if let Some((flags, payload)) = self.frame()? {
                return match flags {
                    0 => parse(&payload).map(Some),
                    END => Ok(None),
                    COMPRESSED => Err(RpcError::new(Code::Unimplemented, "compressed messages are not supported")),
                    flags => Err(RpcError::invalid(format!("a frame has unknown flags {flags:#04x}"))),
                };
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.buffer.extend_from_slice(&bytes);
                    }
                }
                Some(Err(_)) => return Err(RpcError::invalid("the stream broke off")),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(RpcError::invalid("the stream ended inside a message")),
            }
        }
    }

    /// The only message of a client that streams nothing. Reads the request to its end, so that the connection can be
    /// used again.
    pub(in super::super) async fn only<T: DeserializeOwned>(mut self) -> Result<T, RpcError> {
        let message = self.next().await?.ok_or_else(|| RpcError::invalid("the request has no message"))?;
        match self.next::<Value>().await? {
            None => Ok(message),
            Some(_) => Err(RpcError::invalid("the request has more than one message")),
        }
    }

    fn frame(&mut self) -> Result<Option<(u8, Bytes)>, RpcError> {
        if self.buffer.len() < PREFIX {
            return Ok(None);
        }
        let length = u32::from_be_bytes([self.buffer[1], self.buffer[2], self.buffer[3], self.buffer[4]]) as usize;
        if length > MAX_MESSAGE {
            return Err(RpcError::new(
                Code::ResourceExhausted,
                format!("a message of {length} bytes is larger than {MAX_MESSAGE}"),
            ));
        }
        if self.buffer.len() < PREFIX + length {
            return Ok(None);
        }
        let flags = self.buffer[0];
        self.buffer.advance(PREFIX);
        Ok(Some((flags, self.buffer.split_to(length).freeze())))
    }
}

/// Frames of a response: those of the messages, and the last one, which says how the stream ended.
pub(in super::super) fn responses<S, T>(messages: S) -> impl Stream<Item = Bytes> + Send
where
    S: Stream<Item = Result<T, RpcError>> + Send,
    T: Serialize,
{
    let state = Some(Box::pin(messages));
    futures::stream::unfold(state, |state| async move {
        let mut messages = state?;
        match futures::StreamExt::next(&mut messages).await {
            Some(Ok(message)) => Some((encode(0, &message), Some(messages))),
            Some(Err(error)) => Some((end_frame(Some(&error)), None)),
            None => Some((end_frame(None), None)),
        }
    })
}

/// A stream without messages.
pub(super) fn ended(error: Option<RpcError>) -> impl Stream<Item = Bytes> + Send {
    futures::stream::iter([end_frame(error.as_ref())])
}

fn end_frame(error: Option<&RpcError>) -> Bytes {
    encode(END, &error.map_or_else(|| json!({}), |error| json!({ "error": error.to_json() })) as &Value)
}

fn encode<T: Serialize>(flags: u8, message: &T) -> Bytes {
    let mut bytes = vec![flags, 0, 0, 0, 0];
    // Messages always serialise, and writing to memory does not fail.
    let _ = serde_json::to_writer(&mut bytes, message);
    let length = u32::try_from(bytes.len() - PREFIX).unwrap_or(u32::MAX);
    bytes[1..PREFIX].copy_from_slice(&length.to_be_bytes());
    bytes.into()
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;

    /// E-070
    #[tokio::test]
    async fn messages_are_framed_and_the_last_frame_says_how_it_ended() {
        let messages = [Ok(json!({ "a": 1 })), Err(RpcError::new(Code::NotFound, "gone"))];
        let frames: Vec<Bytes> = responses(futures::stream::iter(messages)).collect().await;
        assert_eq!(frames[0], &b"\0\0\0\0\x07{\"a\":1}"[..]);
        assert_eq!(frames[1][0], END);
        assert_eq!(&frames[1][PREFIX..], br#"{"error":{"code":"not_found","message":"gone"}}"#);
        assert_eq!(frames.len(), 2);
    }

    #[tokio::test]
    async fn split_and_joined_frames_are_read() {
        let whole = [&encode(0, &json!(1))[..], &encode(0, &json!(2))[..], &encode(END, &json!({}))[..]].concat();
        let parts: Vec<Result<Bytes, std::io::Error>> =
            whole.chunks(4).map(|part| Ok(Bytes::copy_from_slice(part))).collect();
        let mut messages = Messages::new(Body::from_stream(futures::stream::iter(parts)));
        assert_eq!(messages.next::<u8>().await.expect("one"), Some(1));
        assert_eq!(messages.next::<u8>().await.expect("two"), Some(2));
        assert_eq!(messages.next::<u8>().await.expect("the end"), None);
    }

    #[tokio::test]
    async fn bad_frames_are_errors() {
        for (bytes, code) in [
            (&b"\0\xff\xff\xff\xff"[..], Code::ResourceExhausted),
            (&b"\x01\0\0\0\x02{}"[..], Code::Unimplemented),
            (&b"\x40\0\0\0\x02{}"[..], Code::InvalidArgument),
            (&b"\0\0\0\0\x09{}"[..], Code::InvalidArgument),
            (&b"\0\0\0\0\x01{"[..], Code::InvalidArgument),
        ] {
            let error = Messages::new(Body::from(bytes)).next::<Value>().await.expect_err("refused");
            assert_eq!(error.code, code, "{bytes:?}");
        }
    }
}
