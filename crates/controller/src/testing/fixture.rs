//! Fixture of the claim and pool tests: both reconcilers on the API in memory.

use std::{sync::Arc, time::Duration};

use agent_sandbox_api::{
    conditions::ConditionType,
    names,
    v1beta1::{SandboxClaim, SandboxWarmPool},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    api_client::{ApiClient, Request},
    cache::{Key, Kind, Sandbox, Store},
    claim::{self, ClaimReconciler, ClaimSettings},
    clock::Clock,
    pool::{self, PoolReconciler, PoolSettings},
    reconcile::{Next, ReconcileError, Reconciler},
    serving::{
        events::{Event, Events},
        metrics::Metrics,
    },
    testing::fake_api::{FakeApi, FakeClock, merge},
};

pub(crate) const NAMESPACE: &str = "ns";

pub(crate) struct Fixture {
    pub(crate) api: Arc<FakeApi>,
    pub(crate) clock: Arc<FakeClock>,
    pub(crate) store: Arc<Store>,
    pub(crate) claims: ClaimReconciler,
    pub(crate) pools: PoolReconciler,
    cursor: Mutex<usize>,
    events: Mutex<tokio::sync::mpsc::Receiver<Event>>,
    pub(crate) metrics: Arc<Metrics>,
}

pub(crate) fn key(name: &str) -> Key {
    Key::new(NAMESPACE, name)
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with(
            ClaimSettings::default(),
            PoolSettings { status_interval: Duration::ZERO, ..PoolSettings::default() },
        )
    }

    pub(crate) fn with(claim: ClaimSettings, pool: PoolSettings) -> Self {
        let clock = FakeClock::new();
        Self::on(FakeApi::new(clock.clone()), clock, claim, pool)
    }

    /// Another controller on the same API, with a store of its own that has seen nothing yet.
    pub(crate) fn on(api: Arc<FakeApi>, clock: Arc<FakeClock>, claim: ClaimSettings, pool: PoolSettings) -> Self {
        Self::through(api.clone(), api, clock, claim, pool)
    }

    /// The same, with a client that wraps the API.
    pub(crate) fn through(
        api: Arc<FakeApi>,
        client: Arc<dyn ApiClient>,
        clock: Arc<FakeClock>,
        claim: ClaimSettings,
        pool: PoolSettings,
    ) -> Self {
        Self::over(Store::new(vec![claim::route, pool::route], false), api, client, clock, claim, pool)
    }

    /// A controller that defers background work in favour of claims, as the real one does.
    pub(crate) fn deferring() -> Self {
        let clock = FakeClock::new();
        let api = FakeApi::new(clock.clone());
        let store = Store::with_deferral(vec![claim::route, pool::route], false, Duration::from_millis(10));
        let pool = PoolSettings { status_interval: Duration::ZERO, ..PoolSettings::default() };
        Self::over(store, api.clone(), api, clock, ClaimSettings::default(), pool)
    }

    fn over(
        store: Arc<Store>,
        api: Arc<FakeApi>,
        client: Arc<dyn ApiClient>,
        clock: Arc<FakeClock>,
        claim: ClaimSettings,
        pool: PoolSettings,
    ) -> Self {
        let metrics = Arc::new(Metrics::default());
        let (events, receiver) = Events::channel();
        let claims =
            ClaimReconciler::new(store.clone(), client.clone(), clock.clone(), events.clone(), metrics.clone(), claim);
        let pools = PoolReconciler::new(store.clone(), client, clock.clone(), events, pool);
        Self { api, clock, store, claims, pools, cursor: Mutex::new(0), events: Mutex::new(receiver), metrics }
    }

    /// Delivers all outstanding watch events.
    pub(crate) fn deliver_events(&self) {
        self.deliver_some_events(usize::MAX);
    }

    pub(crate) fn deliver_some_events(&self, events: usize) {
        self.api.deliver_events(&self.store, &mut self.cursor.lock(), events);
    }

    /// One pass over a claim, with all watch events delivered.
    pub(crate) async fn claim(&self, name: &str) -> Result<Next, ReconcileError> {
        self.deliver_events();
        self.claims.reconcile(&key(name)).await
    }

    /// One pass over a claim, with the watch events delivered so far.
    pub(crate) async fn claims_pass(&self, name: &str) -> Result<Next, ReconcileError> {
        self.claims.reconcile(&key(name)).await
    }

    pub(crate) async fn pools_pass(&self, name: &str) -> Result<Next, ReconcileError> {
        self.pools.reconcile(&key(name)).await
    }

    pub(crate) async fn pool(&self, name: &str) -> Result<Next, ReconcileError> {
        self.deliver_events();
        self.pools.reconcile(&key(name)).await
    }

    /// Passes over a pool until it requests no further pass.
    pub(crate) async fn fill(&self, name: &str) {
        for _ in 0..20 {
            if self.pool(name).await.expect("no error") != Next::After(Duration::ZERO) {
                return;
            }
        }
        panic!("the pool does not converge");
    }

    pub(crate) fn template(&self, name: &str, spec: Value) {
        let mut whole = json!({"podTemplate": {"spec": {"containers": [{"name": "main", "image": "image"}]}}});
        merge(&mut whole, &spec);
        self.api.create(Kind::Template, json!({"metadata": {"name": name, "namespace": NAMESPACE}, "spec": whole}));
    }

    pub(crate) fn pool_of(&self, name: &str, template: &str, replicas: i32) {
        self.pool_with(name, json!({"sandboxTemplateRef": {"name": template}, "replicas": replicas}));
    }

    pub(crate) fn pool_with(&self, name: &str, spec: Value) {
        self.api.create(Kind::Pool, json!({"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}));
    }

    pub(crate) fn claim_on(&self, name: &str, pool: &str) {
        self.claim_with(name, json!({}), json!({"warmPoolRef": {"name": pool}}));
    }

    pub(crate) fn claim_with(&self, name: &str, metadata: Value, spec: Value) {
        let mut whole = json!({"name": name, "namespace": NAMESPACE});
        merge(&mut whole, &metadata);
        self.api.create(Kind::Claim, json!({"metadata": whole, "spec": spec}));
    }

    /// A template `t`, a pool `p` of it, filled and Ready.
    pub(crate) async fn warm_pool(&self, replicas: i32) {
        self.template("t", json!({}));
        self.pool_of("p", "t", replicas);
        self.fill("p").await;
        self.all_ready();
        self.deliver_events();
    }

    /// Every Sandbox gets an address and is Ready, as the Sandbox reconciler would report.
    pub(crate) fn all_ready(&self) {
        for sandbox in self.sandboxes() {
            self.ready(sandbox.name());
        }
    }

    pub(crate) fn ready(&self, name: &str) {
        self.report(name, "True", "DependenciesReady", Some("10.0.0.1"));
    }

    pub(crate) fn networked(&self, name: &str) {
        self.report(name, "False", "DependenciesNotReady", Some("10.0.0.1"));
    }

    /// The status a Sandbox reconciler would write.
    pub(crate) fn report(&self, name: &str, status: &str, reason: &str, ip: Option<&str>) {
        let sandbox = self.sandbox(name);
        let condition = self.condition("Ready", status, reason, sandbox.generation());
        let mut conditions: Vec<Value> = sandbox
            .conditions()
            .iter()
            .filter(|condition| condition.type_ != "Ready")
            .map(|condition| json!(condition))
            .collect();
        conditions.push(condition);
        let ips = ip.map_or(Value::Null, |ip| json!([ip]));
        self.api.edit(Kind::Sandbox, &key(name), json!({"status": {"conditions": conditions, "podIPs": ips}}));
    }

    pub(crate) fn condition(&self, type_: &str, status: &str, reason: &str, generation: i64) -> Value {
        json!({
            "type": type_, "status": status, "reason": reason, "message": format!("{reason}!"),
            "observedGeneration": generation, "lastTransitionTime": format!("{:.0}", self.clock.now()),
        })
    }

    pub(crate) fn sandboxes(&self) -> Vec<Sandbox> {
        self.api
            .list(Kind::Sandbox)
            .into_iter()
            .map(|object| serde_json::from_value(object).expect("decodes"))
            .collect()
    }

    pub(crate) fn sandbox(&self, name: &str) -> Sandbox {
        self.api.typed(&key(name)).unwrap_or_else(|| panic!("no Sandbox {name}"))
    }

    pub(crate) fn stored_claim(&self, name: &str) -> SandboxClaim {
        self.api.typed(&key(name)).unwrap_or_else(|| panic!("no claim {name}"))
    }

    pub(crate) fn stored_pool(&self, name: &str) -> SandboxWarmPool {
        self.api.typed(&key(name)).unwrap_or_else(|| panic!("no pool {name}"))
    }

    /// Status, reason and message of a claim's Ready.
    pub(crate) fn ready_of(&self, claim: &str) -> (String, String, String) {
        let claim = self.stored_claim(claim);
        let ready: &Condition = claim.condition(ConditionType::Ready).expect("the claim says something about Ready");
        (ready.status.clone(), ready.reason.clone(), ready.message.clone())
    }

    /// The Sandbox that a claim publishes.
    pub(crate) fn bound(&self, claim: &str) -> Option<String> {
        self.stored_claim(claim).bound_sandbox().map(str::to_owned)
    }

    pub(crate) fn events(&self) -> Vec<(&'static str, &'static str, String)> {
        let mut receiver = self.events.lock();
        let mut events = Vec::new();
        while let Ok(event) = receiver.try_recv() {
            events.push((event.reason, event.action, event.note));
        }
        events
    }

    /// The writes since the last call.
    pub(crate) fn writes(&self) -> Vec<Request> {
        self.api.take_writes()
    }

    pub(crate) fn pool_hash(name: &str) -> String {
        names::name_hash(name)
    }
}
