//! `mcp`: sandboxes as tools for models, on standard input and output or over HTTP.

use crate::{
    args::{GlobalArgs, McpArgs},
    cluster::{ClusterClient, ClusterError},
};
use agent_sandbox_client::{Cluster, SandboxClient};
use agent_sandbox_engine::DataDir;
use agent_sandbox_mcp::{BearerToken, HttpOptions, Sandboxes, Settings, serve_http, serve_stdio};
use anyhow::{Context as _, Result};
use std::path::Path;
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
    let (token, hint) = match (args.no_token, args.token_file) {
        (true, _) => (None, "no token is required".to_owned()),
        (false, Some(path)) => (Some(BearerToken::load(&path)?), bearer_hint(&path)),
        (false, None) => {
            let data = DataDir::locate(global.data_dir.as_deref())?;
            data.create().with_context(|| {
                format!("cannot keep a token in {}; name a file with --token-file", data.path().display())
            })?;
            let path = data.mcp_token();
            (Some(BearerToken::load_or_create(&path)?), bearer_hint(&path))
        }
    };
    let options = HttpOptions { listen, allowed_hosts: args.allowed_host, token };
    let ready = |address| eprintln!("MCP server at http://{address}/mcp ({hint})");
    Ok(serve_http(sandboxes, options, ready, stop).await?)
}

fn bearer_hint(path: &Path) -> String {
    format!("clients send the bearer token in {}", path.display())
}

/// A client for the chosen cluster or, inside a cluster without a choice, for that cluster.
async fn client(global: &GlobalArgs) -> Result<kube::Client> {
    match ClusterClient::open(global).await {
        Ok(cluster) => Ok(cluster.client),
        Err(ClusterError::Nothing) => {
            let config = kube::Config::incluster().map_err(|_| ClusterError::Nothing)?;
            kube::Client::try_from(config).context("cannot build a client for this cluster")
        }
        Err(error) => Err(error.into()),
    }
}
