//! The simulation: one API, two controllers, and the steps that make the system converge.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::FutureExt;
use jiff::Timestamp;
use serde_json::json;
use tokio::task::JoinHandle;

use super::stepwise_api::{Delivery, StepwiseApi};
use crate::{
    api_client::{ApiClient, Lane, Request},
    cache::{Key, Kind, ReconcilerKind, Store, WorkItem},
    claim::{self, ClaimReconciler, ClaimSettings},
    clock::Clock,
    pool::{self, PoolReconciler, PoolSettings},
    reconcile::{Next, ReconcileError, Reconciler},
    sandbox::{self, SandboxReconciler, Settings},
    serving::{events::Events, metrics::Metrics, tracing_context::Tracing},
    template::{self, TemplateReconciler},
    testing::fake_api::{FakeApi, FakeClock},
};

pub(super) const NAMESPACE: &str = "ns";

/// Delay before a failed pass is repeated.
const BACK_OFF: Duration = Duration::from_secs(1);

type Outcome = Result<Next, ReconcileError>;

/// One controller process.
pub(super) struct Process {
    pub(super) store: Arc<Store>,
    pub(super) stepwise_api: Arc<StepwiseApi>,
    reconcilers: BTreeMap<ReconcilerKind, Arc<dyn Reconciler>>,
    cursor: usize,
    passes: Vec<(WorkItem, JoinHandle<Outcome>)>,
    /// When each object is due again.
    timers: BTreeMap<WorkItem, Timestamp>,
    /// Errors of failed passes, for the report of a failed case.
    errors: BTreeMap<WorkItem, String>,
}

impl Process {
    /// A process whose caches are complete, as after its first lists.
    fn start(api: &Arc<FakeApi>) -> Self {
        let store = Store::new(vec![sandbox::route, template::route, claim::route, pool::route], false);
        let stepwise_api = StepwiseApi::new(api.clone());
        let (client, clock): (Arc<dyn ApiClient>, Arc<dyn Clock>) = (stepwise_api.clone(), api.clock.clone());
        let metrics = Arc::new(Metrics::default());
        let pools = PoolSettings { status_interval: Duration::ZERO, ..PoolSettings::default() };
        let all: [Arc<dyn Reconciler>; 4] = [
            Arc::new(SandboxReconciler::new(
                store.clone(),
                client.clone(),
                clock.clone(),
                Events::disabled(),
                metrics.clone(),
                Settings::default(),
                Tracing::default(),
            )),
            Arc::new(TemplateReconciler::new(store.clone(), client.clone())),
            Arc::new(ClaimReconciler::new(
                store.clone(),
                client.clone(),
                clock.clone(),
                Events::disabled(),
                metrics.clone(),
                ClaimSettings::default(),
            )),
            Arc::new(PoolReconciler::new(store.clone(), client, clock, Events::disabled(), pools)),
        ];
        let mut process = Self {
            store,
            stepwise_api,
            reconcilers: all.into_iter().map(|reconciler| (reconciler.kind(), reconciler)).collect(),
            cursor: 0,
            passes: Vec::new(),
            timers: BTreeMap::new(),
            errors: BTreeMap::new(),
        };
        process.watch(api, usize::MAX);
        process
    }

    /// Delivers up to `events` watch events.
    pub(super) fn watch(&mut self, api: &FakeApi, events: usize) {
        api.deliver_events(&self.store, &mut self.cursor, events);
    }

    /// Takes all keys from the queues.
    fn woken(&self) -> Vec<WorkItem> {
        let mut woken = Vec::new();
        for target in ReconcilerKind::ALL {
            while let Some(Some(work)) = self.store.queues.of(target).next().now_or_never() {
                woken.push(WorkItem::new(target, work.key.clone()));
            }
        }
        woken
    }

    /// Starts up to `most` passes that are due. No object has two passes at a time.
    pub(super) fn start_passes(&mut self, most: usize) {
        let woken = self.woken();
        for (at, wake) in woken.into_iter().enumerate() {
            let busy = self.passes.iter().any(|(busy, _)| *busy == wake);
            if busy || at >= most {
                self.store.queues.wake(wake);
                continue;
            }
            let reconciler = self.reconcilers[&wake.reconciler].clone();
            let key = wake.key.clone();
            self.passes.push((wake, tokio::spawn(async move { reconciler.reconcile(&key).await })));
        }
    }

    /// Collects finished passes; failed ones are queued again.
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
        let due: Vec<WorkItem> =
            self.timers.iter().filter(|(_, at)| **at <= now).map(|(wake, _)| wake.clone()).collect();
        for wake in due {
            self.timers.remove(&wake);
            self.store.queues.wake(wake);
        }
    }

    fn is_busy(&self) -> bool {
        !self.passes.is_empty()
    }

    fn kill(&mut self) -> Vec<Request> {
        for (_, pass) in self.passes.drain(..) {
            pass.abort();
        }
        self.stepwise_api.take_pending_writes()
    }
}

pub(super) struct Simulation {
    pub(super) api: Arc<FakeApi>,
    pub(super) processes: [Process; 2],
    /// Requests of processes that were killed since; each may arrive at any time, or never.
    pub(super) late_requests: Vec<Request>,
    next_ip: u32,
}

impl Simulation {
    /// A template, two pools of it, and unrelated objects that must stay unchanged.
    pub(super) fn open() -> Self {
        let clock = FakeClock::new();
        let api = FakeApi::new(clock);
        api.keep_terminating_pods();
        let spec = json!({ "podTemplate": { "spec": { "containers": [{ "name": "c", "image": "v1" }] } } });
        api.create(Kind::Template, json!({ "metadata": { "name": "t", "namespace": NAMESPACE }, "spec": spec }));
        for (name, replicas) in [("p", 2), ("q", 1)] {
            let spec = json!({ "sandboxTemplateRef": { "name": "t" }, "replicas": replicas });
            api.create(Kind::Pool, json!({ "metadata": { "name": name, "namespace": NAMESPACE }, "spec": spec }));
        }
        api.create(Kind::Pod, json!({ "metadata": { "name": "bystander", "namespace": NAMESPACE } }));
        let user = json!({ "podTemplate": { "spec": { "containers": [{ "name": "c", "image": "own" }] } } });
        api.create(Kind::Sandbox, json!({ "metadata": { "name": "users-own", "namespace": NAMESPACE }, "spec": user }));
        let processes = [Process::start(&api), Process::start(&api)];
        Self { api, processes, late_requests: Vec::new(), next_ip: 1 }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.api.clock.now()
    }

    /// Kills a process and starts another one in its place.
    pub(super) fn crash(&mut self, which: usize) {
        self.late_requests.extend(self.processes[which].kill());
        self.processes[which] = Process::start(&self.api);
    }

    /// Delivers a request of a killed process.
    pub(super) async fn deliver_late(&mut self, which: usize) {
        if !self.late_requests.is_empty() {
            let request = self.late_requests.remove(which % self.late_requests.len());
            super::invariants::check_request(&self.api, &request);
            let _ = self.api.send(Lane::Core, &request).await;
        }
    }

    /// Runs the kubelets: Pods get addresses and run, terminating ones are removed.
    pub(super) fn run_kubelets(&mut self) {
        for key in self.api.keys(Kind::Pod) {
            let Some(pod) = self.api.get(Kind::Pod, &key) else { continue };
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                self.api.remove(Kind::Pod, &key);
            } else if pod["status"]["phase"] == "Pending" && &*key.name != "bystander" {
                let ip = format!("10.0.0.{}", self.next_ip);
                self.next_ip += 1;
                let conditions =
                    json!([{ "type": "PodScheduled", "status": "True" }, { "type": "Ready", "status": "True" }]);
                let status = json!({ "phase": "Running", "podIPs": [{ "ip": ip }], "conditions": conditions });
                self.api.edit(Kind::Pod, &key, json!({ "spec": { "nodeName": "n" }, "status": status }));
            }
        }
    }

    /// Kills the second process, delivers or drops all requests in flight, and lets the first process work until
    /// nothing changes.
    pub(super) async fn converge(&mut self) {
        self.late_requests.extend(self.processes[1].kill());
        while !self.late_requests.is_empty() {
            self.deliver_late(0).await;
        }
        let leader = &self.processes[0].stepwise_api;
        while leader.pending() > 0 {
            leader.resolve(0, Delivery::Delivered).await;
        }
        leader.open();
        let mut quiet_rounds = 0;
        for _ in 0..300 {
            quiet_rounds = if self.work_once().await { quiet_rounds + 1 } else { 0 };
            // Deadlines may pass without a write: some objects only have periodic passes.
            if quiet_rounds == 6 {
                self.assert_no_writes().await;
                return;
            }
        }
        let writes = self.api.take_writes();
        let last = &writes[writes.len().saturating_sub(8)..];
        let leader = &self.processes[0];
        panic!(
            "the simulation does not converge: woken {:?}, errors {:#?}, last writes {last:#?}",
            leader.woken(),
            leader.errors
        );
    }

    /// One round of the leader with up-to-date caches; returns whether nothing was left to do.
    async fn work_once(&mut self) -> bool {
        let before = self.api.position();
        self.run_kubelets();
        self.api.collect_garbage();
        let now = self.now();
        let leader = &mut self.processes[0];
        leader.watch(&self.api, usize::MAX);
        leader.fire_timers(now);
        leader.start_passes(usize::MAX);
        let mut polls = 0;
        while leader.is_busy() {
            leader.collect(now).await;
            if leader.is_busy() {
                // A pause between repetitions of an unanswered request.
                tokio::time::sleep(Duration::from_millis(2)).await;
                polls += 1;
                assert!(polls < 10_000, "a pass never ends");
            }
        }
        let leader = &mut self.processes[0];
        leader.watch(&self.api, usize::MAX);
        let idle = self.api.position() == before && leader.queue_is_empty();
        if idle && let Some(next) = leader.timers.values().min().copied() {
            // Nothing happens before the next deadline.
            let wait = Duration::try_from(next.duration_since(now)).unwrap_or(Duration::ZERO);
            self.api.clock.advance(wait + Duration::from_millis(1));
        }
        idle
    }

    /// A converged system writes nothing, even when every object is reconciled again.
    async fn assert_no_writes(&mut self) {
        self.api.take_writes();
        let targets = [
            (ReconcilerKind::Sandbox, Kind::Sandbox),
            (ReconcilerKind::Claim, Kind::Claim),
            (ReconcilerKind::Pool, Kind::Pool),
            (ReconcilerKind::Template, Kind::Template),
        ];
        let items: Vec<WorkItem> = targets
            .into_iter()
            .flat_map(|(target, kind)| self.api.keys(kind).into_iter().map(move |key| WorkItem::new(target, key)))
            .collect();
        for wake in items {
            let reconciler = self.processes[0].reconcilers[&wake.reconciler].clone();
            let _ = reconciler.reconcile(&wake.key).await;
        }
        assert_eq!(self.api.take_writes(), [], "a converged system writes nothing");
    }
}

impl Process {
    /// Whether no key is queued; queued keys stay queued.
    fn queue_is_empty(&self) -> bool {
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
