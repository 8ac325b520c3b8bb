//! How the router opens a connection to a sandbox: an address, a Unix socket, or whatever an embedder supplies.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::index::LivePod;

/// Where a request goes. The router has already decided that it may.
#[derive(Clone, Debug)]
pub struct Target {
    pub addr: SocketAddr,
    /// The Pod that owns the address; `None` only when unverified targets are allowed.
    pub pod: Option<Arc<LivePod>>,
}

/// Opens connections to sandboxes.
///
/// Called on the runtime that will use the connection, so sockets may be registered with the current reactor. The
/// router applies its own deadline and drops the future when it passes. Error kinds matter: `ConnectionRefused` means
/// the Pod is there but does not listen yet, `TimedOut`, `HostUnreachable` and `NetworkUnreachable` mean it looks dead.
#[async_trait]
pub trait Connect: Send + Sync + 'static {
    async fn connect(&self, target: &Target) -> io::Result<Stream>;
}

/// Dials the target's address over TCP.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpConnect;

#[async_trait]
impl Connect for TcpConnect {
    async fn connect(&self, target: &Target) -> io::Result<Stream> {
        let stream = TcpStream::connect(target.addr).await?;
        stream.set_nodelay(true)?;
        Ok(Stream::Tcp(stream))
    }
}

/// Any other byte stream an embedder may hand in.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> ByteStream for T {}

/// A connection to a sandbox. The two usual kinds avoid a virtual call for every read and write.
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
