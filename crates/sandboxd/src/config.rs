//! The daemon's configuration: arguments and variables in, one validated value out, every mistake reported at once.

mod flags;
pub mod variables;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

use crate::runtime::{ExecMode, Mode};

pub use flags::{USAGE, parse};

/// Wall-clock limit of one `/execute` unless configured.
pub const DEFAULT_EXEC_TIMEOUT: Duration = Duration::from_secs(300);
/// Bytes kept of each output stream of one command: two of them stay below what published clients decode.
pub const DEFAULT_OUTPUT_LIMIT: usize = 8 << 20;
/// Commands running at once; beyond it requests are answered 503 instead of piling up.
pub const DEFAULT_MAX_PROCESSES: usize = 256;

/// Where and how the daemon works.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub listen: Vec<SocketAddr>,
    /// Served when nobody else has them; a taken one is said and passed over.
    pub listen_if_free: Vec<SocketAddr>,
    pub unix: Vec<PathBuf>,
    /// Listening sockets that are open already, from descriptor 3 on.
    pub handed_over: u16,
    pub mode: Mode,
    pub exec_mode: ExecMode,
    pub shell: OsString,
    /// `None`: the first of `/home/user`, `/app` and the current directory that exists.
    pub base_dir: Option<PathBuf>,
    pub sandbox_root: PathBuf,
    /// `None`: `/workspace` when it is there or can be made, else the base directory.
    pub root_dir: Option<PathBuf>,
    pub exec_timeout: Duration,
    pub output_limit: usize,
    pub max_processes: usize,
    pub max_body: u64,
    pub kill_grace: Duration,
    pub shutdown_timeout: Duration,
    pub http_idle_timeout: Duration,
    pub stream_chunk_size: usize,
    pub metadata_env_prefix: String,
    /// gRPC answers -1 for a process that a signal ended, as the original daemon did.
    pub signal_exit_minus_one: bool,
    pub token: Option<TokenSource>,
    pub log_level: tracing::Level,
    pub command: Vec<OsString>,
    pub keep_running: bool,
}

/// Where the token comes from. Never an argument or a variable: both are visible to every command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenSource {
    File(PathBuf),
    Descriptor(RawFd),
}

/// What the arguments ask for.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    Run(Box<Config>),
    Help,
    Version,
}

/// Everything that is wrong with the arguments.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{}", .0.join("; "))]
pub struct ConfigError(pub Vec<String>);

/// The listening addresses when only hosts and ports are given: upstream's flags, plus the runtime's own port.
pub(crate) fn default_addresses(host: IpAddr, rest_port: u16, grpc_port: u16) -> Vec<SocketAddr> {
    vec![SocketAddr::new(host, 8888), SocketAddr::new(host, rest_port), SocketAddr::new(host, grpc_port)]
}
