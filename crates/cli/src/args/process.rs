//! Arguments of commands that run one part of the system, and of small helpers.

use super::OutputArgs;
use agent_sandbox_router::TokenMintArgs;
use clap::{Args, Subcommand};
use clap_complete::Shell;

#[derive(Args, Debug)]
pub(crate) struct VersionArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct CompletionArgs {
    /// The shell to complete for
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Args, Debug)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    pub(crate) command: TokenCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token that opens one sandbox
    Mint(TokenMintArgs),
}
