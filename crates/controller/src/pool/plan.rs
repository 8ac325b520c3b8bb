//! The decision of what a pool needs.
//!
//! The store shows this controller's own writes at once, so the counts here already include the creates and deletes of
//! earlier passes: no expectations have to be kept. Deletes of this pass are not replaced in it, so that a replacement
//! never precedes what it replaces.

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
    api_client::Request,
    cache::{Pod, Sandbox},
    clock::between,
    sandbox_spec::{CompareBy, StalenessCheck},
};

/// Added to a deadline, so that the pass does not run a moment too early, when nothing would have changed yet.
const DEADLINE_SLACK: Duration = Duration::from_secs(2);

/// One Sandbox that carries the pool's label.
#[derive(Clone, Debug)]
pub struct Member {
    pub sandbox: Arc<Sandbox>,
    /// The scheduler cannot place its Pod.
    pub unschedulable: bool,
    /// A claim has reserved it.
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

/// Whether the scheduler can place the pool's Pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    #[default]
    Progressing,
    /// Members wait for the scheduler for longer than the grace period.
    Unschedulable { held: usize, desired: usize },
}

/// A complete decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Patches that adopt orphans and complete labels.
    pub repairs: Vec<Request>,
    /// Deletes of members that are stale, stuck, finished or too many.
    pub deletes: Vec<Request>,
    pub creates: usize,
    pub status: SandboxWarmPoolStatus,
    pub progress: Progress,
    pub requeue: Option<Duration>,
    /// When the readiness grace period of the next member ends. The reconciler stretches it at random, so that not all
    /// pools wake at once.
    pub deadline: Option<Duration>,
}

/// The decision for one Sandbox that carries the pool's label.
enum MemberDecision {
    Ignore,
    Terminating,
    Keep { repair: Option<Request>, held: bool, deadline: Option<Duration> },
    Delete,
}

/// Decides for a pool. `pacing` is advanced: it is an input of the decision, and the only part that remembers time.
pub fn plan(observed: &Observed, pacing: &mut Pacing, settings: &PoolSettings) -> Plan {
    let desired = observed.pool.replicas();
    let mut active = Vec::new();
    let mut plan = Plan {
        repairs: Vec::new(),
        deletes: Vec::new(),
        creates: 0,
        status: SandboxWarmPoolStatus::default(),
        progress: Progress::Progressing,
        requeue: None,
        deadline: None,
    };
    let (mut terminating, mut held, mut deadline) = (0, 0, None::<Duration>);
    let staleness = observed.template.as_deref().map(StalenessCheck::new);
    for member in &observed.members {
        match decide_member(observed, member, staleness.as_ref(), settings) {
            MemberDecision::Ignore => {}
            MemberDecision::Terminating => terminating += 1,
            MemberDecision::Keep { repair, held: waits, deadline: due } => {
                plan.repairs.extend(repair);
                held += usize::from(waits);
                deadline = deadline.into_iter().chain(due).min();
                active.push(member);
            }
            MemberDecision::Delete => plan.deletes.push(Request::delete(&*member.sandbox, None)),
        }
    }
    plan.status = pool_status(&observed.pool, active.iter().map(|member| &*member.sandbox));
    if held > 0 {
        plan.progress = Progress::Unschedulable { held, desired };
        plan.requeue = Some(settings.unschedulable_recheck);
    }
    plan.deadline = deadline.map(|deadline| deadline + DEADLINE_SLACK);

    let hold = pacing.observe(active.len(), desired, observed.now, &settings.pacing);
    if active.len() > desired {
        plan.deletes.extend(surplus_deletes(active, desired, settings.max_batch_size));
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

fn decide_member(
    observed: &Observed,
    member: &Member,
    staleness: Option<&StalenessCheck<'_>>,
    settings: &PoolSettings,
) -> MemberDecision {
    let sandbox = &*member.sandbox;
    match owners::ownership(&sandbox.metadata, observed.pool.uid()) {
        Ownership::Foreign => MemberDecision::Ignore,
        Ownership::Owned if sandbox.is_deleting() => MemberDecision::Terminating,
        // A Sandbox that ever had a claim never returns to a pool.
        Ownership::Unowned if sandbox.is_deleting() || sandbox.label(labels::CLAIM_UID).is_some() => {
            MemberDecision::Ignore
        }
        Ownership::Unowned => match staleness {
            Some(staleness) if staleness.is_stale(sandbox, CompareBy::FullSpec) => MemberDecision::Delete,
            Some(_) => keep(observed, member, settings, Some(adopt(&observed.pool, sandbox))),
            None => MemberDecision::Ignore,
        },
        Ownership::Owned => {
            let rollout = observed.pool.update_strategy() == UpdateStrategyType::Recreate;
            if rollout && staleness.is_some_and(|staleness| staleness.is_stale(sandbox, CompareBy::Hash)) {
                return MemberDecision::Delete;
            }
            let repair = (sandbox.label(labels::LAUNCH_TYPE) != Some(keys::LAUNCH_WARM)).then(|| {
                Request::patch(sandbox, json!({ "metadata": { "labels": { labels::LAUNCH_TYPE: keys::LAUNCH_WARM } } }))
            });
            keep(observed, member, settings, repair)
        }
    }
}

/// A member that is up to date: it stays, unless it has finished or has not become Ready in time.
fn keep(observed: &Observed, member: &Member, settings: &PoolSettings, repair: Option<Request>) -> MemberDecision {
    let sandbox = &*member.sandbox;
    if conditions::is_true(sandbox.condition(ConditionType::Finished)) {
        return MemberDecision::Delete;
    }
    if is_ready(sandbox) {
        return MemberDecision::Keep { repair, held: false, deadline: None };
    }
    let waited = between(not_ready_since(sandbox, observed.now), observed.now);
    match settings.readiness_grace.checked_sub(waited).filter(|rest| !rest.is_zero()) {
        Some(rest) => MemberDecision::Keep { repair, held: false, deadline: Some(rest) },
        None if member.unschedulable => MemberDecision::Keep { repair, held: true, deadline: None },
        None => MemberDecision::Delete,
    }
}

/// Since when the member is not Ready: the transition time of its Ready condition, or its creation.
fn not_ready_since(sandbox: &Sandbox, now: Timestamp) -> Timestamp {
    let transition = sandbox.condition(ConditionType::Ready).map(|ready| ready.last_transition_time.0);
    let created = sandbox.metadata.creation_timestamp.as_ref().map(|time| time.0);
    transition.or(created).unwrap_or(now)
}

/// Adopts an orphan, only at the observed version, because another controller may be adopting it too.
fn adopt(pool: &SandboxWarmPool, sandbox: &Sandbox) -> Request {
    let mut references = sandbox.metadata.owner_references.to_vec();
    references.push(pool.controller_reference());
    let metadata = json!({ "ownerReferences": references, "labels": { labels::LAUNCH_TYPE: keys::LAUNCH_WARM } });
    Request::patch_exact(sandbox, json!({ "metadata": metadata }))
}

/// Deletes of surplus members: those not Ready first, then the newest.
fn surplus_deletes(mut active: Vec<&Member>, desired: usize, most: usize) -> Vec<Request> {
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

/// Whether the scheduler reports that it cannot place the Pod.
pub(super) fn is_unschedulable(pod: &Pod) -> bool {
    pod.condition("PodScheduled")
        .is_some_and(|condition| condition.status == "False" && condition.reason == "Unschedulable")
}
