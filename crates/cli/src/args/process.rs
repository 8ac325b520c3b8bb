//! Arguments of `token`, `version`, `completion` and `reference`.

use super::OutputArgs;
use agent_sandbox_router::TokenMintArgs;
use clap::{Args, Subcommand};
use clap_complete::Shell;
use std::path::PathBuf;

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
pub(crate) struct ReferenceArgs {
    /// Folder to write into
    #[arg(long, value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// Write only the page, no manual pages and completions
    #[arg(long)]
    pub(crate) page_only: bool,
}

#[derive(Args, Debug)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    pub(crate) command: TokenCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Create a token for one sandbox
    Mint(TokenMintArgs),
}
