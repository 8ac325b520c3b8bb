//! Limits that hold for every dialect.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

/// Limits on commands and uploads, from the configuration.
#[derive(Clone, Debug)]
pub struct Limits {
    /// One permit per running command. A request that gets none is answered with "unavailable".
    pub command_slots: Arc<Semaphore>,
    /// Time between SIGTERM and SIGKILL.
    pub kill_grace: Duration,
    /// Maximum number of bytes kept of each output stream of one command.
    pub output_bytes: usize,
    /// Maximum size of an uploaded file.
    pub upload_bytes: u64,
}
