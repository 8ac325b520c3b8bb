//! Runs the API server alone, to try kubectl against it:
//! `cargo run -p agent-sandbox-apiserver --example serve -- kubeconfig`.
//!
//! Objects are kept in memory only and no Pods run: exec, logs and port-forward fail because no node is attached.

use agent_sandbox_apiserver::{ApiServer, Config, ListenerConfig};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: serve <path of the kubeconfig to write>")?;
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let server = ApiServer::open(Config::default()).await?;
    let listener = server.listen(ListenerConfig { kubeconfig: Some(path.into()), ..ListenerConfig::default() }).await?;
    tracing::info!(address = %listener.address(), "Serving; stop with Ctrl-C");
    tokio::signal::ctrl_c().await?;
    listener.shutdown(std::time::Duration::from_secs(1)).await;
    Ok(())
}
