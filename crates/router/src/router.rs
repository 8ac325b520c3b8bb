//! The router as a value: built from a configuration and its dependencies, then served on listeners.

use std::io::Write;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use agent_sandbox_protocol::scoped_token::Secret;
use agent_sandbox_telemetry::audit::AuditLog;
use kube::Client;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::auth::{
    AccessReview, Authorizer, AuthzSetupError, KubeAccessReview, KubeTokenReview, Reviews, Secrets, TokenReview,
};
use crate::config::RouterConfig;
use crate::e2b::E2bAccess;
use crate::links::Links;
use crate::mounted::Mounted;
use crate::observability::access_log::AccessLog;
use crate::observability::audit::RouterAudit;
use crate::observability::metrics::Metrics;
use crate::observability::otlp::{self, OtlpError, Traces};
use crate::proxy::connector::{ByteStream, Connector, TcpConnector};
use crate::proxy::signer::{Signer, SignerError};
use crate::resolve::dns::{Lookup, SystemDns};
use crate::resolve::index::{PodIndex, UsedPod, watch};
use crate::server;
use crate::server::client_connection::ConnectionAuth;
use crate::server::probes::{self, AdminPort};
use crate::server::tls::Acceptor;
use crate::server::workers::Workers;
use crate::sleep::{ActivityGuard, NotBegun, Sleep, observer};
use crate::state::{Shared, Worker};

/// The router's dependencies.
pub struct Deps {
    /// Used to watch Pods and to review tokens; `None` if the caller updates the index.
    pub client: Option<Client>,
    /// Whether the client is used to watch Pods; it may be there for token reviews only.
    pub watch_pods: bool,
    /// Opens connections to sandboxes.
    pub connector: Arc<dyn Connector>,
    pub dns: Arc<dyn Lookup>,
    /// Whether the client may get Sandboxes and patch their annotations: then requests wake suspended Sandboxes, and
    /// the use of those with an idle time is recorded.
    pub sleep: bool,
    /// Live Pods; shared, so that an embedder can read it, too.
    pub index: Arc<PodIndex>,
    /// Reviews tokens; `None` uses the client.
    pub token_review: Option<Arc<dyn TokenReview>>,
    /// Decides about users of the Kubernetes API; `None` uses the client.
    pub access_review: Option<Arc<dyn AccessReview>>,
    /// The secret that tokens of E2B's clients are derived from; `None` serves no such clients.
    pub e2b: Option<Secret>,
    /// Another service below a path of this router's port.
    pub mounted: Option<Arc<dyn Mounted>>,
    /// Where the access log is written; `None` is standard error.
    pub access_log: Option<Box<dyn Write + Send>>,
    /// Gets a record of every command, file write, use of a port and refusal.
    pub audit: Option<AuditLog>,
    /// OTLP endpoints of the signals that are exported.
    pub trace_endpoint: Option<String>,
    pub metrics_endpoint: Option<String>,
}

impl Deps {
    /// Watches Pods with `client` and dials their addresses.
    pub fn watching(client: Client) -> Self {
        Self { client: Some(client), watch_pods: true, ..Self::detached() }
    }

    /// Without an API; the caller updates `index`.
    pub fn detached() -> Self {
        Self {
            client: None,
            watch_pods: false,
            connector: Arc::new(TcpConnector),
            dns: Arc::new(SystemDns),
            sleep: false,
            index: Arc::default(),
            token_review: None,
            access_review: None,
            e2b: None,
            mounted: None,
            access_log: None,
            audit: None,
            trace_endpoint: None,
            metrics_endpoint: None,
        }
    }
}

/// Why a router could not be built.
#[derive(Debug, thiserror::Error)]
pub enum RouterSetupError {
    #[error("cannot set up authorisation")]
    Authz(#[from] AuthzSetupError),
    #[error("cannot sign requests to sandboxes")]
    Signer(#[from] SignerError),
    #[error("cannot set up OTLP export")]
    Otlp(#[from] OtlpError),
    #[error("links to ports need a Kubernetes API, and none is configured")]
    LinksWithoutApi,
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
}

/// A router, ready to serve any number of listeners.
pub struct Router {
    shared: Arc<Shared>,
    workers: Workers,
    /// Serves single connections on the caller's runtime.
    local: Arc<Worker>,
    client: Option<Client>,
    metrics_endpoint: Option<String>,
    watching: OnceLock<()>,
}

impl Drop for Router {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl Router {
    /// Builds a router and starts its worker threads, if there are any.
    pub fn new(config: RouterConfig, deps: Deps) -> Result<Self, RouterSetupError> {
        let client = deps.client.clone();
        let sleep = client.clone().filter(|_| deps.sleep).map(Sleep::new);
        let token = deps.token_review.or_else(|| client.clone().map(|client| Arc::new(KubeTokenReview(client)) as _));
        let access = deps.access_review.or_else(|| client.map(|client| Arc::new(KubeAccessReview(client)) as _));
        let reviews = Reviews { token, access, access_ttl: config.access_ttl };
        let authorizer = Authorizer::new(&config.authz, reviews)?;
        let links = match (&config.links, &deps.client) {
            (Some(links), Some(client)) => {
                let secrets = match authorizer.secrets() {
                    Some(secrets) => Arc::clone(secrets),
                    None => Arc::new(Secrets::load(links.secrets.clone())?),
                };
                Some(Links::new(links.clone(), secrets, client.clone()))
            }
            (Some(_), None) => return Err(RouterSetupError::LinksWithoutApi),
            (None, _) => None,
        };
        let signer = config.sandbox_token_key.as_deref().map(Signer::load).transpose()?;
        let access_log = if config.access_log {
            let sink = deps.access_log.unwrap_or_else(|| Box::new(std::io::stderr()));
            Some(Arc::new(AccessLog::start(sink).map_err(RouterSetupError::Thread)?))
        } else {
            None
        };
        let threads = config.workers;
        let page_hosts = config.allowed_hosts.or_private(config.cluster_domain.clone());
        let shared = Arc::new(Shared {
            config,
            index: deps.index,
            connector: deps.connector,
            dns: deps.dns,
            sleep,
            authorizer,
            page_hosts,
            e2b: deps.e2b.map(E2bAccess::new),
            links,
            mounted: deps.mounted,
            signer,
            metrics: Metrics::default(),
            traces: deps.trace_endpoint.as_deref().map(Traces::new).transpose()?,
            needs_index: deps.watch_pods && deps.client.is_some(),
            access_log,
            audit: deps.audit.map(RouterAudit::new),
            in_flight: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            upgrades: parking_lot::Mutex::default(),
            draining: AtomicBool::new(false),
            ready: AtomicBool::new(false),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            abort: CancellationToken::new(),
        });
        let workers = Workers::start(&shared, threads).map_err(RouterSetupError::Thread)?;
        let local = Worker::new(Arc::clone(&shared));
        let client = deps.client.filter(|_| deps.watch_pods);
        Ok(Self { shared, workers, local, client, metrics_endpoint: deps.metrics_endpoint, watching: OnceLock::new() })
    }

    /// The index of live Pods.
    pub fn index(&self) -> &Arc<PodIndex> {
        &self.shared.index
    }

    /// Serves plain HTTP until `shutdown`, then drains. Starts watching Pods if they are not watched yet.
    pub async fn serve(&self, listener: TcpListener, shutdown: CancellationToken) {
        self.watch(&self.shared.stop);
        self.shared.ready.store(true, Ordering::Relaxed);
        server::serve(&self.shared, &self.workers, listener, None, shutdown).await;
    }

    /// The same over TLS.
    pub async fn serve_tls(&self, listener: TcpListener, tls: Acceptor, shutdown: CancellationToken) {
        self.watch(&self.shared.stop);
        self.shared.ready.store(true, Ordering::Relaxed);
        server::serve(&self.shared, &self.workers, listener, Some(tls), shutdown).await;
    }

    /// Serves one connection that is already open, on the caller's runtime, until it ends or the router drains. Pods
    /// are watched from the first call of any `serve` function on, for as long as the router lives.
    pub async fn serve_connection(&self, stream: impl ByteStream, auth: ConnectionAuth) {
        self.watch(&self.shared.stop);
        server::serve_stream(&self.local, stream, auth).await;
    }

    /// Serves `/healthz` and `/readyz` until `stop`.
    pub async fn serve_probes(&self, listener: TcpListener, stop: CancellationToken) {
        probes::serve(Arc::clone(&self.shared), listener, AdminPort::Probes, stop).await;
    }

    /// Serves `/metrics` until `stop`.
    pub async fn serve_metrics(&self, listener: TcpListener, stop: CancellationToken) {
        probes::serve(Arc::clone(&self.shared), listener, AdminPort::Metrics, stop).await;
    }

    /// Completes when the index is synced, or at once if the router does not watch Pods.
    pub async fn wait_synced(&self) {
        if self.shared.needs_index {
            self.shared.index.wait_synced().await;
        }
    }

    /// The metrics in text exposition format, for embedders without a metrics port.
    pub fn render_metrics(&self) -> String {
        self.shared.metrics.render()
    }

    /// Starts exporting spans and metrics to the configured endpoints, until `end`.
    pub fn start_exporters(&self, end: &CancellationToken) -> Result<(), OtlpError> {
        if let Some(traces) = &self.shared.traces {
            traces.start(end.clone());
        }
        match &self.metrics_endpoint {
            Some(endpoint) => otlp::start_metrics(endpoint, Arc::clone(&self.shared), end.clone()),
            None => Ok(()),
        }
    }

    /// Begins a session with a Pod that does not pass through the router, such as an exec. The Pod's Sandbox does not
    /// sleep before the guard is dropped, also if the Pod is not live yet; `None` for a Pod that never sleeps.
    pub async fn begin_session(&self, namespace: &str, pod: &str) -> Result<Option<ActivityGuard>, NotBegun> {
        let Some(sleep) = &self.shared.sleep else { return Ok(None) };
        match self.shared.index.used_pod(namespace, pod) {
            UsedPod::Live(pod) => sleep.begin(&self.shared.index, &pod).await,
            UsedPod::Unknown(activity) => Ok(Some(ActivityGuard::begin(&activity))),
        }
    }

    pub(crate) fn secrets(&self) -> Option<&Arc<Secrets>> {
        self.shared.authorizer.secrets().or_else(|| self.shared.links.as_ref().map(|links| links.secrets()))
    }

    pub(crate) fn count_cert_reload(&self, success: bool) {
        self.shared.metrics.cert_reload(success);
    }

    /// Starts watching Pods and idle Sandboxes, once; both end with `end`, which is when the router drains or is dropped.
    pub(crate) fn watch(&self, end: &CancellationToken) {
        self.watching.get_or_init(|| {
            if let Some(client) = &self.client {
                let index = Arc::clone(&self.shared.index);
                let namespace = self.shared.config.watch_namespace.clone();
                tokio::spawn(watch::run(index, client.clone(), namespace, end.clone()));
            }
            if let Some(sleep) = &self.shared.sleep {
                tokio::spawn(observer::run(Arc::clone(&self.shared), Arc::clone(sleep), end.clone()));
            }
        });
    }
}
