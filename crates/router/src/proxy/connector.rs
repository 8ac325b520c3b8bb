//! Opening connections to sandboxes: TCP, a Unix socket, or any stream that an embedder provides.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::resolve::Endpoint;

/// Opens connections to sandboxes.
///
/// Called on the runtime that will use the connection, so sockets may be registered with the current reactor. The
/// router applies its own timeout and drops the future when it expires. Error kinds matter: `ConnectionRefused` means
/// that the Pod exists but does not listen yet; `TimedOut`, `HostUnreachable` and `NetworkUnreachable` mean that its
/// host looks dead.
#[async_trait]
pub trait Connector: Send + Sync + 'static {
    async fn connect(&self, endpoint: &Endpoint) -> io::Result<Stream>;
}

/// Dials the endpoint's address over TCP.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpConnector;

#[async_trait]
impl Connector for TcpConnector {
    async fn connect(&self, endpoint: &Endpoint) -> io::Result<Stream> {
        let stream = TcpStream::connect(endpoint.addr).await?;
        stream.set_nodelay(true)?;
        Ok(Stream::Tcp(stream))
    }
}

/// Any other byte stream that an embedder provides.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> ByteStream for T {}

/// A connection to a sandbox. The two common kinds avoid a virtual call per read and write.
pub enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Other(Box<dyn ByteStream>),
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

impl From<UnixStream> for Stream {
    fn from(stream: UnixStream) -> Self {
        Self::Unix(stream)
    }
}

macro_rules! each_kind {
    ($stream:expr, $inner:ident => $call:expr) => {
        match $stream.get_mut() {
            Stream::Tcp($inner) => $call,
            Stream::Unix($inner) => $call,
            Stream::Other($inner) => $call,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        each_kind!(self, inner => Pin::new(inner).poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        each_kind!(self, inner => Pin::new(inner).poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each_kind!(self, inner => Pin::new(inner).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each_kind!(self, inner => Pin::new(inner).poll_shutdown(cx))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each_kind!(self, inner => Pin::new(inner).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(inner) => inner.is_write_vectored(),
            Self::Unix(inner) => inner.is_write_vectored(),
            Self::Other(inner) => inner.is_write_vectored(),
        }
    }
}
