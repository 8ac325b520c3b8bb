//! The sandboxd dialect: files over REST under `/v1`, processes over gRPC, both below one root directory.

mod grpc;
mod processes;
mod reflection;
mod rest;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use agent_sandbox_protocol::workspace::Metadata;

use crate::files::{FileError, Root};
use crate::paths::RelPath;
use crate::process::launch::Environment;
use crate::process::managed::Registry;
use crate::process::reaper::{Exit, Reaper};

pub use grpc::routes;

/// Everything the dialect needs.
#[derive(Debug)]
pub struct Workspace {
    pub root: Arc<Root>,
    /// Spellings of the root that an absolute path may start with.
    pub spellings: Vec<RelPath>,
    pub env: Arc<Environment>,
    pub metadata: Metadata,
    pub registry: Arc<Registry>,
    pub reaper: Reaper,
    pub slots: Arc<tokio::sync::Semaphore>,
    pub grace: std::time::Duration,
    pub chunk_size: usize,
    pub signal_exit_minus_one: bool,
    pub max_body: u64,
    pub started: Instant,
    pub stopping: Arc<AtomicBool>,
}

impl Workspace {
    /// The path below the root that an argument (decoded once) means: absolute paths are re-rooted.
    fn resolve(&self, given: &[u8]) -> Result<RelPath, FileError> {
        let path = RelPath::parse(given)?;
        if given.starts_with(b"/")
            && let Some(rest) = self.spellings.iter().find_map(|spelling| path.below(spelling))
        {
            return Ok(rest);
        }
        Ok(path)
    }

    fn exit_code(&self, exit: Exit) -> i32 {
        match exit {
            Exit::Signal(_) if self.signal_exit_minus_one => -1,
            exit => exit.shell_code(),
        }
    }
}
