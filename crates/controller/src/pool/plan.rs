//! Deciding what a pool needs.
//!
//! The store shows our own writes at once, so what is counted here already includes the creates and deletes of earlier passes: no
//! expectations have to be kept. Deletes of this pass are not replaced in it, so that a replacement never precedes what it replaces.

use std::{cmp::Reverse, sync::Arc, time::Duration};

use agent_sandbox_api::{
    conditions::{self, ConditionType},
    keys::{self, labels},
    owners::{self, Ownership},
    template::UpdateStrategyType,
    v1beta1::{SandboxTemplate, SandboxWarmPool, SandboxWarmPoolStatus},
};
use jiff::Timestamp;
use serde_json::json;

use super::{Pacing, PoolSettings, status::pool_status};
use crate::{
    blueprint::{Trust, Yardstick},
    clock::between,
    object::{Pod, Sandbox},
    request::Request,
};

/// Deadlines are met a little late rather than a little early, when nothing would have changed yet.
const DEADLINE_SLACK: Duration = Duration::from_secs(2);

/// One Sandbox that carries the pool's label.
#[derive(Clone, Debug)]
pub struct Member {
    pub sandbox: Arc<Sandbox>,
    /// Its Pod waits for the scheduler.
    pub unschedulable: bool,
    /// A claim is about to take it.
    pub reserved: bool,
}

/// Everything the decision may depend on, read once.
#[derive(Clone, Debug)]
pub struct Observed {
    pub pool: Arc<SandboxWarmPool>,
    pub template: Option<Arc<SandboxTemplate>>,
    pub members: Vec<Member>,
    pub now: Timestamp,
}

/// Whether the pool is stopped by the scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hold {
    #[default]
    None,
    Unschedulable {
        held: usize,
        desired: usize,
    },
}

/// A complete decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Orphans to adopt and labels to complete.
    pub repairs: Vec<Request>,
    /// Members to remove: stale, stuck, finished or too many.
    pub deletes: Vec<Request>,
    pub creates: usize,
    pub status: SandboxWarmPoolStatus,
    pub hold: Hold,
    pub requeue: Option<Duration>,
    /// When the next member will have taken too long. Met late rather than by all pools at once.
    pub deadline: Option<Duration>,
}

/// What is to become of one Sandbox.
enum Verdict {
    Ignore,
    Terminating,
    Keep { repair: Option<Request>, held: bool, deadline: Option<Duration> },
    Delete,
}

/// Decides for a pool. `pacing` is advanced: it is part of what the decision depends on, and only it remembers time.
pub fn plan(observed: &Observed, pacing: &mut Pacing, settings: &PoolSettings) -> Plan {
    let desired = observed.pool.replicas();
    let mut active = Vec::new();
    let mut plan = Plan {
        repairs: Vec::new(),
        deletes: Vec::new(),
        creates: 0,
        status: SandboxWarmPoolStatus::default(),
        hold: Hold::None,
        requeue: None,
        deadline: None,
    };
    let (mut terminating, mut held, mut deadline) = (0, 0, None::<Duration>);
    let yardstick = observed.template.as_deref().map(Yardstick::new);
    for member in &observed.members {
        match judge(observed, member, yardstick.as_ref(), settings) {
            Verdict::Ignore => {}
            Verdict::Terminating => terminating += 1,
            Verdict::Keep { repair, held: waits, deadline: due } => {
                plan.repairs.extend(repair);
                held += usize::from(waits);
                deadline = deadline.into_iter().chain(due).min();
                active.push(member);
            }
            Verdict::Delete => plan.deletes.push(Request::delete(&*member.sandbox, None)),
        }
    }
    plan.status = pool_status(&observed.pool, active.iter().map(|member| &*member.sandbox));
    if held > 0 {
        plan.hold = Hold::Unschedulable { held, desired };
        plan.requeue = Some(settings.unschedulable_recheck);
    }
    plan.deadline = deadline.map(|deadline| deadline + DEADLINE_SLACK);

    let hold = pacing.observe(active.len(), desired, observed.now, &settings.pacing);
    if active.len() > desired {
        plan.deletes.extend(excess(active, desired, settings.max_batch_size));
        return plan;
    }
    let population = active.len() + terminating;
    if population >= desired || observed.template.is_none() || !plan.deletes.is_empty() {
        return plan;
    }
    if let Some(rest) = hold {
        plan.requeue = plan.requeue.into_iter().chain([rest]).min();
        return plan;
    }
    let wanted = (desired - population).min(settings.max_batch_size);
    let (granted, wait) = pacing.take(wanted, observed.now, &settings.pacing);
    plan.creates = granted;
    plan.requeue = plan.requeue.into_iter().chain(wait).min();
    plan
}

fn judge(observed: &Observed, member: &Member, yardstick: Option<&Yardstick<'_>>, settings: &PoolSettings) -> Verdict {
    let sandbox = &*member.sandbox;
    match owners::ownership(&sandbox.metadata, observed.pool.uid()) {
        Ownership::Foreign => Verdict::Ignore,
        Ownership::Owned if sandbox.is_deleting() => Verdict::Terminating,
        // Who once had a claim never comes back.
        Ownership::Unowned if sandbox.is_deleting() || sandbox.label(labels::CLAIM_UID).is_some() => Verdict::Ignore,
        Ownership::Unowned => match yardstick {
            Some(yardstick) if yardstick.is_stale(sandbox, Trust::Nothing) => Verdict::Delete,
            Some(_) => keep(observed, member, settings, Some(adopt(&observed.pool, sandbox))),
            None => Verdict::Ignore,
        },
        Ownership::Owned => {
            let rollout = observed.pool.update_strategy() == UpdateStrategyType::Recreate;
            if rollout && yardstick.is_some_and(|yardstick| yardstick.is_stale(sandbox, Trust::Hash)) {
                return Verdict::Delete;
            }
            let repair = (sandbox.label(labels::LAUNCH_TYPE) != Some(keys::LAUNCH_WARM)).then(|| {
                Request::patch(sandbox, json!({ "metadata": { "labels": { labels::LAUNCH_TYPE: keys::LAUNCH_WARM } } }))
            });
            keep(observed, member, settings, repair)
        }
    }
}

/// A member that is fresh: it stays, unless it has ended or takes too long.
fn keep(observed: &Observed, member: &Member, settings: &PoolSettings, repair: Option<Request>) -> Verdict {
    let sandbox = &*member.sandbox;
    if conditions::is_true(sandbox.condition(ConditionType::Finished)) {
        return Verdict::Delete;
    }
    if is_ready(sandbox) {
        return Verdict::Keep { repair, held: false, deadline: None };
    }
    let waited = between(not_ready_since(sandbox, observed.now), observed.now);
    match settings.readiness_grace.checked_sub(waited).filter(|rest| !rest.is_zero()) {
        Some(rest) => Verdict::Keep { repair, held: false, deadline: Some(rest) },
        None if member.unschedulable => Verdict::Keep { repair, held: true, deadline: None },
        None => Verdict::Delete,
    }
}

/// Since when the member is not Ready: its Ready condition says so, or it never was.
fn not_ready_since(sandbox: &Sandbox, now: Timestamp) -> Timestamp {
    let transition = sandbox.condition(ConditionType::Ready).map(|ready| ready.last_transition_time.0);
    let created = sandbox.metadata.creation_timestamp.as_ref().map(|time| time.0);
    transition.or(created).unwrap_or(now)
}

/// Takes an orphan in, only as it was seen: somebody else may be taking it too.
fn adopt(pool: &SandboxWarmPool, sandbox: &Sandbox) -> Request {
    let mut references = sandbox.metadata.owner_references.to_vec();
    references.push(pool.controller_reference());
    let metadata = json!({ "ownerReferences": references, "labels": { labels::LAUNCH_TYPE: keys::LAUNCH_WARM } });
    Request::patch_exact(sandbox, json!({ "metadata": metadata }))
}

/// The members to remove when there are too many: those not Ready first, the newest first among equals.
fn excess(mut active: Vec<&Member>, desired: usize, most: usize) -> Vec<Request> {
    let surplus = (active.len() - desired).min(most);
    active.retain(|member| !member.reserved);
    active.sort_by_key(|member| {
        let created = member.sandbox.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (is_ready(&member.sandbox), Reverse(created), member.sandbox.name().to_owned())
    });
    active.into_iter().take(surplus).map(|member| Request::delete(&*member.sandbox, None)).collect()
}

pub(super) fn is_ready(sandbox: &Sandbox) -> bool {
    conditions::is_true(sandbox.condition(ConditionType::Ready))
}

/// Whether the scheduler has said that it cannot place the Pod.
pub(super) fn is_unschedulable(pod: &Pod) -> bool {
    pod.condition("PodScheduled")
        .is_some_and(|condition| condition.status == "False" && condition.reason == "Unschedulable")
}
