//! How a pool defers its refill while claims are being served.

use std::time::Duration;

use jiff::Timestamp;

use super::plan::Observed;
use crate::{cache::Store, clock::between};

/// Time without a claim before a pool that has plenty of members refills.
pub(super) const CLAIM_PAUSE: Duration = Duration::from_millis(100);
/// Maximum time for which a pool defers its refill.
const MAX_YIELD: Duration = Duration::from_secs(1);

/// The state of the deferral between passes.
#[derive(Debug, Default)]
pub(super) struct ClaimYield {
    since: Option<Timestamp>,
    /// When a claim was last seen in progress.
    last_claim: Option<Timestamp>,
    /// Number of members that could be claimed then.
    available: usize,
}

impl ClaimYield {
    /// How long the pool defers its refill in favour of claims: while it has plenty of members, until claims pause, and
    /// for [`MAX_YIELD`] at most.
    pub(super) fn yields_to_claims(&mut self, store: &Store, observed: &Observed) -> Option<Duration> {
        if !store.defers_background_work() {
            return None;
        }
        let under_way = store.claims_under_way();
        let available = store.read().candidates.available(&[observed.pool.uid()]);
        if under_way > 0 || available < self.available {
            self.last_claim = Some(observed.now);
        }
        self.available = available;
        let plenty = available * 4 > observed.pool.replicas() && available >= under_way;
        let rest = self.last_claim.and_then(|last| CLAIM_PAUSE.checked_sub(between(last, observed.now)));
        let since = *self.since.get_or_insert(observed.now);
        let rest = rest.filter(|rest| plenty && !rest.is_zero() && between(since, observed.now) < MAX_YIELD);
        if rest.is_none() {
            self.since = None;
        }
        rest
    }
}
