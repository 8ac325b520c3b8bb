//! `port-forward`: local ports that lead into a sandbox, until Ctrl-C.

use super::objects::found;
use crate::{args::PortForwardArgs, target::Target};
use agent_sandbox_client as sdk;
use anyhow::{Context as _, Result};
use tokio::{net::TcpListener, task::JoinSet};

pub(crate) async fn forward(target: &Target, args: PortForwardArgs) -> Result<()> {
    let found = found(target, &args.name).await?;
    let pod = sdk::running_pod(&target.client, &found.sandbox).await?;
    let mut listeners = JoinSet::new();
    for (local, remote) in args.ports {
        let listener = TcpListener::bind(("127.0.0.1", local)).await;
        let listener = listener.with_context(|| format!("cannot listen on 127.0.0.1:{local}"))?;
        eprintln!("forwarding {} -> {remote}", listener.local_addr()?);
        let (client, pod) = (target.client.clone(), pod.clone());
        listeners.spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let (client, pod) = (client.clone(), pod.clone());
                tokio::spawn(async move {
                    match sdk::dial(&client, &pod, remote).await {
                        // How a forwarded connection ends is the business of its two ends.
                        Ok(mut far) => drop(tokio::io::copy_bidirectional(&mut near, &mut far).await),
                        Err(error) => eprintln!("error: {error}"),
                    }
                });
            }
        });
    }
    tokio::signal::ctrl_c().await.context("cannot wait for Ctrl-C")
}
