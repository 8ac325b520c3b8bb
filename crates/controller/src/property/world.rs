//! The stage: one API, two controllers, and what is needed to bring everything to rest.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::FutureExt;
use jiff::Timestamp;
use serde_json::json;
use tokio::task::JoinHandle;

use super::turnstile::{Fate, Turnstile};
use crate::{
    claim::{self, ClaimReconciler, ClaimSettings},
    clock::Clock,
    events::Events,
    metrics::Metrics,
    model::{FakeClock, Model},
    object::{Key, Kind},
    pool::{self, PoolReconciler, PoolSettings},
    ports::{Lane, Ports},
    reconcile::{Next, ReconcileError, Reconciler},
    request::Request,
    sandbox::{self, SandboxReconciler, Settings},
    store::{Store, Target, Wake},
    template::{self, TemplateReconciler},
    tracing_context::Tracing,
};

pub(super) const NAMESPACE: &str = "ns";

/// How soon a failed pass is repeated.
const BACK_OFF: Duration = Duration::from_secs(1);

type Outcome = Result<Next, ReconcileError>;

/// One controller process.
pub(super) struct Process {
    pub(super) store: Arc<Store>,
    pub(super) turnstile: Arc<Turnstile>,
    reconcilers: BTreeMap<Target, Arc<dyn Reconciler>>,
    cursor: usize,
    passes: Vec<(Wake, JoinHandle<Outcome>)>,
    /// When each object asked to be looked at again.
    timers: BTreeMap<Wake, Timestamp>,
    /// Why passes failed, for the reader of a failed case.
    errors: BTreeMap<Wake, String>,
}

impl Process {
    /// A process that has seen everything up to now, as after its first lists.
    fn start(model: &Arc<Model>) -> Self {
        let store = Store::new(vec![sandbox::route, template::route, claim::route, pool::route], false);
        let turnstile = Turnstile::new(model.clone());
        let (ports, clock): (Arc<dyn Ports>, Arc<dyn Clock>) = (turnstile.clone(), model.clock.clone());
        let metrics = Arc::new(Metrics::default());
        let pools = PoolSettings { status_interval: Duration::ZERO, ..PoolSettings::default() };
        let all: [Arc<dyn Reconciler>; 4] = [
            Arc::new(SandboxReconciler::new(
                store.clone(),
                ports.clone(),
                clock.clone(),
                Events::disabled(),
                Settings::default(),
                Tracing::default(),
            )),
            Arc::new(TemplateReconciler::new(store.clone(), ports.clone())),
            Arc::new(ClaimReconciler::new(
                store.clone(),
                ports.clone(),
                clock.clone(),
                Events::disabled(),
                metrics.clone(),
                ClaimSettings::default(),
            )),
            Arc::new(PoolReconciler::new(store.clone(), ports, clock, Events::disabled(), metrics, pools)),
        ];
        let mut process = Self {
            store,
            turnstile,
            reconcilers: all.into_iter().map(|reconciler| (reconciler.target(), reconciler)).collect(),
            cursor: 0,
            passes: Vec::new(),
            timers: BTreeMap::new(),
            errors: BTreeMap::new(),
        };
        process.watch(model, usize::MAX);
        process
    }

    /// Lets the watches bring so many events.
    pub(super) fn watch(&mut self, model: &Model, events: usize) {
        model.pump(&self.store, &mut self.cursor, events);
    }

    /// Everything that waits in the queues.
    fn woken(&self) -> Vec<Wake> {
        let mut woken = Vec::new();
        for target in Target::ALL {
            while let Some(Some(work)) = self.store.queues.of(target).next().now_or_never() {
                woken.push(Wake::new(target, work.key.clone()));
            }
        }
        woken
    }

    /// Starts the passes that are due. No object is worked on twice at a time.
    pub(super) fn start_passes(&mut self, most: usize) {
        let woken = self.woken();
        for (at, wake) in woken.into_iter().enumerate() {
            let busy = self.passes.iter().any(|(busy, _)| *busy == wake);
            if busy || at >= most {
                self.store.queues.wake(wake);
                continue;
            }
            let reconciler = self.reconcilers[&wake.target].clone();
            let key = wake.key.clone();
            self.passes.push((wake, tokio::spawn(async move { reconciler.reconcile(&key).await })));
        }
    }

    /// Takes in passes that have ended; failed ones are queued again.
    pub(super) async fn collect(&mut self, now: Timestamp) {
        for _ in 0..12 {
            tokio::task::yield_now().await;
        }
        let (ended, running): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.passes).into_iter().partition(|(_, pass)| pass.is_finished());
        self.passes = running;
        for (wake, pass) in ended {
            let outcome = pass.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
            match outcome {
                Ok(Next::Idle) => {
                    self.timers.remove(&wake);
                }
                Ok(Next::After(delay)) => {
                    self.timers.insert(wake, now + delay);
                }
                Err(error) => {
                    self.errors.insert(wake.clone(), error.to_string());
                    self.timers.insert(wake, now + BACK_OFF);
                }
            }
        }
    }

    pub(super) fn fire_timers(&mut self, now: Timestamp) {
        let due: Vec<Wake> = self.timers.iter().filter(|(_, at)| **at <= now).map(|(wake, _)| wake.clone()).collect();
        for wake in due {
            self.timers.remove(&wake);
            self.store.queues.wake(wake);
        }
    }

    fn is_busy(&self) -> bool {
        !self.passes.is_empty()
    }

    fn die(&mut self) -> Vec<Request> {
        for (_, pass) in self.passes.drain(..) {
            pass.abort();
        }
        self.turnstile.abandon()
    }
}

pub(super) struct Theatre {
    pub(super) model: Arc<Model>,
    pub(super) processes: [Process; 2],
    /// Sent by processes that have died since; may arrive any time, or never.
    pub(super) limbo: Vec<Request>,
    next_ip: u32,
}

impl Theatre {
    /// A template, two pools of it, and objects of somebody else's that are in the way of nothing and must stay.
    pub(super) fn open() -> Self {
        let clock = FakeClock::new();
        let model = Model::new(clock);
        model.keep_terminating_pods();
        let spec = json!({ "podTemplate": { "spec": { "containers": [{ "name": "c", "image": "v1" }] } } });
        model.create(Kind::Template, json!({ "metadata": { "name": "t", "namespace": NAMESPACE }, "spec": spec }));
        for (name, replicas) in [("p", 2), ("q", 1)] {
            let spec = json!({ "sandboxTemplateRef": { "name": "t" }, "replicas": replicas });
            model.create(Kind::Pool, json!({ "metadata": { "name": name, "namespace": NAMESPACE }, "spec": spec }));
        }
        model.create(Kind::Pod, json!({ "metadata": { "name": "bystander", "namespace": NAMESPACE } }));
        let user = json!({ "podTemplate": { "spec": { "containers": [{ "name": "c", "image": "own" }] } } });
        model.create(
            Kind::Sandbox,
            json!({ "metadata": { "name": "users-own", "namespace": NAMESPACE }, "spec": user }),
        );
        let processes = [Process::start(&model), Process::start(&model)];
        Self { model, processes, limbo: Vec::new(), next_ip: 1 }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.model.clock.now()
    }

    /// A process dies and another one takes its place.
    pub(super) fn crash(&mut self, which: usize) {
        self.limbo.extend(self.processes[which].die());
        self.processes[which] = Process::start(&self.model);
    }

    /// Something sent long ago arrives.
    pub(super) async fn land_late(&mut self, which: usize) {
        if !self.limbo.is_empty() {
            let request = self.limbo.remove(which % self.limbo.len());
            super::invariants::check_request(&self.model, &request);
            let _ = self.model.send(Lane::Core, &request).await;
        }
    }

    /// Kubelets: Pods get addresses and run, terminating ones go.
    pub(super) fn run_kubelets(&mut self) {
        for key in self.model.keys(Kind::Pod) {
            let Some(pod) = self.model.get(Kind::Pod, &key) else { continue };
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                self.model.remove(Kind::Pod, &key);
            } else if pod["status"]["phase"] == "Pending" && &*key.name != "bystander" {
                let ip = format!("10.0.0.{}", self.next_ip);
                self.next_ip += 1;
                let conditions =
                    json!([{ "type": "PodScheduled", "status": "True" }, { "type": "Ready", "status": "True" }]);
                let status = json!({ "phase": "Running", "podIPs": [{ "ip": ip }], "conditions": conditions });
                self.model.edit(Kind::Pod, &key, json!({ "spec": { "nodeName": "n" }, "status": status }));
            }
        }
    }

    /// The second process is deposed for good, what was under way lands or not, and the first brings everything to rest.
    pub(super) async fn calm_down(&mut self) {
        self.limbo.extend(self.processes[1].die());
        while !self.limbo.is_empty() {
            self.land_late(0).await;
        }
        let leader = &self.processes[0].turnstile;
        while leader.waiting() > 0 {
            leader.decide(0, Fate::Answered).await;
        }
        leader.open();
        let mut quiet_rounds = 0;
        for _ in 0..300 {
            quiet_rounds = if self.work_once().await { quiet_rounds + 1 } else { 0 };
            // Deadlines may pass in silence: some objects only want to be looked at now and then.
            if quiet_rounds == 6 {
                self.assert_silent().await;
                return;
            }
        }
        let writes = self.model.take_writes();
        let last = &writes[writes.len().saturating_sub(8)..];
        let leader = &self.processes[0];
        panic!(
            "the world does not settle: woken {:?}, errors {:#?}, last writes {last:#?}",
            leader.woken(),
            leader.errors
        );
    }

    /// Brings the leader up to date and lets it work; true when nothing was left to do.
    async fn work_once(&mut self) -> bool {
        let before = self.model.position();
        self.run_kubelets();
        self.model.collect_garbage();
        let now = self.now();
        let leader = &mut self.processes[0];
        leader.watch(&self.model, usize::MAX);
        leader.fire_timers(now);
        leader.start_passes(usize::MAX);
        let mut patience = 0;
        while leader.is_busy() {
            leader.collect(now).await;
            if leader.is_busy() {
                // A pause between repetitions of an unanswered request.
                tokio::time::sleep(Duration::from_millis(2)).await;
                patience += 1;
                assert!(patience < 10_000, "a pass never ends");
            }
        }
        let leader = &mut self.processes[0];
        leader.watch(&self.model, usize::MAX);
        let idle = self.model.position() == before && leader.woken_none();
        if idle && let Some(next) = leader.timers.values().min().copied() {
            // Nothing happens any more before the next deadline.
            let wait = Duration::try_from(next.duration_since(now)).unwrap_or(Duration::ZERO);
            self.model.clock.advance(wait + Duration::from_millis(1));
        }
        idle
    }

    /// A settled system writes nothing, even when it looks at everything again.
    async fn assert_silent(&mut self) {
        self.model.take_writes();
        let targets = [
            (Target::Sandbox, Kind::Sandbox),
            (Target::Claim, Kind::Claim),
            (Target::Pool, Kind::Pool),
            (Target::Template, Kind::Template),
        ];
        let wakes: Vec<Wake> = targets
            .into_iter()
            .flat_map(|(target, kind)| self.model.keys(kind).into_iter().map(move |key| Wake::new(target, key)))
            .collect();
        for wake in wakes {
            let reconciler = self.processes[0].reconcilers[&wake.target].clone();
            let _ = reconciler.reconcile(&wake.key).await;
        }
        assert_eq!(self.model.take_writes(), [], "a settled system writes nothing");
    }
}

impl Process {
    /// Whether no key waits; what waits stays waiting.
    fn woken_none(&self) -> bool {
        let woken = self.woken();
        let none = woken.is_empty();
        for wake in woken {
            self.store.queues.wake(wake);
        }
        none
    }
}

pub(super) fn key(name: &str) -> Key {
    Key::new(NAMESPACE, name)
}
