//! The decision for a claim: a pure, total function of what was observed.

use std::{sync::Arc, time::Duration};

use agent_sandbox_api::{
    conditions::ClaimReady,
    keys::{self, labels},
    owners::{self, Ownership},
    template::{ClaimShutdownPolicy, UpdateStrategyType},
    v1beta1::{SandboxClaim, SandboxTemplate, SandboxWarmPool},
};
use jiff::Timestamp;
use k8s_openapi::api::networking::v1::NetworkPolicy;

use super::{
    ClaimSettings,
    adoption::{ReservedSandbox, recorded_sandbox},
    claim_annotations::Assignment,
    cold_start::{self, Refusal},
    expiry, is_unusable, metadata,
    validate::validate,
};
use crate::{
    api_client::{Propagation, Request},
    cache::{Key, Kind, Sandbox},
    clock::between,
    reconcile::LiveReads,
    sandbox_spec::{CompareBy, StalenessCheck},
};

/// Maximum time a claim waits for a warm Sandbox that has no address yet.
const NETWORK_GRACE: Duration = Duration::from_secs(2);
/// Period of passes over a waiting claim. A new address wakes it sooner; this covers a missed wake-up.
const NETWORK_RECHECK: Duration = Duration::from_millis(500);
/// Period of passes over a claim whose pool or template is missing; their creation wakes it sooner.
const DEPENDENCY_RECHECK: Duration = Duration::from_secs(60);

/// Where a claim's Sandbox comes from.
#[derive(Clone, Debug)]
pub enum Source {
    Pool(Arc<SandboxWarmPool>),
    /// A v1alpha1 claim that names only a template: any of the template's pools, or none.
    Template {
        template: String,
        pools: Vec<Arc<SandboxWarmPool>>,
    },
    Missing,
}

/// Everything the decision may depend on, read once.
#[derive(Clone, Debug)]
pub struct Observed {
    pub claim: Arc<SandboxClaim>,
    pub source: Source,
    pub template_name: Option<String>,
    pub template: Option<Arc<SandboxTemplate>>,
    /// Sandboxes whose controller is this claim; `bound_template` has the template that each of them names.
    pub controlled: Vec<Arc<Sandbox>>,
    pub bound_template: Vec<Option<Arc<SandboxTemplate>>>,
    /// The Sandbox that is held for, or recorded on, the claim.
    pub assigned_key: Option<Key>,
    pub assigned: Option<Arc<Sandbox>>,
    pub assigned_pool: Option<Arc<SandboxWarmPool>>,
    pub assigned_template: Option<Arc<SandboxTemplate>>,
    /// The Sandbox that the claim's status names.
    pub published: Option<Arc<Sandbox>>,
    /// The Sandbox that has the claim's name.
    pub same_name_sandbox: Option<Arc<Sandbox>>,
    pub legacy_policy: Option<Arc<NetworkPolicy>>,
    /// The objects that were read live in this pass.
    pub live: LiveReads,
    /// Number of candidates without an address, when an attempt of this pass found no candidate to reserve.
    pub failed_reservation: Option<usize>,
    /// The trace context that this pass gives to a claim without one.
    pub trace: Option<String>,
    pub first_seen: Timestamp,
    pub now: Timestamp,
}

/// When to reconcile again, apart from events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Not before an edit.
    Never,
    After(Duration),
    /// With backoff, as after any error.
    BackOff,
}

/// A claim that has its Sandbox.
#[derive(Clone, Debug)]
pub struct Bound {
    pub sandbox: Arc<Sandbox>,
    /// The patch that brings the Sandbox's metadata to what claim and template specify.
    pub sync: Option<Request>,
    /// The change of the annotation that names the Sandbox.
    pub assignment: Assignment,
    /// Deletes of other Sandboxes that the claim controls, which a deposed leader adopted or created.
    pub extras: Vec<Request>,
}

/// Pools whose members the claim may adopt, and the template that tells which of them are stale.
#[derive(Clone, Debug)]
pub struct CandidatePools {
    pub pools: Vec<Arc<SandboxWarmPool>>,
    pub template: Option<Arc<SandboxTemplate>>,
}

/// A complete decision.
#[derive(Clone, Debug)]
pub enum Plan {
    /// The claim is being deleted.
    Leave,
    /// Read this object live: the decision depends on its absence.
    Confirm(Kind, Key),
    /// Report the expiry in the status. Nothing is cleaned up before that.
    MarkExpired,
    /// Delete the claim; the garbage collector deletes what it owns.
    DeleteClaim {
        request: Request,
        policy: ClaimShutdownPolicy,
    },
    /// Delete the claim's Sandboxes and keep the claim.
    CleanUp {
        deletes: Vec<Request>,
        ready: ClaimReady,
        gone: bool,
    },
    Bound(Box<Bound>),
    /// Report why there is no Sandbox.
    Refuse {
        ready: ClaimReady,
        retry: Retry,
    },
    /// Finish the adoption of this Sandbox, or adopt another one if it is lost.
    Resume {
        candidate: ReservedSandbox,
        alternatives: CandidatePools,
    },
    /// Reserve a candidate and adopt it. If none can be reserved, plan again with that knowledge.
    Adopt(CandidatePools),
    /// Create the claim's own Sandbox.
    Create {
        request: Request,
        assignment: Assignment,
    },
    /// A candidate will get an address soon: wait for it.
    Wait(Duration),
}

/// Decides for a claim.
pub fn plan(observed: &Observed, settings: &ClaimSettings) -> Plan {
    let claim = &*observed.claim;
    if claim.is_deleting() {
        return Plan::Leave;
    }
    if expiry::is_expired(claim, observed.now) {
        return plan_expired(observed);
    }
    if let Err(text) = validate(claim.spec.additional_pod_metadata.as_ref(), &settings.label_domains) {
        return Plan::Refuse { ready: ClaimReady::InvalidMetadata(text), retry: Retry::Never };
    }
    if let Some(key) = unconfirmed_publication(observed) {
        return Plan::Confirm(Kind::Sandbox, key);
    }
    if !observed.controlled.is_empty() {
        return plan_bound(observed);
    }
    let assignment = match check_assigned(observed) {
        Assigned::Resume(sandbox) => {
            let template = observed.assigned_template.clone().or_else(|| observed.template.clone());
            let candidate = ReservedSandbox { sandbox, template };
            return Plan::Resume { candidate, alternatives: candidate_pools(observed) };
        }
        Assigned::Confirm(key) => return Plan::Confirm(Kind::Sandbox, key),
        Assigned::Lost => Assignment::Drop,
        Assigned::None => Assignment::Keep,
    };
    if observed.same_name_sandbox.is_some() {
        let name = claim.name();
        let text = format!(
            "sandbox \"{name}\" is not controlled by claim \"{name}\". Please use a different claim name or delete the sandbox manually"
        );
        return Plan::Refuse { ready: ClaimReady::ReconcilerError(text), retry: Retry::BackOff };
    }
    // A running member would have its template's egress rules until the claim's narrow them.
    let narrows = claim.annotation(keys::annotations::EGRESS).is_some();
    if claim.env().is_empty() && claim.volume_claim_templates().is_empty() && !narrows {
        let conflict = observed.template.as_deref().and_then(|template| metadata::override_conflict(claim, template));
        let candidates = candidate_pools(observed);
        if conflict.is_none() && !candidates.pools.is_empty() {
            return match observed.failed_reservation {
                None => Plan::Adopt(candidates),
                Some(pending) => plan_without_candidate(observed, pending, assignment),
            };
        }
    }
    plan_cold(observed, assignment)
}

/// The plan when no candidate could be reserved: a short wait while some have no address yet, else a Sandbox of the
/// claim's own.
fn plan_without_candidate(observed: &Observed, pending: usize, assignment: Assignment) -> Plan {
    let waited = between(observed.first_seen, observed.now);
    let created = observed.claim.metadata.creation_timestamp.as_ref().map_or(observed.first_seen, |time| time.0);
    let was_late = between(created, observed.first_seen) >= NETWORK_GRACE;
    let rest = NETWORK_GRACE.saturating_sub(waited);
    if pending > 0 && !was_late && !rest.is_zero() {
        return Plan::Wait(rest.min(NETWORK_RECHECK));
    }
    plan_cold(observed, assignment)
}

/// Pools whose members the claim may adopt. Under `Recreate`, staleness can only be checked with the template.
fn candidate_pools(observed: &Observed) -> CandidatePools {
    let pools = match &observed.source {
        Source::Pool(pool) => std::slice::from_ref(pool),
        Source::Template { pools, .. } => pools.as_slice(),
        Source::Missing => &[],
    };
    let comparable = |pool: &&Arc<SandboxWarmPool>| {
        pool.update_strategy() != UpdateStrategyType::Recreate || observed.template.is_some()
    };
    let pools = pools.iter().filter(|pool| !pool.is_deleting()).filter(comparable).cloned().collect();
    CandidatePools { pools, template: observed.template.clone() }
}

/// Whether a pool still offers this member: under `Recreate` stale members are not offered.
pub fn is_offered(sandbox: &Sandbox, pools: &[Arc<SandboxWarmPool>], template: Option<&StalenessCheck<'_>>) -> bool {
    let Some(owner) = owners::owning_pool(&sandbox.metadata) else { return false };
    let Some(pool) = pools.iter().find(|pool| pool.uid() == owner.uid) else { return false };
    match pool.update_strategy() {
        UpdateStrategyType::OnReplenish => true,
        UpdateStrategyType::Recreate => template.is_some_and(|template| !template.is_stale(sandbox, CompareBy::Hash)),
    }
}

enum Assigned {
    None,
    /// Still available: finish the adoption.
    Resume(Arc<Sandbox>),
    /// Not in the cache: read it live before giving it up.
    Confirm(Key),
    /// Lost for good.
    Lost,
}

/// The published Sandbox, when this cache does not show it as controlled by the claim. That it is gone, or belongs to
/// another owner, counts only after a live read; otherwise a second one could be published from a stale cache.
fn unconfirmed_publication(observed: &Observed) -> Option<Key> {
    let name = observed.claim.bound_sandbox()?;
    let key = Key::new(observed.claim.namespace(), name);
    let shown = observed.controlled.iter().any(|sandbox| sandbox.name() == name);
    (!shown && !observed.live.contains(Kind::Sandbox, &key)).then_some(key)
}

fn check_assigned(observed: &Observed) -> Assigned {
    let Some(key) = &observed.assigned_key else { return Assigned::None };
    let Some(sandbox) = &observed.assigned else {
        let known_absent = observed.live.contains(Kind::Sandbox, key);
        return if known_absent { Assigned::Lost } else { Assigned::Confirm(key.clone()) };
    };
    if owners::owning_claim(&sandbox.metadata).is_some() {
        return Assigned::Lost;
    }
    if owners::owning_pool(&sandbox.metadata).is_none() {
        // Neither a claim nor a pool owns it: the record stays, and nothing is adopted.
        return Assigned::None;
    }
    let takes_part = |pool: &Arc<SandboxWarmPool>| match &observed.source {
        Source::Pool(wanted) => wanted.uid() == pool.uid(),
        Source::Template { pools, .. } => pools.iter().any(|wanted| wanted.uid() == pool.uid()),
        Source::Missing => false,
    };
    let valid = observed.assigned_pool.as_ref().is_some_and(takes_part)
        && !sandbox.is_deleting()
        && sandbox.label(labels::WARM_POOL_SANDBOX).is_some()
        && sandbox.label(labels::TEMPLATE_REF_HASH).is_some()
        && sandbox.label(labels::CLAIM_UID).is_none()
        && !is_unusable(sandbox)
        && observed.claim.env().is_empty()
        && observed.claim.volume_claim_templates().is_empty();
    if valid { Assigned::Resume(sandbox.clone()) } else { Assigned::Lost }
}

fn plan_cold(observed: &Observed, assignment: Assignment) -> Plan {
    let claim = &*observed.claim;
    let key = |name: &str| Key::new(claim.namespace(), name);
    let pool_name = claim.spec.warm_pool_ref.name.as_str();
    let Some(template_name) = observed.template_name.as_deref() else {
        if !observed.live.contains(Kind::Pool, &key(pool_name)) {
            return Plan::Confirm(Kind::Pool, key(pool_name));
        }
        let ready = ClaimReady::WarmPoolNotFound { pool: pool_name.to_owned() };
        return Plan::Refuse { ready, retry: Retry::After(DEPENDENCY_RECHECK) };
    };
    let Some(template) = observed.template.as_deref() else {
        if !observed.live.contains(Kind::Template, &key(template_name)) {
            return Plan::Confirm(Kind::Template, key(template_name));
        }
        let ready = ClaimReady::TemplateNotFound { template: template_name.to_owned() };
        return Plan::Refuse { ready, retry: Retry::After(DEPENDENCY_RECHECK) };
    };
    match cold_start::create(claim, template, observed.trace.as_deref()) {
        Ok(request) => Plan::Create { request, assignment },
        // Edits of the template do not wake claims, so this one is checked periodically.
        Err(refusal @ Refusal::Template(_)) => {
            Plan::Refuse { ready: refusal.ready(), retry: Retry::After(DEPENDENCY_RECHECK) }
        }
        Err(refusal) => Plan::Refuse { ready: refusal.ready(), retry: Retry::Never },
    }
}

fn plan_bound(observed: &Observed) -> Plan {
    let claim = &*observed.claim;
    let kept = keep(claim, &observed.controlled);
    let sandbox = observed.controlled[kept].clone();
    let template = observed.bound_template[kept].clone().or_else(|| {
        // Only a Sandbox without a template reference is compared with the claim's current template.
        observed.template.clone().filter(|_| sandbox.annotation(keys::annotations::TEMPLATE_REF).is_none())
    });
    if let Some(conflict) = template.as_deref().and_then(|template| metadata::override_conflict(claim, template)) {
        return Plan::Refuse { ready: ClaimReady::ReconcilerError(conflict), retry: Retry::After(DEPENDENCY_RECHECK) };
    }
    let warm = recorded_sandbox(claim) == Some(sandbox.name()) || sandbox.name() != claim.name();
    let launch_type = if warm { keys::LAUNCH_WARM } else { keys::LAUNCH_COLD };
    let sync =
        (!sandbox.is_deleting()).then(|| metadata::sync(&sandbox, claim, template.as_deref(), launch_type)).flatten();
    let assignment = match recorded_sandbox(claim) {
        Some(_) => Assignment::Set(sandbox.name().to_owned()),
        // The leader that adopted it stopped before it recorded the assignment.
        None if sandbox.name() != claim.name() => Assignment::Set(sandbox.name().to_owned()),
        None => Assignment::Keep,
    };
    let extras = observed
        .controlled
        .iter()
        .enumerate()
        .filter(|(index, extra)| *index != kept && !extra.is_deleting())
        .map(|(_, extra)| Request::delete(&**extra, None))
        .collect();
    Plan::Bound(Box::new(Bound { sandbox, sync, assignment, extras }))
}

/// Index of the Sandbox that the claim keeps: the published one, else the recorded one, else the oldest.
fn keep(claim: &SandboxClaim, controlled: &[Arc<Sandbox>]) -> usize {
    let named = |name: Option<&str>| controlled.iter().position(|sandbox| Some(sandbox.name()) == name);
    let age =
        |sandbox: &Sandbox| (sandbox.metadata.creation_timestamp.as_ref().map(|time| time.0), sandbox.uid().to_owned());
    named(claim.bound_sandbox())
        .or_else(|| named(recorded_sandbox(claim)))
        .or_else(|| (0..controlled.len()).min_by_key(|index| age(&controlled[*index])))
        .unwrap_or_default()
}

fn plan_expired(observed: &Observed) -> Plan {
    let claim = &*observed.claim;
    if !expiry::is_marked_expired(claim) {
        return Plan::MarkExpired;
    }
    let policy = claim.shutdown_policy();
    match policy {
        ClaimShutdownPolicy::Delete => Plan::DeleteClaim { request: Request::delete(claim, None), policy },
        ClaimShutdownPolicy::DeleteForeground => {
            Plan::DeleteClaim { request: Request::delete(claim, Some(Propagation::Foreground)), policy }
        }
        ClaimShutdownPolicy::Retain => {
            let alive = observed.controlled.iter().filter(|sandbox| !sandbox.is_deleting());
            let deletes = alive.map(|sandbox| Request::delete(&**sandbox, None)).collect();
            // Without a published name the Sandbox would have the claim's.
            let named = match claim.bound_sandbox() {
                Some(_) => &observed.published,
                None => &observed.same_name_sandbox,
            };
            let foreign =
                named.as_ref().filter(|sandbox| owners::ownership(&sandbox.metadata, claim.uid()) != Ownership::Owned);
            let ready = match foreign {
                Some(sandbox) => ClaimReady::ExpiredForeignSandbox {
                    sandbox: sandbox.name().to_owned(),
                    claim: claim.name().to_owned(),
                },
                None => ClaimReady::Expired,
            };
            let gone = observed.controlled.is_empty();
            Plan::CleanUp { deletes, ready, gone }
        }
    }
}

/// The delete of the legacy network policy with this claim's name, if the claim owns it.
pub fn legacy_policy(observed: &Observed) -> Option<Request> {
    let policy = observed.legacy_policy.as_deref()?;
    let ours = owners::owning_claim(&policy.metadata).is_some()
        && owners::ownership(&policy.metadata, observed.claim.uid()) == Ownership::Owned;
    ours.then(|| Request::delete(policy, None))
}
