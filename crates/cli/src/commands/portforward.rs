//! `port-forward`: forwards local ports to a sandbox, until Ctrl-C.

use super::objects::find_sandbox;
use crate::{args::PortForwardArgs, cluster::ClusterClient};
use agent_sandbox_client as sdk;
use anyhow::{Context as _, Result};
use tokio::{net::TcpListener, task::JoinSet};

pub(crate) async fn forward(cluster: &ClusterClient, args: PortForwardArgs) -> Result<()> {
    let found = find_sandbox(cluster, &args.name).await?;
    let pod = sdk::running_pod(&cluster.client, &found.sandbox).await?;
    let mut listeners = JoinSet::new();
    for (local, remote) in args.ports {
        let listener = TcpListener::bind(("127.0.0.1", local)).await;
        let listener = listener.with_context(|| format!("cannot listen on 127.0.0.1:{local}"))?;
        eprintln!("forwarding {} -> {remote}", listener.local_addr()?);
        let (client, pod) = (cluster.client.clone(), pod.clone());
        listeners.spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let (client, pod) = (client.clone(), pod.clone());
                tokio::spawn(async move {
                    match sdk::dial(&client, &pod, remote).await {
                        // Errors of a forwarded connection reach its two ends; they need no report here.
                        Ok(mut far) => drop(tokio::io::copy_bidirectional(&mut near, &mut far).await),
                        Err(error) => eprintln!("error: {error}"),
                    }
                });
            }
        });
    }
    tokio::signal::ctrl_c().await.context("cannot wait for Ctrl-C")
}
