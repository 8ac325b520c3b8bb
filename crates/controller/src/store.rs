//! The [`World`] behind a lock, and the wake-ups that follow from each change.
//!
//! Whatever teaches the store something new (a watch event, an answer to a write, a live read) wakes exactly the reconcilers whose
//! decision may depend on it. The reconciler that caused the change is not woken by it: it has already seen it.

mod patience;

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use agent_sandbox_api::keys::labels;
use parking_lot::{RwLock, RwLockReadGuard};

use crate::{
    object::{Key, Kind, Object},
    queue::Queue,
    world::{Change, Known, News, World},
};

/// So many claims leave the machine time for more than themselves.
const FEW_CLAIMS: usize = 4;
/// About as long as a claim's status takes once its Sandbox is taken.
const SHORT_PATIENCE: Duration = Duration::from_millis(2);

/// The four reconcilers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    Sandbox,
    Claim,
    Pool,
    Template,
}

impl Target {
    pub const ALL: [Target; 4] = [Target::Sandbox, Target::Claim, Target::Pool, Target::Template];

    /// The controller's name in metrics.
    pub fn controller_name(self) -> &'static str {
        match self {
            Target::Sandbox => "sandbox",
            Target::Claim => "sandboxclaim",
            Target::Pool => "sandboxwarmpool",
            Target::Template => "sandboxtemplate",
        }
    }
}

/// A reconciler and the object it should look at.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Wake {
    pub target: Target,
    pub key: Key,
}

impl Wake {
    pub fn new(target: Target, key: Key) -> Self {
        Self { target, key }
    }
}

/// Decides whom a change concerns. Runs under the store's lock: it must only look.
pub type Route = fn(&World, &Change, &mut Vec<Wake>);

#[derive(Clone, Default)]
pub struct Queues {
    pub sandbox: Queue,
    pub claim: Queue,
    pub pool: Queue,
    pub template: Queue,
}

impl Queues {
    pub fn of(&self, target: Target) -> &Queue {
        match target {
            Target::Sandbox => &self.sandbox,
            Target::Claim => &self.claim,
            Target::Pool => &self.pool,
            Target::Template => &self.template,
        }
    }

    pub fn wake(&self, wake: Wake) {
        self.of(wake.target).add(wake.key);
    }

    fn wake_after(&self, wake: Wake, delay: Duration) {
        self.of(wake.target).add_after(wake.key, delay);
    }

    pub fn close(&self) {
        for target in Target::ALL {
            self.of(target).close();
        }
    }
}

pub struct Store {
    world: RwLock<World>,
    routes: Vec<Route>,
    labelled_only: bool,
    /// How long work that nobody waits for is put off.
    patience: Duration,
    pub queues: Queues,
    /// Which kinds have been listed completely at least once.
    synced: [OnceLock<()>; 9],
    sync_changed: tokio::sync::Notify,
    /// Whether anything was learnt since somebody last asked.
    stirred: AtomicBool,
    stir: tokio::sync::Notify,
}

impl Store {
    /// `labelled_only`: the watches of Pods, PVCs and Services bring only objects with the tracking label.
    pub fn new(routes: Vec<Route>, labelled_only: bool) -> Arc<Self> {
        Self::patient(routes, labelled_only, Duration::ZERO)
    }

    /// The same; what follows a claim's service is put off so long, in favour of claims that are being served.
    pub fn patient(routes: Vec<Route>, labelled_only: bool, patience: Duration) -> Arc<Self> {
        Arc::new(Self {
            world: RwLock::default(),
            routes,
            labelled_only,
            patience,
            queues: Queues::default(),
            synced: Default::default(),
            sync_changed: tokio::sync::Notify::new(),
            stirred: AtomicBool::new(false),
            stir: tokio::sync::Notify::new(),
        })
    }

    /// A consistent look at everything. Keep it short: watches wait for it.
    pub fn read(&self) -> RwLockReadGuard<'_, World> {
        self.world.read()
    }

    /// Changes derived state, such as reservations. Objects change only through what the API said.
    pub fn candidates<T>(&self, act: impl FnOnce(&mut World) -> T) -> T {
        act(&mut self.world.write())
    }

    pub fn get<K: Known>(&self, key: &Key) -> Option<Arc<K>> {
        self.world.read().get(key)
    }

    /// Takes in what a watch or list brought, and wakes whom it concerns.
    pub fn learn<K: Known>(&self, mut news: News<K>) {
        // Before the lock: everybody waits for that.
        news.slim();
        let is_list = matches!(news, News::List(..));
        let mut world = self.world.write();
        let changes = world.learn(news);
        self.dispatch(&world, &changes, None);
        drop(world);
        if is_list && self.synced[K::KIND_OF as usize].set(()).is_ok() {
            self.sync_changed.notify_waiters();
        }
    }

    /// An object that no watch will ever speak of again would stay in the cache for good.
    fn is_watched(&self, object: &Object) -> bool {
        let child = matches!(object.kind(), Kind::Pod | Kind::Pvc | Kind::Service);
        let labelled = || object.label(labels::SANDBOX_NAME_HASH).is_some();
        !(self.labelled_only && child) || labelled()
    }

    pub fn apply_answer(&self, object: &Object, origin: &Wake) {
        if !self.is_watched(object) {
            return;
        }
        let mut world = self.world.write();
        let change = world.apply_answer(object);
        self.dispatch(&world, change.as_slice(), Some(origin));
    }

    pub fn observe_read(&self, object: &Object, origin: &Wake) {
        if !self.is_watched(object) {
            return;
        }
        let mut world = self.world.write();
        let change = world.observe_read(object);
        self.dispatch(&world, change.as_slice(), Some(origin));
    }

    pub fn forget(&self, kind: Kind, key: &Key, uid: &str, origin: &Wake) {
        let mut world = self.world.write();
        let change = world.forget(kind, key, uid);
        self.dispatch(&world, change.as_slice(), Some(origin));
    }

    /// The API answers again after an interruption: what failed meanwhile is tried at once.
    pub fn recovered(&self) {
        for target in Target::ALL {
            self.queues.of(target).hurry();
        }
    }

    pub fn is_synced(&self, kind: Kind) -> bool {
        self.synced[kind as usize].get().is_some()
    }

    /// Waits until every one of these kinds was listed once.
    pub async fn wait_synced(&self, kinds: &[Kind]) {
        loop {
            let changed = self.sync_changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if kinds.iter().all(|kind| self.is_synced(*kind)) {
                return;
            }
            changed.await;
        }
    }

    /// Whether work that nobody waits for gives way to claims.
    pub fn is_patient(&self) -> bool {
        !self.patience.is_zero()
    }

    /// How many claims are queued or being served now; none when nobody is to be given way to.
    pub fn claims_under_way(&self) -> usize {
        if !self.is_patient() {
            return 0;
        }
        let claims = self.queues.claim.stats();
        claims.depth + claims.processing
    }

    /// How long work that can wait is put off. With few claims under way what is left to do for a Sandbox follows right after its claim's
    /// status: the router waits for it.
    fn wait_of(&self, target: Target) -> Duration {
        let calm = target == Target::Sandbox && self.claims_under_way() <= FEW_CLAIMS;
        if calm { self.patience.min(SHORT_PATIENCE) } else { self.patience }
    }

    /// Waits until something is learnt. For one waiter.
    pub(crate) async fn news(&self) {
        self.stir.notified().await;
    }

    /// Whether something was learnt since the last call.
    pub(crate) fn take_news(&self) -> bool {
        self.stirred.swap(false, Ordering::Relaxed)
    }

    fn dispatch(&self, world: &World, changes: &[Change], origin: Option<&Wake>) {
        if !changes.is_empty() && !self.stirred.swap(true, Ordering::Relaxed) {
            self.stir.notify_one();
        }
        let mut wakes = Vec::new();
        for change in changes {
            for route in &self.routes {
                route(world, change, &mut wakes);
            }
            for wake in wakes.drain(..).filter(|wake| Some(wake) != origin) {
                let waits = self.is_patient() && patience::can_wait(world, change, wake.target);
                let delay = if waits { self.wait_of(wake.target) } else { Duration::ZERO };
                self.queues.wake_after(wake, delay);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_grows_with_the_claims_under_way() {
        let patience = Duration::from_millis(10);
        let store = Store::patient(Vec::new(), false, patience);
        assert_eq!((store.wait_of(Target::Sandbox), store.wait_of(Target::Pool)), (SHORT_PATIENCE, patience));
        for number in 0..=FEW_CLAIMS {
            assert_eq!(store.claims_under_way(), number);
            assert_eq!(store.wait_of(Target::Sandbox), SHORT_PATIENCE, "{number}");
            store.queues.claim.add(Key::new("n", format!("c{number}")));
        }
        assert_eq!((store.wait_of(Target::Sandbox), store.wait_of(Target::Pool)), (patience, patience));
        let hasty = Store::new(Vec::new(), false);
        hasty.queues.claim.add(Key::new("n", "c"));
        assert_eq!(hasty.claims_under_way(), 0, "nobody is given way to");
    }
}
