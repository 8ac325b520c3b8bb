//! A node of an external control plane: kernel runtime, node and HTTPS server, started and stopped together.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_sandbox_streams::backend::NoNode;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use thiserror::Error;

use crate::kernel::{KernelConfig, KernelRuntime};
use crate::kubelet::node::{Node, NodeError, NodeHandle, NodeOptions};
use crate::kubelet::server::{Backend, KubeletServer, KubeletServerConfig, KubeletServerError};
use crate::runtime::RuntimeError;

/// Configuration of a standalone node.
#[derive(Clone, Debug)]
pub struct StandaloneConfig {
    /// `embedded` and `kubelet_port` are set by [`Standalone::start`].
    pub node: NodeOptions,
    pub kernel: KernelConfig,
    /// Address on which logs, exec, attach and port-forward are served; port 0 selects a free port.
    pub listen: SocketAddr,
    /// Certificate chain and key in PEM. Without them the node creates a self-signed certificate and keeps it in its
    /// data folder.
    pub certificate: Option<(Vec<u8>, Vec<u8>)>,
    /// Authority whose client certificates are accepted, in PEM. Other clients need a token that the API authenticates.
    pub client_authority: Option<Vec<u8>>,
}

/// Why the node did not start.
#[derive(Debug, Error)]
pub enum StandaloneError {
    #[error("cannot isolate processes on this machine")]
    Kernel(#[source] RuntimeError),
    #[error("cannot create the node's own certificate")]
    Certificate(#[source] rcgen::Error),
    #[error("cannot store the node's own certificate in {path}")]
    Store {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    KubeletServer(#[from] KubeletServerError),
    #[error(transparent)]
    Node(#[from] NodeError),
}

/// A running standalone node. Its Pods outlive it.
pub struct Standalone {
    pub node: NodeHandle,
    server: KubeletServer,
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
        let server_config =
            KubeletServerConfig { node_name: node.node_name.clone(), listen, certificate, key, client_authority };
        // The node registers the server's port, so the server starts first. Until the node has started, it responds
        // with 503.
        let server = KubeletServer::start(server_config, client.clone(), Arc::new(NoNode)).await?;
        node.embedded = false;
        node.kubelet_port = Some(server.address.port());
        let node = Node::start(client, kernel.clone(), kernel.clone(), node).await?;
        server.set_backend(Arc::new(Backend::new(node.clone())));
        Ok(Self { node, server, kernel })
    }

    /// Address on which logs, exec, attach and port-forward are served.
    pub fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// Stops the node and leaves its Pods running; the next node process recovers them.
    pub async fn shutdown(self) {
        self.server.close().await;
        self.node.shutdown().await;
        self.kernel.close();
    }

    /// Stops the node and removes everything it stored: for temporary nodes.
    pub async fn purge(self) -> Result<(), NodeError> {
        self.server.close().await;
        let purged = self.node.purge().await;
        self.kernel.close();
        purged
    }
}

/// The local address of connections to the API: the default address that the node registers.
pub fn address_towards(api: SocketAddr) -> std::io::Result<IpAddr> {
    // Connecting a datagram socket sends no packet; the kernel only looks up the route.
    let any: SocketAddr = if api.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    socket.connect(api)?;
    Ok(socket.local_addr()?.ip())
}

/// The node's self-signed certificate and key: read from its data folder, or created.
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
    let store = |path: &Path, text: &str| -> std::io::Result<()> {
        use std::io::Write;
        use std::os::unix::fs::OpenOptionsExt;
        let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(text.as_bytes())
    };
    // The key is written last: a certificate without its key is created again.
    std::fs::create_dir_all(&folder)
        .and_then(|()| store(&certificate, &certificate_pem))
        .and_then(|()| store(&key, &key_pem))
        .map_err(|source| StandaloneError::Store { path: folder, source })?;
    Ok((certificate_pem.into(), key_pem.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_keeps_its_own_certificate() {
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
