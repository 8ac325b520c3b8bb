//! Arguments of `url`.

use super::{
    OutputArgs,
    values::{duration, sandbox_name},
};
use clap::{Args, Subcommand};
use std::time::Duration;

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct UrlArgs {
    #[command(subcommand)]
    pub(crate) command: Option<UrlCommand>,
    #[command(flatten)]
    pub(crate) create: UrlCreateArgs,
}

#[derive(Args, Debug)]
pub(crate) struct UrlCreateArgs {
    /// Name of the sandbox, or of a claim
    #[arg(value_parser = sandbox_name, required = true)]
    pub(crate) name: Option<String>,
    /// Ports that the link opens; each gets an address
    #[arg(required = true, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..), num_args = 1..=8)]
    pub(crate) ports: Vec<u16>,
    /// How long the link is valid, for example 15m or 12h; at most 720h
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration)]
    pub(crate) ttl: Duration,
    /// Allow GET, HEAD and OPTIONS only, and no WebSockets
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Open the link in a browser
    #[arg(long, conflicts_with = "output")]
    pub(crate) open: bool,
    /// Print the form that names the sandbox in the path, which gives all sandboxes one origin
    #[arg(long)]
    pub(crate) path: bool,
    /// Allow a port of the sandbox's daemon, which runs commands
    #[arg(long)]
    pub(crate) allow_daemon: bool,
    #[command(flatten)]
    pub(crate) router: UrlRouterArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct UrlRouterArgs {
    /// Address of a cluster's router, to send the request there with the kubeconfig's token instead of through a port-forward
    #[arg(long, value_name = "URL", env = "AGENT_SANDBOX_ROUTER_URL", hide_env_values = true)]
    pub(crate) router: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum UrlCommand {
    /// List links that are valid; their addresses are not kept anywhere
    #[command(visible_alias = "ls")]
    List(UrlListArgs),
    /// End links, and what is open through them, within seconds
    Revoke(UrlRevokeArgs),
}

#[derive(Args, Debug)]
pub(crate) struct UrlListArgs {
    /// All namespaces
    #[arg(long, short = 'A')]
    pub(crate) all_namespaces: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct UrlRevokeArgs {
    /// Ids, as `url list` shows them
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
    #[command(flatten)]
    pub(crate) router: UrlRouterArgs,
}
