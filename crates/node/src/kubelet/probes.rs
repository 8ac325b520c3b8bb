//! Probes of containers: timing and thresholds. The thresholds are pure; [`prober`] runs a probe and [`check`] one
//! attempt.

use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;

pub mod check;
pub mod prober;

/// The kind of a probe.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum ProbeKind {
    Startup,
    Liveness,
    Readiness,
}

impl ProbeKind {
    /// The name used in events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
        }
    }
}

/// Delay between attempts until the first success. A refused connection costs microseconds, so a container becomes
/// ready within milliseconds after its port opens.
pub const EAGER_PAUSE: Duration = Duration::from_millis(3);
/// Delay between attempts during `FIRST_PHASE`, in which small programs open their port.
pub const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// Length of the first phase after the start of a container.
pub const FIRST_PHASE: Duration = Duration::from_millis(8);
/// Delay between attempts of an exec probe: longer, because each attempt costs a process.
pub const EAGER_EXEC_PAUSE: Duration = Duration::from_millis(50);
/// After this time eager attempts become rarer: a container that takes seconds to start needs no millisecond precision.
pub const EAGER_PHASE: Duration = Duration::from_secs(10);

/// Timing and thresholds of a probe, with the defaults of Kubernetes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Timing {
    pub initial_delay: Duration,
    pub period: Duration,
    pub timeout: Duration,
    pub success_threshold: u32,
    pub failure_threshold: u32,
}

impl Timing {
    pub fn of(probe: &Probe) -> Self {
        let seconds = |value: Option<i32>, default: u64| {
            Duration::from_secs(value.and_then(|v| u64::try_from(v).ok()).filter(|v| *v > 0).unwrap_or(default))
        };
        let count = |value: Option<i32>, default: u32| {
            value.and_then(|v| u32::try_from(v).ok()).filter(|v| *v > 0).unwrap_or(default)
        };
        Self {
            initial_delay: probe
                .initial_delay_seconds
                .and_then(|v| u64::try_from(v).ok())
                .map_or(Duration::ZERO, Duration::from_secs),
            period: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
            success_threshold: count(probe.success_threshold, 1),
            failure_threshold: count(probe.failure_threshold, 3),
        }
    }
}

/// The outcome of one attempt.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Outcome {
    Success,
    Failure(String),
}

/// The state of a probe after its attempts so far.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ProbeState {
    successes: u32,
    failures: u32,
    /// `None` until a threshold is reached for the first time.
    pub passing: Option<bool>,
}

/// What an attempt changed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Change {
    None,
    Passed,
    Failed(String),
}

impl ProbeState {
    /// Counts a scheduled attempt.
    pub fn observe(&mut self, outcome: &Outcome, timing: &Timing) -> Change {
        match outcome {
            Outcome::Success => {
                self.failures = 0;
                self.successes = self.successes.saturating_add(1);
                if self.successes >= timing.success_threshold && self.passing != Some(true) {
                    self.passing = Some(true);
                    return Change::Passed;
                }
            }
            Outcome::Failure(message) => {
                self.successes = 0;
                self.failures = self.failures.saturating_add(1);
                if self.failures >= timing.failure_threshold && self.passing != Some(false) {
                    self.passing = Some(false);
                    return Change::Failed(message.clone());
                }
            }
        }
        Change::None
    }

    /// Counts an eager attempt between the scheduled ones. Only success counts, so that the additional attempts never
    /// fail a container earlier than its probe specifies.
    pub fn observe_eager(&mut self, outcome: &Outcome, timing: &Timing) -> Change {
        match outcome {
            Outcome::Success => self.observe(outcome, timing),
            Outcome::Failure(_) => Change::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn timing(value: serde_json::Value) -> Timing {
        Timing::of(&serde_json::from_value(value).unwrap())
    }

    #[test]
    fn defaults_are_those_of_kubernetes() {
        let t = timing(json!({}));
        assert_eq!((t.period.as_secs(), t.timeout.as_secs()), (10, 1));
        assert_eq!((t.success_threshold, t.failure_threshold, t.initial_delay), (1, 3, Duration::ZERO));
        assert_eq!(timing(json!({"periodSeconds": 0, "timeoutSeconds": -1})).period.as_secs(), 10);
    }

    #[test]
    fn thresholds_count_consecutive_results() {
        let t = timing(json!({"successThreshold": 2, "failureThreshold": 2}));
        let mut state = ProbeState::default();
        let fail = || Outcome::Failure("no".into());
        let changes: Vec<Change> = [
            Outcome::Success,
            fail(),
            Outcome::Success,
            Outcome::Success,
            fail(),
            Outcome::Success,
            fail(),
            fail(),
            fail(),
        ]
        .iter()
        .map(|o| state.observe(o, &t))
        .collect();
        use Change::{Failed, None, Passed};
        assert_eq!(changes, [None, None, None, Passed, None, None, None, Failed("no".into()), None]);
        assert_eq!(state.passing, Some(false));
    }

    #[test]
    fn eager_failures_never_fail_a_container() {
        let t = timing(json!({}));
        let mut state = ProbeState::default();
        for _ in 0..100 {
            assert_eq!(state.observe_eager(&Outcome::Failure("refused".into()), &t), Change::None);
        }
        assert_eq!(state.observe_eager(&Outcome::Success, &t), Change::Passed);
    }
}
