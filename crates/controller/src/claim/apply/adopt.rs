//! Driving an adoption: reserving, sending, and what to do with its end.

use std::{pin::Pin, sync::Arc, time::Duration};

use agent_sandbox_api::{
    conditions::ClaimReady,
    keys,
    template::UpdateStrategyType,
    v1beta1::{SandboxClaim, SandboxTemplate, SandboxWarmPool},
};
use futures::{StreamExt, stream::FuturesUnordered};
use tracing::warn;

use super::{Interrupted, Pass};
use crate::{
    blueprint::Yardstick,
    claim::{
        Held,
        adoption::{Adoption, Effect, End, Leg, Offer, Outcome},
        expiry,
        observe::template_of,
        plan::{Observed, is_offered},
        status::Finding,
    },
    object::{Cached, Key, Kind},
    reconcile::{Next, ReconcileError},
    request::Request,
    world::World,
};

impl Pass<'_> {
    /// Reserves the best candidate; the number of those without an address when there is none.
    pub(super) fn reserve(
        &self,
        claim: &SandboxClaim,
        pools: &[Arc<SandboxWarmPool>],
        template: Option<&SandboxTemplate>,
    ) -> Result<Offer, usize> {
        let uids: Vec<&str> = pools.iter().map(|pool| pool.uid()).collect();
        // Hashing a template takes its time: not under the lock.
        let rollout = pools.iter().any(|pool| pool.update_strategy() == UpdateStrategyType::Recreate);
        let yardstick = template.filter(|_| rollout).map(Yardstick::new);
        self.reconciler.store.candidates(|world| {
            let World { candidates, sandboxes, .. } = world;
            let accept =
                |key: &Key| sandboxes.get(key).is_some_and(|sandbox| is_offered(sandbox, pools, yardstick.as_ref()));
            let Some(pick) = candidates.reserve(&uids, claim.uid(), accept) else {
                return Err(candidates.pending(&uids));
            };
            let sandbox = sandboxes.get(&pick.key).cloned().ok_or(0_usize)?;
            let template = template_of(world, self.key, &sandbox);
            Ok(Offer { sandbox, template })
        })
    }

    /// Drives an adoption to its end.
    pub(super) async fn adopt(
        &self,
        observed: &Observed,
        offer: Offer,
        pools: Vec<Arc<SandboxWarmPool>>,
    ) -> Result<Next, Interrupted> {
        let claim = observed.claim.clone();
        let stamps = self.first_stamps();
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
}
