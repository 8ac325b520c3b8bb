//! Arguments of the command line. Parsing only: what each command does is in `commands`.

mod audit;
mod changes;
mod egress;
mod engine;
mod image;
mod mcp;
mod node;
mod objects;
mod process;
mod snapshots;
mod typos;
mod url;
mod values;

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

pub(crate) use agent_sandbox_router::RouterArgs;
pub(crate) use audit::*;
pub(crate) use changes::*;
pub(crate) use egress::*;
pub(crate) use engine::*;
pub(crate) use image::*;
pub(crate) use mcp::*;
pub(crate) use node::*;
pub(crate) use objects::*;
pub(crate) use process::*;
pub(crate) use snapshots::*;
pub(crate) use typos::{nearest, parse};
pub(crate) use url::*;
pub(crate) use values::{Forward, object_name};

const EXAMPLES: &str = "\
Examples:
  agent-sandbox run -- python3 -c 'print(1)'      one command in a fresh sandbox, no set-up
  agent-sandbox create my-sandbox                 a sandbox with a name that stays; starts the engine
  agent-sandbox exec my-sandbox -- ls -la         run in it
  agent-sandbox cp ./data my-sandbox:/home/user   copy files into it
  agent-sandbox suspend my-sandbox                stop it, keep its files";

/// Isolated, stateful computers for AI agents, on this machine and on Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "agent-sandbox", version, after_help = EXAMPLES, max_term_width = 100, propagate_version = false)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags that every command takes.
#[derive(Args, Clone, Debug)]
pub(crate) struct GlobalArgs {
    // A string, like the router's own flag of that name: clap requires one type for both.
    /// Kubeconfig of the cluster to talk to
    #[arg(long, global = true, value_name = "FILE", help_heading = "Target")]
    pub(crate) kubeconfig: Option<String>,
    /// Context of the kubeconfig to use
    #[arg(long, global = true, value_name = "NAME", help_heading = "Target")]
    pub(crate) context: Option<String>,
    /// Namespace to work in
    #[arg(long, short, global = true, value_name = "NAMESPACE", help_heading = "Target")]
    pub(crate) namespace: Option<String>,
    // The variable is read after parsing: clap would print the flag as a required one in every usage line.
    /// Folder with the local engine's data [env: AGENT_SANDBOX_DATA_DIR=]
    #[arg(long, global = true, value_name = "DIR", help_heading = "Target")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Log more; twice for everything
    #[arg(long, global = true, action = clap::ArgAction::Count, help_heading = "Output")]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run one command in a fresh sandbox and remove it afterwards
    Run(RunArgs),
    /// Start the engine on this machine: API, controller, node and router
    Up(UpArgs),
    /// Stop the local engine and its sandboxes; state is kept
    Down(DownArgs),
    /// Show the local engine and its sandboxes; exits with 3 while no engine runs
    Status(StatusArgs),
    /// Show the resource usage of the local engine's sandboxes, refreshed on a terminal
    Top(TopArgs),
    /// Check what this machine offers for isolation, and how to fix what it lacks
    Doctor(DoctorArgs),
    /// Create a sandbox with a name of your choice
    Create(CreateArgs),
    /// Claim a sandbox from a warm pool or a template
    Claim(ClaimArgs),
    /// List sandboxes
    #[command(visible_aliases = ["ls", "ps"])]
    List(SandboxListArgs),
    /// Show one sandbox
    Get(GetArgs),
    /// Run a command in a sandbox
    Exec(ExecArgs),
    /// Open a shell in a sandbox
    Shell(ShellArgs),
    /// Copy files or folders into or out of a sandbox
    Cp(CpArgs),
    /// Print the logs of a sandbox
    Logs(LogsArgs),
    /// List the commands that ended in a sandbox, with exit code and time, or print the output of one
    History(HistoryArgs),
    /// Stop a sandbox, keeping its files and its name
    #[command(visible_alias = "stop")]
    Suspend(SuspendArgs),
    /// Start the idle time of sandboxes again, or keep them awake for a time
    KeepAlive(KeepAliveArgs),
    /// Start a suspended sandbox again
    #[command(visible_alias = "start")]
    Resume(NamesArgs),
    /// Keep the files of a sandbox as they are now, to go back to them or to make new sandboxes from them
    Snapshot(SnapshotArgs),
    /// Make new sandboxes with the files that a sandbox has now; it goes on
    Fork(ForkArgs),
    /// Set the files of a sandbox back to a snapshot; what was written since is lost
    Rollback(RollbackArgs),
    /// Delete sandboxes or claims
    #[command(visible_alias = "rm")]
    Delete(DeleteArgs),
    /// Show and apply what sandboxes changed in their copies of folders (`--here`)
    Changes(ChangesArgs),
    /// Apply manifests; short forms are expanded first
    Apply(ApplyArgs),
    /// Manage warm pools
    Pool(PoolArgs),
    /// Manage templates
    Template(TemplateArgs),
    /// Manage the images on this machine
    Image(ImageArgs),
    /// Show who did what to which sandbox on the local engine
    Audit(AuditArgs),
    /// Show what sandboxes reach outside, or try it
    Egress(EgressCommandArgs),
    /// Print the local engine's kubeconfig
    Kubeconfig(KubeconfigArgs),
    /// Serve sandboxes as tools for models (Model Context Protocol)
    Mcp(McpArgs),
    /// Forward local ports to a sandbox
    PortForward(PortForwardArgs),
    /// Print a link that opens a port of a sandbox in a browser; list links, revoke them
    Url(UrlArgs),
    /// Run the controller (on a cluster); takes the flags of upstream's controller
    #[command(disable_help_flag = true)]
    Controller {
        /// Upstream's flags; `agent-sandbox controller --help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAGS")]
        arguments: Vec<String>,
    },
    /// Run the router (on a cluster)
    Router(Box<RouterArgs>),
    /// Run this machine as a node of a cluster: register it and run its Pods
    Node(Box<NodeArgs>),
    /// Create tokens for the router and keys for E2B's clients; list, revoke and replace tokens of the local engine
    Token(TokenArgs),
    /// Print the version
    Version(VersionArgs),
    /// Print shell completions
    Completion(CompletionArgs),
    /// Print names for completion scripts
    #[command(hide = true)]
    Names {
        /// Words of the command line after the program; the last one is to be completed
        #[arg(last = true)]
        words: Vec<String>,
    },
    /// Write the command line's reference
    #[command(hide = true)]
    Reference(ReferenceArgs),
}

/// Output format of commands that print objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    #[default]
    Table,
    Json,
    Yaml,
    Name,
}

/// The output flag of commands that print objects.
#[derive(Args, Clone, Debug)]
pub(crate) struct OutputArgs {
    /// Output format
    #[arg(long, short, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) output: OutputFormat,
}
