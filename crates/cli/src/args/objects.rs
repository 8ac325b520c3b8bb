//! Arguments of commands about sandboxes, claims, pools and templates.

use super::{
    OutputArgs,
    values::{duration, object_name, ports, quantity, variable},
};
use clap::{Args, Subcommand};
use std::{path::PathBuf, time::Duration};

#[derive(Args, Debug)]
pub(crate) struct CreateArgs {
    /// Name of the sandbox
    #[arg(value_parser = object_name)]
    pub(crate) name: String,
    /// Image to run; `host` shows the node's own programs, read-only
    #[arg(long, default_value = "host")]
    pub(crate) image: String,
    /// Environment variable NAME=VALUE
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = variable)]
    pub(crate) env: Vec<(String, String)>,
    /// Isolation: an OCI runtime by its class name (`gvisor`, `crun`, …)
    #[arg(long, value_name = "CLASS")]
    pub(crate) isolation: Option<String>,
    /// Memory limit, for example 512Mi
    #[arg(long, value_name = "QUANTITY", value_parser = quantity)]
    pub(crate) memory: Option<String>,
    /// CPU limit, for example 0.5 or 2
    #[arg(long, value_name = "QUANTITY", value_parser = quantity)]
    pub(crate) cpus: Option<String>,
    /// Delete the sandbox after this time
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) expires_in: Option<Duration>,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// The container's own command, when the image has none or another is wanted
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct WaitArgs {
    /// How long to wait until it is ready; 0 returns at once
    #[arg(long, value_name = "DURATION", default_value = "180s", value_parser = duration)]
    pub(crate) wait: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct ClaimArgs {
    /// Warm pool to claim from
    #[arg(value_parser = object_name)]
    pub(crate) pool: String,
    /// Name of the claim; one is made up when left out
    #[arg(long, value_parser = object_name)]
    pub(crate) name: Option<String>,
    /// Environment variable NAME=VALUE
    #[arg(long, short, value_name = "NAME=VALUE", value_parser = variable)]
    pub(crate) env: Vec<(String, String)>,
    /// Delete the claim and its sandbox after this time
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) expires_in: Option<Duration>,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// All namespaces
    #[arg(long, short = 'A')]
    pub(crate) all_namespaces: bool,
    /// Only those with these labels, for example app=web
    #[arg(long, short = 'l', value_name = "SELECTOR")]
    pub(crate) selector: Option<String>,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct GetArgs {
    /// Name of the sandbox, or of a claim
    #[arg(value_parser = object_name)]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ExecArgs {
    /// Name of the sandbox, or of a claim
    #[arg(value_parser = object_name)]
    pub(crate) name: String,
    /// Container, when the sandbox has several
    #[arg(long, short)]
    pub(crate) container: Option<String>,
    /// Pass standard input on
    #[arg(long, short)]
    pub(crate) interactive: bool,
    /// Give the command a terminal
    #[arg(long, short)]
    pub(crate) tty: bool,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct ShellArgs {
    /// Name of the sandbox, or of a claim
    #[arg(value_parser = object_name)]
    pub(crate) name: String,
    /// Container, when the sandbox has several
    #[arg(long, short)]
    pub(crate) container: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct CpArgs {
    /// From: a local path, or SANDBOX:PATH
    pub(crate) source: String,
    /// To: a local path, or SANDBOX:PATH
    pub(crate) destination: String,
}

#[derive(Args, Debug)]
pub(crate) struct LogsArgs {
    /// Name of the sandbox, or of a claim
    #[arg(value_parser = object_name)]
    pub(crate) name: String,
    /// Container, when the sandbox has several
    #[arg(long, short)]
    pub(crate) container: Option<String>,
    /// Keep printing as more comes
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Only the last lines
    #[arg(long, value_name = "N")]
    pub(crate) tail: Option<i64>,
    /// Print when each line was written
    #[arg(long)]
    pub(crate) timestamps: bool,
}

#[derive(Args, Debug)]
pub(crate) struct NamesArgs {
    /// Names of sandboxes, or of claims
    #[arg(required = true, value_parser = object_name)]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
}

#[derive(Args, Debug)]
pub(crate) struct DeleteArgs {
    /// Names of sandboxes, or of claims
    #[arg(required_unless_present = "all", value_parser = object_name)]
    pub(crate) names: Vec<String>,
    /// Every claim and every sandbox of the namespace that no pool owns
    #[arg(long, conflicts_with = "names")]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
}

#[derive(Args, Debug)]
pub(crate) struct ApplyArgs {
    /// Manifest; `-` reads standard input
    #[arg(long, short, required = true, value_name = "FILE")]
    pub(crate) filename: Vec<PathBuf>,
    /// Print what would be applied, change nothing
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
        /// Template that its sandboxes are made from
        #[arg(long, value_parser = object_name)]
        template: String,
        /// How many to keep warm
        #[arg(long, default_value_t = 1)]
        replicas: u32,
    },
    /// List warm pools
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Change how many sandboxes a pool keeps warm
    Scale {
        /// Name of the pool
        #[arg(value_parser = object_name)]
        name: String,
        /// How many to keep warm
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
    /// Name of the sandbox, or of a claim
    #[arg(value_parser = object_name)]
    pub(crate) name: String,
    /// LOCAL:REMOTE, or one number for both
    #[arg(required = true, value_name = "[LOCAL:]REMOTE", value_parser = ports)]
    pub(crate) ports: Vec<(u16, u16)>,
}
