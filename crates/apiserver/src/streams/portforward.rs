//! Port-forwarding: pairs the client's streams, dials the port inside the Pod, moves bytes.
//!
//! Anything written to a client's error stream ends its whole session, so a port that refuses is tried again for a
//! while and then closed without a word: the next connection may well succeed.

pub mod channels;
pub mod single;
pub mod spdy;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::node::{Duplex, NodeBackend, NodeError, PodRef};

const CHUNK: usize = 32 * 1024;
/// How long a port may refuse before a connection is given up.
const DIAL_LIMIT: Duration = Duration::from_secs(5);
const FIRST_RETRY: Duration = Duration::from_millis(20);
const SLOWEST_RETRY: Duration = Duration::from_millis(400);

/// Where forwarded connections go.
#[derive(Clone)]
pub struct Target {
    pub backend: Arc<dyn NodeBackend>,
    pub pod: PodRef,
}

impl Target {
    async fn dial(&self, port: u16) -> Result<Box<dyn Duplex>, NodeError> {
        let deadline = Instant::now() + DIAL_LIMIT;
        let mut pause = FIRST_RETRY;
        loop {
            match self.backend.port_forward(&self.pod, port).await {
                Err(NodeError::Unavailable(_)) if Instant::now() + pause < deadline => sleep(pause).await,
                outcome => return outcome,
            }
            pause = (pause * 2).min(SLOWEST_RETRY);
        }
    }
}
