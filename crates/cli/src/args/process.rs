//! Arguments of commands that run one part of the system, and of small helpers.

use super::OutputArgs;
use clap::Args;
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
