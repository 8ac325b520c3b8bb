//! The part of SPDY/3.1 that Kubernetes clients use for exec, attach and port-forward.
//!
//! * [`dictionary`] – the preset dictionary of header compression;
//! * [`headers`] – compressed header blocks;
//! * [`frame`] – frames from and to bytes, without IO;
//! * [`session`] – one connection: streams, pings, shutdown.
//!
//! Clients implement no flow control, so window updates are read and ignored. Backpressure works by not reading the
//! connection.

pub mod dictionary;
pub mod frame;
pub mod headers;
pub mod session;

/// A connection error. The connection is then closed, because header compression cannot be resynchronized.
#[derive(Debug, thiserror::Error)]
pub enum SpdyError {
    #[error("SPDY version {0} is not supported, only 3")]
    Version(u16),
    #[error("control frame of {0} bytes is longer than the {max} allowed", max = frame::MAX_CONTROL_FRAME)]
    FrameTooLong(usize),
    #[error("control frame of type {kind} has {length} bytes, too few for its fields")]
    FrameTooShort { kind: u16, length: usize },
    #[error("header block does not decompress: {0}")]
    Compression(String),
    #[error("header block is larger than {max} bytes", max = headers::MAX_HEADER_BYTES)]
    HeadersTooLong,
    #[error("header block ends inside a field")]
    HeadersTruncated,
    #[error("stream id {0} is not a new odd number")]
    StreamId(u32),
    #[error("more than {0} streams are open")]
    TooManyStreams(usize),
    #[error("the connection failed")]
    Io(#[from] std::io::Error),
}
