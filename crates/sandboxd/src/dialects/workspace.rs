//! The dialect of upstream's sandboxd: files over REST under `/v1` and processes over gRPC, both below one root
//! directory.

mod grpc;
mod processes;
mod reflection;
mod rest;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use agent_sandbox_protocol::workspace::Metadata;

use crate::core::Sandbox;
use crate::core::files::{FileError, Root};
use crate::core::paths::RelPath;
use crate::core::processes::Exit;

pub use grpc::routes;

/// State of the dialect.
#[derive(Debug)]
pub struct Workspace {
    pub sandbox: Arc<Sandbox>,
    pub root: Arc<Root>,
    /// Absolute paths of the root that an absolute path in a request may begin with.
    pub aliases: Vec<RelPath>,
    pub metadata: Metadata,
    pub chunk_size: usize,
    pub signal_exit_minus_one: bool,
    pub started: Instant,
    pub stopping: Arc<AtomicBool>,
}

impl Workspace {
    /// Resolves an argument (percent-decoded) to a path below the root; an absolute path counts from the root.
    fn resolve(&self, given: &[u8]) -> Result<RelPath, FileError> {
        let path = RelPath::parse(given)?;
        if given.starts_with(b"/")
            && let Some(rest) = self.aliases.iter().find_map(|alias| path.below(alias))
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
