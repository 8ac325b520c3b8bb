//! The controller as a whole: caches, leadership, reconcilers, and an orderly end.

use std::{sync::Arc, time::Duration};

use agent_sandbox_api::{
    keys::labels,
    v1beta1::{SandboxClaim, SandboxTemplate, SandboxWarmPool},
};
use agent_sandbox_telemetry::Spans;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    claim::{self, ClaimReconciler, ClaimSettings},
    clock::{Clock, SystemClock},
    config::Config,
    events::{self, Events},
    kube_ports::{Clients, KubePorts},
    lease::{self, Gate},
    metrics::Metrics,
    object::{Kind, Pod, Pvc, Sandbox, Service},
    pace::Pace,
    pool::{self, PoolReconciler},
    ports::Ports,
    probes::{Readiness, health_pages, metrics_page, serve},
    reconcile::{self, Reconciler},
    reflector::{self, Scope, reflect},
    sandbox::{self, SandboxReconciler},
    store::{Route, Store},
    template::{self, TemplateReconciler},
    tracing_context::{self, Tracing},
    webhook::Webhook,
    world::{Known, News},
};

/// How long a new leader waits between attempts at its first consistent list.
const FIRST_LIST_RETRY: Duration = Duration::from_secs(1);
/// How long refill and the finishing touches of an adoption are put off, in favour of claims that are being served.
const PATIENCE: Duration = Duration::from_millis(10);

#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ControllerError {
    #[error("leadership was lost; restart to stand for election again")]
    LeadershipLost,
    #[error("{0}")]
    CannotStart(String),
    #[error("the controller was stopped before it came to work")]
    Stopped,
    #[error("a part of the controller ended unexpectedly: {0}")]
    Died(String),
}

/// How far a controller has come.
#[derive(Debug)]
enum Phase {
    Starting,
    /// Everything is known and work has begun.
    AtWork,
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
    /// Starts the controller on one client, as a program does that embeds the API.
    pub fn start(client: kube::Client, config: Config, shutdown: CancellationToken) -> Self {
        Self::start_with(Clients::shared(client), config, shutdown)
    }

    /// Starts the controller with a client per purpose.
    pub fn start_with(clients: Clients, config: Config, shutdown: CancellationToken) -> Self {
        let mut routes: Vec<Route> = vec![sandbox::route];
        if config.extensions {
            routes.extend([template::route as Route, claim::route, pool::route]);
        }
        let store = Store::patient(routes, config.cache_label_selectors, PATIENCE);
        let metrics = Arc::new(Metrics::over(&store));
        let (progress, phase) = watch::channel(Phase::Starting);
        let (to_store, to_metrics) = (store.clone(), metrics.clone());
        let task = tokio::spawn(async move {
            let outcome = run(clients, config, to_store, to_metrics, &progress, shutdown).await;
            progress.send_replace(Phase::Ended(outcome.clone()));
            outcome
        });
        Self { store, metrics, phase, task }
    }

    /// Waits until the controller knows everything that is stored and works on it, or has ended without.
    pub async fn at_work(&self) -> Result<(), ControllerError> {
        let mut phase = self.phase.clone();
        let reached = phase.wait_for(|phase| !matches!(phase, Phase::Starting)).await;
        match reached.as_deref() {
            Ok(Phase::Starting | Phase::AtWork) => Ok(()),
            Ok(Phase::Ended(outcome)) => Err(outcome.clone().err().unwrap_or(ControllerError::Stopped)),
            Err(_) => Err(ControllerError::Died("it panicked; the log says where".to_owned())),
        }
    }

    /// Waits for the controller to end.
    pub async fn wait(self) -> Result<(), ControllerError> {
        self.task.await.unwrap_or_else(|error| Err(ControllerError::Died(error.to_string())))
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
    // Everything below ends with this token: when asked to, or when a part fails.
    let stop = shutdown.child_token();
    let _stop_on_exit = stop.clone().drop_guard();
    let mut tasks = JoinSet::new();
    let (tracing, exporter) = start_tracing(&config)?;
    start_servers(&clients, &config, &metrics, &stop).await?;
    let kinds = start_reflectors(&clients, &config, &store, &stop, &mut tasks);

    let gate = if config.leader_election.is_some() { Gate::closed() } else { Gate::open() };
    let acquired = CancellationToken::new();
    let mut leadership = config.leader_election.clone().map(|lease| {
        // Its own stop: the lease is released after the last write, not before.
        let release = CancellationToken::new();
        let lead = lease::lead(clients.core.clone(), lease, gate.clone(), acquired.clone(), release.clone());
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
        metrics.leading(&lease.name, true);
    }
    info!("Controller runs");
    let ports: Arc<dyn Ports> =
        Arc::new(KubePorts::new(clients, gate, metrics.clone(), Pace::new(config.api_rate.0, config.api_rate.1)));
    let mut workers = start_workers(&config, &store, &metrics, ports, &tracing);
    progress.send_replace(Phase::AtWork);

    let outcome = match &mut leadership {
        Some((lead, _)) => tokio::select! {
            ended = lead => match ended {
                Ok(lease::Ended::Stopped) => Ok(()),
                Ok(lease::Ended::Lost) => Err(ControllerError::LeadershipLost),
                Err(error) => Err(ControllerError::Died(error.to_string())),
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
        warn!("Stopped before every pass had ended");
        workers.abort_all();
    }
    flush(exporter).await;
    if outcome.is_ok() {
        release(leadership.take()).await?;
    }
    info!("Controller stopped");
    outcome
}

/// Opens every listener. The webhook comes before the first list: on an upgraded cluster that list needs it.
async fn start_servers(
    clients: &Clients,
    config: &Config,
    metrics: &Arc<Metrics>,
    stop: &CancellationToken,
) -> Result<(), ControllerError> {
    let failed =
        |what| move |error: std::io::Error| ControllerError::CannotStart(format!("cannot serve {what}: {error}"));
    if let Some(address) = config.metrics_address {
        serve("metrics", address, metrics_page(metrics.clone()), stop.clone()).await.map_err(failed("metrics"))?;
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

/// The error with what caused it, for a person to read.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// Gives the lease up, if we have or seek it.
async fn release(
    leadership: Option<(tokio::task::JoinHandle<lease::Ended>, CancellationToken)>,
) -> Result<(), ControllerError> {
    if let Some((lead, release)) = leadership {
        release.cancel();
        lead.await.map_err(|error| ControllerError::Died(error.to_string()))?;
    }
    Ok(())
}

/// Starts one watch per kind; the kinds that must be listed before work begins.
fn start_reflectors(
    clients: &Clients,
    config: &Config,
    store: &Arc<Store>,
    stop: &CancellationToken,
    tasks: &mut JoinSet<()>,
) -> Vec<Kind> {
    let all = Scope { namespace: config.namespace.clone(), label: None };
    let children = Scope { label: config.cache_label_selectors.then_some(labels::SANDBOX_NAME_HASH), ..all.clone() };
    let mut kinds = vec![Kind::Sandbox, Kind::Pod, Kind::Service, Kind::Pvc];
    macro_rules! watch {
        ($kind:ty, $scope:expr) => {
            tasks.spawn(reflect::<$kind>(clients.watch.clone(), $scope.clone(), store.clone(), stop.clone()))
        };
    }
    watch!(Sandbox, all);
    watch!(Pod, children);
    watch!(Service, children);
    watch!(Pvc, children);
    if config.extensions {
        kinds.extend([Kind::Claim, Kind::Pool, Kind::Template, Kind::NetworkPolicy]);
        watch!(SandboxClaim, all);
        watch!(SandboxWarmPool, all);
        watch!(SandboxTemplate, all);
        watch!(NetworkPolicy, all);
    }
    kinds
}

/// Brings a new leader's caches to the present: a standby's watches may lag behind what its predecessor wrote.
async fn catch_up(clients: &Clients, config: &Config, store: &Store) {
    async fn relist<K: Known>(client: &kube::Client, namespace: Option<&String>, store: &Store) {
        let scope = Scope { namespace: namespace.cloned(), label: None };
        loop {
            match reflector::list::<K>(client, &scope).await {
                Ok((items, version)) => return store.learn(News::List(items, version.parse().unwrap_or(0))),
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

/// The exporter of spans, with the token that ends it; it runs until the last pass has ended.
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
    ports: Arc<dyn Ports>,
    tracing: &Tracing,
) -> JoinSet<()> {
    let mut workers = JoinSet::new();
    let (events, queue) = Events::channel();
    workers.spawn(events::deliver(ports.clone(), queue, config.instance.clone()));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let mut start = |reconciler: Arc<dyn Reconciler>, concurrency: usize| {
        let queue = store.queues.of(reconciler.target()).clone();
        workers.spawn(reconcile::run(reconciler, queue, concurrency, metrics.clone()));
    };
    start(
        Arc::new(SandboxReconciler::new(
            store.clone(),
            ports.clone(),
            clock.clone(),
            events.clone(),
            config.sandbox.clone(),
            tracing.clone(),
        )),
        config.workers.sandbox,
    );
    if config.extensions {
        start(Arc::new(TemplateReconciler::new(store.clone(), ports.clone())), config.workers.template);
        start(
            Arc::new(ClaimReconciler::new(
                store.clone(),
                ports.clone(),
                clock.clone(),
                events.clone(),
                metrics.clone(),
                ClaimSettings { tracing: tracing.clone(), ..config.claim.clone() },
            )),
            config.workers.claim,
        );
        start(
            Arc::new(PoolReconciler::new(store.clone(), ports, clock, events, metrics.clone(), config.pool.clone())),
            config.workers.pool,
        );
    }
    workers
}
