//! Arguments of commands about the engine on this machine.

use super::{
    HereArgs, NodeConfigArgs, OutputArgs,
    values::{count_limit, duration, egress_rule, memory_limit, object_name, quantity_limit, variable},
};
use agent_sandbox_engine::DefaultLimit;
use clap::{Args, ValueEnum};
use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// Network access of a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Network {
    /// Nothing
    #[default]
    None,
    /// Public addresses, but not this machine or its private networks
    Public,
}

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// Image to run in; `host` shows this machine's own programs, read-only
    #[arg(long, default_value = "host")]
    pub(crate) image: String,
    /// Isolation: the built-in runtime, or an OCI runtime by its class name (`gvisor`, `crun`, …)
    #[arg(long, value_name = "CLASS")]
    pub(crate) isolation: Option<String>,
    /// Memory limit, for example 512Mi, or `none`; by default half of the machine's memory
    #[arg(long, value_name = "QUANTITY", value_parser = memory_limit)]
    pub(crate) memory: Option<DefaultLimit>,
    /// CPU limit, for example 0.5 or 2, or `none`; by default all CPUs but one, at least three quarters of them
    #[arg(long, value_name = "QUANTITY", value_parser = quantity_limit)]
    pub(crate) cpus: Option<DefaultLimit>,
    /// Maximum number of processes, or `none`; 1024 by default
    #[arg(long, value_name = "N", value_parser = count_limit)]
    pub(crate) pids: Option<DefaultLimit>,
    /// Disk space, or `none`; 10Gi by default
    #[arg(long, value_name = "QUANTITY", value_parser = quantity_limit)]
    pub(crate) storage: Option<DefaultLimit>,
    /// Number of files and folders, or `none`; 1000000 by default
    #[arg(long, value_name = "N", value_parser = count_limit)]
    pub(crate) inodes: Option<DefaultLimit>,
    /// Network access of the command
    #[arg(long, value_enum, default_value_t)]
    pub(crate) network: Network,
    /// Let the command reach this name and nothing else outside: pypi.org, *.example.com:443, @python; repeatable
    #[arg(long, value_name = "RULE", value_parser = egress_rule, conflicts_with = "network")]
    pub(crate) allow: Vec<String>,
    /// Environment variable, NAME=VALUE, or NAME to pass this shell's value
    #[arg(long, short, value_name = "NAME[=VALUE]", value_parser = variable)]
    pub(crate) env: Vec<(String, String)>,
    /// Mount a folder of this machine in the sandbox: SOURCE:TARGET[:ro]
    #[arg(long, short, value_name = "SOURCE:TARGET[:ro]")]
    pub(crate) volume: Vec<String>,
    #[command(flatten)]
    pub(crate) folders: HereArgs,
    /// Run in the background, in a sandbox of the local engine that stays until it is deleted; with --rm until the
    /// command ends
    #[arg(long, short, conflicts_with_all = ["interactive", "tty", "timeout"])]
    pub(crate) detach: bool,
    /// Name of the sandbox
    #[arg(long, value_parser = object_name)]
    pub(crate) name: Option<String>,
    /// Remove the sandbox when the command has ended: always so, unless it runs in the background
    #[arg(long = "rm")]
    pub(crate) remove: bool,
    /// Folder to start in
    #[arg(long, short, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// Stop after this time, for example 30s or 5m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
    /// Pass standard input to the command
    #[arg(long, short)]
    pub(crate) interactive: bool,
    /// Allocate a terminal for the command
    #[arg(long, short)]
    pub(crate) tty: bool,
    /// The command and its arguments; optional with `--image`, whose own command is run then
    #[arg(required_unless_present = "image", trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// Authentication of clients at the router's listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum RouterAuth {
    /// The API's token or a scoped token
    #[default]
    Token,
    /// No authentication: every process that can connect
    None,
}

#[derive(Args, Debug)]
pub(crate) struct UpArgs {
    /// Return when ready and keep running in the background
    #[arg(long, short)]
    pub(crate) detach: bool,
    /// Address that the Kubernetes API listens on. Default: 127.0.0.1:6443; if that port is in use, the next free one,
    /// which later engines on the same data keep
    #[arg(long, value_name = "HOST:PORT", env = "AGENT_SANDBOX_API_LISTEN")]
    pub(crate) api_listen: Option<SocketAddr>,
    /// Address that the router listens on; a port in use is replaced by the next free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080", env = "AGENT_SANDBOX_ROUTER_LISTEN")]
    pub(crate) router_listen: SocketAddr,
    /// Authentication of the router's clients
    #[arg(long, value_enum, default_value_t)]
    pub(crate) router_auth: RouterAuth,
    /// Address to serve metrics on; off by default
    #[arg(long, value_name = "HOST:PORT", env = "AGENT_SANDBOX_METRICS_LISTEN")]
    pub(crate) metrics_listen: Option<SocketAddr>,
    /// File for audit records, or `none`; `agent-sandbox audit` shows the default one, in the data folder
    #[arg(long, value_name = "FILE")]
    pub(crate) audit_log: Option<String>,
    /// File with regular expressions, one per line, that are removed from audit records
    #[arg(long, value_name = "FILE")]
    pub(crate) audit_redact_file: Option<PathBuf>,
    /// Number of sandboxes that the ready-made pool keeps warm, from now on. New pools keep 2
    #[arg(long, value_name = "N")]
    pub(crate) warm: Option<u32>,
    /// End, and stop the sandboxes as `down` does, when for this time no client was connected and no process ran in any
    /// sandbox. Default: never; 15m for an engine that another command starts
    #[arg(long, value_name = "DURATION", value_parser = duration, env = "AGENT_SANDBOX_IDLE_TIMEOUT")]
    pub(crate) idle_timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) node: NodeConfigArgs,
    /// Set by `--detach` for the process that it starts in the background
    #[arg(long, hide = true)]
    pub(crate) in_background: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DownArgs {
    /// Delete all data: sandboxes, volumes, images, and the context in ~/.kube/config. Asks first
    #[arg(long)]
    pub(crate) purge: bool,
    /// Delete without asking
    #[arg(long, short, requires = "purge")]
    pub(crate) yes: bool,
}

#[derive(Args, Debug)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Time between samples; CPU usage is measured between them
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1s")]
    pub(crate) interval: Duration,
    /// Print one table and exit, also on a terminal
    #[arg(long)]
    pub(crate) once: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Remove what engines that no longer run left on this machine
    #[arg(long)]
    pub(crate) fix: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct KubeconfigArgs {
    /// Add the local engine to ~/.kube/config instead of printing
    #[arg(long)]
    pub(crate) merge: bool,
    /// Print the path of the file instead of its content
    #[arg(long, conflicts_with = "merge")]
    pub(crate) path: bool,
}
