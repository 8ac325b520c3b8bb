//! Arguments of `token`, `version`, `completion` and `reference`.

use super::{
    OutputArgs,
    values::{Lifetime, lifetime},
};
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
    /// Create a key for E2B's clients, which names a ServiceAccount
    E2b(TokenE2bArgs),
    /// List the valid tokens of ServiceAccounts of the local engine, and keys for E2B's clients
    List(TokenListArgs),
    /// End tokens of ServiceAccounts of the local engine, or keys for E2B's clients, at once
    Revoke(TokenRevokeArgs),
    /// Replace the administrator's token of the local engine, or a key for E2B's clients, and end the old one at once
    Rotate(TokenRotateArgs),
}

#[derive(Args, Debug)]
pub(crate) struct TokenE2bArgs {
    /// The ServiceAccount that requests with the key act as [default: one named e2b, created if it is missing]
    #[arg(long, value_name = "NAME")]
    pub(crate) account: Option<String>,
    /// Time after which the key ends, or `never`
    #[arg(long, value_name = "DURATION", default_value = "90d", value_parser = lifetime)]
    pub(crate) expires_in: Lifetime,
    /// Let clients pause sandboxes although their processes end [default: refused unless they ask for files only]
    #[arg(long)]
    pub(crate) pause_without_memory: bool,
}

#[derive(Args, Debug)]
pub(crate) struct TokenRotateArgs {
    /// Id of a key for E2B's clients, or the key itself [default: the administrator's token]
    #[arg(value_name = "KEY")]
    pub(crate) key: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct TokenListArgs {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Args, Debug)]
pub(crate) struct TokenRevokeArgs {
    /// Ids of the tokens or keys, or the tokens or keys themselves
    #[arg(required = true, value_name = "TOKEN")]
    pub(crate) tokens: Vec<String>,
}
