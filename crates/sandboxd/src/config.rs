//! The daemon's configuration: turns arguments and environment variables into one validated value and reports every
//! error at once.

mod flags;
pub mod variables;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

use agent_sandbox_protocol::sandbox_token::VerifyingKeys;
use agent_sandbox_protocol::web::AllowedOrigins;

use crate::core::paths::Mode;
use crate::dialects::runtime::ExecMode;

pub use flags::{USAGE, parse};

/// Default for the wall-clock limit of one `/execute`.
pub const DEFAULT_EXEC_TIMEOUT: Duration = Duration::from_secs(300);
/// Default for the number of bytes kept of each output stream of one command. Two streams of this size stay below what
/// published clients decode.
pub const DEFAULT_OUTPUT_LIMIT: usize = 8 << 20;
/// Default for the number of commands that run at once. Further requests are answered 503 instead of queueing.
pub const DEFAULT_MAX_PROCESSES: usize = 256;

/// The keys of a router, and the Pod that its tokens must be for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterKeys {
    pub keys: VerifyingKeys,
    pub pod_uid: String,
}

/// The validated configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub listen: Vec<SocketAddr>,
    /// Addresses that are served only if they are free; the daemon logs a warning for a taken one and starts without
    /// it.
    pub listen_if_free: Vec<SocketAddr>,
    pub unix: Vec<PathBuf>,
    /// Addresses for E2B's clients: processes and files, and the code interpreter. Empty means that they are not
    /// served.
    pub envd: Vec<SocketAddr>,
    pub interpreter: Vec<SocketAddr>,
    /// Number of listening sockets that are already open, starting at descriptor 3.
    pub inherited_sockets: u16,
    pub mode: Mode,
    pub exec_mode: ExecMode,
    pub shell: OsString,
    /// `None` means the first of `/home/user`, `/app` and the current directory that exists.
    pub base_dir: Option<PathBuf>,
    pub sandbox_root: PathBuf,
    /// `None` means `/workspace` if it exists or can be created, else the base directory.
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
    /// gRPC reports exit code -1 for a process that was killed by a signal, as the original daemon does.
    pub signal_exit_minus_one: bool,
    pub token: Option<TokenSource>,
    /// Requests must come through a router.
    pub router: Option<RouterKeys>,
    /// Names by which clients may call the daemon, beside those that no public domain can have.
    pub allowed_hosts: Vec<String>,
    /// Web pages of other origins that may send requests.
    pub allowed_origins: AllowedOrigins,
    /// File that keeps the history of commands over restarts; `None` keeps it only in memory.
    pub history_file: Option<PathBuf>,
    pub log_level: tracing::Level,
    pub command: Vec<OsString>,
    pub keep_running: bool,
}

/// Where the token is read from. It is never an argument or an environment variable, because every command can see
/// both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenSource {
    File(PathBuf),
    Descriptor(RawFd),
}

/// What the arguments ask the program to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Invocation {
    Run(Box<Config>),
    Help,
    Version,
}

/// Every error in the arguments.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{}", .0.join("; "))]
pub struct ConfigError(pub Vec<String>);

/// The listening addresses if only hosts and ports are given: those of upstream's flags, plus the runtime dialect's
/// port.
pub(crate) fn default_addresses(host: IpAddr, rest_port: u16, grpc_port: u16) -> Vec<SocketAddr> {
    vec![SocketAddr::new(host, 8888), SocketAddr::new(host, rest_port), SocketAddr::new(host, grpc_port)]
}
