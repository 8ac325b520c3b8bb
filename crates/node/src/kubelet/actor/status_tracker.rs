//! Decides when a Pod's status is written: at once when readiness or a final phase changes, otherwise after a short
//! delay, so that a Pod that starts within milliseconds costs one write instead of five.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::PodStatus;
use serde_json::{Map, Value};

use crate::kubelet::status::condition;

/// Maximum delay before a status change is written that is not urgent.
const COALESCE_DELAY: SignedDuration = SignedDuration::from_millis(500);
/// Delay before a failed write is retried.
const RETRY_DELAY: SignedDuration = SignedDuration::from_millis(500);

/// The status that was written last and the one that is being written.
#[derive(Debug, Default)]
pub(super) struct StatusTracker {
    written: Option<PodStatus>,
    /// A write failed, so the stored status may differ from `written`.
    uncertain: bool,
    in_flight: Option<PodStatus>,
    dirty_since: Option<Timestamp>,
    retry_at: Option<Timestamp>,
}

/// When the status must be written.
#[derive(Debug, PartialEq)]
pub(super) enum Due {
    Never,
    At(Timestamp),
    /// Now, as this merge patch of `status`.
    Now(Value),
}

impl Due {
    pub(super) fn at(&self) -> Option<Timestamp> {
        match self {
            Self::At(at) => Some(*at),
            Self::Never | Self::Now(_) => None,
        }
    }
}

impl StatusTracker {
    pub(super) fn new(written: Option<PodStatus>) -> Self {
        Self { written, ..Self::default() }
    }

    /// The latest status, whose transition times the next one keeps.
    pub(super) fn latest(&self) -> Option<&PodStatus> {
        self.in_flight.as_ref().or(self.written.as_ref())
    }

    /// Whether no write is in flight and `status` is what is stored.
    pub(super) fn is_up_to_date(&self, status: &PodStatus) -> bool {
        self.in_flight.is_none() && !self.uncertain && self.written.as_ref() == Some(status)
    }

    /// Compares the current status with the written one and returns when to write it.
    pub(super) fn offer(&mut self, status: PodStatus, now: Timestamp) -> Due {
        if self.in_flight.is_some() {
            return Due::Never;
        }
        if self.is_up_to_date(&status) {
            self.dirty_since = None;
            return Due::Never;
        }
        // A retry time further away than RETRY_DELAY was set before the machine's clock was moved back; it is ignored.
        if let Some(retry_at) = self.retry_at.filter(|at| *at > now && at.duration_since(now) <= RETRY_DELAY) {
            return Due::At(retry_at);
        }
        let since = self.dirty_since.filter(|since| *since <= now).unwrap_or(now);
        self.dirty_since = Some(since);
        let write_at = since.saturating_add(COALESCE_DELAY).unwrap_or(now);
        if now < write_at && !self.uncertain && !is_urgent(self.written.as_ref(), &status) {
            return Due::At(write_at);
        }
        let patch = if self.uncertain { full_patch(&status) } else { merge_patch(self.written.as_ref(), &status) };
        self.in_flight = Some(status);
        self.dirty_since = None;
        self.retry_at = None;
        Due::Now(patch)
    }

    pub(super) fn written(&mut self) {
        if let Some(status) = self.in_flight.take() {
            self.written = Some(status);
            self.uncertain = false;
        }
    }

    /// The write failed: the next write sends the whole status.
    pub(super) fn failed(&mut self, now: Timestamp) {
        if let Some(status) = self.in_flight.take() {
            self.written = Some(status);
            self.uncertain = true;
        }
        self.retry_at = now.saturating_add(RETRY_DELAY).ok();
    }
}

/// Whether a client is likely to wait for this change: readiness or a final phase changed.
fn is_urgent(written: Option<&PodStatus>, status: &PodStatus) -> bool {
    let ready = |s: &PodStatus| condition(s, "Ready").map(|c| c.status == "True").unwrap_or(false);
    let final_phase = |s: &PodStatus| matches!(s.phase.as_deref(), Some("Succeeded" | "Failed"));
    let (was_ready, was_final) = written.map_or((false, false), |w| (ready(w), final_phase(w)));
    ready(status) != was_ready || final_phase(status) != was_final
}

/// A merge patch from one status to the next: changed fields, and null for removed ones.
fn merge_patch(from: Option<&PodStatus>, to: &PodStatus) -> Value {
    let object = |status: Option<&PodStatus>| match status.map(serde_json::to_value) {
        Some(Ok(Value::Object(map))) => map,
        _ => Map::new(),
    };
    let (old, new) = (object(from), object(Some(to)));
    let mut patch: Map<String, Value> =
        new.iter().filter(|(k, v)| old.get(*k) != Some(v)).map(|(k, v)| (k.clone(), v.clone())).collect();
    for key in old.keys().filter(|k| !new.contains_key(*k)) {
        patch.insert(key.clone(), Value::Null);
    }
    Value::Object(patch)
}

/// Fields that not every status has: a full patch sets the missing ones to null.
const OPTIONAL_FIELDS: [&str; 5] = ["reason", "message", "podIP", "podIPs", "initContainerStatuses"];

/// A merge patch that yields this status whatever is stored.
fn full_patch(to: &PodStatus) -> Value {
    let mut patch = merge_patch(None, to);
    for key in OPTIONAL_FIELDS {
        if patch.get(key).is_none() {
            patch[key] = Value::Null;
        }
    }
    patch
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(1_000_000 + millis).unwrap()
    }

    fn status(phase: &str, ready: bool) -> PodStatus {
        let ready = if ready { "True" } else { "False" };
        serde_json::from_value(json!({"phase": phase, "conditions": [{"type": "Ready", "status": ready}]})).unwrap()
    }

    #[test]
    fn progress_is_delayed_and_readiness_is_written_at_once() {
        let mut tracker = StatusTracker::new(None);
        assert_eq!(tracker.offer(status("Pending", false), at(0)), Due::At(at(500)));
        assert!(matches!(tracker.offer(status("Running", true), at(5)), Due::Now(_)));
        assert_eq!(tracker.offer(status("Running", false), at(6)), Due::Never, "one write at a time");
        tracker.written();
        assert!(matches!(tracker.offer(status("Running", false), at(7)), Due::Now(_)));
        tracker.written();
        assert_eq!(tracker.offer(status("Running", false), at(8)), Due::Never, "steady is silent");
        assert!(tracker.is_up_to_date(&status("Running", false)));
    }

    #[test]
    fn progress_is_written_in_the_end() {
        let mut tracker = StatusTracker::new(None);
        assert_eq!(tracker.offer(status("Pending", false), at(0)).at(), Some(at(500)));
        let Due::Now(patch) = tracker.offer(status("Pending", false), at(500)) else { panic!("not due") };
        assert_eq!(patch["phase"], "Pending");
    }

    #[test]
    fn a_failed_write_is_offered_again_after_a_pause() {
        let mut tracker = StatusTracker::new(None);
        let ready = status("Running", true);
        assert!(matches!(tracker.offer(ready.clone(), at(0)), Due::Now(_)));
        tracker.failed(at(1));
        assert_eq!(tracker.offer(ready.clone(), at(2)), Due::At(at(501)));
        let Due::Now(patch) = tracker.offer(ready, at(700)) else { panic!("not due") };
        assert_eq!((&patch["phase"], patch.get("podIP")), (&json!("Running"), Some(&Value::Null)));
    }

    #[test]
    fn a_clock_change_delays_no_write() {
        let mut tracker = StatusTracker::new(None);
        assert_eq!(tracker.offer(status("Pending", false), at(3_600_000)), Due::At(at(3_600_500)));
        assert_eq!(tracker.offer(status("Pending", false), at(0)), Due::At(at(500)), "an hour back");
        assert!(matches!(tracker.offer(status("Pending", false), at(7_200_000)), Due::Now(_)), "and two ahead");
        tracker.failed(at(7_200_000));
        assert!(matches!(tracker.offer(status("Pending", false), at(0)), Due::Now(_)), "and back again");
    }

    #[test]
    fn the_patch_has_changed_fields_and_null_for_removed_ones() {
        let from: PodStatus = serde_json::from_value(json!({"phase": "Running", "reason": "x", "podIP": "1"})).unwrap();
        let to: PodStatus = serde_json::from_value(json!({"phase": "Failed", "podIP": "1"})).unwrap();
        assert_eq!(merge_patch(Some(&from), &to), json!({"phase": "Failed", "reason": null}));
    }
}
