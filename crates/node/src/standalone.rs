//! A node of a control plane that is not in this process: kernel, Pods and TLS server, started and stopped together.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_sandbox_apiserver::node::NoNode;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use thiserror::Error;

use crate::kernel::{KernelConfig, KernelRuntime};
use crate::kubelet::{Backend, Kubelet, KubeletConfig, KubeletError};
use crate::node::{Node, NodeError, NodeHandle, NodeOptions};
use crate::runtime::RuntimeError;

/// How such a node is run.
#[derive(Clone, Debug)]
pub struct StandaloneConfig {
    /// `embedded` and `kubelet_port` are set by [`Standalone::start`].
    pub node: NodeOptions,
    pub kernel: KernelConfig,
    /// Where logs, exec, attach and port-forward are served; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Certificate chain and key, PEM. Without them the node makes its own and keeps it in its folder.
    pub certificate: Option<(Vec<u8>, Vec<u8>)>,
    /// Client certificates of this authority are let in; PEM. Others need a token that the API vouches for.
    pub client_authority: Option<Vec<u8>>,
}

/// Why the node did not start.
#[derive(Debug, Error)]
pub enum StandaloneError {
    #[error("cannot isolate processes here")]
    Kernel(#[source] RuntimeError),
    #[error("cannot make the node's own certificate")]
    Certificate(#[source] rcgen::Error),
    #[error("cannot keep the node's own certificate in {path}")]
    Keep {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Kubelet(#[from] KubeletError),
    #[error(transparent)]
    Node(#[from] NodeError),
}

/// A running node. Its Pods outlive it.
pub struct Standalone {
    pub node: NodeHandle,
    kubelet: Kubelet,
    kernel: Arc<KernelRuntime>,
}

impl Standalone {
    /// Registers with the control plane behind `client` and runs the Pods bound to this node.
    pub async fn start(client: kube::Client, config: StandaloneConfig) -> Result<Self, StandaloneError> {
        let StandaloneConfig { mut node, kernel, listen, certificate, client_authority } = config;
        let (certificate, key) = match certificate {
            Some(given) => given,
            None => own_certificate(&node.data_dir, &node.node_name, &node.host_ips)?,
        };
        let kernel = KernelRuntime::open(kernel).await.map_err(StandaloneError::Kernel)?;
        let served = KubeletConfig { node_name: node.node_name.clone(), listen, certificate, key, client_authority };
        // The port is part of what the node registers, so the door opens first, and answers "not yet" for a moment.
        let kubelet = Kubelet::start(served, client.clone(), Arc::new(NoNode)).await?;
        node.embedded = false;
        node.kubelet_port = Some(kubelet.address.port());
        let node = Node::start(client, kernel.clone(), kernel.clone(), node).await?;
        kubelet.attach(Arc::new(Backend::new(node.clone())));
        Ok(Self { node, kubelet, kernel })
    }

    /// Where logs, exec, attach and port-forward are served.
    pub fn address(&self) -> SocketAddr {
        self.kubelet.address
    }

    /// Ends the node and leaves its Pods running, to be taken over by the next one.
    pub async fn shutdown(self) {
        self.kubelet.close().await;
        self.node.shutdown().await;
        self.kernel.close();
    }

    /// Ends the node and everything it keeps: for nodes that are thrown away.
    pub async fn purge(self) -> Result<(), NodeError> {
        self.kubelet.close().await;
        let purged = self.node.purge().await;
        self.kernel.close();
        purged
    }
}

/// The address of this machine from which the API is reached: what the node registers when nobody says otherwise.
pub fn address_towards(api: SocketAddr) -> std::io::Result<IpAddr> {
    // Connecting a datagram socket sends nothing; it only asks the routing table.
    let any: SocketAddr = if api.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(api)?;
    Ok(socket.local_addr()?.ip())
}

/// The certificate the node made for itself: found in its folder, or made now.
fn own_certificate(data_dir: &Path, name: &str, addresses: &[String]) -> Result<(Vec<u8>, Vec<u8>), StandaloneError> {
    let folder = data_dir.join("pki");
    let (certificate, key) = (folder.join("kubelet.crt"), folder.join("kubelet.key"));
    if let (Ok(certificate), Ok(key)) = (std::fs::read(&certificate), std::fs::read(&key)) {
        return Ok((certificate, key));
    }
    let fresh = || -> Result<(String, String), rcgen::Error> {
        let mut params = CertificateParams::new(vec![name.to_owned(), "localhost".to_owned()])?;
        let ips = addresses.iter().filter_map(|ip| ip.parse().ok());
        params.subject_alt_names.extend(ips.map(SanType::IpAddress));
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, format!("system:node:{name}"));
        let pair = KeyPair::generate()?;
        Ok((params.self_signed(&pair)?.pem(), pair.serialize_pem()))
    };
    let (certificate_pem, key_pem) = fresh().map_err(StandaloneError::Certificate)?;
    let keep = |path: &Path, text: &str| -> std::io::Result<()> {
        use std::io::Write;
        use std::os::unix::fs::OpenOptionsExt;
        let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(text.as_bytes())
    };
    // The key last: a certificate without its key is made again.
    std::fs::create_dir_all(&folder)
        .and_then(|()| keep(&certificate, &certificate_pem))
        .and_then(|()| keep(&key, &key_pem))
        .map_err(|source| StandaloneError::Keep { path: folder, source })?;
    Ok((certificate_pem.into(), key_pem.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_keeps_the_certificate_it_made() {
        let folder = tempfile::tempdir().unwrap();
        let first = own_certificate(folder.path(), "n1", &["192.0.2.7".into()]).unwrap();
        assert_eq!(own_certificate(folder.path(), "n1", &[]).unwrap(), first);
        std::fs::remove_file(folder.path().join("pki/kubelet.key")).unwrap();
        assert_ne!(own_certificate(folder.path(), "n1", &[]).unwrap(), first, "useless without its key");
    }

    #[test]
    fn the_address_is_the_one_the_api_is_reached_from() {
        assert_eq!(address_towards("127.0.0.1:6443".parse().unwrap()).unwrap().to_string(), "127.0.0.1");
    }
}
