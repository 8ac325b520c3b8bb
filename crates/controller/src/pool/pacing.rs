//! How fast a pool refills: a pause after members were taken, and a rate.
//!
//! Both are off by default. Time is an argument, so that tests choose it.

use std::time::Duration;

use jiff::Timestamp;

use crate::clock::between;

/// Refill rate and pause.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PacingSettings {
    /// Delay between the last loss of a member and the refill. Zero: none.
    pub replenish_delay: Duration,
    /// Maximum number of creates per second. Zero: no limit.
    pub max_refill_rate: f64,
}

/// The state of a pool's pacing between passes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pacing {
    /// Number of members last seen, plus the ones created since; `None` before the first pass.
    baseline: Option<usize>,
    hold_until: Option<Timestamp>,
    bucket: Option<Bucket>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Bucket {
    tokens: f64,
    filled_at: Timestamp,
}

impl Pacing {
    /// Observes the number of members; returns the rest of the pause, if one is active.
    pub fn observe(
        &mut self,
        active: usize,
        desired: usize,
        now: Timestamp,
        settings: &PacingSettings,
    ) -> Option<Duration> {
        let dropped = self.baseline.is_some_and(|before| active < before);
        self.baseline = Some(active);
        if settings.replenish_delay.is_zero() || active >= desired {
            self.hold_until = None;
            return None;
        }
        if dropped {
            self.hold_until = now.checked_add(settings.replenish_delay).ok();
        }
        let rest = between(now, self.hold_until?);
        if rest.is_zero() {
            self.hold_until = None;
            return None;
        }
        Some(rest)
    }

    /// Takes up to `wanted` creates from the bucket: how many are granted, and when to ask again if none is.
    pub fn take(&mut self, wanted: usize, now: Timestamp, settings: &PacingSettings) -> (usize, Option<Duration>) {
        let rate = settings.max_refill_rate;
        if rate <= 0.0 {
            return (wanted, None);
        }
        let capacity = rate.max(1.0);
        let bucket = self.bucket.get_or_insert(Bucket { tokens: capacity, filled_at: now });
        let elapsed = between(bucket.filled_at, now);
        bucket.tokens = (bucket.tokens + elapsed.as_secs_f64() * rate).min(capacity);
        bucket.filled_at = now;
        // The conversion from float saturates, so that an enormous rate grants an enormous number and does not
        // overflow.
        let granted = wanted.min(bucket.tokens.floor() as usize);
        bucket.tokens -= granted as f64;
        let wait = (granted == 0).then(|| Duration::from_secs_f64(((1.0 - bucket.tokens) / rate).max(0.001)));
        (granted, wait)
    }

    /// Adds members that were created but not yet counted, so that they do not count as a loss later.
    pub fn created(&mut self, number: usize) {
        if let Some(baseline) = &mut self.baseline {
            *baseline += number;
        }
    }
}
