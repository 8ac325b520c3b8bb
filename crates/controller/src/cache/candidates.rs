//! Warm Sandboxes that a claim may take, ordered, with atomic reservation.
//!
//! The order is: Ready before merely networked, then the node with most candidates left, then age. A member without an
//! address is never handed out, but it is counted, so that a claim can wait for it. A reservation hides a candidate
//! from every other claim until it is released or the Sandbox stops being a candidate. A reservation is a hint that
//! avoids writes which would fail; the lock is the write that carries uid and version.

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

use crate::cache::{Key, Sandbox, intern};

/// Quality of a candidate; better grades sort first.
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
pub struct Reserved {
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

/// Creation time and key: age first, then name, so that the order is total.
type AgeAndKey = (Timestamp, Key);

#[derive(Debug, Default)]
struct FreeCandidates {
    /// By grade, then by node.
    free: BTreeMap<(Grade, Arc<str>), BTreeSet<AgeAndKey>>,
}

#[derive(Debug, Default)]
pub struct Candidates {
    known: HashMap<Key, Candidate>,
    by_pool: HashMap<Arc<str>, FreeCandidates>,
    /// Sandbox uid to the uid of the claim that holds it.
    reserved: HashMap<Arc<str>, String>,
}

impl Candidates {
    /// Applies the current state of a Sandbox (`None`: it was deleted).
    pub(crate) fn update(&mut self, key: &Key, sandbox: Option<&Sandbox>, pod_terminating: bool) {
        let now = sandbox.filter(|_| !pod_terminating).and_then(candidate_from);
        if self.known.get(key) == now.as_ref() {
            return;
        }
        if let Some(old) = self.known.remove(key) {
            self.remove_free(key, &old);
            if now.as_ref().is_none_or(|new| new.uid != old.uid) {
                self.reserved.remove(&old.uid);
            }
        }
        if let Some(new) = now {
            if !self.reserved.contains_key(&new.uid) {
                self.insert_free(key, &new);
            }
            self.known.insert(key.clone(), new);
        }
    }

    /// Reserves the best candidate among the given pools for a claim. `accept` rejects candidates that the claim must
    /// not get, such as stale ones.
    pub fn reserve(
        &mut self,
        pools: &[&str],
        claim_uid: &str,
        mut accept: impl FnMut(&Key) -> bool,
    ) -> Option<Reserved> {
        let (key, candidate) =
            [Grade::Ready, Grade::Networked].into_iter().find_map(|grade| self.best(pools, grade, &mut accept))?;
        self.remove_free(&key, &candidate);
        self.reserved.insert(candidate.uid.clone(), claim_uid.to_owned());
        Some(Reserved { key, uid: candidate.uid, grade: candidate.grade })
    }

    /// Reserves one specific member for a claim, whatever its grade, because it was assigned before. A reservation by
    /// another claim stays.
    pub fn hold(&mut self, key: &Key, sandbox_uid: &str, claim_uid: &str) {
        if self.reserved.contains_key(sandbox_uid) {
            return;
        }
        if let Some(candidate) = self.known.get(key).filter(|candidate| *candidate.uid == *sandbox_uid).cloned() {
            self.remove_free(key, &candidate);
            self.reserved.insert(candidate.uid, claim_uid.to_owned());
        }
    }

    /// Releases a reserved candidate.
    pub fn release(&mut self, key: &Key, sandbox_uid: &str) {
        if self.reserved.remove(sandbox_uid).is_some()
            && let Some(candidate) = self.known.get(key).filter(|candidate| *candidate.uid == *sandbox_uid).cloned()
        {
            self.insert_free(key, &candidate);
        }
    }

    /// The claim that holds a Sandbox, if any.
    pub fn reserved_by(&self, sandbox_uid: &str) -> Option<&str> {
        self.reserved.get(sandbox_uid).map(String::as_str)
    }

    /// Number of free members of these pools that have no address yet.
    pub fn pending(&self, pools: &[&str]) -> usize {
        self.count(pools, Grade::Pending)
    }

    /// Number of candidates that could be reserved now.
    pub fn available(&self, pools: &[&str]) -> usize {
        self.count(pools, Grade::Ready) + self.count(pools, Grade::Networked)
    }

    fn count(&self, pools: &[&str], grade: Grade) -> usize {
        pools
            .iter()
            .filter_map(|pool| self.by_pool.get(*pool))
            .flat_map(|free_candidates| &free_candidates.free)
            .filter(|((of, _), _)| *of == grade)
            .map(|(_, slots)| slots.len())
            .sum()
    }

    fn best(&self, pools: &[&str], grade: Grade, accept: &mut impl FnMut(&Key) -> bool) -> Option<(Key, Candidate)> {
        let mut nodes: Vec<(&str, &BTreeSet<AgeAndKey>)> = pools
            .iter()
            .filter_map(|pool| self.by_pool.get(*pool))
            .flat_map(|free_candidates| &free_candidates.free)
            .filter(|((of, _), _)| *of == grade)
            .map(|((_, node), slots)| (&**node, slots))
            .collect();
        // A candidate on a known node comes first, then the node with most candidates, then the node's name, for
        // determinism.
        nodes.sort_by(|(a, in_a), (b, in_b)| (a.is_empty(), in_b.len(), a).cmp(&(b.is_empty(), in_a.len(), b)));
        nodes
            .into_iter()
            .find_map(|(_, slots)| slots.iter().find(|(_, key)| accept(key)))
            .map(|(_, key)| (key.clone(), self.known[key].clone()))
    }

    fn insert_free(&mut self, key: &Key, candidate: &Candidate) {
        let free_candidates = self.by_pool.entry(candidate.pool_uid.clone()).or_default();
        free_candidates
            .free
            .entry((candidate.grade, candidate.node.clone()))
            .or_default()
            .insert((candidate.created, key.clone()));
    }

    fn remove_free(&mut self, key: &Key, candidate: &Candidate) {
        let Some(free_candidates) = self.by_pool.get_mut(&candidate.pool_uid) else { return };
        let place = (candidate.grade, candidate.node.clone());
        if let Some(slots) = free_candidates.free.get_mut(&place) {
            slots.remove(&(candidate.created, key.clone()));
            if slots.is_empty() {
                free_candidates.free.remove(&place);
            }
        }
        if free_candidates.free.is_empty() {
            self.by_pool.remove(&candidate.pool_uid);
        }
    }
}

/// The candidate that this Sandbox is, if it may be adopted. Finished, suspended and expired Sandboxes are never handed
/// out, nor one whose status is behind its spec.
fn candidate_from(sandbox: &Sandbox) -> Option<Candidate> {
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
