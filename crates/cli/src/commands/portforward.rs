//! `port-forward`: local ports that lead into a sandbox, until Ctrl-C.

use super::objects::found;
use crate::{args::PortForwardArgs, target::Target};
use agent_sandbox_client as sdk;
use anyhow::{Context as _, Result, bail};
use tokio::{net::TcpListener, task::JoinSet};

pub(crate) async fn forward(target: &Target, args: PortForwardArgs) -> Result<()> {
    let pairs = args.ports.iter().map(|text| parse(text)).collect::<Result<Vec<_>>>()?;
    let found = found(target, &args.name).await?;
    let pod = sdk::running_pod(&target.client, &found.sandbox).await?;
    let mut listeners = JoinSet::new();
    for (local, remote) in pairs {
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

/// `LOCAL:REMOTE`, `:REMOTE` for a free local port, or one number for both.
fn parse(text: &str) -> Result<(u16, u16)> {
    let (local, remote) = text.split_once(':').unwrap_or((text, text));
    let local = if local.is_empty() { Ok(0) } else { local.parse::<u16>() };
    match (local, remote.parse::<u16>()) {
        (Ok(local), Ok(remote)) if remote > 0 => Ok((local, remote)),
        _ => bail!("`{text}` is not a pair of ports; write for example 8000:8888"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_come_in_pairs() {
        assert_eq!(parse("8000:80").unwrap(), (8000, 80));
        assert_eq!(parse("80").unwrap(), (80, 80));
        assert_eq!(parse(":80").unwrap(), (0, 80));
        for wrong in ["", "a", "80:", "70000", "1:2:3", "80:0"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
