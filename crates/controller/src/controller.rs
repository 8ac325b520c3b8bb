//! The running controller: caches, leader election, reconcilers, and an orderly shutdown.

use std::{sync::Arc, time::Duration};

use agent_sandbox_api::{keys::labels, v1beta1::SandboxClaim};
use agent_sandbox_protocol::web::AllowedHosts;
use agent_sandbox_telemetry::Spans;
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    api_client::{ApiClient, AuditedApiClient, Clients, KubeApiClient, rate_limit::RateLimiter},
    cache::{
        CacheUpdate, Cached, Kind, KindVisitor, Route, Sandbox, Store,
        reflector::{self, Scope, reflect},
    },
    claim::{self, ClaimReconciler, ClaimSettings},
    clock::{Clock, SystemClock},
    config::Config,
    leader_election::{self, WriteGate},
    pool::{self, PoolReconciler},
    reconcile::{self, Reconciler},
    sandbox::{self, SandboxReconciler},
    serving::{
        events::{self, Events},
        metrics::Metrics,
        probes::{Readiness, health_pages, metrics_page, serve},
        tracing_context::{self, Tracing},
        webhook::Webhook,
    },
    template::{self, TemplateReconciler},
};

/// Delay of a new leader between attempts at its first consistent list.
const FIRST_LIST_RETRY: Duration = Duration::from_secs(1);
/// How long refill and the work that follows an adoption are deferred, in favour of claims that are being served.
const BACKGROUND_DEFERRAL: Duration = Duration::from_millis(10);

#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ControllerError {
    #[error("leadership was lost; restart the process to take part in the election again")]
    LeadershipLost,
    #[error("{0}")]
    CannotStart(String),
    #[error("the controller was stopped before it started to reconcile")]
    Stopped,
    #[error("a task of the controller ended unexpectedly: {0}")]
    TaskEnded(String),
}

/// The state of the controller.
#[derive(Debug)]
enum Phase {
    Starting,
    /// The caches are complete and the reconcilers run.
    Running,
    Ended(Result<(), ControllerError>),
}

/// A running controller. It ends when `shutdown` is cancelled or leadership is lost.
pub struct Controller {
    pub store: Arc<Store>,
    pub metrics: Arc<Metrics>,
    phase: watch::Receiver<Phase>,
    task: tokio::task::JoinHandle<Result<(), ControllerError>>,
}

impl Controller {
    /// Starts the controller on one client, for a program that embeds the API.
    pub fn start(client: kube::Client, config: Config, shutdown: CancellationToken) -> Self {
        Self::start_with(Clients::shared(client), config, shutdown)
    }

    /// Starts the controller with a client per purpose.
    pub fn start_with(clients: Clients, config: Config, shutdown: CancellationToken) -> Self {
        let mut routes: Vec<Route> = vec![sandbox::route];
        if config.extensions {
            routes.extend([template::route as Route, claim::route, pool::route]);
        }
        let store = Store::with_deferral(routes, config.cache_label_selectors, BACKGROUND_DEFERRAL);
        let metrics = Arc::new(Metrics::with_store(&store));
        let (progress, phase) = watch::channel(Phase::Starting);
        let (to_store, to_metrics) = (store.clone(), metrics.clone());
        let task = tokio::spawn(async move {
            let outcome = run(clients, config, to_store, to_metrics, &progress, shutdown).await;
            progress.send_replace(Phase::Ended(outcome.clone()));
            outcome
        });
        Self { store, metrics, phase, task }
    }

    /// Waits until the caches are complete and the reconcilers run, or until the controller has ended before that.
    pub async fn wait_until_running(&self) -> Result<(), ControllerError> {
        let mut phase = self.phase.clone();
        let reached = phase.wait_for(|phase| !matches!(phase, Phase::Starting)).await;
        match reached.as_deref() {
            Ok(Phase::Starting | Phase::Running) => Ok(()),
            Ok(Phase::Ended(outcome)) => Err(outcome.clone().err().unwrap_or(ControllerError::Stopped)),
            Err(_) => Err(ControllerError::TaskEnded("it panicked; see the log".to_owned())),
        }
    }

    /// Waits for the controller to end.
    pub async fn wait(self) -> Result<(), ControllerError> {
        self.task.await.unwrap_or_else(|error| Err(ControllerError::TaskEnded(error.to_string())))
    }
}

async fn run(
    clients: Clients,
    config: Config,
    store: Arc<Store>,
    metrics: Arc<Metrics>,
    progress: &watch::Sender<Phase>,
    shutdown: CancellationToken,
) -> Result<(), ControllerError> {
    // Everything below ends with this token: on request, or when a part fails.
    let stop = shutdown.child_token();
    let _stop_on_exit = stop.clone().drop_guard();
    let mut tasks = JoinSet::new();
    let (tracing, exporter) = start_tracing(&config)?;
    start_servers(&clients, &config, &metrics, &stop).await?;
    let kinds = start_reflectors(&clients, &config, &store, &stop, &mut tasks);

    let gate = if config.leader_election.is_some() { WriteGate::closed() } else { WriteGate::open() };
    let acquired = CancellationToken::new();
    let mut leadership = config.leader_election.clone().map(|lease| {
        // A token of its own: the lease is released after the last write, not before.
        let release = CancellationToken::new();
        let lead =
            leader_election::hold_lease(clients.core.clone(), lease, gate.clone(), acquired.clone(), release.clone());
        (tokio::spawn(lead), release)
    });
    if leadership.is_none() {
        acquired.cancel();
    }

    tokio::select! {
        () = async { store.wait_synced(&kinds).await; acquired.cancelled().await } => {}
        () = stop.cancelled() => return release(leadership.take()).await,
    }
    if leadership.is_some() {
        tokio::select! {
            () = catch_up(&clients, &config, &store) => {}
            () = stop.cancelled() => return release(leadership.take()).await,
        }
    }
    if let Some(lease) = &config.leader_election {
        metrics.set_leading(&lease.name, true);
    }
    info!("Controller is running");
    let api: Arc<dyn ApiClient> = Arc::new(KubeApiClient::new(
        clients,
        gate,
        metrics.clone(),
        RateLimiter::new(config.api_rate.0, config.api_rate.1),
    ));
    let api = match &config.audit {
        Some(log) => Arc::new(AuditedApiClient { api, log: log.clone(), user: config.instance.clone() }),
        None => api,
    };
    let mut workers = start_workers(&config, &store, &metrics, api, &tracing);
    progress.send_replace(Phase::Running);

    let outcome = match &mut leadership {
        Some((lead, _)) => tokio::select! {
            ended = lead => match ended {
                Ok(leader_election::LeadershipEnd::Stopped) => Ok(()),
                Ok(leader_election::LeadershipEnd::Lost) => Err(ControllerError::LeadershipLost),
                Err(error) => Err(ControllerError::TaskEnded(error.to_string())),
            },
            () = stop.cancelled() => Ok(()),
        },
        None => {
            stop.cancelled().await;
            Ok(())
        }
    };
    store.queues.close();
    let drained = tokio::time::timeout(config.grace, async { while workers.join_next().await.is_some() {} }).await;
    if drained.is_err() {
        warn!("Aborted the passes that did not end within the shutdown grace period");
        workers.abort_all();
    }
    flush(exporter).await;
    if outcome.is_ok() {
        release(leadership.take()).await?;
    }
    info!("Controller stopped");
    outcome
}

/// Starts every listener. The webhook comes before the first list: on an upgraded cluster that list needs it.
async fn start_servers(
    clients: &Clients,
    config: &Config,
    metrics: &Arc<Metrics>,
    stop: &CancellationToken,
) -> Result<(), ControllerError> {
    let failed =
        |what| move |error: std::io::Error| ControllerError::CannotStart(format!("cannot serve {what}: {error}"));
    if let Some(address) = config.metrics_address {
        let hosts = AllowedHosts::private([config.sandbox.cluster_domain.clone()]);
        let page = metrics_page(metrics.clone(), hosts);
        serve("metrics", address, page, stop.clone()).await.map_err(failed("metrics"))?;
    }
    let readiness = Readiness::default();
    if let Some(address) = config.health_address {
        serve("health", address, health_pages(readiness.clone()), stop.clone())
            .await
            .map_err(failed("health probes"))?;
    }
    if let Some(webhook) = &config.webhook {
        Webhook::start(clients.core.clone(), webhook.clone(), metrics.clone(), stop.clone())
            .await
            .map_err(|error| ControllerError::CannotStart(with_causes(&error)))?;
    }
    readiness.set();
    Ok(())
}

/// The error followed by its causes.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// Ends the leader election and releases the lease.
async fn release(
    leadership: Option<(tokio::task::JoinHandle<leader_election::LeadershipEnd>, CancellationToken)>,
) -> Result<(), ControllerError> {
    if let Some((lead, release)) = leadership {
        release.cancel();
        lead.await.map_err(|error| ControllerError::TaskEnded(error.to_string()))?;
    }
    Ok(())
}

/// Starts one reflector per kind; returns the kinds that must be listed before the reconcilers start.
fn start_reflectors(
    clients: &Clients,
    config: &Config,
    store: &Arc<Store>,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> Vec<Kind> {
    let all = Scope { namespace: config.namespace.clone(), label: None };
    let children = Scope { label: config.cache_label_selectors.then_some(labels::SANDBOX_NAME_HASH), ..all.clone() };
    let kinds: Vec<Kind> =
        Kind::CACHED.iter().copied().filter(|kind| config.extensions || !kind.is_extension()).collect();
    for kind in &kinds {
        let scope = if kind.is_child() { children.clone() } else { all.clone() };
        kind.visit(StartReflector {
            client: clients.watch.clone(),
            scope,
            store: store.clone(),
            stop: stop.clone(),
            tasks: &mut *tasks,
        });
    }
    kinds
}

/// Starts the reflector of one kind.
struct StartReflector<'a> {
    client: kube::Client,
    scope: Scope,
    store: Arc<Store>,
    stop: CancellationToken,
    tasks: &'a mut JoinSet<()>,
}

impl KindVisitor for StartReflector<'_> {
    type Output = ();

    fn visit<K: Cached>(self) {
        self.tasks.spawn(reflect::<K>(self.client, self.scope, self.store, self.stop));
    }
}

/// Brings a new leader's caches up to date: a standby's watches may lag behind what the previous leader wrote.
async fn catch_up(clients: &Clients, config: &Config, store: &Store) {
    async fn relist<K: Cached>(client: &kube::Client, namespace: Option<&String>, store: &Store) {
        let scope = Scope { namespace: namespace.cloned(), label: None };
        loop {
            match reflector::list::<K>(client, &scope).await {
                Ok((items, version)) => {
                    return store.apply_update(CacheUpdate::Listed(items, version.parse().unwrap_or(0)));
                }
                Err(error) => {
                    warn!(kind = K::KIND_OF.name(), %error, "Could not list before the first write");
                    tokio::time::sleep(FIRST_LIST_RETRY).await;
                }
            }
        }
    }
    let claims = async {
        if config.extensions {
            relist::<SandboxClaim>(&clients.claims, config.namespace.as_ref(), store).await;
        }
    };
    tokio::join!(relist::<Sandbox>(&clients.core, config.namespace.as_ref(), store), claims);
}

/// The exporter of spans, with the token that stops it; it runs until the last pass has ended.
type Exporter = Option<(CancellationToken, tokio::task::JoinHandle<()>)>;

fn start_tracing(config: &Config) -> Result<(Tracing, Exporter), ControllerError> {
    let Some(settings) = config.tracing.clone() else { return Ok((Tracing::default(), None)) };
    let spans = Spans::new(settings).map_err(|error| ControllerError::CannotStart(error.to_string()))?;
    let spans = Arc::new(spans);
    let end = CancellationToken::new();
    let exporter = spans.start(end.clone()).map(|task| (end, task));
    Ok((Tracing::to(spans), exporter))
}

async fn flush(exporter: Exporter) {
    if let Some((end, task)) = exporter {
        end.cancel();
        if tokio::time::timeout(tracing_context::FLUSH, task).await.is_err() {
            debug!("The last spans were not exported in time");
        }
    }
}

fn start_workers(
    config: &Config,
    store: &Arc<Store>,
    metrics: &Arc<Metrics>,
    api: Arc<dyn ApiClient>,
    tracing: &Tracing,
) -> JoinSet<()> {
    let mut workers = JoinSet::new();
    let (events, queue) = Events::channel();
    workers.spawn(events::deliver(api.clone(), queue, config.instance.clone()));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let mut start = |reconciler: Arc<dyn Reconciler>, concurrency: usize| {
        let queue = store.queues.of(reconciler.kind()).clone();
        workers.spawn(reconcile::run(reconciler, queue, concurrency, metrics.clone()));
    };
    start(
        Arc::new(SandboxReconciler::new(
            store.clone(),
            api.clone(),
            clock.clone(),
            events.clone(),
            metrics.clone(),
            config.sandbox.clone(),
            tracing.clone(),
        )),
        config.workers.sandbox,
    );
    if config.extensions {
        start(Arc::new(TemplateReconciler::new(store.clone(), api.clone())), config.workers.template);
        start(
            Arc::new(ClaimReconciler::new(
                store.clone(),
                api.clone(),
                clock.clone(),
                events.clone(),
                metrics.clone(),
                ClaimSettings { tracing: tracing.clone(), ..config.claim.clone() },
            )),
            config.workers.claim,
        );
        start(
            Arc::new(PoolReconciler::new(store.clone(), api, clock, events, config.pool.clone())),
            config.workers.pool,
        );
    }
    workers
}
