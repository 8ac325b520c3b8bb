//! The index of live Pods by Sandbox: updated by a watch, read by every request.

mod former;
mod parked;
pub(crate) mod pod;
mod tables;
pub(crate) mod watch;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use agent_sandbox_api::sleep::IdlePolicy;
use parking_lot::RwLock;
use tokio::sync::watch as signal;

use crate::sleep::activity::SandboxActivity;
use tables::Tables;

/// How long a Pod whose host looked dead is not used. Then it is tried again, so that a burst of packet loss does not
/// hide a healthy Pod until its next status change.
const UNREACHABLE_FOR: Duration = Duration::from_secs(10);

/// The live (ready, not terminating) Pod of one Sandbox.
#[derive(Debug)]
pub struct LivePod {
    pub namespace: Arc<str>,
    /// Name of the Sandbox, which is what clients send as `X-Sandbox-ID`.
    pub sandbox: Arc<str>,
    pub sandbox_uid: Arc<str>,
    pub pod: Arc<str>,
    pub pod_uid: Arc<str>,
    /// Never empty; the first address is preferred.
    pub ips: Box<[IpAddr]>,
    /// Unclaimed members of a warm pool are not reachable by name alone.
    pub name_routable: bool,
    /// Set if the sandbox serves E2B's clients.
    pub e2b: Option<Traffic>,
    /// Unique per Pod and set of addresses: connections to one incarnation are never used for another.
    pub(crate) incarnation: u64,
    /// Number of requests being served, for the per-sandbox limit.
    pub(crate) in_flight: Arc<AtomicU32>,
    /// When the Sandbox is suspended for being idle; `None` for never.
    pub(crate) idle: Option<IdlePolicy>,
    /// The Sandbox's use, as far as this router knows.
    pub(crate) activity: Arc<SandboxActivity>,
    /// Milliseconds after `started` of the index until which the Pod is not used.
    unreachable_until: AtomicU64,
}

impl LivePod {
    /// Whether `ip` belongs to this Pod.
    pub fn has_ip(&self, ip: IpAddr) -> bool {
        self.ips.contains(&ip)
    }
}

/// A Pod that someone names.
pub(crate) enum UsedPod {
    Live(Arc<LivePod>),
    /// It is not live, or the index has not heard of it yet: its uses, which its entry will continue.
    Unknown(Arc<SandboxActivity>),
}

/// What the watch reads from a Pod object; the index turns it into a [`LivePod`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodFacts {
    pub namespace: String,
    pub sandbox: String,
    pub sandbox_uid: String,
    pub pod: String,
    pub pod_uid: String,
    pub ips: Vec<IpAddr>,
    pub name_routable: bool,
    /// When the Sandbox is suspended for being idle; `None` for never.
    pub idle: Option<IdlePolicy>,
    pub e2b: Option<Traffic>,
}

/// Who reaches the ports of programs in a sandbox of E2B's clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Everyone who knows the sandbox's id.
    Public,
    /// Holders of the sandbox's traffic token.
    Private,
}

/// Index of live sandbox Pods. Reads hold a lock for a hash lookup only.
pub struct PodIndex {
    tables: RwLock<Tables>,
    next_incarnation: AtomicU64,
    started: Instant,
    /// Counts changes; waiting requests subscribe to it instead of polling.
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
        self.notify();
    }

    /// Removes a Pod that is deleted or no longer ready.
    pub fn remove(&self, namespace: &str, pod: &str) {
        if self.tables.write().remove(namespace, pod) {
            self.notify();
        }
    }

    /// Replaces all Pods by a complete list, and marks the index as synced.
    pub fn replace_all(&self, all: Vec<PodFacts>) {
        let listed: HashSet<(&str, &str)> = all.iter().map(|facts| (&*facts.namespace, &*facts.pod)).collect();
        let mut tables = self.tables.write();
        let gone: Vec<Arc<LivePod>> =
            tables.pods().filter(|pod| !listed.contains(&(&*pod.namespace, &*pod.pod))).cloned().collect();
        for pod in gone {
            tables.remove(&pod.namespace, &pod.pod);
        }
        for facts in all {
            self.insert(&mut tables, facts);
        }
        drop(tables);
        self.notify();
        self.synced.send_replace(true);
    }

    /// The live Pod of the Sandbox with this UID, in its own namespace only.
    pub fn by_uid(&self, namespace: &str, uid: &str) -> Option<Arc<LivePod>> {
        self.if_reachable(self.tables.read().by_uid(namespace, uid))
    }

    /// The live Pod of the named Sandbox, also if it is not reachable by name alone.
    pub fn by_name(&self, namespace: &str, sandbox: &str) -> Option<Arc<LivePod>> {
        self.if_reachable(self.tables.read().by_name(namespace, sandbox))
    }

    /// The Pod of this name, which someone uses without connecting to its address.
    pub(crate) fn used_pod(&self, namespace: &str, pod: &str) -> UsedPod {
        if let Some(live) = self.tables.read().by_pod(namespace, pod) {
            return UsedPod::Live(Arc::clone(live));
        }
        let mut tables = self.tables.write();
        match tables.by_pod(namespace, pod) {
            Some(live) => UsedPod::Live(Arc::clone(live)),
            None => UsedPod::Unknown(tables.parked.join(namespace, pod)),
        }
    }

    /// The live Pods of Sandboxes with an idle time.
    pub(crate) fn sleepers(&self) -> Vec<(Arc<LivePod>, IdlePolicy)> {
        let tables = self.tables.read();
        tables.pods().filter_map(|pod| Some((Arc::clone(pod), pod.idle?))).collect()
    }

    /// The first live Pod with E2B's ports that `wanted` accepts. Calls it for each of them.
    pub(crate) fn find_e2b(&self, wanted: impl Fn(&LivePod) -> bool) -> Option<Arc<LivePod>> {
        let pods: Vec<Arc<LivePod>> =
            self.tables.read().pods().filter(|pod| pod.e2b.is_some() && pod.name_routable).cloned().collect();
        pods.into_iter().find(|pod| wanted(pod))
    }

    /// Whether a live Pod in any namespace belongs to this Sandbox UID.
    pub(crate) fn knows_uid(&self, uid: &str) -> bool {
        self.tables.read().knows_uid(uid)
    }

    /// Whether this is a former address of the Sandbox's Pods that no live Pod has now: a client that sends it learnt
    /// it before the Pod was replaced.
    pub(crate) fn was_address_of(&self, namespace: &str, sandbox: &str, ip: IpAddr) -> bool {
        self.tables.read().was_address_of(namespace, sandbox, ip)
    }

    /// The shared name of a namespace that has a live Pod; limits metric labels to existing namespaces.
    pub(crate) fn known_namespace(&self, namespace: &str) -> Option<Arc<str>> {
        self.tables.read().namespace(namespace).cloned()
    }

    /// Stops using a Pod whose host looks dead; `false` if the index has a newer incarnation of it.
    pub(crate) fn mark_unreachable(&self, dead: &LivePod) -> bool {
        let tables = self.tables.read();
        match tables.by_pod(&dead.namespace, &dead.pod) {
            Some(live) if live.incarnation == dead.incarnation => {
                live.unreachable_until.store(self.now_ms() + UNREACHABLE_FOR.as_millis() as u64, Ordering::Relaxed);
                true
            }
            _ => false,
        }
    }

    /// Completes when the first complete list has arrived.
    pub async fn wait_synced(&self) {
        let mut synced = self.synced.subscribe();
        // The sender is part of `self`, so waiting cannot fail.
        let _ = synced.wait_for(|done| *done).await;
    }

    /// Whether the first complete list has arrived.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// A receiver that sees every later change.
    pub(crate) fn subscribe(&self) -> signal::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Number of Sandboxes with a live Pod.
    pub fn len(&self) -> usize {
        self.tables.read().len()
    }

    /// Whether no Sandbox has a live Pod.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn insert(&self, tables: &mut Tables, facts: PodFacts) {
        if facts.ips.is_empty() {
            return;
        }
        let previous = tables.by_pod(&facts.namespace, &facts.pod);
        let same = previous.filter(|p| *p.pod_uid == *facts.pod_uid && *p.ips == *facts.ips);
        let sibling = tables.by_uid(&facts.namespace, &facts.sandbox_uid).cloned();
        let incarnation =
            same.map_or_else(|| self.next_incarnation.fetch_add(1, Ordering::Relaxed), |same| same.incarnation);
        let parked = tables.parked.take(&facts.namespace, &facts.pod, &facts.sandbox_uid);
        let live = LivePod {
            incarnation,
            in_flight: sibling.as_ref().map_or_else(Arc::default, |sibling| Arc::clone(&sibling.in_flight)),
            idle: facts.idle,
            activity: sibling.map(|sibling| Arc::clone(&sibling.activity)).or(parked).unwrap_or_default(),
            unreachable_until: AtomicU64::new(0),
            namespace: facts.namespace.into(),
            sandbox: facts.sandbox.into(),
            sandbox_uid: facts.sandbox_uid.into(),
            pod: facts.pod.into(),
            pod_uid: facts.pod_uid.into(),
            ips: facts.ips.into(),
            name_routable: facts.name_routable,
            e2b: facts.e2b,
        };
        tables.insert(Arc::new(live));
    }

    fn if_reachable(&self, pod: Option<&Arc<LivePod>>) -> Option<Arc<LivePod>> {
        let pod = pod?;
        let until = pod.unreachable_until.load(Ordering::Relaxed);
        (until == 0 || self.now_ms() >= until).then(|| Arc::clone(pod))
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn notify(&self) {
        self.changes.send_modify(|count| *count += 1);
    }
}

#[cfg(test)]
mod tests;
