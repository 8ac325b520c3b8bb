//! `mcp`: sandboxes as tools for models, on standard input and output or over HTTP.

use crate::{
    args::{GlobalArgs, McpArgs},
    target::{Target, TargetError},
};
use agent_sandbox_client::{Cluster, SandboxClient};
use agent_sandbox_mcp::{HttpOptions, Sandboxes, Settings, serve_http, serve_stdio};
use anyhow::{Context as _, Result};
use tokio::signal::unix::{SignalKind, signal};

pub(crate) async fn mcp(global: &GlobalArgs, args: McpArgs) -> Result<()> {
    let settings = Settings::from_environment()?;
    let client = SandboxClient::new(Cluster::of(client(global).await?), settings.connection).with_port(settings.port);
    let sandboxes = Sandboxes::new(client, settings.session_key);
    let Some(listen) = args.listen else {
        return Ok(serve_stdio(sandboxes, args.session).await?);
    };
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let stop = async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    let options = HttpOptions { listen, allowed_hosts: args.allowed_host };
    let ready = |address| eprintln!("MCP server at http://{address}/mcp");
    Ok(serve_http(sandboxes, options, ready, stop).await?)
}

/// The cluster of every command; inside a cluster, the cluster's own.
async fn client(global: &GlobalArgs) -> Result<kube::Client> {
    match Target::find(global).await {
        Ok(target) => Ok(target.client),
        Err(TargetError::Nothing) => {
            let config = kube::Config::incluster().map_err(|_| TargetError::Nothing)?;
            kube::Client::try_from(config).context("cannot build a client for this cluster")
        }
        Err(error) => Err(error.into()),
    }
}
