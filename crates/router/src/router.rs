//! The router as a value: built from a configuration and its ports to the outside, then served on listeners.

use std::io::Write;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use kube::Client;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access_log::AccessLog;
use crate::authz::{
    AccessReview, Authorizer, AuthzSetupError, KubeAccessReview, KubeTokenReview, Reviews, Secrets, TokenReview,
};
use crate::client_side::Trust;
use crate::config::RouterConfig;
use crate::connect::{ByteStream, Connect, TcpConnect};
use crate::dns::{Lookup, SystemDns};
use crate::index::{PodIndex, watch};
use crate::metrics::Metrics;
use crate::otlp::{self, OtlpError, Traces};
use crate::probes::{self, Port};
use crate::server::{self, Crew};
use crate::tls::Acceptor;
use crate::wake::Wake;
use crate::worker::{Shared, Worker};

/// The router's ports to the outside.
pub struct Deps {
    /// Watched for Pods and asked for token reviews; `None` when the caller feeds the index.
    pub client: Option<Client>,
    /// Whether the client is used to keep the index; it may be there for token reviews only.
    pub watch_pods: bool,
    /// Opens connections to sandboxes.
    pub connect: Arc<dyn Connect>,
    pub dns: Arc<dyn Lookup>,
    /// Called when a Sandbox has no live Pod.
    pub wake: Option<Arc<dyn Wake>>,
    /// Live Pods; shared so that an embedder can look things up in it too.
    pub index: Arc<PodIndex>,
    /// Reviews tokens; `None` uses the client.
    pub token_review: Option<Arc<dyn TokenReview>>,
    /// Decides about users of the Kubernetes API; `None` uses the client.
    pub access_review: Option<Arc<dyn AccessReview>>,
    /// Where the access log goes; `None` is standard error.
    pub access_log: Option<Box<dyn Write + Send>>,
    /// OTLP collectors, where signals are exported.
    pub trace_endpoint: Option<String>,
    pub metrics_endpoint: Option<String>,
}

impl Deps {
    /// Watches Pods with `client` and dials their addresses.
    pub fn watching(client: Client) -> Self {
        Self { client: Some(client), watch_pods: true, ..Self::detached() }
    }

    /// No API; the caller feeds `index` itself.
    pub fn detached() -> Self {
        Self {
            client: None,
            watch_pods: false,
            connect: Arc::new(TcpConnect),
            dns: Arc::new(SystemDns),
            wake: None,
            index: Arc::default(),
            token_review: None,
            access_review: None,
            access_log: None,
            trace_endpoint: None,
            metrics_endpoint: None,
        }
    }
}

/// Why a router cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum RouterSetupError {
    #[error("authorisation is not set up")]
    Authz(#[from] AuthzSetupError),
    #[error("export is not set up")]
    Otlp(#[from] OtlpError),
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
}

/// A router, ready to serve any number of listeners.
pub struct Router {
    shared: Arc<Shared>,
    crew: Crew,
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
    /// Builds a router; starts its worker threads, if it has any, and nothing else.
    pub fn new(config: RouterConfig, deps: Deps) -> Result<Self, RouterSetupError> {
        let client = deps.client.clone();
        let token = deps.token_review.or_else(|| client.clone().map(|client| Arc::new(KubeTokenReview(client)) as _));
        let access = deps.access_review.or_else(|| client.map(|client| Arc::new(KubeAccessReview(client)) as _));
        let reviews = Reviews { token, access, access_ttl: config.access_ttl };
        let authorizer = Authorizer::new(&config.authz, reviews)?;
        let access_log = if config.access_log {
            let sink = deps.access_log.unwrap_or_else(|| Box::new(std::io::stderr()));
            Some(Arc::new(AccessLog::start(sink).map_err(RouterSetupError::Thread)?))
        } else {
            None
        };
        let threads = config.workers;
        let shared = Arc::new(Shared {
            config,
            index: deps.index,
            connect: deps.connect,
            dns: deps.dns,
            wake: deps.wake,
            authorizer,
            metrics: Metrics::default(),
            traces: deps.trace_endpoint.as_deref().map(Traces::new).transpose()?,
            needs_index: deps.watch_pods && deps.client.is_some(),
            access_log,
            in_flight: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            upgrades: parking_lot::Mutex::default(),
            draining: AtomicBool::new(false),
            ready: AtomicBool::new(false),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            abort: CancellationToken::new(),
        });
        let crew = Crew::start(&shared, threads).map_err(RouterSetupError::Thread)?;
        let local = Worker::new(Arc::clone(&shared));
        let client = deps.client.filter(|_| deps.watch_pods);
        Ok(Self { shared, crew, local, client, metrics_endpoint: deps.metrics_endpoint, watching: OnceLock::new() })
    }

    /// The index of live Pods.
    pub fn index(&self) -> &Arc<PodIndex> {
        &self.shared.index
    }

    /// Serves plain HTTP until `shutdown`, then drains. Starts watching Pods if that has not begun.
    pub async fn serve(&self, listener: TcpListener, shutdown: CancellationToken) {
        self.watch(&self.shared.stop);
        self.shared.ready.store(true, Ordering::Relaxed);
        server::serve(&self.shared, &self.crew, listener, None, shutdown).await;
    }

    /// The same over TLS.
    pub async fn serve_tls(&self, listener: TcpListener, tls: Acceptor, shutdown: CancellationToken) {
        self.watch(&self.shared.stop);
        self.shared.ready.store(true, Ordering::Relaxed);
        server::serve(&self.shared, &self.crew, listener, Some(tls), shutdown).await;
    }

    /// Serves one connection that is already open, on the caller's runtime, until it ends or the router drains. Pods are
    /// watched from the first call of any `serve` function on, for as long as the router lives.
    pub async fn serve_connection(&self, stream: impl ByteStream, trust: Trust) {
        self.watch(&self.shared.stop);
        server::serve_stream(&self.local, stream, trust).await;
    }

    /// Serves `/healthz` and `/readyz` until `stop`.
    pub async fn serve_probes(&self, listener: TcpListener, stop: CancellationToken) {
        probes::serve(Arc::clone(&self.shared), listener, Port::Probes, stop).await;
    }

    /// Serves `/metrics` until `stop`.
    pub async fn serve_metrics(&self, listener: TcpListener, stop: CancellationToken) {
        probes::serve(Arc::clone(&self.shared), listener, Port::Metrics, stop).await;
    }

    /// Completes when the index is complete, or at once when nobody fills it.
    pub async fn wait_synced(&self) {
        if self.shared.needs_index {
            self.shared.index.wait_synced().await;
        }
    }

    /// The metrics in exposition format, for embedders that have no port for them.
    pub fn render_metrics(&self) -> String {
        self.shared.metrics.render()
    }

    /// Starts exporting spans and metrics, where endpoints are configured, until `end`.
    pub fn start_exporters(&self, end: &CancellationToken) -> Result<(), OtlpError> {
        if let Some(traces) = &self.shared.traces {
            traces.start(end.clone());
        }
        match &self.metrics_endpoint {
            Some(endpoint) => otlp::start_metrics(endpoint, Arc::clone(&self.shared), end.clone()),
            None => Ok(()),
        }
    }

    pub(crate) fn secrets(&self) -> Option<&Arc<Secrets>> {
        self.shared.authorizer.secrets()
    }

    pub(crate) fn count_cert_reload(&self, success: bool) {
        self.shared.metrics.cert_reload(success);
    }

    /// Starts keeping the index current, once; the watch ends with `end`.
    pub(crate) fn watch(&self, end: &CancellationToken) {
        let Some(client) = &self.client else { return };
        self.watching.get_or_init(|| {
            let index = Arc::clone(&self.shared.index);
            let namespace = self.shared.config.watch_namespace.clone();
            // Owned by the router: it ends when the router drains or is dropped.
            tokio::spawn(watch::run(index, client.clone(), namespace, end.clone()));
        });
    }
}
