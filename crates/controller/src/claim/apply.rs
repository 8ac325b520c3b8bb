//! Carrying out a claim's plan: it sends what was decided and reports what came of it.

use std::{pin::Pin, sync::Arc, time::Duration};

use agent_sandbox_api::{
    conditions::ClaimReady,
    keys,
    owners::{self, Ownership},
    v1beta1::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool},
};
use futures::{StreamExt, stream::FuturesUnordered};
use serde_json::json;
use tracing::{debug, warn};

use super::{
    ClaimReconciler, Held,
    adoption::{Adoption, Effect, End, Leg, Offer, Outcome},
    expiry, observability,
    observe::{LiveLooks, observe, template_of},
    plan::{Bound, Observed, Plan, Retry, is_offered, legacy_policy, plan, plan_without_candidate, warm_pools},
    stamps::{Assignment, Stamps, precise},
    status::{Finding, is_ready, status_after, status_patch},
};
use crate::{
    events::{Event, Severity},
    object::{Cached, Key, Kind, Object},
    ports::{ApiError, Lane, Writer},
    reconcile::{Next, ReconcileError},
    request::Request,
    store::{Target, Wake},
    world::World,
};

/// How often a pass may start over because the world moved under it, before it yields to others.
const MAX_ATTEMPTS: usize = 8;
/// How soon the clean-up of an expired claim follows the status that announces it.
const SOON: Duration = Duration::from_millis(1);
/// How soon a claim looks for a Sandbox that was created but cannot be seen.
const PENDING_RECHECK: Duration = Duration::from_millis(200);

/// Why a pass starts over or ends early.
enum Interrupted {
    /// The object is not what the plan was made for: read it live and plan again.
    Stale(Kind, Key),
    /// Plan again from what is known now.
    Again,
    Failed(ReconcileError),
}

impl From<ApiError> for Interrupted {
    fn from(error: ApiError) -> Self {
        Interrupted::Failed(error.into())
    }
}

pub(super) async fn pass(reconciler: &ClaimReconciler, key: &Key) -> Result<Next, ReconcileError> {
    let origin = Wake::new(Target::Claim, key.clone());
    let writer = Writer::new(reconciler.ports.clone(), reconciler.store.clone(), Lane::Claims, origin);
    let mut looked_at = LiveLooks::new();
    for _ in 0..MAX_ATTEMPTS {
        let pass = Pass { reconciler, writer: &writer, key };
        match pass.attempt(&mut looked_at).await {
            Ok(next) => return Ok(next),
            Err(Interrupted::Again) => {}
            Err(Interrupted::Failed(error)) => return Err(error),
            Err(Interrupted::Stale(kind, key)) => {
                writer.read(kind, &key).await?;
                looked_at.insert((kind, key));
            }
        }
    }
    Err(ReconcileError::transient("the objects of this SandboxClaim keep changing"))
}

struct Pass<'a> {
    reconciler: &'a ClaimReconciler,
    writer: &'a Writer,
    key: &'a Key,
}

impl Pass<'_> {
    async fn attempt(&self, looked_at: &mut LiveLooks) -> Result<Next, Interrupted> {
        let Some(observed) = self.observe(looked_at) else {
            self.reconciler.forget(self.key);
            return Ok(Next::Idle);
        };
        if let Some(request) = legacy_policy(&observed) {
            // A leftover of old releases: worth an attempt, never worth failing a claim.
            if let Err(error) = self.writer.send(&request).await {
                debug!(%error, "Could not delete a legacy network policy");
            }
        }
        let plan = plan(&observed, &self.reconciler.settings);
        if !matches!(plan, Plan::Resume { .. } | Plan::Confirm(..)) {
            // What was reserved before is bound by now, or will never be.
            self.reconciler.hold(self.key, None);
        }
        let plan = match plan {
            Plan::Adopt { pools, assignment } => {
                match self.reserve(&observed.claim, &pools, observed.template.as_deref()) {
                    Ok(offer) => return self.adopt(&observed, offer, pools).await,
                    Err(pending) => plan_without_candidate(&observed, pending, assignment),
                }
            }
            plan => plan,
        };
        self.carry_out(observed, plan, looked_at).await
    }

    fn observe(&self, looked_at: &LiveLooks) -> Option<Observed> {
        let now = self.reconciler.clock.now();
        let uid = self.reconciler.store.read().claims.get(self.key)?.uid().to_owned();
        let (memory, stale) = self.reconciler.remember(self.key, &uid, now);
        self.reconciler.give_back(stale);
        let held = memory.held.as_ref().map(|held| &held.key);
        observe(&self.reconciler.store.read(), self.key, looked_at, held, memory.first_seen, now)
    }

    async fn carry_out(&self, observed: Observed, plan: Plan, looked_at: &mut LiveLooks) -> Result<Next, Interrupted> {
        let claim = &observed.claim;
        let until = expiry::until_expiry(claim, observed.now);
        match plan {
            Plan::Leave => {
                self.reconciler.forget(self.key);
                Ok(Next::Idle)
            }
            Plan::Confirm(kind, key) => {
                self.writer.read(kind, &key).await?;
                looked_at.insert((kind, key));
                Err(Interrupted::Again)
            }
            Plan::MarkExpired => {
                self.publish(claim, Finding::Expired).await?;
                self.event(claim, "ClaimExpired", "Claim Expired", "Claim expired".to_owned());
                Ok(Next::After(SOON))
            }
            Plan::DeleteClaim { request, policy } => {
                self.event(claim, "ClaimExpired", "Deleting", format!("Deleting Claim (ShutdownPolicy={policy})"));
                self.send(&request).await?;
                Ok(Next::Idle)
            }
            Plan::CleanUp { deletes, ready, gone } => self.clean_up(claim, &deletes, ready, gone).await,
            Plan::Bound(bound) => self.serve(&observed, *bound).await,
            Plan::Refuse { ready, retry } => {
                let message = ready.clone().verdict().message.into_owned();
                self.publish(claim, Finding::Refused(ready)).await?;
                match retry {
                    Retry::Never => Ok(until.into()),
                    Retry::After(delay) => Ok(until.into_iter().chain([delay]).min().into()),
                    Retry::BackOff => Err(Interrupted::Failed(ReconcileError::transient(message).no_later_than(until))),
                }
            }
            Plan::Resume { sandbox, template, assignment: _ } => {
                self.reconciler
                    .store
                    .candidates(|world| world.candidates.hold(&Cached::key(&*sandbox), sandbox.uid(), claim.uid()));
                let template = {
                    let world = self.reconciler.store.read();
                    template_of(&world, self.key, &sandbox).or(template)
                };
                self.adopt(&observed, Offer { sandbox, template }, warm_pools(&observed)).await
            }
            Plan::Create { request, assignment } => self.create(&observed, &request, assignment).await,
            Plan::Wait(delay) => Ok(until.into_iter().chain([delay]).min().into()),
            Plan::Adopt { .. } => Err(Interrupted::Again),
        }
    }

    /// Reserves the best candidate; the number of those without an address when there is none.
    fn reserve(
        &self,
        claim: &SandboxClaim,
        pools: &[Arc<SandboxWarmPool>],
        template: Option<&SandboxTemplate>,
    ) -> Result<Offer, usize> {
        let uids: Vec<&str> = pools.iter().map(|pool| pool.uid()).collect();
        self.reconciler.store.candidates(|world| {
            let World { candidates, sandboxes, .. } = world;
            let accept = |key: &Key| sandboxes.get(key).is_some_and(|sandbox| is_offered(sandbox, pools, template));
            let Some(pick) = candidates.reserve(&uids, claim.uid(), accept) else {
                return Err(candidates.pending(&uids));
            };
            let sandbox = sandboxes.get(&pick.key).cloned().ok_or(0_usize)?;
            let template = template_of(world, self.key, &sandbox);
            Ok(Offer { sandbox, template })
        })
    }

    /// Drives an adoption to its end.
    async fn adopt(
        &self,
        observed: &Observed,
        offer: Offer,
        pools: Vec<Arc<SandboxWarmPool>>,
    ) -> Result<Next, Interrupted> {
        let claim = observed.claim.clone();
        let stamps = self.first_stamps(&claim);
        let (mut adoption, effects) = Adoption::begin(claim.clone(), offer, stamps, observed.now);
        let mut under_way: FuturesUnordered<Pin<Box<dyn Future<Output = Outcome> + Send + '_>>> =
            FuturesUnordered::new();
        let mut effects: std::collections::VecDeque<Effect> = effects.into();
        loop {
            while let Some(effect) = effects.pop_front() {
                match effect {
                    Effect::Reserve => {
                        let offer = self.reserve(&claim, &pools, observed.template.as_deref()).ok();
                        let (next, more) = adoption.step(Outcome::Reserved(offer));
                        adoption = next;
                        effects.extend(more);
                    }
                    Effect::Release { key, uid } => {
                        self.reconciler.store.candidates(|world| world.candidates.release(&key, &uid));
                    }
                    Effect::Send { leg, request, pause } => {
                        under_way.push(Box::pin(self.send_leg(leg, request, pause)))
                    }
                    Effect::Read { leg, kind, key, pause } => {
                        under_way.push(Box::pin(self.read_leg(leg, kind, key, pause)))
                    }
                }
            }
            let Some(outcome) = under_way.next().await else { break };
            let (next, more) = adoption.step(outcome);
            adoption = next;
            effects.extend(more);
        }
        let end = adoption.end().cloned().expect("an adoption with nothing under way has ended");
        self.adopted(observed, end).await
    }

    async fn send_leg(&self, leg: Leg, request: Request, pause: Duration) -> Outcome {
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        Outcome::Sent(leg, self.writer.send(&request).await)
    }

    async fn read_leg(&self, leg: Leg, kind: Kind, key: Key, pause: Duration) -> Outcome {
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        Outcome::Read(leg, self.writer.read(kind, &key).await)
    }

    async fn adopted(&self, observed: &Observed, end: End) -> Result<Next, Interrupted> {
        let until = expiry::until_expiry(&observed.claim, observed.now);
        match end {
            End::Bound { sandbox, claim, pool } => {
                self.reconciler.hold(self.key, None);
                self.event(
                    &claim,
                    "SandboxAdopted",
                    "Adoption",
                    format!("Adopted warm pool Sandbox \"{}\"", sandbox.name()),
                );
                self.count_creation(&claim, &sandbox, &pool, keys::LAUNCH_WARM);
                self.count_ready(&observed.claim, &claim, &sandbox);
                self.settle(&claim)
            }
            End::ClaimGone => {
                self.reconciler.forget(self.key);
                Err(Interrupted::Again)
            }
            End::Elsewhere => Err(Interrupted::Stale(Kind::Claim, self.key.clone())),
            End::Conflict(what) => {
                self.reconciler.hold(self.key, None);
                let fresh =
                    self.reconciler.store.get::<SandboxClaim>(self.key).unwrap_or_else(|| observed.claim.clone());
                self.publish(&fresh, Finding::Refused(ClaimReady::AdoptionConflict(what.clone()))).await?;
                Err(Interrupted::Failed(ReconcileError::transient(what).no_later_than(until)))
            }
            End::Unanswered { sandbox, message } => {
                let held = Held { key: Cached::key(&*sandbox), uid: sandbox.uid().to_owned() };
                self.reconciler.hold(self.key, Some(held));
                warn!(sandbox = sandbox.name(), %message, "An adoption was not answered");
                let text = "the API server did not answer properly".to_owned();
                let fresh =
                    self.reconciler.store.get::<SandboxClaim>(self.key).unwrap_or_else(|| observed.claim.clone());
                // It may well fail too; the next pass says it again.
                let _ = self.publish(&fresh, Finding::Refused(ClaimReady::ReconcilerError(text.clone()))).await;
                Err(Interrupted::Failed(ReconcileError::transient(text).no_later_than(until)))
            }
            End::Refused(error) => Err(self.refused(&observed.claim, error, until).await),
        }
    }

    /// Says that the API refused, and tries again later.
    async fn refused(&self, claim: &Arc<SandboxClaim>, error: ApiError, until: Option<Duration>) -> Interrupted {
        if !matches!(error, ApiError::NotLeader) {
            let fresh = self.reconciler.store.get::<SandboxClaim>(self.key).unwrap_or_else(|| claim.clone());
            let _ = self.publish(&fresh, Finding::Refused(ClaimReady::ReconcilerError(stable_text(&error)))).await;
        }
        Interrupted::Failed(ReconcileError::from(error).no_later_than(until))
    }

    /// Annotations that a claim gets when it is first dealt with.
    fn first_stamps(&self, claim: &SandboxClaim) -> Stamps {
        let settings = &self.reconciler.settings;
        let seen = self.reconciler.memories.lock().get(self.key).map(|memory| memory.first_seen);
        Stamps {
            first_observed: seen.filter(|_| settings.observability_annotations),
            trace_context: settings.tracing.context_for(claim.annotation(keys::annotations::TRACE_CONTEXT)),
            ..Stamps::default()
        }
    }

    async fn create(
        &self,
        observed: &Observed,
        request: &Request,
        assignment: Assignment,
    ) -> Result<Next, Interrupted> {
        let claim = &observed.claim;
        let until = expiry::until_expiry(claim, observed.now);
        let stamps = Stamps { assignment, ..self.first_stamps(claim) };
        // Exactly this state of the claim: over a newer one, what another leader bound meanwhile would be hidden in the answer.
        let stamp =
            stamps.change(claim).map(|metadata| Request::patch_exact(&**claim, json!({ "metadata": metadata })));
        let stamped = async {
            match &stamp {
                Some(stamp) => Ok(self.writer.send(stamp).await?.and_then(|object| object.cast::<SandboxClaim>())),
                None => Ok(Some(claim.clone())),
            }
        };
        let (created, stamped) = tokio::join!(self.create_sandbox(claim, request), stamped);
        let fresh = match stamped {
            Ok(Some(fresh)) => fresh,
            Ok(None) => return Err(Interrupted::Again),
            Err(ApiError::NotFound { .. } | ApiError::Conflict { .. }) => {
                return Err(Interrupted::Stale(Kind::Claim, self.key.clone()));
            }
            Err(error) => return Err(self.refused(claim, error, until).await),
        };
        match created {
            Ok(Created::New(sandbox)) => {
                self.event(
                    &fresh,
                    "SandboxProvisioned",
                    "Provisioning",
                    format!("Created Sandbox \"{}\"", sandbox.name()),
                );
                let pool = &fresh.spec.warm_pool_ref.name;
                self.count_creation(&fresh, &sandbox, pool, keys::LAUNCH_COLD);
                let published = self.publish(&fresh, Finding::Serves(&sandbox)).await?;
                self.settle(&published)
            }
            Ok(Created::Known) => Err(Interrupted::Again),
            Ok(Created::Unseen) => {
                if fresh.bound_sandbox().is_none() {
                    self.publish(&fresh, Finding::Refused(ClaimReady::SandboxCreatePending)).await?;
                }
                Ok(Next::After(PENDING_RECHECK))
            }
            Err(error) => Err(self.refused(&fresh, error, until).await),
        }
    }

    /// Creates the claim's own Sandbox. One that is there already is ours, or the next look says whose it is.
    async fn create_sandbox(&self, claim: &SandboxClaim, request: &Request) -> Result<Created, ApiError> {
        match self.writer.send(request).await {
            Ok(object) => match object.and_then(|object| object.cast::<Sandbox>()) {
                Some(sandbox) => Ok(Created::New(sandbox)),
                None => Ok(Created::Unseen),
            },
            Err(ApiError::AlreadyExists { .. }) => match self.writer.read(Kind::Sandbox, &request.key).await {
                Ok(Some(Object::Sandbox(found))) => {
                    let ours = owners::ownership(&found.metadata, claim.uid()) == Ownership::Owned;
                    debug!(sandbox = found.name(), ours, "The Sandbox of this name exists already");
                    Ok(Created::Known)
                }
                _ => Ok(Created::Unseen),
            },
            Err(error) => Err(error),
        }
    }

    /// A claim that is served: repairs what is amiss, then says how its Sandbox is.
    async fn serve(&self, observed: &Observed, bound: Bound) -> Result<Next, Interrupted> {
        let claim = &observed.claim;
        let until = expiry::until_expiry(claim, observed.now);
        if !bound.extras.is_empty() {
            // From a cache that lags, the wrong one could be kept.
            let live = self.writer.read(Kind::Claim, self.key).await?.and_then(|object| object.cast::<SandboxClaim>());
            if live.as_deref().map(|live| live.resource_version().to_owned())
                != Some(claim.resource_version().to_owned())
            {
                return Err(Interrupted::Again);
            }
            for extra in &bound.extras {
                self.send(extra).await?;
            }
        }
        let stamps = Stamps { assignment: bound.stamps.assignment.clone(), ..self.first_stamps(claim) };
        let claim = match stamps.change(claim) {
            Some(metadata) => {
                let stamp = Request::patch_exact(&**claim, json!({ "metadata": metadata }));
                self.send(&stamp).await?.and_then(|object| object.cast::<SandboxClaim>()).ok_or(Interrupted::Again)?
            }
            None => claim.clone(),
        };
        let mut sandbox = bound.sandbox;
        if let Some(sync) = &bound.sync {
            match self.writer.send(sync).await {
                Ok(object) => sandbox = object.and_then(|object| object.cast::<Sandbox>()).unwrap_or(sandbox),
                Err(ApiError::Conflict { .. } | ApiError::NotFound { .. }) => {
                    return Err(Interrupted::Stale(sync.kind, sync.key.clone()));
                }
                Err(error) => return Err(self.refused(&claim, error, until).await),
            }
        }
        let published = self.publish(&claim, Finding::Serves(&sandbox)).await?;
        self.count_ready(&claim, &published, &sandbox);
        self.stamp_first_ready(&claim, &published).await?;
        self.settle(&published)
    }

    /// Writes down, once, when the claim first was Ready. `unknown` when it was Ready before anybody wrote it down.
    async fn stamp_first_ready(&self, before: &SandboxClaim, after: &Arc<SandboxClaim>) -> Result<(), Interrupted> {
        if !is_ready(after.status.as_ref()) {
            return Ok(());
        }
        let known = !is_ready(before.status.as_ref());
        let value = if known { precise(self.reconciler.clock.now()) } else { keys::FIRST_READY_UNKNOWN.to_owned() };
        let stamps = Stamps { first_ready: Some(value), ..Stamps::default() };
        if let Some(metadata) = stamps.change(after) {
            self.send(&Request::patch(&**after, json!({ "metadata": metadata }))).await?;
        }
        Ok(())
    }

    async fn clean_up(
        &self,
        claim: &Arc<SandboxClaim>,
        deletes: &[Request],
        ready: ClaimReady,
        gone: bool,
    ) -> Result<Next, Interrupted> {
        for delete in deletes {
            self.send(delete).await?;
        }
        if !deletes.is_empty() {
            return Err(Interrupted::Again);
        }
        if gone {
            self.publish(claim, Finding::ExpiredAndGone(ready)).await?;
            self.reconciler.forget(self.key);
        }
        Ok(Next::Idle)
    }

    /// Sends a write; a refusal because of a change since starts the pass over.
    async fn send(&self, request: &Request) -> Result<Option<Object>, Interrupted> {
        match self.writer.send(request).await {
            Ok(object) => Ok(object),
            Err(ApiError::NotFound { .. }) => Ok(None),
            Err(ApiError::Conflict { .. }) => Err(Interrupted::Stale(request.kind, request.key.clone())),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the status if it differs; the claim as it is then.
    async fn publish(&self, claim: &Arc<SandboxClaim>, finding: Finding<'_>) -> Result<Arc<SandboxClaim>, Interrupted> {
        let status = status_after(claim, finding, self.reconciler.clock.now());
        let Some(request) = status_patch(claim, &status) else { return Ok(claim.clone()) };
        let announced = expiry::is_announced(claim);
        let answer = self.send(&request).await?.and_then(|object| object.cast::<SandboxClaim>());
        let Some(after) = answer else { return Err(Interrupted::Again) };
        if !announced && expiry::is_announced(&after) && !expiry::is_expired(claim, self.reconciler.clock.now()) {
            self.event(&after, "ClaimExpired", "Claim Expired", "Claim expired".to_owned());
        }
        Ok(after)
    }

    /// Ends a pass of a claim that was dealt with.
    fn settle(&self, claim: &SandboxClaim) -> Result<Next, Interrupted> {
        if is_ready(claim.status.as_ref()) {
            self.reconciler.forget(self.key);
        }
        if expiry::is_announced(claim) {
            return Ok(Next::After(SOON));
        }
        Ok(expiry::until_expiry(claim, self.reconciler.clock.now()).into())
    }

    fn event(&self, claim: &SandboxClaim, reason: &'static str, action: &'static str, note: String) {
        self.reconciler.events.emit(Event {
            regarding: Event::regarding(claim),
            severity: Severity::Normal,
            reason,
            action,
            note,
            controller: "sandboxclaim-controller",
        });
    }

    fn count_creation(&self, claim: &SandboxClaim, sandbox: &Sandbox, pool: &str, launch_type: &'static str) {
        self.reconciler.metrics.claim_created(&observability::created(claim, sandbox, pool, launch_type));
    }

    /// Counts a claim's readiness, the first time.
    fn count_ready(&self, before: &SandboxClaim, after: &SandboxClaim, sandbox: &Sandbox) {
        let first_seen = self.reconciler.memories.lock().get(self.key).map(|memory| memory.first_seen);
        let now = self.reconciler.clock.now();
        if let Some(ready) = observability::first_ready(before, after, sandbox, first_seen, now) {
            self.reconciler.metrics.claim_ready(&ready);
        }
    }
}

/// What became of the creation of a claim's own Sandbox.
enum Created {
    New(Arc<Sandbox>),
    /// It was there, and is now in the store.
    Known,
    /// It is said to be there, and cannot be seen.
    Unseen,
}

/// The error without what differs from attempt to attempt: every new text would be a write and an event.
fn stable_text(error: &ApiError) -> String {
    match error {
        ApiError::Unknown { .. } => "the API server did not answer properly".to_owned(),
        ApiError::Busy { .. } => "the API server is busy".to_owned(),
        other => other.to_string(),
    }
}
