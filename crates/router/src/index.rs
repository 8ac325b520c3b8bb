//! Which live Pod serves which Sandbox: fed by a watch, read on every request.

pub(crate) mod pod;
pub(crate) mod watch;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use tokio::sync::watch as signal;

/// How long a Pod whose host looked dead is left alone. After that it is tried again, so that one lost packet burst
/// cannot hide a healthy Pod until its next status change.
const EVICTION_HOLD: Duration = Duration::from_secs(10);

/// The live (ready, not terminating) Pod of one Sandbox.
#[derive(Debug)]
pub struct LivePod {
    pub namespace: Arc<str>,
    /// Name of the Sandbox, which is what clients send as `X-Sandbox-ID`.
    pub sandbox: Arc<str>,
    pub sandbox_uid: Arc<str>,
    pub pod: Arc<str>,
    pub pod_uid: Arc<str>,
    /// At least one; the first is the preferred one.
    pub ips: Box<[IpAddr]>,
    /// Unclaimed members of a pool are not reachable by name alone.
    pub name_routable: bool,
    /// Different for every Pod and every address change: connections made to one are never used for another.
    pub(crate) incarnation: u64,
    /// Requests being served, for the per-sandbox limit.
    pub(crate) in_flight: Arc<AtomicU32>,
    /// Milliseconds since the index was made until which the Pod counts as dead.
    evicted_until: AtomicU64,
}

impl LivePod {
    /// Whether `ip` belongs to this Pod.
    pub fn has_ip(&self, ip: IpAddr) -> bool {
        self.ips.contains(&ip)
    }
}

/// What the watch extracts from a Pod object; becomes a [`LivePod`] inside the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    pub namespace: String,
    pub sandbox: String,
    pub sandbox_uid: String,
    pub pod: String,
    pub pod_uid: String,
    pub ips: Vec<IpAddr>,
    pub name_routable: bool,
}

#[derive(Default)]
struct Tables {
    by_uid: HashMap<Arc<str>, Arc<LivePod>>,
    /// namespace → Sandbox name → pods' Sandbox UID. Nested so that a look-up borrows both parts.
    by_name: HashMap<Arc<str>, HashMap<Arc<str>, Arc<str>>>,
    /// (namespace, Pod name) → Sandbox UID, because deletions name Pods.
    by_pod: HashMap<(Arc<str>, Arc<str>), Arc<str>>,
}

/// Index of live sandbox Pods. Cheap to share; reads take a lock for a hash look-up only.
pub struct PodIndex {
    tables: RwLock<Tables>,
    next_incarnation: AtomicU64,
    started: Instant,
    /// Counts changes; waiting requests listen to it instead of polling.
    changes: signal::Sender<u64>,
    synced: signal::Sender<bool>,
}

impl Default for PodIndex {
    fn default() -> Self {
        Self {
            tables: RwLock::default(),
            next_incarnation: AtomicU64::new(1),
            started: Instant::now(),
            changes: signal::Sender::new(0),
            synced: signal::Sender::new(false),
        }
    }
}

impl PodIndex {
    /// Adds or replaces the live Pod of a Sandbox.
    pub fn apply(&self, facts: PodFacts) {
        let mut tables = self.tables.write();
        self.insert(&mut tables, facts);
        drop(tables);
        self.announce();
    }

    /// Forgets a Pod that is gone or no longer ready.
    pub fn remove(&self, namespace: &str, pod: &str) {
        let mut tables = self.tables.write();
        let key = (Arc::from(namespace), Arc::from(pod));
        let Some(uid) = tables.by_pod.remove(&key) else { return };
        // Another Pod of the same Sandbox may have taken over meanwhile; its entry stays.
        if tables.by_uid.get(&uid).is_some_and(|live| &*live.pod == pod && &*live.namespace == namespace) {
            tables.forget(&uid);
        }
        drop(tables);
        self.announce();
    }

    /// Replaces everything by the result of a complete list, and marks the index as synced.
    pub fn replace_all(&self, all: Vec<PodFacts>) {
        let mut tables = self.tables.write();
        let gone: Vec<(Arc<str>, Arc<str>)> = {
            let listed: std::collections::HashSet<(&str, &str)> =
                all.iter().map(|facts| (facts.namespace.as_str(), facts.pod.as_str())).collect();
            tables.by_pod.keys().filter(|(ns, pod)| !listed.contains(&(&**ns, &**pod))).cloned().collect()
        };
        for key in gone {
            if let Some(uid) = tables.by_pod.remove(&key)
                && tables.by_uid.get(&uid).is_some_and(|live| live.pod == key.1 && live.namespace == key.0)
            {
                tables.forget(&uid);
            }
        }
        for facts in all {
            self.insert(&mut tables, facts);
        }
        drop(tables);
        self.announce();
        self.synced.send_replace(true);
    }

    /// The live Pod of the Sandbox with this UID.
    pub fn by_uid(&self, uid: &str) -> Option<Arc<LivePod>> {
        let live = self.tables.read().by_uid.get(uid).cloned()?;
        self.is_alive(&live).then_some(live)
    }

    /// The live Pod of the named Sandbox, whether or not names alone may reach it.
    pub fn by_name(&self, namespace: &str, sandbox: &str) -> Option<Arc<LivePod>> {
        let tables = self.tables.read();
        let uid = tables.by_name.get(namespace)?.get(sandbox)?;
        let live = tables.by_uid.get(uid).cloned()?;
        drop(tables);
        self.is_alive(&live).then_some(live)
    }

    /// The namespace's shared name if any live Pod is in it: bounds metric labels by what exists.
    pub(crate) fn known_namespace(&self, namespace: &str) -> Option<Arc<str>> {
        self.tables.read().by_name.get_key_value(namespace).map(|(name, _)| Arc::clone(name))
    }

    /// Stops using a Pod whose host looks dead; `false` when the index has moved on from that Pod already.
    pub(crate) fn evict(&self, dead: &LivePod) -> bool {
        let tables = self.tables.read();
        match tables.by_uid.get(&dead.sandbox_uid) {
            Some(live) if live.incarnation == dead.incarnation => {
                live.evicted_until.store(self.now_ms() + EVICTION_HOLD.as_millis() as u64, Ordering::Relaxed);
                true
            }
            _ => false,
        }
    }

    /// Completes when the first full list has arrived.
    pub async fn wait_synced(&self) {
        let mut synced = self.synced.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = synced.wait_for(|done| *done).await;
    }

    /// Whether the first full list has arrived.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// A receiver that sees every later change.
    pub(crate) fn subscribe(&self) -> signal::Receiver<u64> {
        self.changes.subscribe()
    }

    /// How many Sandboxes have a live Pod.
    pub fn len(&self) -> usize {
        self.tables.read().by_uid.len()
    }

    /// Whether no Sandbox has a live Pod.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn insert(&self, tables: &mut Tables, facts: PodFacts) {
        if facts.ips.is_empty() {
            return;
        }
        let uid: Arc<str> = facts.sandbox_uid.into();
        let namespace: Arc<str> = facts.namespace.into();
        let sandbox: Arc<str> = facts.sandbox.into();
        let pod: Arc<str> = facts.pod.into();
        let previous = tables.by_uid.get(&uid).cloned();
        let same = previous.as_ref().filter(|p| *p.pod_uid == *facts.pod_uid && *p.ips == *facts.ips);
        let live = Arc::new(LivePod {
            incarnation: same
                .map_or_else(|| self.next_incarnation.fetch_add(1, Ordering::Relaxed), |same| same.incarnation),
            in_flight: previous.as_ref().map_or_else(Arc::default, |previous| Arc::clone(&previous.in_flight)),
            evicted_until: AtomicU64::new(0),
            namespace: Arc::clone(&namespace),
            sandbox: Arc::clone(&sandbox),
            sandbox_uid: Arc::clone(&uid),
            pod: Arc::clone(&pod),
            pod_uid: facts.pod_uid.into(),
            ips: facts.ips.into(),
            name_routable: facts.name_routable,
        });
        if let Some(previous) = previous
            && (previous.namespace != namespace || previous.sandbox != sandbox || previous.pod != pod)
        {
            tables.forget(&uid);
        }
        tables.by_pod.insert((Arc::clone(&namespace), pod), Arc::clone(&uid));
        tables.by_name.entry(namespace).or_default().insert(sandbox, Arc::clone(&uid));
        tables.by_uid.insert(uid, live);
    }

    fn is_alive(&self, live: &LivePod) -> bool {
        let until = live.evicted_until.load(Ordering::Relaxed);
        until == 0 || self.now_ms() >= until
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn announce(&self) {
        self.changes.send_modify(|count| *count += 1);
    }
}

impl Tables {
    /// Drops a Sandbox's entry; a name that meanwhile points to a newer UID stays.
    fn forget(&mut self, uid: &str) {
        let Some(live) = self.by_uid.remove(uid) else { return };
        self.by_pod.remove(&(Arc::clone(&live.namespace), Arc::clone(&live.pod)));
        if let Some(names) = self.by_name.get_mut(&live.namespace) {
            if names.get(&live.sandbox).is_some_and(|current| **current == *uid) {
                names.remove(&live.sandbox);
            }
            if names.is_empty() {
                self.by_name.remove(&live.namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests;
