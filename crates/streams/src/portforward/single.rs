//! Port-forwarding of one port over a WebSocket's binary channels, which is what nearly every client requests: bytes
//! are copied between the WebSocket and the Pod without a queue or a task in between.

use agent_sandbox_protocol::port_forward::PortForwardStream;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use super::PodDialer;

/// Size of the copy buffer of each direction.
const CHUNK: usize = 128 * 1024;

/// Serves the port until either side closes or `shutdown` is cancelled.
pub async fn serve<T>(connection: T, port: u16, dialer: PodDialer, shutdown: CancellationToken)
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    tokio::select! {
        () = forward(PortForwardStream::server(connection, port), port, dialer) => {}
        () = shutdown.cancelled() => {}
    }
}

async fn forward<T>(mut channel: PortForwardStream<T>, port: u16, dialer: PodDialer)
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    if let Some(handler) = dialer.backend.connection_handler(&dialer.pod, port) {
        return handler(Box::new(channel)).await;
    }
    // Sends the port number to the client before the connection to the Pod exists. If the client has disconnected, the
    // copy below fails.
    let _ = channel.flush().await;
    match dialer.dial(port).await {
        Ok(mut pod) => {
            // Errors of a forwarded connection concern only its two endpoints.
            let _ = tokio::io::copy_bidirectional_with_sizes(&mut channel, &mut pod, CHUNK, CHUNK).await;
        }
        Err(error) => channel.send_error(&error.to_string()),
    }
    let _ = channel.shutdown().await;
}
