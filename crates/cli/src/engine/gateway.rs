//! The router inside the engine: a loopback listener for clients, and a door for connections that the API has authenticated.

use agent_sandbox_apiserver::node::Duplex;
use agent_sandbox_node::{NodeHandle, PodKey};
use agent_sandbox_router::{
    AuthzConfig, Connect, Deps, Modes, Router, RouterConfig, StaticToken, Stream, Target, Trust,
};
use anyhow::{Context as _, Result};
use async_trait::async_trait;
use kube::Client;
use std::{io, net::SocketAddr, sync::Arc, time::Duration};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// How many ports after the wanted one are tried before any free one is taken.
const NEIGHBOURS: u16 = 20;
const GRACE: Duration = Duration::from_secs(2);
/// Bytes on their way between a port-forward and the router.
const BUFFER: usize = 256 * 1024;

/// A router that is being served.
pub(crate) struct Gateway {
    address: SocketAddr,
    router: Arc<Router>,
    serving: JoinHandle<()>,
    stop: CancellationToken,
}

/// Lets already authenticated connections in.
#[derive(Clone)]
pub(crate) struct Door(Arc<Router>);

impl Gateway {
    /// Opens the listener on `wanted` or the next free port. Without a token everybody is let in.
    pub(crate) async fn open(
        client: Client,
        node: NodeHandle,
        wanted: SocketAddr,
        token: Option<String>,
        stop: CancellationToken,
    ) -> Result<Self> {
        let authz = match token {
            Some(token) => AuthzConfig::AnyOf(Modes { static_token: Some(StaticToken(token)), ..Modes::default() }),
            None => AuthzConfig::AllowAll,
        };
        let config = RouterConfig {
            cluster_domain: None,
            access_log: false,
            authz,
            loopback_hosts_only: true,
            ..RouterConfig::default()
        };
        let deps = Deps { connect: Arc::new(IntoPods(node)), ..Deps::watching(client) };
        let router = Arc::new(Router::new(config, deps).context("cannot set up the router")?);
        let listener = bind(wanted).await.with_context(|| format!("cannot open the router on {wanted}"))?;
        let address = listener.local_addr()?;
        let (served, until) = (router.clone(), stop.clone());
        let serving = tokio::spawn(async move { served.serve(listener, until).await });
        Ok(Self { address, router, serving, stop })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn door(&self) -> Door {
        Door(self.router.clone())
    }

    /// Renders what the router counts.
    pub(crate) fn metrics(&self) -> super::metrics::Page {
        let router = self.router.clone();
        Arc::new(move || router.render_metrics())
    }

    /// Stops accepting and lets requests finish for a moment.
    pub(crate) async fn close(self) {
        self.stop.cancel();
        let _ = tokio::time::timeout(GRACE, self.serving).await;
    }
}

impl Door {
    /// Serves a connection to its end.
    pub(crate) async fn admit(&self, connection: Box<dyn Duplex>) {
        self.0.serve_connection(connection, Trust::Authenticated).await;
    }

    /// A connection to the router whose other end is served at once.
    pub(crate) fn connect(&self) -> Box<dyn Duplex> {
        let (near, far) = tokio::io::duplex(BUFFER);
        let door = self.clone();
        tokio::spawn(async move { door.admit(Box::new(far)).await });
        Box::new(near)
    }
}

/// The wanted port, else one of its neighbours, else any.
async fn bind(wanted: SocketAddr) -> io::Result<TcpListener> {
    let last = wanted.port().saturating_add(if wanted.port() == 0 { 0 } else { NEIGHBOURS });
    for port in (wanted.port()..=last).chain([0]) {
        match TcpListener::bind(SocketAddr::new(wanted.ip(), port)).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            other => return other,
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// Connects to Pods from inside their own network namespace, so that ports bound to loopback are reached as well.
struct IntoPods(NodeHandle);

#[async_trait]
impl Connect for IntoPods {
    async fn connect(&self, target: &Target) -> io::Result<Stream> {
        let Some(pod) = &target.pod else { return Err(io::ErrorKind::HostUnreachable.into()) };
        let key = PodKey {
            namespace: pod.namespace.to_string(),
            name: pod.pod.to_string(),
            uid: Some(pod.pod_uid.to_string()),
        };
        let stream = self.0.dial(&key, target.addr.port()).await;
        stream.map(Stream::from).map_err(|error| io::Error::new(io::ErrorKind::ConnectionRefused, error))
    }
}
