//! Property tests: two controllers with separate caches, a user, a garbage collector, and an API that loses responses,
//! responds late and lets processes crash after any write. No Sandbox may ever serve two claims, no claim may publish
//! two Sandboxes, and after the failures the system converges and stops writing.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use agent_sandbox_api::{owners, v1beta1::SandboxClaim};
use async_trait::async_trait;
use parking_lot::Mutex;
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{
    api_client::{ApiClient, ApiError, Lane, Request, Verb},
    cache::{Kind, Object, Sandbox},
    claim::{ClaimSettings, expiry},
    clock::Clock,
    pool::PoolSettings,
    testing::fake_api::{FakeApi, FakeClock},
};

const CLAIMS: [&str; 3] = ["c", "d", "e"];
const POOLS: [&str; 2] = ["p", "q"];

/// How one request is delivered.
#[derive(Clone, Copy, Debug)]
enum Delivery {
    Normal,
    /// Executed, response lost.
    ResponseLost,
    /// Answered with an error and executed later, when the controller may be gone.
    Late,
    /// Not executed, outcome unknown.
    RequestLost,
}

/// The API behind an unreliable connection. Every request may let other tasks run before and after it.
struct UnreliableApi {
    api: Arc<FakeApi>,
    delivery: Mutex<VecDeque<(Delivery, u8, u8)>>,
    late: Mutex<Vec<Request>>,
    violations: Mutex<Vec<String>>,
}

impl UnreliableApi {
    /// Executes a request and records violations of the invariants.
    async fn execute(&self, request: &Request) -> Result<Option<Object>, ApiError> {
        let before = (request.kind == Kind::Sandbox).then(|| self.api.typed::<Sandbox>(&request.key)).flatten();
        let response = ApiClient::send(&*self.api, Lane::Claims, request).await;
        if let (Some(sandbox), Verb::Delete { .. }, Ok(_)) = (before, &request.verb, &response) {
            self.check_deletion(&sandbox);
        }
        response
    }

    /// A Sandbox that a live claim publishes may be deleted only when the claim is expired.
    fn check_deletion(&self, sandbox: &Sandbox) {
        let Some(owner) = owners::owning_claim(&sandbox.metadata) else { return };
        let Some(claim) = self.api.typed::<SandboxClaim>(&key(&owner.name)) else { return };
        let published = claim.uid() == owner.uid && claim.bound_sandbox() == Some(sandbox.name());
        if published && !claim.is_deleting() && !expiry::is_expired(&claim, self.api.clock.now()) {
            self.violations.lock().push(format!("{} was deleted under {}", sandbox.name(), claim.name()));
        }
    }
}

#[async_trait]
impl ApiClient for UnreliableApi {
    async fn send(&self, _: Lane, request: &Request) -> Result<Option<Object>, ApiError> {
        let (delivery, before, after) = self.delivery.lock().pop_front().unwrap_or((Delivery::Normal, 0, 0));
        pauses(before).await;
        let unknown = || ApiError::Unknown { message: "reset".into() };
        let response = match delivery {
            Delivery::Normal => self.execute(request).await,
            Delivery::ResponseLost => self.execute(request).await.and(Err(unknown())),
            Delivery::Late => {
                self.late.lock().push(request.clone());
                Err(unknown())
            }
            Delivery::RequestLost => Err(unknown()),
        };
        pauses(after).await;
        response
    }

    async fn read(&self, lane: Lane, kind: Kind, key: &crate::cache::Key) -> Result<Option<Object>, ApiError> {
        tokio::task::yield_now().await;
        self.api.read(lane, kind, key).await
    }
}

async fn pauses(number: u8) {
    for _ in 0..number {
        tokio::task::yield_now().await;
    }
}

/// Runs a future for at most this number of polls, then drops it, as if the process had been killed.
struct Killable<F> {
    inner: Pin<Box<F>>,
    polls: usize,
}

impl<F: Future> Future for Killable<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(left) = self.polls.checked_sub(1) else { return Poll::Ready(None) };
        self.polls = left;
        self.inner.as_mut().poll(context).map(Some)
    }
}

#[derive(Clone, Debug)]
enum Step {
    CreateClaim {
        claim: usize,
        pool: usize,
    },
    DeleteClaim(usize),
    ExpireClaim(usize),
    EditClaim(usize),
    Resize {
        pool: usize,
        replicas: i32,
    },
    EditTemplate(u8),
    DeletePool(usize),
    CreatePool(usize),
    /// Sandboxes become Ready, or one of them finishes.
    Kubelet {
        finish: Option<usize>,
    },
    UserDeletesSandbox(usize),
    CollectGarbage,
    Wait(u64),
    /// Delivers some watch events to a controller.
    Watch {
        controller: usize,
        events: usize,
    },
    /// Both controllers run at the same time, each on a claim and on a pool, over an unreliable connection; one may be
    /// killed.
    Work {
        claims: [usize; 2],
        pools: [usize; 2],
        delivery: Vec<(Delivery, u8, u8)>,
        polls: [usize; 2],
    },
    DeliverLate,
    /// A controller is replaced by a new one, which lists everything first.
    Restart(usize),
}

fn delivery() -> impl Strategy<Value = (Delivery, u8, u8)> {
    let delivery = prop_oneof![6 => Just(Delivery::Normal), 1 => Just(Delivery::ResponseLost), 1 => Just(Delivery::Late), 1 => Just(Delivery::RequestLost)];
    (delivery, 0..3_u8, 0..3_u8)
}

fn step() -> impl Strategy<Value = Step> {
    let claim = 0..CLAIMS.len();
    let pool = 0..POOLS.len();
    prop_oneof![
        4 => (claim.clone(), pool.clone()).prop_map(|(claim, pool)| Step::CreateClaim { claim, pool }),
        1 => claim.clone().prop_map(Step::DeleteClaim),
        1 => claim.clone().prop_map(Step::ExpireClaim),
        1 => claim.clone().prop_map(Step::EditClaim),
        2 => (pool.clone(), 0..4_i32).prop_map(|(pool, replicas)| Step::Resize { pool, replicas }),
        1 => any::<u8>().prop_map(Step::EditTemplate),
        1 => pool.clone().prop_map(Step::DeletePool),
        1 => pool.clone().prop_map(Step::CreatePool),
        4 => proptest::option::weighted(0.1, 0..6_usize).prop_map(|finish| Step::Kubelet { finish }),
        1 => (0..6_usize).prop_map(Step::UserDeletesSandbox),
        2 => Just(Step::CollectGarbage),
        1 => prop_oneof![Just(100_u64), Just(3_000), Just(400_000)].prop_map(Step::Wait),
        5 => (0..2_usize, 0..12_usize).prop_map(|(controller, events)| Step::Watch { controller, events }),
        10 => (
            [claim.clone(), claim.clone()],
            [pool.clone(), pool.clone()],
            vec(delivery(), 0..12),
            [prop_oneof![3 => Just(10_000_usize), 1 => 1..40_usize], prop_oneof![3 => Just(10_000_usize), 1 => 1..40_usize]],
        )
            .prop_map(|(claims, pools, delivery, polls)| Step::Work { claims, pools, delivery, polls }),
        1 => Just(Step::DeliverLate),
        1 => (0..2_usize).prop_map(Step::Restart),
    ]
}

struct WorldUnderTest {
    api: Arc<FakeApi>,
    clock: Arc<FakeClock>,
    unreliable_api: Arc<UnreliableApi>,
    controllers: [Fixture; 2],
    /// The first claim that each Sandbox (by uid) was seen to serve.
    served: HashMap<String, String>,
}

impl WorldUnderTest {
    fn new() -> Self {
        let clock = FakeClock::new();
        let api = FakeApi::new(clock.clone());
        let unreliable_api = Arc::new(UnreliableApi {
            api: api.clone(),
            delivery: Mutex::default(),
            late: Mutex::default(),
            violations: Mutex::default(),
        });
        let controllers =
            [Self::controller(&api, &unreliable_api, &clock), Self::controller(&api, &unreliable_api, &clock)];
        let world = Self { api, clock, unreliable_api, controllers, served: HashMap::new() };
        world.controllers[0].template("t", json!({}));
        for pool in POOLS {
            world.controllers[0].pool_with(pool, pool_spec(pool, 2));
        }
        world
    }

    fn controller(api: &Arc<FakeApi>, unreliable_api: &Arc<UnreliableApi>, clock: &Arc<FakeClock>) -> Fixture {
        let pools = PoolSettings { status_interval: Duration::ZERO, ..PoolSettings::default() };
        Fixture::through(api.clone(), unreliable_api.clone(), clock.clone(), ClaimSettings::default(), pools)
    }

    async fn perform(&mut self, step: &Step) {
        let exists = |kind, name: &str| self.api.get(kind, &key(name)).is_some();
        match step {
            Step::CreateClaim { claim, pool } if !exists(Kind::Claim, CLAIMS[*claim]) => {
                self.controllers[0].claim_on(CLAIMS[*claim], POOLS[*pool]);
            }
            Step::DeleteClaim(claim) => self.api.remove(Kind::Claim, &key(CLAIMS[*claim])),
            Step::ExpireClaim(claim) if exists(Kind::Claim, CLAIMS[*claim]) => {
                let now = format!("{:.0}", self.clock.now());
                self.api.edit(Kind::Claim, &key(CLAIMS[*claim]), json!({"spec": {"lifecycle": {"shutdownTime": now}}}));
            }
            Step::EditClaim(claim) if exists(Kind::Claim, CLAIMS[*claim]) => {
                let change = json!({"spec": {"additionalPodMetadata": {"annotations": {"edited": format!("{}", self.clock.now())}}}});
                self.api.edit(Kind::Claim, &key(CLAIMS[*claim]), change);
            }
            Step::Resize { pool, replicas } if exists(Kind::Pool, POOLS[*pool]) => {
                self.api.edit(Kind::Pool, &key(POOLS[*pool]), json!({"spec": {"replicas": replicas}}));
            }
            Step::EditTemplate(image) => {
                let change = json!({"spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": format!("image-{image}")}]}}}});
                self.api.edit(Kind::Template, &key("t"), change);
            }
            Step::DeletePool(pool) => self.api.remove(Kind::Pool, &key(POOLS[*pool])),
            Step::CreatePool(pool) if !exists(Kind::Pool, POOLS[*pool]) => {
                self.controllers[0].pool_with(POOLS[*pool], pool_spec(POOLS[*pool], 2));
            }
            Step::Kubelet { finish } => self.kubelet(*finish),
            Step::UserDeletesSandbox(index) => {
                if let Some(sandbox) = self.controllers[0].sandboxes().get(*index) {
                    self.api.remove(Kind::Sandbox, &key(sandbox.name()));
                }
            }
            Step::CollectGarbage => self.api.collect_garbage(),
            Step::Wait(milliseconds) => self.clock.advance(Duration::from_millis(*milliseconds)),
            Step::Watch { controller, events } => self.controllers[*controller].deliver_some_events(*events),
            Step::Work { claims, pools, delivery, polls } => self.work(*claims, *pools, delivery, *polls).await,
            Step::DeliverLate => self.deliver_late().await,
            Step::Restart(controller) => self.restart(*controller),
            _ => {}
        }
    }

    async fn work(
        &mut self,
        claims: [usize; 2],
        pools: [usize; 2],
        delivery: &[(Delivery, u8, u8)],
        polls: [usize; 2],
    ) {
        *self.unreliable_api.delivery.lock() = delivery.iter().copied().collect();
        let run = |index: usize| {
            let controller = &self.controllers[index];
            let inner = async move {
                let _ = futures::join!(
                    controller.claims_pass(CLAIMS[claims[index]]),
                    controller.pools_pass(POOLS[pools[index]])
                );
            };
            Killable { inner: Box::pin(inner), polls: polls[index] }
        };
        let survived = futures::join!(run(0), run(1));
        self.unreliable_api.delivery.lock().clear();
        for (index, survived) in [survived.0, survived.1].into_iter().enumerate() {
            if survived.is_none() {
                self.restart(index);
            }
        }
    }

    /// Executes requests of controllers that may have been killed meanwhile.
    async fn deliver_late(&self) {
        let late = std::mem::take(&mut *self.unreliable_api.late.lock());
        for request in late {
            let _ = self.unreliable_api.execute(&request).await;
        }
    }

    fn restart(&mut self, index: usize) {
        self.controllers[index] = Self::controller(&self.api, &self.unreliable_api, &self.clock);
        self.controllers[index].deliver_events();
    }

    /// What the Sandbox reconciler and a kubelet would report.
    fn kubelet(&self, finish: Option<usize>) {
        let fixture = &self.controllers[0];
        for (index, sandbox) in fixture.sandboxes().iter().enumerate() {
            if finish == Some(index) {
                let conditions = json!([
                    fixture.condition("Finished", "True", "PodFailed", sandbox.generation()),
                    fixture.condition("Ready", "False", "PodFailed", sandbox.generation())
                ]);
                self.api.edit(Kind::Sandbox, &key(sandbox.name()), json!({"status": {"conditions": conditions}}));
            } else if sandbox.condition(agent_sandbox_api::conditions::ConditionType::Finished).is_none() {
                let current = sandbox
                    .condition(agent_sandbox_api::conditions::ConditionType::Ready)
                    .and_then(|ready| ready.observed_generation);
                if current != Some(sandbox.generation()) {
                    fixture.ready(sandbox.name());
                }
            }
        }
    }

    /// The invariants that hold at all times.
    fn check(&mut self) -> Result<(), TestCaseError> {
        let violations = self.unreliable_api.violations.lock().clone();
        prop_assert!(violations.is_empty(), "{violations:?}");
        let claims: Vec<SandboxClaim> = self.claims();
        let mut published = BTreeMap::new();
        for claim in &claims {
            if let Some(name) = claim.bound_sandbox()
                && let Some(other) = published.insert(name.to_owned(), claim.name().to_owned())
            {
                return Err(TestCaseError::fail(format!("{name} is published by {other} and {}", claim.name())));
            }
        }
        for sandbox in self.controllers[0].sandboxes() {
            let owner = owners::controller_of(&sandbox.metadata).map(|owner| owner.uid.clone()).unwrap_or_default();
            let served = self.served.get(sandbox.uid());
            if let Some(first) = served {
                prop_assert_eq!(first, &owner, "{} changed hands", sandbox.name());
            } else if owners::owning_claim(&sandbox.metadata).is_some() {
                self.served.insert(sandbox.uid().to_owned(), owner);
            }
        }
        Ok(())
    }

    fn claims(&self) -> Vec<SandboxClaim> {
        self.api.list(Kind::Claim).into_iter().map(|claim| serde_json::from_value(claim).expect("decodes")).collect()
    }

    /// One controller and a reliable connection: rounds until one writes nothing.
    async fn converge(&mut self) -> Result<(), TestCaseError> {
        self.deliver_late().await;
        self.restart(0);
        for _ in 0..40 {
            self.api.collect_garbage();
            self.kubelet(None);
            self.clock.advance(Duration::from_secs(3));
            self.controllers[0].deliver_events();
            self.api.take_writes();
            for name in CLAIMS {
                let _ = self.controllers[0].claim(name).await;
            }
            for name in POOLS {
                let _ = self.controllers[0].pool(name).await;
            }
            self.check()?;
            if self.api.take_writes().is_empty() {
                return self.check_converged();
            }
        }
        let claims: Vec<_> = self.claims().into_iter().map(|claim| (claim.name().to_owned(), claim.status)).collect();
        Err(TestCaseError::fail(format!("does not converge: {claims:#?}")))
    }

    fn check_converged(&self) -> Result<(), TestCaseError> {
        let sandboxes = self.controllers[0].sandboxes();
        for claim in self.claims() {
            let controlled: Vec<&str> = sandboxes
                .iter()
                .filter(|sandbox| {
                    owners::controller_of(&sandbox.metadata).is_some_and(|owner| owner.uid == claim.uid())
                })
                .map(|sandbox| sandbox.name())
                .collect();
            if expiry::is_expired(&claim, self.clock.now()) {
                prop_assert!(controlled.is_empty(), "{} is over and keeps {controlled:?}", claim.name());
                continue;
            }
            let pool_exists = self.api.get(Kind::Pool, &key(&claim.spec.warm_pool_ref.name)).is_some();
            if pool_exists || !controlled.is_empty() {
                prop_assert_eq!(
                    controlled,
                    [claim.bound_sandbox().unwrap_or_default()],
                    "{} has exactly what it publishes",
                    claim.name()
                );
            }
        }
        for pool in POOLS {
            if self.api.get(Kind::Pool, &key(pool)).is_none() {
                continue;
            }
            let pool = self.controllers[0].stored_pool(pool);
            let members = sandboxes
                .iter()
                .filter(|sandbox| owners::owning_pool(&sandbox.metadata).is_some_and(|owner| owner.uid == pool.uid()));
            prop_assert_eq!(members.count(), pool.replicas(), "members of {}", pool.name());
        }
        Ok(())
    }
}

fn pool_spec(name: &str, replicas: i32) -> serde_json::Value {
    let strategy = if name == "q" { "Recreate" } else { "OnReplenish" };
    json!({"sandboxTemplateRef": {"name": "t"}, "replicas": replicas, "updateStrategy": {"type": strategy}})
}

fn run(steps: &[Step]) -> Result<(), TestCaseError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let mut world = WorldUnderTest::new();
        for step in steps {
            world.perform(step).await;
            world.check()?;
        }
        world.converge().await
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, max_shrink_iters: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Invariants 1 to 3, X-120, X-130 to under arbitrary histories.
    #[test]
    fn x_120_x_188_one_sandbox_per_claim_under_all_histories(steps in vec(step(), 1..60)) {
        run(&steps)?;
    }
}
