//! What a sandbox can do, without a protocol: processes, terminals, files, watches, and the limits on them.
//!
//! The dialects translate requests into calls of this module. It knows no dialect and no HTTP.

pub mod files;
pub mod limits;
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

use processes::launch::Environment;
use processes::managed::Registry;
use processes::reaper::Reaper;

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
    pub limits: Limits,
}

/// Formats an error number as `[Errno 21] Is a directory`, the form that users of the Python runtime know.
pub fn errno_text(errno: Errno) -> String {
    let described = std::io::Error::from_raw_os_error(errno.raw_os_error()).to_string();
    let text = described.split(" (os error").next().unwrap_or_default();
    format!("[Errno {}] {text}", errno.raw_os_error())
}
