//! Arguments of the MCP server.

use clap::Args;
use std::net::SocketAddr;

#[derive(Args, Debug)]
pub(crate) struct McpArgs {
    /// Serve many clients over streamable HTTP at this address, path /mcp, instead of one on standard input and output
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<SocketAddr>,
    /// Host name by which clients may call the server ('*' for any); needed when it listens beyond this machine
    #[arg(long, value_name = "NAME", requires = "listen")]
    pub(crate) allowed_host: Vec<String>,
    /// Id of the session, so that a restarted client finds its sandboxes again; a new one when not given
    #[arg(long, value_name = "ID", conflicts_with = "listen")]
    pub(crate) session: Option<String>,
}
