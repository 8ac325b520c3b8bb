//! WebSocket connections that carry numbered channels ([`channels`]) or a plain byte stream ([`tunnel`]).

pub mod channels;
pub mod tunnel;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

/// Maximum size of a message, as in Kubernetes. Clients may send all of a command's input in one message.
const MAX_MESSAGE: usize = 32 * 1024 * 1024;

/// The server's end of a WebSocket on a connection whose handshake is complete.
pub async fn accept<T>(connection: T) -> WebSocketStream<T>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut config = WebSocketConfig::default();
    config.max_message_size = Some(MAX_MESSAGE);
    config.max_frame_size = Some(MAX_MESSAGE);
    config.read_buffer_size = 32 * 1024;
    config.write_buffer_size = 32 * 1024;
    WebSocketStream::from_raw_socket(connection, Role::Server, Some(config)).await
}
