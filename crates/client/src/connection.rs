//! The ways to reach a sandbox's daemon.

use std::{path::PathBuf, time::Duration};

/// Where routers are looked for first.
pub const ROUTER_NAMESPACE: &str = "agent-sandbox-system";

/// How calls travel to the sandbox.
#[derive(Clone, Debug)]
pub enum Connection {
    /// Through the API's port-forward to the router: needs nothing but the kubeconfig.
    Tunnel(Tunnel),
    /// Through the API's port-forward to the sandbox's own Pod: needs no router.
    PodTunnel,
    /// Through the address of a Gateway (Gateway API) in front of the router.
    Gateway(GatewayOptions),
    /// To a router at a known address.
    Direct(DirectOptions),
    /// Straight to the Pod, from inside the cluster.
    InCluster(Address),
}

impl Default for Connection {
    fn default() -> Self {
        Self::Tunnel(Tunnel::default())
    }
}

/// Where the tunnel looks for the router.
#[derive(Clone, Debug, Default)]
pub struct Tunnel {
    /// Instead of `agent-sandbox-system`. The sandbox's own namespace comes second in either case.
    pub router_namespace: Option<String>,
}

/// A Gateway to wait for.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    pub name: String,
    pub namespace: String,
    pub ready_timeout: Duration,
}

/// A router's address and what it wants to see.
#[derive(Clone, Debug, Default)]
pub struct DirectOptions {
    /// `http://` or `https://`, with an optional path in front of everything.
    pub url: String,
    /// Sent with every request. Names that start with `X-Sandbox-` are the SDK's own and refused.
    pub headers: Vec<(String, String)>,
    /// Authorities to trust instead of the system's, as a PEM file.
    pub ca: Option<PathBuf>,
    /// Certificate and key for mutual TLS, as PEM files.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// Which address of a sandbox is used inside the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Address {
    /// The Pod's address, else the sandbox's name in the cluster's DNS.
    #[default]
    PodIpThenDns,
    /// The Pod's address only.
    PodIp,
    /// The sandbox's name in the cluster's DNS.
    Dns,
    /// The name of the sandbox's Service, which must exist.
    Service,
}
