//! Warm Sandboxes that a claim may take, ordered, with atomic reservation.
//!
//! The order is: Ready before merely networked, then the node with most candidates left, then age. A member without an address is never
//! handed out, but counted, so that a claim can wait for it. A reservation hides a candidate from every other claim until it is released
//! or the Sandbox stops being a candidate; it is a hint that saves doomed writes, the lock is the write that carries uid and version.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use agent_sandbox_api::{
    conditions::{self, ConditionType, Reason},
    keys::labels,
    owners,
    v1beta1::OperatingMode,
};
use jiff::Timestamp;

use crate::{
    intern,
    object::{Key, Sandbox},
};

/// How good a candidate is. Better ones come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// Ready: the claim can be Ready at once.
    Ready,
    /// Has an address but is not Ready: better than a cold start.
    Networked,
    /// No address yet: worth a short wait, never taken.
    Pending,
}

/// A reserved candidate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    pub key: Key,
    pub uid: Arc<str>,
    pub grade: Grade,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    pool_uid: Arc<str>,
    uid: Arc<str>,
    grade: Grade,
    node: Arc<str>,
    created: Timestamp,
}

/// Age first, then name, so that the order is total.
type Slot = (Timestamp, Key);

#[derive(Debug, Default)]
struct Shelf {
    /// By grade, then by node.
    free: BTreeMap<(Grade, Arc<str>), BTreeSet<Slot>>,
}

#[derive(Debug, Default)]
pub struct Candidates {
    known: HashMap<Key, Candidate>,
    shelves: HashMap<Arc<str>, Shelf>,
    /// Sandbox uid to the uid of the claim that holds it.
    reserved: HashMap<Arc<str>, String>,
}

impl Candidates {
    /// Takes in the current state of a Sandbox (`None`: it is gone).
    pub(crate) fn update(&mut self, key: &Key, sandbox: Option<&Sandbox>, pod_terminating: bool) {
        let now = sandbox.filter(|_| !pod_terminating).and_then(assess);
        if self.known.get(key) == now.as_ref() {
            return;
        }
        if let Some(old) = self.known.remove(key) {
            self.unshelve(key, &old);
            if now.as_ref().is_none_or(|new| new.uid != old.uid) {
                self.reserved.remove(&old.uid);
            }
        }
        if let Some(new) = now {
            if !self.reserved.contains_key(&new.uid) {
                self.shelve(key, &new);
            }
            self.known.insert(key.clone(), new);
        }
    }

    /// Reserves the best candidate among the given pools for a claim. `accept` refuses candidates the claim must not get, such as stale ones.
    pub fn reserve(&mut self, pools: &[&str], claim_uid: &str, mut accept: impl FnMut(&Key) -> bool) -> Option<Pick> {
        let (key, candidate) =
            [Grade::Ready, Grade::Networked].into_iter().find_map(|grade| self.best(pools, grade, &mut accept))?;
        self.unshelve(&key, &candidate);
        self.reserved.insert(candidate.uid.clone(), claim_uid.to_owned());
        Some(Pick { key, uid: candidate.uid, grade: candidate.grade })
    }

    /// Reserves one certain member for a claim, whatever its grade: it was assigned before. Somebody else's reservation stays.
    pub fn hold(&mut self, key: &Key, sandbox_uid: &str, claim_uid: &str) {
        if self.reserved.contains_key(sandbox_uid) {
            return;
        }
        if let Some(candidate) = self.known.get(key).filter(|candidate| *candidate.uid == *sandbox_uid).cloned() {
            self.unshelve(key, &candidate);
            self.reserved.insert(candidate.uid, claim_uid.to_owned());
        }
    }

    /// Gives a reserved candidate back.
    pub fn release(&mut self, key: &Key, sandbox_uid: &str) {
        if self.reserved.remove(sandbox_uid).is_some()
            && let Some(candidate) = self.known.get(key).filter(|candidate| *candidate.uid == *sandbox_uid).cloned()
        {
            self.shelve(key, &candidate);
        }
    }

    /// The claim that holds a Sandbox, if any.
    pub fn reserved_by(&self, sandbox_uid: &str) -> Option<&str> {
        self.reserved.get(sandbox_uid).map(String::as_str)
    }

    /// How many free members of these pools have no address yet.
    pub fn pending(&self, pools: &[&str]) -> usize {
        self.count(pools, Grade::Pending)
    }

    /// How many candidates could be handed out now.
    pub fn available(&self, pools: &[&str]) -> usize {
        self.count(pools, Grade::Ready) + self.count(pools, Grade::Networked)
    }

    fn count(&self, pools: &[&str], grade: Grade) -> usize {
        pools
            .iter()
            .filter_map(|pool| self.shelves.get(*pool))
            .flat_map(|shelf| &shelf.free)
            .filter(|((of, _), _)| *of == grade)
            .map(|(_, slots)| slots.len())
            .sum()
    }

    fn best(&self, pools: &[&str], grade: Grade, accept: &mut impl FnMut(&Key) -> bool) -> Option<(Key, Candidate)> {
        let mut nodes: Vec<(&str, &BTreeSet<Slot>)> = pools
            .iter()
            .filter_map(|pool| self.shelves.get(*pool))
            .flat_map(|shelf| &shelf.free)
            .filter(|((of, _), _)| *of == grade)
            .map(|((_, node), slots)| (&**node, slots))
            .collect();
        // A candidate whose node is known beats one whose is not; then the fullest node; then the name, to be deterministic.
        nodes.sort_by(|(a, in_a), (b, in_b)| (a.is_empty(), in_b.len(), a).cmp(&(b.is_empty(), in_a.len(), b)));
        nodes
            .into_iter()
            .find_map(|(_, slots)| slots.iter().find(|(_, key)| accept(key)))
            .map(|(_, key)| (key.clone(), self.known[key].clone()))
    }

    fn shelve(&mut self, key: &Key, candidate: &Candidate) {
        let shelf = self.shelves.entry(candidate.pool_uid.clone()).or_default();
        shelf
            .free
            .entry((candidate.grade, candidate.node.clone()))
            .or_default()
            .insert((candidate.created, key.clone()));
    }

    fn unshelve(&mut self, key: &Key, candidate: &Candidate) {
        let Some(shelf) = self.shelves.get_mut(&candidate.pool_uid) else { return };
        let place = (candidate.grade, candidate.node.clone());
        if let Some(slots) = shelf.free.get_mut(&place) {
            slots.remove(&(candidate.created, key.clone()));
            if slots.is_empty() {
                shelf.free.remove(&place);
            }
        }
        if shelf.free.is_empty() {
            self.shelves.remove(&candidate.pool_uid);
        }
    }
}

/// The static test for adoption, and the grade. Finished, suspended and expired Sandboxes are never handed out, nor one whose status is
/// behind its spec.
fn assess(sandbox: &Sandbox) -> Option<Candidate> {
    let pool = owners::owning_pool(&sandbox.metadata)?;
    sandbox.label(labels::WARM_POOL_SANDBOX)?;
    sandbox.label(labels::TEMPLATE_REF_HASH)?;
    if sandbox.is_deleting()
        || sandbox.operating_mode() == OperatingMode::Suspended
        || sandbox.label(labels::CLAIM_UID).is_some()
    {
        return None;
    }
    let ready = sandbox.condition(ConditionType::Ready);
    let ready_reason = ready.map(|condition| condition.reason.as_str()).unwrap_or_default();
    if conditions::is_true(sandbox.condition(ConditionType::Finished))
        || [Reason::SandboxExpired.as_str(), Reason::SandboxSuspended.as_str()].contains(&ready_reason)
    {
        return None;
    }
    let current = ready.and_then(|condition| condition.observed_generation).unwrap_or_default() >= sandbox.generation();
    let status = sandbox.status.as_ref();
    let grade = match ready {
        _ if sandbox.pod_ips().is_empty() || !current => Grade::Pending,
        Some(condition) if condition.status == "True" => Grade::Ready,
        _ => Grade::Networked,
    };
    Some(Candidate {
        pool_uid: intern::text(&pool.uid),
        uid: sandbox.metadata.uid.clone(),
        grade,
        node: intern::text(status.and_then(|status| status.node_name.as_deref()).unwrap_or_default()),
        created: sandbox.metadata.creation_timestamp.as_ref().map_or(Timestamp::MIN, |time| time.0),
    })
}

#[cfg(test)]
mod tests;
