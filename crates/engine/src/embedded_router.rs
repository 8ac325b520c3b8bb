//! The router inside the engine: a loopback listener for clients, and a handle for connections that the API has
//! authenticated.

use crate::{
    EngineError,
    e2b::{E2bApi, LateRouter},
};
use agent_sandbox_apiserver::{AccessTarget, ApiServer, Attributes, UserInfo};
use agent_sandbox_node::{NodeHandle, PodKey};
use agent_sandbox_protocol::{
    scoped_token::Secret,
    web::{AllowedHosts, AllowedOrigins},
};
use agent_sandbox_router::{
    AccessReview, ActivityGuard, AuthzConfig, Caller, ConnectionAuth, Connector, CookieConfig, Deps, Endpoint, Limits,
    LinkConfig, Modes, Router, RouterConfig, Routing, SameSite, Stream, TokenReviewConfig,
};
use agent_sandbox_streams::backend::{Duplex, NodeError, PodRef};
use agent_sandbox_telemetry::audit::AuditLog;
use async_trait::async_trait;
use std::{io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// Number of ports after the wanted one that are tried before any free one is taken.
const NEXT_PORTS: u16 = 20;
/// Timeout for requests under way when the router stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
/// Name of browsers' session cookie, and of the parameter of links that sets it.
const COOKIE: &str = "agent-sandbox-token";
/// Answers about tokens are not cached: the API is in this process, and a token that was replaced or revoked ends at
/// once.
const TOKEN_TTL: Duration = Duration::ZERO;
/// Maximum number of client connections, as of the API's listener. Streams that were upgraded do not count.
const MAX_CONNECTIONS: usize = 1024;
/// Size in bytes of the buffer between a port-forward and the router.
const BUFFER: usize = 256 * 1024;

/// The secret that tokens for sandboxes are made with.
pub(crate) struct RouterSecret {
    pub(crate) path: PathBuf,
    /// Requests need a token.
    pub(crate) required: bool,
}

impl RouterSecret {
    fn read(&self) -> Result<Secret, EngineError> {
        let failed = |source| EngineError::ReadFile { path: self.path.clone(), source };
        let bytes = std::fs::read(&self.path).map_err(failed)?;
        Secret::from_file_bytes(&bytes).map_err(|error| failed(io::Error::other(error)))
    }
}

/// A router that is being served.
pub(crate) struct EmbeddedRouter {
    address: SocketAddr,
    router: Arc<Router>,
    serving: JoinHandle<()>,
    stop: CancellationToken,
}

/// Serves connections that are already authenticated.
#[derive(Clone)]
pub(crate) struct RouterHandle(Arc<Router>);

impl EmbeddedRouter {
    /// Opens the listener on `wanted` or the next free port. If no token is required, every request is accepted.
    /// Otherwise a token of the API reaches what RBAC grants its user, which is everything for the administrator, and a
    /// scoped token its one sandbox. E2B's API and clients always need their keys and tokens.
    pub(crate) async fn open(
        api: &ApiServer,
        node: NodeHandle,
        wanted: SocketAddr,
        secret: RouterSecret,
        audit: Option<AuditLog>,
        stop: CancellationToken,
    ) -> Result<Self, EngineError> {
        let authz = match secret.required {
            true => AuthzConfig::AnyOf(Modes {
                scoped_token_secrets: vec![secret.path.clone()],
                token_review: Some(TokenReviewConfig {
                    ttl: TOKEN_TTL,
                    require_token: true,
                    ..TokenReviewConfig::default()
                }),
                rbac: true,
                ..Modes::default()
            }),
            false => AuthzConfig::AllowAll,
        };
        let failed = |source| EngineError::ListenRouter { address: wanted, source };
        let listener = bind(wanted).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let e2b_secret = secret.read()?;
        let late = LateRouter::default();
        let folder = secret.path.parent().unwrap_or(&secret.path);
        let mounted = E2bApi::new(api.clone(), e2b_secret.clone(), address.port(), folder, late.clone());
        let config = RouterConfig {
            cluster_domain: None,
            access_log: false,
            authz,
            // Roles are read in this process: nothing is gained by caching decisions.
            access_ttl: Duration::ZERO,
            allowed_hosts: AllowedHosts::loopback(),
            // Browsers resolve every name below `localhost` to this machine. Paths name no sandboxes here: all of them
            // would be of one origin, and a page of one could use every other.
            routing: Routing { path_prefix: None, host_domain: Some("localhost".to_owned()) },
            cookie: Some(cookie()),
            limits: Limits { connections: MAX_CONNECTIONS, per_peer: true, ..Limits::default() },
            links: Some(LinkConfig {
                secrets: vec![secret.path.clone()],
                public_url: Some(format!("http://localhost:{}", address.port())),
                injected_daemon: true,
            }),
            ..RouterConfig::default()
        };
        let deps = Deps {
            connector: Arc::new(PodConnector(node)),
            access_review: Some(Arc::new(Rbac(api.clone()))),
            audit,
            sleep: true,
            e2b: Some(e2b_secret),
            mounted: Some(Arc::new(mounted)),
            ..Deps::watching(api.client_without_managed_fields())
        };
        let router = Arc::new(Router::new(config, deps)?);
        let _ = late.set(Arc::downgrade(&router));
        let (served, until) = (router.clone(), stop.clone());
        let serving = tokio::spawn(async move { served.serve(listener, until).await });
        Ok(Self { address, router, serving, stop })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn handle(&self) -> RouterHandle {
        RouterHandle(self.router.clone())
    }

    /// Renders the router's metrics.
    pub(crate) fn metrics(&self) -> super::metrics::Page {
        let router = self.router.clone();
        Arc::new(move || router.render_metrics())
    }

    /// Stops accepting and lets requests finish for a moment.
    pub(crate) async fn close(self) {
        self.stop.cancel();
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, self.serving).await;
    }
}

impl RouterHandle {
    /// Begins a session with a Pod, whose Sandbox does not sleep before the guard is dropped.
    pub(crate) async fn begin_session(&self, pod: &PodRef) -> Result<Option<ActivityGuard>, NodeError> {
        let begun = self.0.begin_session(&pod.namespace, &pod.name).await;
        begun.map_err(|error| NodeError::Unavailable(error.to_string()))
    }

    pub(crate) fn of(router: Arc<Router>) -> Self {
        Self(router)
    }

    /// Serves a connection of `caller` to its end.
    pub(crate) async fn serve(&self, connection: Box<dyn Duplex>, caller: Arc<Caller>) {
        self.0.serve_connection(connection, ConnectionAuth::User(caller)).await;
    }

    /// A connection to the router whose other end is served at once.
    pub(crate) fn connect(&self, caller: Arc<Caller>) -> Box<dyn Duplex> {
        let (near, far) = tokio::io::duplex(BUFFER);
        let router = self.clone();
        tokio::spawn(async move { router.serve(Box::new(far), caller).await });
        Box::new(near)
    }
}

/// Sessions of browsers. The listener has no TLS, and not every browser sends secure cookies to `localhost` without it.
fn cookie() -> CookieConfig {
    CookieConfig {
        name: COOKIE.to_owned(),
        query_param: Some(COOKIE.to_owned()),
        same_site: SameSite::Lax,
        secure: false,
        allowed_origins: AllowedOrigins::default(),
        trust_forwarded_proto: false,
    }
}

/// Binds the wanted port, else one of the next ones, else any free one.
async fn bind(wanted: SocketAddr) -> io::Result<TcpListener> {
    let last = wanted.port().saturating_add(if wanted.port() == 0 { 0 } else { NEXT_PORTS });
    for port in (wanted.port()..=last).chain([0]) {
        match TcpListener::bind(SocketAddr::new(wanted.ip(), port)).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            other => return other,
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// Connects to Pods from inside their own network namespace, so that ports bound to loopback are reached as well.
struct PodConnector(NodeHandle);

#[async_trait]
impl Connector for PodConnector {
    async fn connect(&self, target: &Endpoint) -> io::Result<Stream> {
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

/// Decides with the roles and bindings of the engine's own API.
struct Rbac(ApiServer);

#[async_trait]
impl AccessReview for Rbac {
    async fn may_forward(&self, caller: &Caller, namespace: &str, pod: &str) -> Result<bool, kube::Error> {
        let user = UserInfo {
            username: caller.user.clone(),
            uid: caller.uid.clone(),
            groups: caller.groups.clone(),
            extra: caller.extra.clone().into_iter().collect(),
            ..UserInfo::default()
        };
        let target = AccessTarget::Resource {
            group: String::new(),
            resource: "pods".to_owned(),
            subresource: "portforward".to_owned(),
            namespace: namespace.to_owned(),
            name: pod.to_owned(),
        };
        Ok(self.0.allows(&user, &Attributes { verb: "create".to_owned(), target }))
    }
}
