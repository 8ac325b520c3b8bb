//! Arguments of `egress`.

use super::values::sandbox_name;
use clap::{Args, Subcommand};

#[derive(Args, Debug)]
pub(crate) struct EgressCommandArgs {
    #[command(subcommand)]
    pub(crate) command: EgressCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EgressCommand {
    /// Print what a sandbox asked for and what was decided, a JSON object per line
    Log(EgressLogArgs),
    /// Say what the egress rules of a sandbox decide about an address, without connecting
    Test(EgressTestArgs),
}

#[derive(Args, Debug)]
pub(crate) struct EgressLogArgs {
    /// Name of the sandbox, or of a claim
    #[arg(value_parser = sandbox_name)]
    pub(crate) name: String,
    /// Keep printing new records
    #[arg(long, short)]
    pub(crate) follow: bool,
}

#[derive(Args, Debug)]
pub(crate) struct EgressTestArgs {
    /// Name of the sandbox, or of a claim
    #[arg(value_parser = sandbox_name)]
    pub(crate) name: String,
    /// The address: https://pypi.org/simple, http://example.com, or NAME:PORT
    #[arg(value_name = "URL")]
    pub(crate) url: String,
}
