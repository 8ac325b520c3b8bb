//! State that requests share: per router, and per worker.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use agent_sandbox_protocol::web::AllowedHosts;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::auth::Authorizer;
use crate::config::RouterConfig;
use crate::e2b::E2bAccess;
use crate::links::Links;
use crate::mounted::Mounted;
use crate::observability::access_log::AccessLog;
use crate::observability::audit::RouterAudit;
use crate::observability::metrics::{Metrics, RecentSeries};
use crate::observability::otlp::Traces;
use crate::proxy::connector::Connector;
use crate::proxy::pool::Pool;
use crate::proxy::signer::Signer;
use crate::resolve::dns::Lookup;
use crate::resolve::index::PodIndex;
use crate::sleep::Sleep;

/// State of one router.
pub(crate) struct Shared {
    pub(crate) config: RouterConfig,
    pub(crate) index: Arc<PodIndex>,
    pub(crate) connector: Arc<dyn Connector>,
    pub(crate) dns: Arc<dyn Lookup>,
    /// Wakes Sandboxes and records their use, if the router may.
    pub(crate) sleep: Option<Arc<Sleep>>,
    pub(crate) authorizer: Authorizer,
    /// Names by which web pages may call the router where no credential is required: none that a public domain can have
    /// without being listed.
    pub(crate) page_hosts: AllowedHosts,
    /// Serves requests of E2B's clients, if configured.
    pub(crate) e2b: Option<E2bAccess>,
    /// Links to ports, if configured.
    pub(crate) links: Option<Arc<Links>>,
    /// Another service below a path of this router's port.
    pub(crate) mounted: Option<Arc<dyn Mounted>>,
    /// Signs requests to sandboxes, if configured.
    pub(crate) signer: Option<Signer>,
    pub(crate) metrics: Metrics,
    /// Exports spans, if tracing is on.
    pub(crate) traces: Option<Traces>,
    /// The router is ready only when the index is synced.
    pub(crate) needs_index: bool,
    pub(crate) access_log: Option<Arc<AccessLog>>,
    pub(crate) audit: Option<Arc<RouterAudit>>,
    /// Number of requests being served, for the overload limit.
    pub(crate) in_flight: AtomicUsize,
    pub(crate) connections: AtomicUsize,
    /// Number of upgraded connections by client address.
    pub(crate) upgrades: Mutex<HashMap<IpAddr, usize>>,
    pub(crate) draining: AtomicBool,
    /// The ports are bound.
    pub(crate) ready: AtomicBool,
    /// All tasks that serve clients; the drain waits for them.
    pub(crate) tasks: TaskTracker,
    /// Cancelled when connections should finish their current requests and close.
    pub(crate) stop: CancellationToken,
    /// Cancelled when the time of the drain is over: ends what is still running.
    pub(crate) abort: CancellationToken,
}

impl AsRef<Metrics> for Shared {
    fn as_ref(&self) -> &Metrics {
        &self.metrics
    }
}

impl Shared {
    /// Whether requests can be served: the ports are bound and the index is synced.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed) && (!self.needs_index || self.index.is_synced())
    }

    /// The metric label of a namespace; `None` unless the namespace exists.
    pub(crate) fn namespace_label(&self, namespace: &str) -> Option<Arc<str>> {
        if self.config.verification.verify_targets {
            self.index.known_namespace(namespace)
        } else {
            self.metrics.unverified_namespace(namespace)
        }
    }
}

/// State of one worker.
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) pool: Pool,
    pub(crate) log: Option<Arc<AccessLog>>,
    pub(crate) recent: RecentSeries,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>) -> Arc<Self> {
        let log = shared.access_log.clone();
        Arc::new(Self { shared, pool: Pool::default(), log, recent: RecentSeries::default() })
    }
}
