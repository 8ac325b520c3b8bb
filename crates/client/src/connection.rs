//! How to connect to a sandbox's daemon.

use std::{path::PathBuf, time::Duration};

/// The namespace in which the router is looked up first.
pub const ROUTER_NAMESPACE: &str = "agent-sandbox-system";

/// How requests reach the sandbox.
#[derive(Clone, Debug)]
pub enum Connection {
    /// Through a port-forward to the router. Needs only a kubeconfig.
    Tunnel(Tunnel),
    /// Through a port-forward to the sandbox's own Pod. Needs no router.
    PodTunnel,
    /// Through the address of a Gateway (Gateway API) in front of the router.
    Gateway(GatewayOptions),
    /// To a router at a known address.
    Direct(DirectOptions),
    /// Directly to the Pod, from inside the cluster.
    InCluster(Address),
}

impl Default for Connection {
    fn default() -> Self {
        Self::Tunnel(Tunnel::default())
    }
}

/// Options of the tunnel to the router.
#[derive(Clone, Debug, Default)]
pub struct Tunnel {
    /// Namespace of the router, instead of `agent-sandbox-system`. The sandbox's own namespace is tried second in
    /// either case.
    pub router_namespace: Option<String>,
}

/// A Gateway, and the timeout until it has an address.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    pub name: String,
    pub namespace: String,
    pub ready_timeout: Duration,
}

/// A router's address, headers and certificates.
#[derive(Clone, Debug, Default)]
pub struct DirectOptions {
    /// `http://` or `https://` URL, with an optional path prefix.
    pub url: String,
    /// Headers sent with every request. Names that start with `X-Sandbox-` are reserved and refused.
    pub headers: Vec<(String, String)>,
    /// PEM file of certificate authorities to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// Certificate and key for mutual TLS, as PEM files.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// Which address of a sandbox is used for connections inside the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Address {
    /// The Pod IP, otherwise the sandbox's name in cluster DNS.
    #[default]
    PodIpThenDns,
    /// Only the Pod IP.
    PodIp,
    /// The sandbox's name in cluster DNS.
    Dns,
    /// The name of the sandbox's Service, which must exist.
    Service,
}
