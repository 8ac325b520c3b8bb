//! Parses and serializes SPDY/3.1 frames, without IO.
//!
//! Data frames are returned in the chunks in which they arrive, so a 16 MiB frame is never buffered whole.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::SpdyError;
use super::headers::{Decoder, Encoder, Headers};

/// Maximum length of a control frame, which is buffered whole.
pub const MAX_CONTROL_FRAME: usize = 64 * 1024;

const CONTROL_BIT: u8 = 0x80;
const FLAG_FIN: u8 = 0x01;
const SPDY_VERSION: u16 = 3;
const HEADER_LENGTH: usize = 8;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;

/// Status codes of RST_STREAM.
pub mod status {
    pub const PROTOCOL_ERROR: u32 = 1;
    pub const INVALID_STREAM: u32 = 2;
    pub const REFUSED_STREAM: u32 = 3;
    pub const CANCEL: u32 = 5;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    SynStream {
        id: u32,
        headers: Headers,
        fin: bool,
    },
    SynReply {
        id: u32,
        headers: Headers,
        fin: bool,
    },
    RstStream {
        id: u32,
        status: u32,
    },
    Ping(u32),
    GoAway {
        last_stream: u32,
    },
    /// A chunk of a data frame; `fin` is set only on the last chunk of a frame with the FIN flag.
    Data {
        id: u32,
        payload: Bytes,
        fin: bool,
    },
}

/// Parses frames from a byte stream: add bytes with [`push`](Self::push), take frames with [`next`](Self::next).
#[derive(Default)]
pub struct FrameReader {
    buffer: BytesMut,
    headers: Decoder,
    data: Option<DataInProgress>,
}

struct DataInProgress {
    id: u32,
    remaining: usize,
    fin: bool,
}

impl FrameReader {
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next frame, or `None` if more bytes are needed. Frames that have no effect here (settings, window updates,
    /// late headers) are skipped.
    #[expect(clippy::should_implement_trait, reason = "fallible and resumable, unlike an iterator")]
    pub fn next(&mut self) -> Result<Option<Frame>, SpdyError> {
        loop {
            if let Some(frame) = self.next_data() {
                return Ok(Some(frame));
            }
            if self.data.is_some() || self.buffer.len() < HEADER_LENGTH {
                return Ok(None);
            }
            if self.buffer[0] & CONTROL_BIT == 0 {
                self.start_data();
                continue;
            }
            let Some((kind, flags, payload)) = self.take_control()? else { return Ok(None) };
            if let Some(frame) = self.parse_control(kind, flags, payload)? {
                return Ok(Some(frame));
            }
        }
    }

    fn start_data(&mut self) {
        let id = self.buffer.get_u32();
        let word = self.buffer.get_u32();
        let fin = (word >> 24) as u8 & FLAG_FIN != 0;
        self.data = Some(DataInProgress { id, remaining: (word & 0x00ff_ffff) as usize, fin });
    }

    fn next_data(&mut self) -> Option<Frame> {
        let data = self.data.as_mut()?;
        let length = data.remaining.min(self.buffer.len());
        if length == 0 && data.remaining > 0 {
            return None;
        }
        let payload = self.buffer.split_to(length).freeze();
        data.remaining -= length;
        let last = data.remaining == 0;
        let frame = Frame::Data { id: data.id, payload, fin: data.fin && last };
        if last {
            self.data = None;
        }
        Some(frame)
    }

    fn take_control(&mut self) -> Result<Option<(u16, u8, Bytes)>, SpdyError> {
        let mut header = &self.buffer[..HEADER_LENGTH];
        let version = header.get_u16() & 0x7fff;
        let kind = header.get_u16();
        let word = header.get_u32();
        let length = (word & 0x00ff_ffff) as usize;
        if version != SPDY_VERSION {
            return Err(SpdyError::Version(version));
        }
        if length > MAX_CONTROL_FRAME {
            return Err(SpdyError::FrameTooLong(length));
        }
        if self.buffer.len() < HEADER_LENGTH + length {
            return Ok(None);
        }
        self.buffer.advance(HEADER_LENGTH);
        Ok(Some((kind, (word >> 24) as u8, self.buffer.split_to(length).freeze())))
    }

    fn parse_control(&mut self, kind: u16, flags: u8, mut payload: Bytes) -> Result<Option<Frame>, SpdyError> {
        let needed = match kind {
            SYN_STREAM => 10,
            SYN_REPLY | PING | GOAWAY => 4,
            RST_STREAM => 8,
            // HEADERS is ignored, but its compressed block must still pass through the shared zlib window.
            8 => {
                if payload.len() >= 4 {
                    self.headers.decode(&payload[4..])?;
                }
                return Ok(None);
            }
            _ => return Ok(None),
        };
        if payload.len() < needed {
            return Err(SpdyError::FrameTooShort { kind, length: payload.len() });
        }
        let fin = flags & FLAG_FIN != 0;
        let word = payload.get_u32();
        let id = word & 0x7fff_ffff;
        Ok(Some(match kind {
            SYN_STREAM => {
                // Skip the associated stream, priority and slot.
                payload.advance(6);
                Frame::SynStream { id, headers: self.headers.decode(&payload)?, fin }
            }
            SYN_REPLY => Frame::SynReply { id, headers: self.headers.decode(&payload)?, fin },
            RST_STREAM => Frame::RstStream { id, status: payload.get_u32() },
            PING => Frame::Ping(word),
            _ => Frame::GoAway { last_stream: id },
        }))
    }
}

/// Serializes frames; holds the compression state of the sending direction.
#[derive(Default)]
pub struct FrameWriter {
    headers: Encoder,
}

impl FrameWriter {
    pub fn encode(&mut self, frame: &Frame) -> Result<Bytes, SpdyError> {
        Ok(match frame {
            Frame::SynStream { id, headers, fin } => {
                let block = self.headers.encode(headers)?;
                let mut body = BytesMut::with_capacity(10 + block.len());
                body.put_u32(*id);
                body.put_u32(0);
                body.put_u16(0);
                body.put_slice(&block);
                control(SYN_STREAM, *fin, &body)
            }
            Frame::SynReply { id, headers, fin } => {
                let block = self.headers.encode(headers)?;
                let mut body = BytesMut::with_capacity(4 + block.len());
                body.put_u32(*id);
                body.put_slice(&block);
                control(SYN_REPLY, *fin, &body)
            }
            Frame::RstStream { id, status } => control(RST_STREAM, false, &two_words(*id, *status)),
            Frame::Ping(id) => control(PING, false, &id.to_be_bytes()),
            Frame::GoAway { last_stream } => control(GOAWAY, false, &two_words(*last_stream, 0)),
            Frame::Data { id, payload, fin } => {
                let mut bytes = BytesMut::with_capacity(HEADER_LENGTH + payload.len());
                bytes.put_u32(*id);
                bytes.put_u32(flags_and_length(*fin, payload.len()));
                bytes.put_slice(payload);
                bytes.freeze()
            }
        })
    }
}

fn two_words(first: u32, second: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first.to_be_bytes());
    bytes[4..].copy_from_slice(&second.to_be_bytes());
    bytes
}

fn control(kind: u16, fin: bool, body: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(HEADER_LENGTH + body.len());
    bytes.put_u16(u16::from(CONTROL_BIT) << 8 | SPDY_VERSION);
    bytes.put_u16(kind);
    bytes.put_u32(flags_and_length(fin, body.len()));
    bytes.put_slice(body);
    bytes.freeze()
}

fn flags_and_length(fin: bool, length: usize) -> u32 {
    let flags = if fin { FLAG_FIN } else { 0 };
    u32::from(flags) << 24 | (length as u32 & 0x00ff_ffff)
}

#[cfg(test)]
mod tests;
