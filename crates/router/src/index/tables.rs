//! Who claims to be the live Pod of which Sandbox, and whose claim counts.
//!
//! A Pod says itself, in its owner reference, which Sandbox it belongs to, and whoever may create Pods in a namespace may
//! write anything there. So a claim counts in its own namespace only, and never displaces an earlier one that is still
//! live: it waits until the earlier Pod is gone.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;

use super::LivePod;
use super::former::Former;

/// Claims in the order in which they were seen; the first one counts. Never empty.
type Claimants = Vec<Arc<LivePod>>;

#[derive(Default)]
pub(super) struct Tables {
    namespaces: HashMap<Arc<str>, Namespace>,
    /// How many live Pods name a Sandbox UID, in any namespace: tells somebody else's UID from one that nobody has.
    uids: HashMap<Arc<str>, usize>,
    /// How many live Pods have an address.
    addresses: HashMap<IpAddr, usize>,
    former: Former,
}

#[derive(Default)]
struct Namespace {
    by_uid: HashMap<Arc<str>, Claimants>,
    by_name: HashMap<Arc<str>, Claimants>,
    /// By the Pod's own name, because that is what deletions tell.
    by_pod: HashMap<Arc<str>, Arc<LivePod>>,
}

impl Tables {
    pub(super) fn by_uid(&self, namespace: &str, uid: &str) -> Option<&Arc<LivePod>> {
        self.namespaces.get(namespace)?.by_uid.get(uid)?.first()
    }

    pub(super) fn by_name(&self, namespace: &str, sandbox: &str) -> Option<&Arc<LivePod>> {
        self.namespaces.get(namespace)?.by_name.get(sandbox)?.first()
    }

    pub(super) fn by_pod(&self, namespace: &str, pod: &str) -> Option<&Arc<LivePod>> {
        self.namespaces.get(namespace)?.by_pod.get(pod)
    }

    pub(super) fn knows_uid(&self, uid: &str) -> bool {
        self.uids.contains_key(uid)
    }

    /// Whether the Sandbox's Pods had this address once and nobody has it now.
    pub(super) fn was_address_of(&self, namespace: &str, sandbox: &str, ip: IpAddr) -> bool {
        !self.addresses.contains_key(&ip) && self.former.has(namespace, sandbox, ip)
    }

    /// The namespace's shared name, if any live Pod is in it.
    pub(super) fn namespace(&self, namespace: &str) -> Option<&Arc<str>> {
        self.namespaces.get_key_value(namespace).map(|(name, _)| name)
    }

    pub(super) fn pods(&self) -> impl Iterator<Item = &Arc<LivePod>> {
        self.namespaces.values().flat_map(|namespace| namespace.by_pod.values())
    }

    /// How many Sandboxes have a live Pod.
    pub(super) fn len(&self) -> usize {
        self.namespaces.values().map(|namespace| namespace.by_uid.len()).sum()
    }

    /// Adds a Pod, or says something new about one: news keep its place among the claimants.
    pub(super) fn insert(&mut self, pod: Arc<LivePod>) {
        let known = self.by_pod(&pod.namespace, &pod.pod).cloned();
        if let Some(known) = known {
            if known.pod_uid == pod.pod_uid && known.sandbox_uid == pod.sandbox_uid && known.sandbox == pod.sandbox {
                self.replace(&known, pod);
                return;
            }
            self.remove(&known.namespace, &known.pod);
        }
        *self.uids.entry(Arc::clone(&pod.sandbox_uid)).or_default() += 1;
        self.occupy(&pod);
        let namespace = self.namespaces.entry(Arc::clone(&pod.namespace)).or_default();
        namespace.by_pod.insert(Arc::clone(&pod.pod), Arc::clone(&pod));
        namespace.by_uid.entry(Arc::clone(&pod.sandbox_uid)).or_default().push(Arc::clone(&pod));
        namespace.by_name.entry(Arc::clone(&pod.sandbox)).or_default().push(pod);
    }

    fn replace(&mut self, known: &Arc<LivePod>, pod: Arc<LivePod>) {
        self.vacate(known);
        self.occupy(&pod);
        let Some(namespace) = self.namespaces.get_mut(&pod.namespace) else { return };
        let claims = [namespace.by_uid.get_mut(&pod.sandbox_uid), namespace.by_name.get_mut(&pod.sandbox)];
        for place in claims.into_iter().flatten().flatten().filter(|claimant| Arc::ptr_eq(claimant, known)) {
            *place = Arc::clone(&pod);
        }
        namespace.by_pod.insert(Arc::clone(&pod.pod), pod);
    }

    /// Forgets a Pod; whoever claimed the same Sandbox after it moves up. Says whether it was known.
    pub(super) fn remove(&mut self, namespace: &str, pod: &str) -> bool {
        let Some(claims) = self.namespaces.get_mut(namespace) else { return false };
        let Some(gone) = claims.by_pod.remove(pod) else { return false };
        withdraw(&mut claims.by_uid, &gone.sandbox_uid, &gone);
        withdraw(&mut claims.by_name, &gone.sandbox, &gone);
        if claims.by_pod.is_empty() {
            self.namespaces.remove(namespace);
        }
        take_one(&mut self.uids, &gone.sandbox_uid);
        self.vacate(&gone);
        true
    }

    fn occupy(&mut self, pod: &LivePod) {
        for ip in &pod.ips {
            *self.addresses.entry(*ip).or_default() += 1;
        }
    }

    fn vacate(&mut self, pod: &LivePod) {
        for ip in &pod.ips {
            take_one(&mut self.addresses, ip);
        }
        self.former.remember(pod);
    }
}

/// Counts down; a count of nothing is no entry.
fn take_one<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

fn withdraw(claims: &mut HashMap<Arc<str>, Claimants>, key: &str, gone: &Arc<LivePod>) {
    let Some(claimants) = claims.get_mut(key) else { return };
    claimants.retain(|claimant| !Arc::ptr_eq(claimant, gone));
    if claimants.is_empty() {
        claims.remove(key);
    }
}
