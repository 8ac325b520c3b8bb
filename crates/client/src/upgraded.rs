//! The upgraded connection below a port-forward WebSocket. If it has the type that kube creates without a proxy, its
//! socket and TLS session are tuned.

use agent_sandbox_protocol::port_forward::PortForwardStream;
use bytes::{Buf as _, Bytes};
use hyper::upgrade::{Parts, Upgraded};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_timeout::TimeoutConnector;
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioIo};
use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// The connection that kube creates when there is no proxy: a pinned box around `MaybeHttpsStream`, whose type has no
/// public name.
type KubeStream = <TimeoutConnector<HttpsConnector<HttpConnector>> as tower::Service<http::Uri>>::Response;

/// TLS write buffer, instead of rustls' 64 KiB: fewer and larger writes to the socket wake the receiver less often.
const TLS_WRITE_BUFFER: usize = 512 * 1024;

/// A tuned or an unknown stream.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

/// The forwarded port on an upgraded connection from which nothing has been read yet.
pub(crate) fn channel(upgraded: Upgraded) -> PortForwardStream<Box<dyn Duplex>> {
    match upgraded.downcast::<KubeStream>() {
        Ok(Parts { mut io, read_buf: prefix, .. }) => {
            let encrypted = tune(io.as_mut().get_pin_mut().get_mut());
            let stream = Box::new(PrefixedStream { prefix, stream: TokioIo::new(io) });
            if encrypted { PortForwardStream::client_in_tls(stream) } else { PortForwardStream::client(stream) }
        }
        Err(upgraded) => PortForwardStream::client(Box::new(TokioIo::new(upgraded))),
    }
}

/// Tunes the connection and returns whether it is encrypted.
fn tune(stream: &mut MaybeHttpsStream<TokioIo<TcpStream>>) -> bool {
    let (socket, encrypted) = match stream {
        MaybeHttpsStream::Http(socket) => (&*socket, false),
        MaybeHttpsStream::Https(stream) => {
            let (socket, session) = stream.inner_mut().get_mut();
            session.set_buffer_limit(Some(TLS_WRITE_BUFFER));
            (socket.inner(), true)
        }
    };
    // Requests are small and written at once, so Nagle's algorithm only delays them. If the connection is closed
    // already, the next read or write reports that.
    let _ = socket.inner().set_nodelay(true);
    encrypted
}

/// A stream whose first bytes arrived together with the upgrade response.
struct PrefixedStream {
    prefix: Bytes,
    stream: TokioIo<KubeStream>,
}

impl AsyncRead for PrefixedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.prefix.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, out);
        }
        let count = self.prefix.len().min(out.remaining());
        out.put_slice(&self.prefix[..count]);
        self.prefix.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PrefixedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, content: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, content)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;
    use kube::{Client, Config};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };
    use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

    /// Serves one port-forward. The port number and a greeting are sent in one write with the response head.
    async fn serve(listener: TcpListener) -> Vec<u8> {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("a request"));
        }
        let head = String::from_utf8(head).expect("text");
        let named = |line: &str| line.to_ascii_lowercase().starts_with("sec-websocket-key:");
        let key = head.lines().find(|line| named(line)).and_then(|line| line.split(": ").nth(1)).expect("a key");
        let response = format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {}\r\n\
             Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n",
            derive_accept_key(key.as_bytes())
        );
        let frames: [&[u8]; 3] = [b"\x82\x03\x00\x90\x1f", b"\x82\x03\x01\x90\x1f", b"\x82\x06\x00hello"];
        stream.write_all(&[response.as_bytes(), &frames.concat()].concat()).await.expect("sent");
        let mut got = vec![0; 2 + 4 + 1 + 5];
        stream.read_exact(&mut got).await.expect("a frame");
        got
    }

    /// With a kube version that uses another connection type, port-forward would still work, but slower; this test
    /// detects that.
    #[tokio::test]
    async fn the_connection_has_the_expected_type_and_early_bytes_are_kept() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let served = tokio::spawn(serve(listener));
        let client =
            Client::try_from(Config::new(format!("http://{address}").parse().expect("a URL"))).expect("a client");
        let request =
            Request::get("/api/v1/namespaces/n/pods/p/portforward?ports=8080").body(Vec::new()).expect("a request");
        let connection = client.connect(request).await.expect("a connection");
        let upgraded = connection.into_stream().into_inner().into_inner();
        let Ok(Parts { mut io, read_buf: prefix, .. }) = upgraded.downcast::<KubeStream>() else {
            panic!("another kind of connection")
        };
        assert!(!tune(io.as_mut().get_pin_mut().get_mut()), "plain HTTP: content is masked");
        let mut channel = PortForwardStream::client(PrefixedStream { prefix, stream: TokioIo::new(io) });
        let mut greeting = [0; 5];
        channel.read_exact(&mut greeting).await.expect("a greeting");
        assert_eq!(&greeting, b"hello");
        channel.write_all(b"there").await.expect("sent");
        channel.flush().await.expect("sent");
        let got = served.await.expect("served");
        assert_eq!(got[..2], *b"\x82\x86", "a masked frame of six bytes");
        assert!(got[2..6] != [0; 4], "a random masking key");
    }
}
