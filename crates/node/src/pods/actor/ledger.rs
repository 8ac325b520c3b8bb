//! When a status is written: at once when someone waits for it, else after a moment, so that a Pod that is up in
//! milliseconds costs one write and not five.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::PodStatus;
use serde_json::{Map, Value};

use crate::pods::status::condition;

/// How long progress may stay unwritten.
const SETTLE: SignedDuration = SignedDuration::from_millis(500);
/// Pause after a failed write.
const RETRY: SignedDuration = SignedDuration::from_millis(500);

/// What has been written and what is being written.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    written: Option<PodStatus>,
    /// A write failed, so what is on record may differ from `written`.
    uncertain: bool,
    in_flight: Option<PodStatus>,
    dirty_since: Option<Timestamp>,
    retry_at: Option<Timestamp>,
}

/// When to write.
#[derive(Debug, PartialEq)]
pub(super) enum Due {
    Never,
    At(Timestamp),
    /// Now, with this merge patch of `status`.
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

impl Ledger {
    pub(super) fn new(written: Option<PodStatus>) -> Self {
        Self { written, ..Self::default() }
    }

    /// The status whose transition times are kept.
    pub(super) fn latest(&self) -> Option<&PodStatus> {
        self.in_flight.as_ref().or(self.written.as_ref())
    }

    /// Nothing is being written and this is what is on record.
    pub(super) fn is_settled(&self, status: &PodStatus) -> bool {
        self.in_flight.is_none() && !self.uncertain && self.written.as_ref() == Some(status)
    }

    /// Takes note of the present status and says when it is due.
    pub(super) fn offer(&mut self, status: PodStatus, now: Timestamp) -> Due {
        if self.in_flight.is_some() {
            return Due::Never;
        }
        if self.is_settled(&status) {
            self.dirty_since = None;
            return Due::Never;
        }
        // What seems further away than we ever wait was noted before somebody moved the machine's clock back.
        if let Some(retry_at) = self.retry_at.filter(|at| *at > now && at.duration_since(now) <= RETRY) {
            return Due::At(retry_at);
        }
        let since = self.dirty_since.filter(|since| *since <= now).unwrap_or(now);
        self.dirty_since = Some(since);
        let settle_at = since.saturating_add(SETTLE).unwrap_or(now);
        if now < settle_at && !self.uncertain && !is_urgent(self.written.as_ref(), &status) {
            return Due::At(settle_at);
        }
        let patch = if self.uncertain { whole(&status) } else { difference(self.written.as_ref(), &status) };
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

    /// The write failed: write the whole status next time.
    pub(super) fn failed(&mut self, now: Timestamp) {
        if let Some(status) = self.in_flight.take() {
            self.written = Some(status);
            self.uncertain = true;
        }
        self.retry_at = now.saturating_add(RETRY).ok();
    }
}

/// Someone is likely to wait for this change.
fn is_urgent(written: Option<&PodStatus>, status: &PodStatus) -> bool {
    let ready = |s: &PodStatus| condition(s, "Ready").map(|c| c.status == "True").unwrap_or(false);
    let final_phase = |s: &PodStatus| matches!(s.phase.as_deref(), Some("Succeeded" | "Failed"));
    let (was_ready, was_final) = written.map_or((false, false), |w| (ready(w), final_phase(w)));
    ready(status) != was_ready || final_phase(status) != was_final
}

/// A merge patch from one status to the next: changed fields, and null for those that went.
fn difference(from: Option<&PodStatus>, to: &PodStatus) -> Value {
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

/// Fields that come and go.
const OPTIONAL: [&str; 5] = ["reason", "message", "podIP", "podIPs", "initContainerStatuses"];

/// A merge patch to this status from whatever is there.
fn whole(to: &PodStatus) -> Value {
    let mut patch = difference(None, to);
    for key in OPTIONAL {
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
    fn progress_settles_and_readiness_does_not_wait() {
        let mut ledger = Ledger::new(None);
        assert_eq!(ledger.offer(status("Pending", false), at(0)), Due::At(at(500)));
        assert!(matches!(ledger.offer(status("Running", true), at(5)), Due::Now(_)));
        assert_eq!(ledger.offer(status("Running", false), at(6)), Due::Never, "one write at a time");
        ledger.written();
        assert!(matches!(ledger.offer(status("Running", false), at(7)), Due::Now(_)));
        ledger.written();
        assert_eq!(ledger.offer(status("Running", false), at(8)), Due::Never, "steady is silent");
        assert!(ledger.is_settled(&status("Running", false)));
    }

    #[test]
    fn progress_is_written_in_the_end() {
        let mut ledger = Ledger::new(None);
        assert_eq!(ledger.offer(status("Pending", false), at(0)).at(), Some(at(500)));
        let Due::Now(patch) = ledger.offer(status("Pending", false), at(500)) else { panic!("not due") };
        assert_eq!(patch["phase"], "Pending");
    }

    #[test]
    fn a_failed_write_is_offered_again_after_a_pause() {
        let mut ledger = Ledger::new(None);
        let ready = status("Running", true);
        assert!(matches!(ledger.offer(ready.clone(), at(0)), Due::Now(_)));
        ledger.failed(at(1));
        assert_eq!(ledger.offer(ready.clone(), at(2)), Due::At(at(501)));
        let Due::Now(patch) = ledger.offer(ready, at(700)) else { panic!("not due") };
        assert_eq!((&patch["phase"], patch.get("podIP")), (&json!("Running"), Some(&Value::Null)));
    }

    #[test]
    fn a_clock_that_is_moved_holds_nothing_back() {
        let mut ledger = Ledger::new(None);
        assert_eq!(ledger.offer(status("Pending", false), at(3_600_000)), Due::At(at(3_600_500)));
        assert_eq!(ledger.offer(status("Pending", false), at(0)), Due::At(at(500)), "an hour back");
        assert!(matches!(ledger.offer(status("Pending", false), at(7_200_000)), Due::Now(_)), "and two ahead");
        ledger.failed(at(7_200_000));
        assert!(matches!(ledger.offer(status("Pending", false), at(0)), Due::Now(_)), "and back again");
    }

    #[test]
    fn the_patch_has_what_changed_and_null_for_what_went() {
        let from: PodStatus = serde_json::from_value(json!({"phase": "Running", "reason": "x", "podIP": "1"})).unwrap();
        let to: PodStatus = serde_json::from_value(json!({"phase": "Failed", "podIP": "1"})).unwrap();
        assert_eq!(difference(Some(&from), &to), json!({"phase": "Failed", "reason": null}));
    }
}
