//! What a sandbox can do, without a protocol: processes, terminals, files, watches, and the limits on them.
//!
//! The dialects translate requests into calls of this module. It knows no dialect and no HTTP.

pub mod files;
pub mod history;
pub mod limits;
pub(crate) mod machine;
pub mod paths;
pub mod processes;
pub(crate) mod random;
pub mod terminals;
pub mod watches;

use std::ffi::OsString;
use std::sync::Arc;

use rustix::io::Errno;

pub use limits::Limits;
pub use paths::PathResolver;

use history::{History, Recording};
use processes::launch::{Environment, Launch, LaunchError};
use processes::managed::Registry;
use processes::reaper::Reaper;
use processes::run::{Bounds, Finished, run_with_input};

/// The sandbox as every dialect sees it: its paths, its processes and its limits.
#[derive(Debug)]
pub struct Sandbox {
    /// Program that runs commands given as shell text.
    pub shell: OsString,
    pub paths: PathResolver,
    /// Environment of commands unless a request adds to it.
    pub env: Arc<Environment>,
    pub reaper: Reaper,
    pub registry: Registry,
    pub history: Arc<History>,
    pub limits: Limits,
}

impl Sandbox {
    /// Runs a command to its end and records it; see [`run_with_input`].
    pub async fn run(&self, launch: &Launch, bounds: Bounds, input: Option<Vec<u8>>) -> Result<Finished, LaunchError> {
        let recording = Recording::start(&self.history, launch);
        let finished = run_with_input(launch, bounds, &self.reaper, input).await;
        match &finished {
            Ok(done) => recording.finish_with(done.exit, done.timed_out, &done.stdout, &done.stderr),
            Err(error) => recording.failed(&error.to_string()),
        }
        finished
    }
}

/// Formats an error number as `[Errno 21] Is a directory`, the form that users of the Python runtime know.
pub fn errno_text(errno: Errno) -> String {
    let described = std::io::Error::from_raw_os_error(errno.raw_os_error()).to_string();
    let text = described.split(" (os error").next().unwrap_or_default();
    format!("[Errno {}] {text}", errno.raw_os_error())
}
