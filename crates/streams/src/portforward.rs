//! Port-forwarding: pairs the client's streams, connects to the port inside the Pod, copies bytes.
//!
//! Any data on a client's error stream ends the client's whole session. So when a port refuses, the connection is
//! retried until [`DIAL_TIMEOUT`] and then closed without an error message: the client's next connection may succeed.

pub mod channels;
pub mod single;
pub mod spdy;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::backend::{Duplex, NodeBackend, NodeError, PodRef};

const CHUNK: usize = 32 * 1024;
/// Timeout for connecting to a port that refuses connections.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// The backoff between attempts doubles from the first value to the second.
const INITIAL_BACKOFF: Duration = Duration::from_millis(20);
const MAX_BACKOFF: Duration = Duration::from_millis(400);

/// Connects to ports of one Pod.
#[derive(Clone)]
pub struct PodDialer {
    pub backend: Arc<dyn NodeBackend>,
    pub pod: PodRef,
}

impl PodDialer {
    async fn dial(&self, port: u16) -> Result<Box<dyn Duplex>, NodeError> {
        let deadline = Instant::now() + DIAL_TIMEOUT;
        let mut backoff = INITIAL_BACKOFF;
        loop {
            match self.backend.port_forward(&self.pod, port).await {
                Err(NodeError::Unavailable(_)) if Instant::now() + backoff < deadline => sleep(backoff).await,
                outcome => return outcome,
            }
            backoff = (backoff * 2).min(MAX_BACKOFF);
        }
    }
}
