//! What requests share: the router-wide state, and the per-thread part of it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access_log::AccessLog;
use crate::authz::Authorizer;
use crate::config::RouterConfig;
use crate::connect::Connect;
use crate::dns::Lookup;
use crate::index::PodIndex;
use crate::metrics::{Metrics, RecentSeries};
use crate::otlp::Traces;
use crate::pool::Pool;
use crate::wake::Wake;

/// State of one router.
pub(crate) struct Shared {
    pub(crate) config: RouterConfig,
    pub(crate) index: Arc<PodIndex>,
    pub(crate) connect: Arc<dyn Connect>,
    pub(crate) dns: Arc<dyn Lookup>,
    pub(crate) wake: Option<Arc<dyn Wake>>,
    pub(crate) authorizer: Authorizer,
    pub(crate) metrics: Metrics,
    /// Takes spans, when tracing is on.
    pub(crate) traces: Option<Traces>,
    /// Requests need the index to be complete before they can be judged ready for.
    pub(crate) needs_index: bool,
    pub(crate) access_log: Option<Arc<AccessLog>>,
    /// Requests being served, for the overload limit.
    pub(crate) in_flight: AtomicUsize,
    pub(crate) connections: AtomicUsize,
    /// Upgraded connections by client address.
    pub(crate) upgrades: Mutex<HashMap<IpAddr, usize>>,
    pub(crate) draining: AtomicBool,
    /// Ports are bound.
    pub(crate) ready: AtomicBool,
    /// Everything that serves somebody; draining waits for it.
    pub(crate) tasks: TaskTracker,
    /// Connections finish what they are doing when this is cancelled.
    pub(crate) stop: CancellationToken,
    /// Cuts what is still running when the drain's time is over.
    pub(crate) abort: CancellationToken,
}

impl AsRef<Metrics> for Shared {
    fn as_ref(&self) -> &Metrics {
        &self.metrics
    }
}

impl Shared {
    /// Whether requests can be served: ports are bound and the index is complete.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed) && (!self.needs_index || self.index.is_synced())
    }

    /// The metric label of a namespace: only namespaces that exist get one.
    pub(crate) fn namespace_label(&self, namespace: &str) -> Option<Arc<str>> {
        if self.config.verification.verify_targets {
            self.index.known_namespace(namespace)
        } else {
            self.metrics.unverified_namespace(namespace)
        }
    }
}

/// State of one thread that serves connections.
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
