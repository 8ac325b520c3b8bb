//! The [`ClusterCache`] behind a lock, and the wake-ups that follow from each change.
//!
//! Every update of the store (a watch event, the response to a write, a live read) wakes exactly the reconcilers whose
//! decision may depend on it. The reconciler that caused the change is not woken by it: it has already seen it.

mod deferral;

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
    cache::{CacheUpdate, Cached, Change, ClusterCache, Key, Kind, Object},
    reconcile::Queue,
};

/// With at most this many claims queued or running, the machine has time for other work as well.
const FEW_CLAIMS: usize = 4;
/// Deferral with few claims under way: about the time that the claim's status write takes once its Sandbox is adopted.
const SHORT_DEFERRAL: Duration = Duration::from_millis(2);

/// One of the four reconcilers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReconcilerKind {
    Sandbox,
    Claim,
    Pool,
    Template,
}

impl ReconcilerKind {
    pub const ALL: [ReconcilerKind; 4] =
        [ReconcilerKind::Sandbox, ReconcilerKind::Claim, ReconcilerKind::Pool, ReconcilerKind::Template];

    /// The controller's name in metrics.
    pub fn controller_name(self) -> &'static str {
        match self {
            ReconcilerKind::Sandbox => "sandbox",
            ReconcilerKind::Claim => "sandboxclaim",
            ReconcilerKind::Pool => "sandboxwarmpool",
            ReconcilerKind::Template => "sandboxtemplate",
        }
    }
}

/// A reconciler and the key of the object that it should reconcile.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkItem {
    pub reconciler: ReconcilerKind,
    pub key: Key,
}

impl WorkItem {
    pub fn new(reconciler: ReconcilerKind, key: Key) -> Self {
        Self { reconciler, key }
    }
}

/// Adds the reconcilers and objects that a change concerns. Runs under the store's lock, so it must only read.
pub type Route = fn(&ClusterCache, &Change, &mut Vec<WorkItem>);

#[derive(Clone, Default)]
pub struct Queues {
    pub sandbox: Queue,
    pub claim: Queue,
    pub pool: Queue,
    pub template: Queue,
}

impl Queues {
    pub fn of(&self, reconciler: ReconcilerKind) -> &Queue {
        match reconciler {
            ReconcilerKind::Sandbox => &self.sandbox,
            ReconcilerKind::Claim => &self.claim,
            ReconcilerKind::Pool => &self.pool,
            ReconcilerKind::Template => &self.template,
        }
    }

    pub fn wake(&self, wake: WorkItem) {
        self.of(wake.reconciler).add(wake.key);
    }

    fn wake_after(&self, wake: WorkItem, delay: Duration) {
        self.of(wake.reconciler).add_after(wake.key, delay);
    }

    pub fn close(&self) {
        for reconciler in ReconcilerKind::ALL {
            self.of(reconciler).close();
        }
    }
}

pub struct Store {
    world: RwLock<ClusterCache>,
    routes: Vec<Route>,
    labelled_only: bool,
    /// Delay of work that no client waits for; zero turns deferral off.
    deferral: Duration,
    pub queues: Queues,
    /// Which kinds have been listed completely at least once.
    synced: [OnceLock<()>; Kind::CACHED.len()],
    sync_changed: tokio::sync::Notify,
    /// Whether anything changed since the last call of `take_changed`.
    changed: AtomicBool,
    change_notify: tokio::sync::Notify,
}

impl Store {
    /// Creates a store that does not defer work. `labelled_only`: the watches of Pods, PVCs and Services bring only
    /// objects with the tracking label.
    pub fn new(routes: Vec<Route>, labelled_only: bool) -> Arc<Self> {
        Self::with_deferral(routes, labelled_only, Duration::ZERO)
    }

    /// Creates a store that delays the work that follows an adoption by `deferral`, in favour of claims that are being
    /// served.
    pub fn with_deferral(routes: Vec<Route>, labelled_only: bool, deferral: Duration) -> Arc<Self> {
        Arc::new(Self {
            world: RwLock::default(),
            routes,
            labelled_only,
            deferral,
            queues: Queues::default(),
            synced: Default::default(),
            sync_changed: tokio::sync::Notify::new(),
            changed: AtomicBool::new(false),
            change_notify: tokio::sync::Notify::new(),
        })
    }

    /// Read access to a consistent state. Hold the guard only briefly: watch events wait for it.
    pub fn read(&self) -> RwLockReadGuard<'_, ClusterCache> {
        self.world.read()
    }

    /// Changes derived state, such as reservations. Objects change only through responses and events of the API.
    pub fn candidates<T>(&self, act: impl FnOnce(&mut ClusterCache) -> T) -> T {
        act(&mut self.world.write())
    }

    pub fn get<K: Cached>(&self, key: &Key) -> Option<Arc<K>> {
        self.world.read().get(key)
    }

    /// Applies what a watch or a list brought, and wakes the reconcilers concerned.
    pub fn apply_update<K: Cached>(&self, mut update: CacheUpdate<K>) {
        // Outside of the lock, for which every other task waits.
        update.compact();
        let is_list = matches!(update, CacheUpdate::Listed(..));
        let mut world = self.world.write();
        let changes = world.apply_update(update);
        self.dispatch(&world, &changes, None);
        drop(world);
        if is_list && self.synced[K::KIND_OF as usize].set(()).is_ok() {
            self.sync_changed.notify_waiters();
        }
    }

    /// Whether a watch covers the object. One that no watch covers would stay in the cache for ever.
    fn is_watched(&self, object: &Object) -> bool {
        !(self.labelled_only && object.kind().is_child()) || object.label(labels::SANDBOX_NAME_HASH).is_some()
    }

    pub fn apply_response(&self, object: &Object, origin: &WorkItem) {
        if !self.is_watched(object) {
            return;
        }
        let mut world = self.world.write();
        let change = world.apply_response(object);
        self.dispatch(&world, change.as_slice(), Some(origin));
    }

    pub fn observe_read(&self, object: &Object, origin: &WorkItem) {
        if !self.is_watched(object) {
            return;
        }
        let mut world = self.world.write();
        let change = world.observe_read(object);
        self.dispatch(&world, change.as_slice(), Some(origin));
    }

    pub fn forget(&self, kind: Kind, key: &Key, uid: &str, origin: &WorkItem) {
        let mut world = self.world.write();
        let change = world.forget(kind, key, uid);
        self.dispatch(&world, change.as_slice(), Some(origin));
    }

    /// Retries everything that failed, at once: the API answers again after an interruption.
    pub fn recovered(&self) {
        for reconciler in ReconcilerKind::ALL {
            self.queues.of(reconciler).retry_failed();
        }
    }

    pub fn is_synced(&self, kind: Kind) -> bool {
        self.synced[kind as usize].get().is_some()
    }

    /// Waits until each of these kinds was listed once.
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

    /// Whether background work is delayed in favour of claims.
    pub fn defers_background_work(&self) -> bool {
        !self.deferral.is_zero()
    }

    /// Number of claims that are queued or being reconciled; 0 when deferral is off.
    pub fn claims_under_way(&self) -> usize {
        if !self.defers_background_work() {
            return 0;
        }
        let claims = self.queues.claim.stats();
        claims.depth + claims.processing
    }

    /// Delay of deferrable work. With few claims under way, the remaining work on a Sandbox follows right after its
    /// claim's status, because the router waits for it.
    fn deferral_of(&self, reconciler: ReconcilerKind) -> Duration {
        let calm = reconciler == ReconcilerKind::Sandbox && self.claims_under_way() <= FEW_CLAIMS;
        if calm { self.deferral.min(SHORT_DEFERRAL) } else { self.deferral }
    }

    /// Waits until something changes. For one waiter.
    pub(crate) async fn wait_for_change(&self) {
        self.change_notify.notified().await;
    }

    /// Whether something changed since the last call.
    pub(crate) fn take_changed(&self) -> bool {
        self.changed.swap(false, Ordering::Relaxed)
    }

    fn dispatch(&self, world: &ClusterCache, changes: &[Change], origin: Option<&WorkItem>) {
        if !changes.is_empty() && !self.changed.swap(true, Ordering::Relaxed) {
            self.change_notify.notify_one();
        }
        let mut items = Vec::new();
        for change in changes {
            for route in &self.routes {
                route(world, change, &mut items);
            }
            for wake in items.drain(..).filter(|wake| Some(wake) != origin) {
                let waits = self.defers_background_work() && deferral::can_be_deferred(world, change, wake.reconciler);
                let delay = if waits { self.deferral_of(wake.reconciler) } else { Duration::ZERO };
                self.queues.wake_after(wake, delay);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deferral_grows_with_the_claims_under_way() {
        let deferral = Duration::from_millis(10);
        let store = Store::with_deferral(Vec::new(), false, deferral);
        assert_eq!(
            (store.deferral_of(ReconcilerKind::Sandbox), store.deferral_of(ReconcilerKind::Pool)),
            (SHORT_DEFERRAL, deferral)
        );
        for number in 0..=FEW_CLAIMS {
            assert_eq!(store.claims_under_way(), number);
            assert_eq!(store.deferral_of(ReconcilerKind::Sandbox), SHORT_DEFERRAL, "{number}");
            store.queues.claim.add(Key::new("n", format!("c{number}")));
        }
        assert_eq!(
            (store.deferral_of(ReconcilerKind::Sandbox), store.deferral_of(ReconcilerKind::Pool)),
            (deferral, deferral)
        );
        let immediate = Store::new(Vec::new(), false);
        immediate.queues.claim.add(Key::new("n", "c"));
        assert_eq!(immediate.claims_under_way(), 0, "deferral is off");
    }
}
