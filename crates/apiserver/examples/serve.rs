//! Runs the API alone, for trying kubectl against it: `cargo run -p agent-sandbox-apiserver --example serve -- kubeconfig`.
//!
//! It keeps nothing and runs no Pods: exec, logs and port-forward answer that no node is attached.

use agent_sandbox_apiserver::{ApiServer, Config, ListenerConfig};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: serve <where to write the kubeconfig>")?;
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let server = ApiServer::open(Config::default()).await?;
    let listener = server.listen(ListenerConfig { kubeconfig: Some(path.into()), ..ListenerConfig::default() }).await?;
    tracing::info!(address = %listener.address(), "Serving; stop with Ctrl-C");
    tokio::signal::ctrl_c().await?;
    listener.shutdown(std::time::Duration::from_secs(1)).await;
    Ok(())
}
