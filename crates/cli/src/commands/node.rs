//! `node`: runs this machine as a node of a control plane that runs elsewhere.

mod certificate;

use super::services::cancelled_by_signals;
use crate::{
    args::{GlobalArgs, NodeArgs},
    cluster,
};
use agent_sandbox_engine::{Backend, DataDir, NodeConfig};
use agent_sandbox_node::{
    Node, NodeOptions,
    kubelet::server::{KubeletServer, KubeletServerConfig},
};
use anyhow::{Context as _, Result, bail};
use kube::{Client, Config};
use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
};

/// Destination port of the UDP socket that finds the source address; nothing is sent to it.
const UNUSED_PORT: u16 = 9;

pub(crate) async fn node(global: &GlobalArgs, args: NodeArgs) -> Result<()> {
    let (certificate, key) = match (&args.tls_cert_file, &args.tls_private_key_file) {
        (Some(certificate), Some(key)) => (Some(read(certificate)?), Some(read(key)?)),
        _ => (None, None),
    };
    let client_authority = args.client_ca_file.as_deref().map(read).transpose()?;
    let name = match args.node_name {
        Some(name) => name,
        None => host_name()?,
    };
    let data = DataDir::locate(global.data_dir.as_deref())?;
    let config = cluster::control_plane(global).await?;
    let address = args.node_ip.unwrap_or_else(|| route_source(&config));
    let client = Client::try_from(config.clone()).context("cannot build a client for the control plane")?;
    let version = client.apiserver_version().await;
    version.with_context(|| format!("cannot talk to the control plane at {}", config.cluster_url))?;
    data.create().with_context(|| format!("cannot make the data folder {}", data.path().display()))?;
    if let Some(running) = data.running() {
        bail!("process {} already uses {}; choose another --data-dir", running.pid, data.path().display());
    }
    let stop = cancelled_by_signals()?;
    let node_config = NodeConfig { images: Some(data.images()), ..args.config.into_config() };
    let (runtime, options) = node_config.open(&data.node()).await?;
    let (certificate, key) = match (certificate, key) {
        (Some(certificate), Some(key)) => (certificate, key),
        _ => certificate::self_signed(&name, address)?,
    };
    let backend = Backend::default();
    let server =
        KubeletServerConfig { node_name: name.clone(), listen: args.listen, certificate, key, client_authority };
    let kubelet = KubeletServer::start(server, client.clone(), Arc::new(backend.clone())).await?;
    let options = NodeOptions {
        node_name: name.clone(),
        embedded: false,
        cluster_domain: args.cluster_domain,
        host_ips: vec![address.to_string()],
        kubelet_port: Some(kubelet.address.port()),
        ..options
    };
    let node = Node::start(client, runtime.clone(), runtime.clone(), options).await?;
    backend.serve(node.clone());
    data.publish_state(config.cluster_url.to_string(), String::new())?;
    for weakness in node.weaknesses() {
        tracing::warn!("{}", weakness.message);
    }
    tracing::info!(node = %name, control_plane = %config.cluster_url, listen = %kubelet.address, "Node is ready");
    stop.cancelled().await;
    data.remove_state();
    kubelet.close().await;
    // As with the kubelet, Pods keep running; the next start takes them over.
    node.shutdown().await;
    runtime.close();
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The host name, if it is a valid name for a Node.
fn host_name() -> Result<String> {
    let name = rustix::system::uname().nodename().to_string_lossy().to_lowercase();
    match crate::args::object_name(&name) {
        Ok(name) => Ok(name),
        Err(_) => bail!("the host name `{name}` cannot be the name of a Node; choose one with --node-name"),
    }
}

/// Source address of this machine's route to the API. A connected UDP socket has it without sending a packet.
fn route_source(config: &Config) -> IpAddr {
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let Some(host) = config.cluster_url.host() else { return loopback };
    let host = host.trim_matches(['[', ']']);
    let found = std::net::ToSocketAddrs::to_socket_addrs(&(host, UNUSED_PORT)).ok().and_then(|mut all| all.next());
    let Some(api) = found else { return loopback };
    let any: SocketAddr = if api.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    let local = std::net::UdpSocket::bind(any).and_then(|socket| {
        socket.connect(api)?;
        socket.local_addr()
    });
    local.map_or(loopback, |local| local.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_the_node_is_the_source_of_the_route_to_the_api() {
        let config = |url: &str| Config::new(url.parse().unwrap());
        assert_eq!(route_source(&config("https://127.0.0.1:6443")).to_string(), "127.0.0.1");
        assert_eq!(route_source(&config("https://[::1]:6443")).to_string(), "::1");
        assert_eq!(route_source(&config("https://no-such-host.invalid:6443")).to_string(), "127.0.0.1");
    }
}
