//! Arguments of commands about sandboxes, claims, pools and templates.

use super::{
    HereArgs, Network, OutputArgs,
    values::{Forward, duration, egress_rule, idle_time, memory, object_name, ports, quantity, sandbox_name, variable},
};
use agent_sandbox_api::{keys::annotations, sleep};
use clap::{Args, Subcommand};
use std::{collections::BTreeMap, path::PathBuf, time::Duration};

/// Flags of `create` that make no sense with `--template`.
const TEMPLATE_DECIDES: [&str; 11] =
    ["image", "volume", "here", "write", "with", "network", "workdir", "isolation", "memory", "cpus", "command"];

/// Flags of `create` that make no sense with `--snapshot`.
const SNAPSHOT_DECIDES: [&str; 12] = [
    "image",
    "template",
    "env",
    "volume",
    "here",
    "write",
    "with",
    "workdir",
    "isolation",
    "memory",
    "cpus",
    "command",
];

#[derive(Args, Debug)]
pub(crate) struct CreateArgs {
    /// Name of the sandbox
    #[arg(value_parser = object_name)]
    pub(crate) name: String,
    /// Image to run; `host` shows the node's own programs, read-only
    #[arg(long, default_value = "host")]
    pub(crate) image: String,
    /// Create it from a template, as a claim of this name; the template decides everything else
    #[arg(long, value_name = "NAME", value_parser = object_name, conflicts_with_all = TEMPLATE_DECIDES)]
    pub(crate) template: Option<String>,
    /// Create it from a snapshot: its files, image and settings are those of the snapshot
    #[arg(long, value_name = "NAME", value_parser = object_name, conflicts_with_all = SNAPSHOT_DECIDES)]
    pub(crate) snapshot: Option<String>,
    /// Environment variable, NAME=VALUE, or NAME to pass this shell's value
    #[arg(long, short, value_name = "NAME[=VALUE]", value_parser = variable)]
    pub(crate) env: Vec<(String, String)>,
    /// Mount a folder of this machine; with a cluster, one of the node, which must allow it
    #[arg(long, short, value_name = "SOURCE:TARGET[:ro]")]
    pub(crate) volume: Vec<String>,
    #[command(flatten)]
    pub(crate) folders: HereArgs,
    /// Network access, instead of the cluster's default (on the local engine: none)
    #[arg(long, value_enum)]
    pub(crate) network: Option<Network>,
    #[command(flatten)]
    pub(crate) egress: EgressArgs,
    /// Forward a port of this machine's loopback address to it, in the background, until it is deleted or the local
    /// engine ends
    #[arg(long, short, value_name = "[LOCAL:]REMOTE", value_parser = ports)]
    pub(crate) publish: Vec<Forward>,
    /// Folder to start in
    #[arg(long, short, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// Isolation: an OCI runtime by its class name (`gvisor`, `crun`, …)
    #[arg(long, value_name = "CLASS")]
    pub(crate) isolation: Option<String>,
    /// Memory limit, for example 512Mi
    #[arg(long, value_name = "QUANTITY", value_parser = memory)]
    pub(crate) memory: Option<String>,
    /// CPU limit, for example 0.5 or 2
    #[arg(long, value_name = "QUANTITY", value_parser = quantity)]
    pub(crate) cpus: Option<String>,
    /// Delete the sandbox after this time
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) expires_in: Option<Duration>,
    #[command(flatten)]
    pub(crate) sleep: SleepArgs,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
    /// Keep a sandbox that cannot start; by default it is deleted again
    #[arg(long)]
    pub(crate) keep: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// Set by `run --detach --rm`: delete the sandbox when its command has ended.
    #[arg(skip)]
    pub(crate) remove: bool,
    /// Set by `run --detach --storage`: disk space of what the sandbox writes.
    #[arg(skip)]
    pub(crate) storage: Option<String>,
    /// Command of the container, instead of the image's own
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// Which part of the world a sandbox reaches.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct EgressArgs {
    /// Let it reach this name and nothing else outside: pypi.org, *.example.com:443, @python; repeatable
    #[arg(long, value_name = "RULE", value_parser = egress_rule)]
    pub(crate) allow: Vec<String>,
}

impl EgressArgs {
    /// The annotation that says this.
    pub(crate) fn annotations(&self) -> BTreeMap<String, String> {
        let rules = (!self.allow.is_empty()).then(|| (annotations::EGRESS.to_owned(), self.allow.join(", ")));
        rules.into_iter().collect()
    }
}

/// When a sandbox sleeps and wakes.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct SleepArgs {
    /// Suspend it after this time without use, for example 15m; a request or command wakes it
    #[arg(long, value_name = "DURATION", value_parser = idle_time)]
    pub(crate) idle: Option<Duration>,
    /// With --idle: suspend it also while commands run in the background
    #[arg(long, requires = "idle")]
    pub(crate) idle_ignores_processes: bool,
    /// Which suspended sandboxes a request wakes: those that were idle, also those that you suspended, or none
    #[arg(long, value_enum)]
    pub(crate) wake: Option<WakeArg>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum WakeArg {
    IfIdle,
    Always,
    Never,
}

impl SleepArgs {
    /// The annotations that say this.
    pub(crate) fn annotations(&self) -> BTreeMap<String, String> {
        let wake = self.wake.map(|wake| match wake {
            WakeArg::IfIdle => "IfIdle",
            WakeArg::Always => "Always",
            WakeArg::Never => "Never",
        });
        let pairs = [
            (annotations::IDLE_TIMEOUT, self.idle.map(sleep::format_duration)),
            (annotations::IDLE_PROCESSES, self.idle_ignores_processes.then(|| "Ignore".to_owned())),
            (annotations::WAKE, wake.map(str::to_owned)),
        ];
        pairs.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
    }
}

#[derive(Args, Debug)]
pub(crate) struct KeepAliveArgs {
    /// Names of sandboxes, or of claims
    #[arg(required = true, value_parser = sandbox_name)]
    pub(crate) names: Vec<String>,
    /// Keep them awake for this time, whether they are used or not
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    pub(crate) time: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct WaitArgs {
    /// Time to wait until it is ready; 0 returns at once
    #[arg(long, value_name = "DURATION", default_value = "180s", value_parser = duration)]
    pub(crate) wait: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct ClaimArgs {
    /// Warm pool or template to claim from
    #[arg(value_name = "POOL|TEMPLATE", value_parser = object_name)]
    pub(crate) source: String,
    /// Name of the claim; generated by default
    #[arg(long, value_parser = object_name)]
    pub(crate) name: Option<String>,
    /// Environment variable, NAME=VALUE, or NAME to pass this shell's value
    #[arg(long, short, value_name = "NAME[=VALUE]", value_parser = variable)]
    pub(crate) env: Vec<(String, String)>,
    /// Narrow the template's egress rules to this name; repeatable
    #[arg(long, value_name = "RULE", value_parser = egress_rule)]
    pub(crate) allow: Vec<String>,
    /// Delete the claim and its sandbox after this time
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) expires_in: Option<Duration>,
    #[command(flatten)]
    pub(crate) sleep: SleepArgs,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
    /// Keep a claim whose sandbox cannot start; by default it is deleted again
    #[arg(long)]
    pub(crate) keep: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct SandboxListArgs {
    /// All namespaces
    #[arg(long, short = 'A')]
    pub(crate) all_namespaces: bool,
    /// Show the waiting sandboxes of warm pools too
    #[arg(long, short)]
    pub(crate) all: bool,
    /// Show only objects with these labels, for example app=web
    #[arg(long, short = 'l', value_name = "SELECTOR")]
    pub(crate) selector: Option<String>,
    /// Show the list again after each change, until Ctrl-C
    #[arg(long, short)]
    pub(crate) watch: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// All namespaces
    #[arg(long, short = 'A')]
    pub(crate) all_namespaces: bool,
    /// Show only objects with these labels, for example app=web
    #[arg(long, short = 'l', value_name = "SELECTOR")]
    pub(crate) selector: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct GetArgs {
    /// Name of the sandbox, or of a claim
    #[arg(value_parser = sandbox_name)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ExecArgs {
    /// Name of the sandbox, or of a claim
    #[arg(value_parser = sandbox_name)]
    pub(crate) name: String,
    /// Container, when the sandbox has several
    #[arg(long, short)]
    pub(crate) container: Option<String>,
    /// Pass standard input to the command
    #[arg(long, short)]
    pub(crate) interactive: bool,
    /// Allocate a terminal for the command
    #[arg(long, short)]
    pub(crate) tty: bool,
    /// Environment variable, NAME=VALUE, or NAME to pass this shell's value
    #[arg(long, short, value_name = "NAME[=VALUE]", value_parser = variable)]
    pub(crate) env: Vec<(String, String)>,
    /// Folder to start in
    #[arg(long, short, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// User to run as, by name or id; on a cluster, changing it needs root in the sandbox
    #[arg(long, short, value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Stop after this time, for example 30s or 5m; the exit code is then 124
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct ShellArgs {
    /// Name of the sandbox, or of a claim
    #[arg(value_parser = sandbox_name)]
    pub(crate) name: String,
    /// Container, when the sandbox has several
    #[arg(long, short)]
    pub(crate) container: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct CpArgs {
    /// Sources, then the destination: local paths, or SANDBOX:PATH; `-` is standard input or output
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "DESTINATION"])]
    pub(crate) paths: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct LogsArgs {
    /// Name of the sandbox, or of a claim
    #[arg(value_parser = sandbox_name)]
    pub(crate) name: String,
    /// Container, when the sandbox has several
    #[arg(long, short)]
    pub(crate) container: Option<String>,
    /// Keep printing new output
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Print only the last N lines
    #[arg(long, value_name = "N")]
    pub(crate) tail: Option<i64>,
    /// Print a timestamp before each line
    #[arg(long)]
    pub(crate) timestamps: bool,
}

#[derive(Args, Debug)]
pub(crate) struct HistoryArgs {
    /// Name of the sandbox, or of a claim
    #[arg(value_parser = sandbox_name)]
    pub(crate) name: String,
    /// Print the output of the command with this number in the list
    #[arg(value_name = "ID")]
    pub(crate) id: Option<i32>,
    /// List only the last N commands
    #[arg(long, value_name = "N", conflicts_with = "id")]
    pub(crate) tail: Option<u32>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct SuspendArgs {
    /// Names of sandboxes, or of claims
    #[arg(required = true, value_parser = sandbox_name)]
    pub(crate) names: Vec<String>,
    /// Time to wait until it has stopped; 0 returns at once
    #[arg(long, value_name = "DURATION", default_value = "180s", value_parser = duration)]
    pub(crate) wait: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct NamesArgs {
    /// Names of sandboxes, or of claims
    #[arg(required = true, value_parser = sandbox_name)]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
}

#[derive(Args, Debug)]
pub(crate) struct DeleteArgs {
    /// Names of sandboxes, or of claims
    #[arg(required_unless_present = "all", value_parser = sandbox_name)]
    pub(crate) names: Vec<String>,
    /// Delete every claim, and every sandbox of the namespace that no pool owns
    #[arg(long, conflicts_with = "names")]
    pub(crate) all: bool,
    /// Do not fail for names that do not exist
    #[arg(long, short)]
    pub(crate) force: bool,
    /// Time to wait until it is gone; 0 returns at once
    #[arg(long, value_name = "DURATION", default_value = "180s", value_parser = duration)]
    pub(crate) wait: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct ApplyArgs {
    /// Manifest; `-` reads standard input
    #[arg(long, short, required = true, value_name = "FILE")]
    pub(crate) filename: Vec<PathBuf>,
    /// Print what would be applied without changing anything
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Args, Debug)]
pub(crate) struct PoolArgs {
    #[command(subcommand)]
    pub(crate) command: PoolCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PoolCommand {
    /// Create a warm pool
    Create {
        /// Name of the pool
        #[arg(value_parser = object_name)]
        name: String,
        /// Template of its sandboxes
        #[arg(long, value_parser = object_name)]
        template: String,
        /// Number of sandboxes to keep warm
        #[arg(long, default_value_t = 1)]
        replicas: u32,
    },
    /// List warm pools
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Change the number of sandboxes that a pool keeps warm
    Scale {
        /// Name of the pool
        #[arg(value_parser = object_name)]
        name: String,
        /// Number of sandboxes to keep warm
        replicas: u32,
    },
    /// Delete a warm pool
    #[command(visible_alias = "rm")]
    Delete {
        /// Name of the pool
        #[arg(value_parser = object_name)]
        name: String,
    },
}

#[derive(Args, Debug)]
pub(crate) struct TemplateArgs {
    #[command(subcommand)]
    pub(crate) command: TemplateCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TemplateCommand {
    /// Create a template
    Create {
        /// Name of the template
        #[arg(value_parser = object_name)]
        name: String,
        /// Image of its sandboxes
        #[arg(long, default_value = "host")]
        image: String,
    },
    /// List templates
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Delete a template
    #[command(visible_alias = "rm")]
    Delete {
        /// Name of the template
        #[arg(value_parser = object_name)]
        name: String,
    },
}

#[derive(Args, Debug)]
pub(crate) struct PortForwardArgs {
    /// Set by `create --publish`: end with the sandbox or the local engine
    #[arg(long, hide = true)]
    pub(crate) until_gone: bool,
    /// Name of the sandbox, or of a claim
    #[arg(value_parser = sandbox_name)]
    pub(crate) name: String,
    /// LOCAL:REMOTE, or one number for both
    #[arg(required = true, value_name = "[LOCAL:]REMOTE", value_parser = ports)]
    pub(crate) ports: Vec<Forward>,
}
