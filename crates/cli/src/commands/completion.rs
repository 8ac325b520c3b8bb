//! `completion`: completion scripts for shells.

use crate::{
    args::{Cli, CompletionArgs},
    output,
};
use anyhow::Result;
use clap::CommandFactory;

pub(crate) fn completion(args: &CompletionArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "agent-sandbox", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}
