//! `mcp`: sandboxes as tools for models, on standard input and output or over HTTP.

use crate::{
    args::{GlobalArgs, McpArgs},
    cluster::{ClusterClient, ClusterError},
};
use agent_sandbox_api::v1beta1::Sandbox;
use agent_sandbox_client::{Cluster, SandboxClient, connect};
use agent_sandbox_engine::DataDir;
use agent_sandbox_mcp::{BearerToken, Defaults, HttpOptions, Sandboxes, Settings, serve_http, serve_stdio};
use anyhow::{Context as _, Result};
use futures::StreamExt as _;
use kube::{
    Api,
    runtime::{WatchStreamExt as _, watcher},
};
use std::path::Path;
use tokio::signal::unix::{SignalKind, signal};

pub(crate) async fn mcp(global: &GlobalArgs, args: McpArgs) -> Result<()> {
    let settings = Settings::from_environment()?;
    let (client, namespace) = client(global).await?;
    let client = SandboxClient::new(Cluster::of(client), settings.connection).with_port(settings.port);
    let sandboxes = Sandboxes::new(client, settings.session_key, Defaults { namespace, source: args.pool });
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

/// A client and the namespace to work in, for the chosen cluster or, without a choice, for the cluster that this process runs in, else for the local
/// engine, which is started if it does not run.
async fn client(global: &GlobalArgs) -> Result<(kube::Client, String)> {
    let cluster = match ClusterClient::open(global).await {
        Err(ClusterError::Nothing) => match kube::Config::incluster() {
            Ok(config) => {
                let namespace = global.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
                let client = connect(config, "the cluster that this process runs in")
                    .context("cannot build a client for this cluster")?;
                return Ok((client, namespace));
            }
            Err(_) => ClusterClient::open_or_start(global).await?,
        },
        other => other?,
    };
    if cluster.is_local() {
        // An open watch keeps an engine that ends when it is not used: this server may be idle for longer.
        let sandboxes: Api<Sandbox> = Api::all(cluster.client.clone());
        tokio::spawn(watcher(sandboxes, watcher::Config::default()).default_backoff().for_each(async |_| {}));
    }
    Ok((cluster.client, cluster.namespace))
}
