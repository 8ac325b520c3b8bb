//! Exponential back-off of container restarts and image pulls.

use std::time::Duration;

use jiff::Timestamp;

/// Parameters of a back-off. The defaults are those of the upstream kubelet, so that crash loops behave the same.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BackoffPolicy {
    pub initial: Duration,
    pub maximum: Duration,
    /// A container that ran for at least this time starts with no delay again.
    pub reset_after: Duration,
}

impl Default for BackoffPolicy {
    fn default() -> Self {
        Self {
            initial: Duration::from_secs(10),
            maximum: Duration::from_secs(300),
            reset_after: Duration::from_secs(600),
        }
    }
}

/// The current delay; zero before the first retry.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Backoff {
    delay: Duration,
}

impl Backoff {
    pub const fn new() -> Self {
        Self { delay: Duration::ZERO }
    }

    pub fn delay(self) -> Duration {
        self.delay
    }

    /// When the next attempt may start, given when the last one ended.
    pub fn next_attempt(self, ended: Timestamp) -> Timestamp {
        ended
            .saturating_add(jiff::SignedDuration::try_from(self.delay).unwrap_or(jiff::SignedDuration::MAX))
            .unwrap_or(ended)
    }

    /// The back-off after one more attempt.
    pub fn grown(self, policy: &BackoffPolicy) -> Self {
        let next = if self.delay.is_zero() { policy.initial } else { self.delay * 2 };
        Self { delay: next.min(policy.maximum) }
    }

    /// The back-off after a run of this length.
    pub fn after_run(self, ran: Duration, policy: &BackoffPolicy) -> Self {
        if ran >= policy.reset_after { Self::new() } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_retry_is_immediate_then_the_delay_doubles_to_its_maximum() {
        let policy = BackoffPolicy::default();
        let mut backoff = Backoff::new();
        let mut delays = vec![];
        for _ in 0..8 {
            delays.push(backoff.delay().as_secs());
            backoff = backoff.grown(&policy);
        }
        assert_eq!(delays, [0, 10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn a_long_run_resets_the_delay() {
        let policy = BackoffPolicy::default();
        let grown = Backoff::new().grown(&policy).grown(&policy);
        assert_eq!(grown.after_run(Duration::from_secs(599), &policy), grown);
        assert_eq!(grown.after_run(Duration::from_secs(600), &policy), Backoff::new());
        let ended = Timestamp::from_second(1000).unwrap();
        assert_eq!(grown.next_attempt(ended), Timestamp::from_second(1020).unwrap());
    }
}
