//! One port over a WebSocket's binary channels, which is what nearly every client asks for: bytes move between the WebSocket and the Pod
//! without a queue or a task in between.

use agent_sandbox_protocol::forward::Channel;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use super::Target;

/// Bytes moved at once.
const CHUNK: usize = 128 * 1024;

/// Serves the port until either side leaves or `shutdown` fires.
pub async fn serve<T>(connection: T, port: u16, target: Target, shutdown: CancellationToken)
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    tokio::select! {
        () = forward(Channel::server(connection, port), port, target) => {}
        () = shutdown.cancelled() => {}
    }
}

async fn forward<T>(mut channel: Channel<T>, port: u16, target: Target)
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    if let Some(answer) = target.backend.answer(&target.pod, port) {
        return answer(Box::new(channel)).await;
    }
    // The client learns the port's number before anybody listens there. One that has left by then is noticed below.
    let _ = channel.flush().await;
    match target.dial(port).await {
        Ok(mut pod) => {
            // How a forwarded connection ends is the business of its two ends.
            let _ = tokio::io::copy_bidirectional_with_sizes(&mut channel, &mut pod, CHUNK, CHUNK).await;
        }
        Err(error) => channel.complain(&error.to_string()),
    }
    let _ = channel.shutdown().await;
}
