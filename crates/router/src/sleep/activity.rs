//! What this router knows of the use of one Sandbox: open requests and sessions, and when it last wrote that down.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;

/// Why a use of a Sandbox did not begin. Nothing was forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotBegun {
    /// Or it was deleted.
    #[error("the sandbox has just been suspended because it was idle; try again")]
    Suspended,
    /// Without a record the Sandbox might be suspended during the use.
    #[error("the use of the sandbox could not be recorded, because the API did not accept it; try again")]
    Unrecorded,
}

/// Age of this router's last record of activity, relative to the idle time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// Younger than a third: nothing is written.
    Recent,
    /// Younger than two thirds: the Sandbox keeps running for at least a third, which also covers clocks that differ.
    Ageing,
    /// Older, or unknown: the Sandbox may be suspended at any moment.
    Old,
}

/// When something is to be done for a Sandbox with an idle time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Now,
    /// Not for this time.
    In(Duration),
}

/// The use of one Sandbox. Times are milliseconds after `started`, at least 1; 0 is never.
///
/// They advance with the monotonic clock, and with the wall clock where that one has advanced further: the monotonic
/// clock stands still while the machine is suspended, and what is written is compared with the clocks of others. A wall
/// clock that is set back changes nothing, so that a Sandbox may sleep too late, but never during its use.
#[derive(Debug)]
pub(crate) struct SandboxActivity {
    started: (Instant, Timestamp),
    /// The farthest that the wall clock was seen ahead of the monotonic one.
    ahead: AtomicU64,
    open: AtomicU32,
    last_use: AtomicU64,
    /// The last use that the API is known to have a record of.
    recorded: AtomicU64,
    /// No check is made before this time.
    checked: AtomicU64,
    /// Held during a write for requests, so that one is made for all of them.
    pub(crate) writing: Arc<tokio::sync::Mutex<()>>,
}

impl Default for SandboxActivity {
    fn default() -> Self {
        let zero = AtomicU64::default;
        Self {
            started: (Instant::now(), Timestamp::now()),
            ahead: zero(),
            open: AtomicU32::new(0),
            last_use: zero(),
            recorded: zero(),
            checked: zero(),
            writing: Arc::default(),
        }
    }
}

impl SandboxActivity {
    fn now(&self) -> u64 {
        self.moment(self.started.0.elapsed(), Timestamp::now())
    }

    /// The moment at which the monotonic clock has advanced by `elapsed` and the wall clock shows `wall`.
    fn moment(&self, elapsed: Duration, wall: Timestamp) -> u64 {
        let elapsed = elapsed.as_millis() as u64;
        let wall = u64::try_from(wall.duration_since(self.started.1).as_millis()).unwrap_or(0);
        let ahead = wall.saturating_sub(elapsed);
        elapsed + ahead.max(self.ahead.fetch_max(ahead, Ordering::SeqCst)) + 1
    }

    /// Advances the clock.
    #[cfg(test)]
    pub(crate) fn pass(&self, time: Duration) {
        self.ahead.fetch_add(time.as_millis() as u64, Ordering::SeqCst);
    }

    /// The last use, as a moment for [`Self::confirm`] and as a time. It is now while a request is open.
    pub(crate) fn last_use(&self) -> (u64, Timestamp) {
        let last = self.last_use.load(Ordering::SeqCst);
        let moment = if self.is_open() || last == 0 { self.now() } else { last };
        let at = self.started.1.checked_add(Duration::from_millis(moment - 1)).unwrap_or(Timestamp::MAX);
        (moment, at)
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::SeqCst) > 0
    }

    /// The API has a record of the use at this moment.
    pub(crate) fn confirm(&self, moment: u64) {
        self.recorded.fetch_max(moment, Ordering::SeqCst);
    }

    /// The API has a record that is this old.
    pub(crate) fn confirm_age(&self, age: Duration) {
        self.confirm(self.now().saturating_sub(age.as_millis() as u64).max(1));
    }

    /// The last check had no result, or reported the Sandbox as idle: the next one has time.
    pub(crate) fn postpone_check(&self, by: Duration) {
        self.checked.store(self.now() + by.as_millis() as u64, Ordering::SeqCst);
    }

    pub(crate) fn freshness(&self, idle: Duration) -> Freshness {
        let recorded = self.recorded.load(Ordering::SeqCst);
        let age = self.now().saturating_sub(recorded);
        let third = third_of(idle);
        match recorded {
            0 => Freshness::Old,
            _ if age < third => Freshness::Recent,
            _ if age < 2 * third => Freshness::Ageing,
            _ => Freshness::Old,
        }
    }

    /// Whether there is a use that the API has no record of; an open request is one until it ends.
    pub(crate) fn has_unrecorded_use(&self) -> bool {
        self.is_open() || self.last_use.load(Ordering::SeqCst) > self.recorded.load(Ordering::SeqCst)
    }

    /// When the last use is to be written down. A use that begins meanwhile, while the record is recent, is not written
    /// at once: then it is due a third after the record, too.
    pub(crate) fn record_due(&self, idle: Duration) -> Due {
        let (now, third) = (self.now(), third_of(idle));
        let record_at = match self.recorded.load(Ordering::SeqCst) {
            0 => now,
            recorded => recorded + third,
        };
        match self.has_unrecorded_use() {
            true => due_at(record_at, now),
            false if record_at > now => due_at(record_at, now),
            false => due_at(now + third, now),
        }
    }

    /// When the idle time has passed, so that it is to be checked whether the Sandbox is idle.
    pub(crate) fn check_due(&self, idle: Duration) -> Due {
        let (now, recorded) = (self.now(), self.recorded.load(Ordering::SeqCst));
        // First the use has to be written down.
        let used = if self.has_unrecorded_use() { now } else { recorded };
        due_at((used + idle.as_millis() as u64).max(self.checked.load(Ordering::SeqCst)), now)
    }
}

fn due_at(moment: u64, now: u64) -> Due {
    match moment.checked_sub(now) {
        None | Some(0) => Due::Now,
        Some(left) => Due::In(Duration::from_millis(left)),
    }
}

fn third_of(idle: Duration) -> u64 {
    (idle.as_millis() as u64 / 3).max(1)
}

/// One use of a Sandbox: a request or a session. It ends when this is dropped.
#[derive(Debug)]
pub struct ActivityGuard(Arc<SandboxActivity>);

impl ActivityGuard {
    pub(crate) fn begin(activity: &Arc<SandboxActivity>) -> Self {
        activity.open.fetch_add(1, Ordering::SeqCst);
        activity.last_use.fetch_max(activity.now(), Ordering::SeqCst);
        Self(Arc::clone(activity))
    }
}

impl Drop for ActivityGuard {
    fn drop(&mut self) {
        self.0.last_use.fetch_max(self.0.now(), Ordering::SeqCst);
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(3000);

    fn aged(age: Duration) -> Arc<SandboxActivity> {
        let activity =
            SandboxActivity { started: (Instant::now() - age, Timestamp::now() - age), ..SandboxActivity::default() };
        activity.confirm(1);
        Arc::new(activity)
    }

    #[test]
    fn a_record_ages_from_recent_to_old() {
        assert_eq!(SandboxActivity::default().freshness(IDLE), Freshness::Old, "nothing is known");
        for (age, expected) in [(0, Freshness::Recent), (1500, Freshness::Ageing), (2500, Freshness::Old)] {
            assert_eq!(aged(Duration::from_secs(age)).freshness(IDLE), expected, "{age}");
        }
    }

    /// The machine is suspended, and then its clock is set back by more than that.
    #[test]
    fn moments_follow_the_wall_clock_forwards_only() {
        let activity = SandboxActivity::default();
        let (started, second, hour) = (activity.started.1, Duration::from_secs(1), Duration::from_secs(3600));
        assert_eq!(activity.moment(second, started + second), 1_001);
        assert_eq!(activity.moment(second * 2, started + second * 2 + hour), 3_602_001);
        assert_eq!(activity.moment(second * 3, started - hour), 3_603_001);
    }

    #[test]
    fn a_use_during_which_the_machine_was_suspended_is_recorded_with_the_present_time() {
        let suspended = Duration::from_secs(1200);
        let activity =
            Arc::new(SandboxActivity { started: (Instant::now(), Timestamp::now() - suspended), ..Default::default() });
        activity.confirm(1);
        let open = ActivityGuard::begin(&activity);
        assert_eq!(activity.freshness(IDLE), Freshness::Ageing, "it is recorded again");
        assert_eq!(activity.record_due(IDLE), Due::Now);
        let (_, at) = activity.last_use();
        assert!((Timestamp::now() - at).get_seconds().abs() < 60, "{at}");
        drop(open);
    }

    fn within(due: Due, limit: Duration) -> bool {
        matches!(due, Due::In(wait) if wait <= limit)
    }

    #[test]
    fn an_open_request_is_recorded_again_and_never_checked() {
        let activity = aged(Duration::from_secs(4000));
        let open = ActivityGuard::begin(&activity);
        assert_eq!(activity.record_due(IDLE), Due::Now);
        activity.confirm(activity.last_use().0);
        assert!(within(activity.record_due(IDLE), IDLE / 3), "{:?}", activity.record_due(IDLE));
        assert!(!within(activity.check_due(IDLE), IDLE / 2), "{:?}", activity.check_due(IDLE));
        drop(open);
    }

    #[test]
    fn a_use_without_any_record_is_recorded_at_once() {
        let activity = Arc::new(SandboxActivity::default());
        assert!(matches!(activity.record_due(IDLE), Due::In(_)), "there is no use");
        let _open = ActivityGuard::begin(&activity);
        assert_eq!(activity.record_due(IDLE), Due::Now);
    }

    /// A request that begins while the record is recent writes nothing: who waits to renew the record looks again before
    /// it is old.
    #[test]
    fn a_use_that_begins_during_the_wait_is_recorded_in_time() {
        for age in [0, 500, 1500, 4000] {
            let activity = aged(Duration::from_secs(age));
            assert!(within(activity.record_due(IDLE), IDLE / 3), "{age}: {:?}", activity.record_due(IDLE));
        }
    }

    #[test]
    fn an_ended_use_is_recorded_before_the_sandbox_is_checked() {
        let activity = aged(Duration::from_secs(4000));
        assert_eq!(activity.check_due(IDLE), Due::Now);
        drop(ActivityGuard::begin(&activity));
        assert_eq!(activity.record_due(IDLE), Due::Now);
        assert!(matches!(activity.check_due(IDLE), Due::In(_)));
        let (moment, at) = activity.last_use();
        assert!((Timestamp::now() - at).get_seconds().abs() < 60, "{at}");
        activity.confirm(moment);
        assert!(matches!(activity.record_due(IDLE), Due::In(_)));
        assert!(matches!(activity.check_due(IDLE), Due::In(_)));
    }

    #[test]
    fn a_check_without_result_is_not_repeated_at_once() {
        let activity = aged(Duration::from_secs(4000));
        activity.postpone_check(Duration::from_secs(10));
        assert!(within(activity.check_due(IDLE), Duration::from_secs(10)));
    }
}
