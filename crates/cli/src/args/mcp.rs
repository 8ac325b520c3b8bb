//! Arguments of the MCP server.

use super::values::object_name;
use agent_sandbox_engine::ready_made;
use clap::Args;
use std::{net::SocketAddr, path::PathBuf};

#[derive(Args, Debug)]
pub(crate) struct McpArgs {
    /// Serve many clients over streamable HTTP at this address, path /mcp, instead of one on standard input and output
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<SocketAddr>,
    /// Host name by which clients may call the server ('*' for any); needed when it listens beyond this machine
    #[arg(long, value_name = "NAME", requires = "listen")]
    pub(crate) allowed_host: Vec<String>,
    /// File with the bearer token that HTTP clients must send [default: mcp-token in the data folder, created when missing]
    #[arg(long, value_name = "FILE", requires = "listen")]
    pub(crate) token_file: Option<PathBuf>,
    /// Serve HTTP clients without a token; only behind a gateway that authenticates
    #[arg(long, requires = "listen", conflicts_with = "token_file")]
    pub(crate) no_token: bool,
    /// Warm pool or template from which calls that name none get their sandbox
    #[arg(long, value_name = "NAME", default_value = ready_made::NAME, value_parser = object_name)]
    pub(crate) pool: String,
    /// Id of the session, so that a restarted client finds its sandboxes again; a new one by default
    #[arg(long, value_name = "ID", conflicts_with = "listen")]
    pub(crate) session: Option<String>,
}
