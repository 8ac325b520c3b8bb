//! Candidates for the live Pod of each Sandbox, and which of them is used.
//!
//! A Pod names its Sandbox itself, in its owner reference, and everyone who may create Pods in a namespace can write
//! anything there. So an owner reference counts in its own namespace only and never displaces an earlier Pod that is
//! still live: the later one waits until the earlier is gone.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;

use super::LivePod;
use super::former::FormerAddresses;
use super::parked::ParkedUses;

/// Candidates in order of arrival; the first one is used. Never empty.
type Candidates = Vec<Arc<LivePod>>;

#[derive(Default)]
pub(super) struct Tables {
    namespaces: HashMap<Arc<str>, Namespace>,
    /// Number of live Pods per Sandbox UID, in any namespace: distinguishes the UID of another Sandbox from an unknown
    /// one.
    uids: HashMap<Arc<str>, usize>,
    /// Number of live Pods per address.
    addresses: HashMap<IpAddr, usize>,
    former: FormerAddresses,
    pub(super) parked: ParkedUses,
}

#[derive(Default)]
struct Namespace {
    by_uid: HashMap<Arc<str>, Candidates>,
    by_name: HashMap<Arc<str>, Candidates>,
    /// By the name of the Pod, which is what delete events carry.
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

    /// Whether the Sandbox's Pods had this address before and no live Pod has it now.
    pub(super) fn was_address_of(&self, namespace: &str, sandbox: &str, ip: IpAddr) -> bool {
        !self.addresses.contains_key(&ip) && self.former.contains(namespace, sandbox, ip)
    }

    /// The shared name of the namespace, if it has a live Pod.
    pub(super) fn namespace(&self, namespace: &str) -> Option<&Arc<str>> {
        self.namespaces.get_key_value(namespace).map(|(name, _)| name)
    }

    pub(super) fn pods(&self) -> impl Iterator<Item = &Arc<LivePod>> {
        self.namespaces.values().flat_map(|namespace| namespace.by_pod.values())
    }

    /// Number of Sandboxes with a live Pod.
    pub(super) fn len(&self) -> usize {
        self.namespaces.values().map(|namespace| namespace.by_uid.len()).sum()
    }

    /// Adds or updates a Pod; an updated one keeps its position among the candidates.
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
        self.count_addresses(&pod);
        let namespace = self.namespaces.entry(Arc::clone(&pod.namespace)).or_default();
        namespace.by_pod.insert(Arc::clone(&pod.pod), Arc::clone(&pod));
        namespace.by_uid.entry(Arc::clone(&pod.sandbox_uid)).or_default().push(Arc::clone(&pod));
        namespace.by_name.entry(Arc::clone(&pod.sandbox)).or_default().push(pod);
    }

    fn replace(&mut self, known: &Arc<LivePod>, pod: Arc<LivePod>) {
        self.release_addresses(known);
        self.count_addresses(&pod);
        let Some(namespace) = self.namespaces.get_mut(&pod.namespace) else { return };
        let entries = [namespace.by_uid.get_mut(&pod.sandbox_uid), namespace.by_name.get_mut(&pod.sandbox)];
        for candidate in entries.into_iter().flatten().flatten().filter(|candidate| Arc::ptr_eq(candidate, known)) {
            *candidate = Arc::clone(&pod);
        }
        namespace.by_pod.insert(Arc::clone(&pod.pod), pod);
    }

    /// Removes a Pod; the next candidate of the same Sandbox takes its position. Returns whether the Pod was known.
    pub(super) fn remove(&mut self, namespace: &str, pod: &str) -> bool {
        let Some(entries) = self.namespaces.get_mut(namespace) else { return false };
        let Some(gone) = entries.by_pod.remove(pod) else { return false };
        remove_candidate(&mut entries.by_uid, &gone.sandbox_uid, &gone);
        remove_candidate(&mut entries.by_name, &gone.sandbox, &gone);
        if entries.by_pod.is_empty() {
            self.namespaces.remove(namespace);
        }
        decrement(&mut self.uids, &gone.sandbox_uid);
        self.release_addresses(&gone);
        self.parked.park(&gone);
        true
    }

    fn count_addresses(&mut self, pod: &LivePod) {
        for ip in &pod.ips {
            *self.addresses.entry(*ip).or_default() += 1;
        }
    }

    fn release_addresses(&mut self, pod: &LivePod) {
        for ip in &pod.ips {
            decrement(&mut self.addresses, ip);
        }
        self.former.insert(pod);
    }
}

/// Decrements a count and removes it at zero.
fn decrement<K: Eq + Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

fn remove_candidate(entries: &mut HashMap<Arc<str>, Candidates>, key: &str, gone: &Arc<LivePod>) {
    let Some(candidates) = entries.get_mut(key) else { return };
    candidates.retain(|candidate| !Arc::ptr_eq(candidate, gone));
    if candidates.is_empty() {
        entries.remove(key);
    }
}
