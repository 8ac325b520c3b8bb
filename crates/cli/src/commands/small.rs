//! `version` and `completion`.

use crate::{
    args::{Cli, CompletionArgs, VersionArgs},
    output,
};
use anyhow::Result;
use clap::CommandFactory;
use serde_json::json;

pub(crate) fn version(args: &VersionArgs) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let line = format!("agent-sandbox {version}\n");
    let value = json!({"version": version, "target": std::env::consts::ARCH});
    output::emit(args.output.output, &value, || format!("{version}\n"), || line)
}

pub(crate) fn completion(args: &CompletionArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "agent-sandbox", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}
