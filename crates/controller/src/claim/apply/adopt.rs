//! Drives an adoption: reserves, sends, reads, and handles its end.

use std::{pin::Pin, time::Duration};

use agent_sandbox_api::{conditions::ClaimReady, keys, template::UpdateStrategyType, v1beta1::SandboxClaim};
use futures::{StreamExt, stream::FuturesUnordered};
use tracing::warn;

use crate::{
    api_client::Request,
    cache::{Cached, ClusterCache, Key, Kind},
    claim::{
        ClaimPass, HeldSandbox,
        adoption::{Adoption, AdoptionWrite, Effect, EffectResult, End, ReservedSandbox},
        expiry,
        observe::template_of,
        plan::{CandidatePools, Observed, is_offered},
        status::Finding,
    },
    reconcile::{Interrupted, Next, ReconcileError},
    sandbox_spec::StalenessCheck,
};

impl ClaimPass<'_> {
    /// Reserves the best candidate; when there is none, returns the number of candidates without an address.
    pub(super) fn reserve(
        &self,
        claim: &SandboxClaim,
        CandidatePools { pools, template }: &CandidatePools,
    ) -> Result<ReservedSandbox, usize> {
        let uids: Vec<&str> = pools.iter().map(|pool| pool.uid()).collect();
        // Hashing a template takes time, so it is done outside of the lock.
        let rollout = pools.iter().any(|pool| pool.update_strategy() == UpdateStrategyType::Recreate);
        let staleness = template.as_deref().filter(|_| rollout).map(StalenessCheck::new);
        self.reconciler.store.candidates(|world| {
            let ClusterCache { candidates, sandboxes, .. } = world;
            let accept =
                |key: &Key| sandboxes.get(key).is_some_and(|sandbox| is_offered(sandbox, pools, staleness.as_ref()));
            let Some(reserved) = candidates.reserve(&uids, claim.uid(), accept) else {
                return Err(candidates.pending(&uids));
            };
            let sandbox = sandboxes.get(&reserved.key).cloned().ok_or(0_usize)?;
            let template = template_of(world, self.key, &sandbox);
            Ok(ReservedSandbox { sandbox, template })
        })
    }

    /// Drives an adoption to its end.
    pub(super) async fn adopt(
        &self,
        observed: &Observed,
        reserved: ReservedSandbox,
        pools: &CandidatePools,
    ) -> Result<Next, Interrupted> {
        let claim = observed.claim.clone();
        let annotations = self.first_annotations();
        let (mut adoption, effects) = Adoption::begin(claim.clone(), reserved, annotations, observed.now);
        let mut under_way: FuturesUnordered<Pin<Box<dyn Future<Output = EffectResult> + Send + '_>>> =
            FuturesUnordered::new();
        let mut effects: std::collections::VecDeque<Effect> = effects.into();
        loop {
            while let Some(effect) = effects.pop_front() {
                match effect {
                    Effect::Reserve => {
                        let reserved = self.reserve(&claim, pools).ok();
                        let (next, more) = adoption.step(EffectResult::Reserved(reserved));
                        adoption = next;
                        effects.extend(more);
                    }
                    Effect::Release { key, uid } => {
                        self.reconciler.store.candidates(|world| world.candidates.release(&key, &uid));
                    }
                    Effect::Send { write, request, pause } => {
                        under_way.push(Box::pin(self.send_write(write, request, pause)))
                    }
                    Effect::Read { write, kind, key, pause } => {
                        under_way.push(Box::pin(self.read_object(write, kind, key, pause)))
                    }
                }
            }
            let Some(outcome) = under_way.next().await else { break };
            let (next, more) = adoption.step(outcome);
            adoption = next;
            effects.extend(more);
        }
        let end = adoption.end().cloned().expect("an adoption with nothing under way has ended");
        self.finish_adoption(observed, end).await
    }

    async fn send_write(&self, write: AdoptionWrite, request: Request, pause: Duration) -> EffectResult {
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        EffectResult::Sent(write, self.writer.send(&request).await)
    }

    async fn read_object(&self, write: AdoptionWrite, kind: Kind, key: Key, pause: Duration) -> EffectResult {
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        EffectResult::Read(write, self.writer.read(kind, &key).await)
    }

    async fn finish_adoption(&self, observed: &Observed, end: End) -> Result<Next, Interrupted> {
        let until = expiry::until_expiry(&observed.claim, observed.now);
        match end {
            End::Bound { sandbox, claim, pool } => {
                self.reconciler.set_held(self.key, None);
                self.event(
                    &claim,
                    "SandboxAdopted",
                    "Adoption",
                    format!("Adopted warm pool Sandbox \"{}\"", sandbox.name()),
                );
                self.count_creation(&claim, &sandbox, &pool, keys::LAUNCH_WARM);
                self.count_ready(&observed.claim, &claim, &sandbox);
                self.finish_pass(&claim)
            }
            End::ClaimGone => {
                self.reconciler.forget(self.key);
                Err(Interrupted::Again)
            }
            End::Elsewhere => Err(Interrupted::Stale { kind: Kind::Claim, key: self.key.clone() }),
            End::Conflict(what) => {
                self.reconciler.set_held(self.key, None);
                let fresh =
                    self.reconciler.store.get::<SandboxClaim>(self.key).unwrap_or_else(|| observed.claim.clone());
                self.publish(&fresh, Finding::Refused(ClaimReady::AdoptionConflict(what.clone()))).await?;
                Err(Interrupted::Failed(ReconcileError::transient(what).no_later_than(until)))
            }
            End::Unanswered { sandbox, message } => {
                let held = HeldSandbox { key: Cached::key(&*sandbox), uid: sandbox.uid().to_owned() };
                self.reconciler.set_held(self.key, Some(held));
                warn!(sandbox = sandbox.name(), %message, "No response to an adoption request");
                let text = "the API server did not answer properly".to_owned();
                let fresh =
                    self.reconciler.store.get::<SandboxClaim>(self.key).unwrap_or_else(|| observed.claim.clone());
                // This write may fail too; the next pass repeats it.
                let _ = self.publish(&fresh, Finding::Refused(ClaimReady::ReconcilerError(text.clone()))).await;
                Err(Interrupted::Failed(ReconcileError::transient(text).no_later_than(until)))
            }
            End::Refused(error) => Err(self.refused(&observed.claim, error, until).await),
        }
    }
}
