//! `version`: the version of this program.

use crate::{args::VersionArgs, output};
use anyhow::Result;
use serde_json::json;

pub(crate) fn version(args: &VersionArgs) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let line = format!("agent-sandbox {version}\n");
    let value = json!({"version": version, "target": std::env::consts::ARCH});
    output::emit(args.output.output, &value, || format!("{version}\n"), || line)
}
