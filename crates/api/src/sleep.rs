//! When a Sandbox sleeps and wakes: what its annotations say, as pure functions of them and of a time.

use std::time::Duration;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Condition,
    jiff::{SignedDuration, Timestamp},
};

use crate::{
    conditions::{self, ConditionType},
    keys::{self, annotations},
};

/// Shortest idle time: below it a Sandbox would be suspended between two requests of one program.
pub const MIN_IDLE: Duration = Duration::from_secs(1);
/// Longest idle time. Longer ones are mistakes, and their sums with times would overflow.
pub const MAX_IDLE: Duration = Duration::from_secs(365 * 86_400);
/// Value of the idle annotation that switches an inherited policy off.
const OFF: &str = "off";

/// Why a policy annotation is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error("annotation {key} is \"{value}\"; write a time between 1s and 365d such as 90s, 15m or 2h, or off")]
    Duration { key: &'static str, value: String },
    #[error("annotation {key} is \"{value}\"; write {choices}")]
    Choice { key: &'static str, value: String, choices: &'static str },
}

/// Whether requests wake a suspended Sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wake {
    /// If it was suspended because it was idle. A Sandbox that a user suspended stays suspended.
    #[default]
    IfIdle,
    Always,
    Never,
}

impl Wake {
    pub fn read<'a>(annotation: impl Fn(&'static str) -> Option<&'a str>) -> Result<Self, PolicyError> {
        match annotation(annotations::WAKE) {
            None | Some("" | "IfIdle") => Ok(Self::IfIdle),
            Some("Always") => Ok(Self::Always),
            Some("Never") => Ok(Self::Never),
            Some(value) => Err(PolicyError::Choice {
                key: annotations::WAKE,
                value: value.to_owned(),
                choices: "IfIdle, Always or Never",
            }),
        }
    }
}

/// Whether a request wakes the suspended Sandbox with these annotations. With an invalid policy it does not.
pub fn wakes_on_request<'a>(annotation: impl Fn(&'static str) -> Option<&'a str>) -> bool {
    match Wake::read(&annotation) {
        Ok(Wake::Always) => true,
        Ok(Wake::IfIdle) => annotation(annotations::SUSPENDED_BY) == Some(keys::SUSPENDED_BY_IDLENESS),
        Ok(Wake::Never) | Err(_) => false,
    }
}

/// When a Sandbox is suspended for being idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdlePolicy {
    /// Time without activity.
    pub after: Duration,
    /// Commands that run in the background are activity.
    pub processes_count: bool,
}

impl IdlePolicy {
    /// Reads the annotations of a Sandbox or of its Pod; `None` when it is never suspended for being idle.
    pub fn read<'a>(annotation: impl Fn(&'static str) -> Option<&'a str>) -> Result<Option<Self>, PolicyError> {
        let after = match annotation(annotations::IDLE_TIMEOUT) {
            None | Some("" | OFF) => return Ok(None),
            Some(text) => parse_duration(text)
                .filter(|after| (MIN_IDLE..=MAX_IDLE).contains(after))
                .ok_or_else(|| PolicyError::Duration { key: annotations::IDLE_TIMEOUT, value: text.to_owned() })?,
        };
        let processes_count = match annotation(annotations::IDLE_PROCESSES) {
            None | Some("" | "KeepAwake") => true,
            Some("Ignore") => false,
            Some(value) => {
                return Err(PolicyError::Choice {
                    key: annotations::IDLE_PROCESSES,
                    value: value.to_owned(),
                    choices: "KeepAwake or Ignore",
                });
            }
        };
        Ok(Some(Self { after, processes_count }))
    }

    /// When the Sandbox may be suspended, unless there is activity before: counted from its recorded activity, from the
    /// time it became Ready, and not before the time until which it is kept awake. `None` while it is not Ready, or
    /// before its first activity is recorded.
    pub fn due_at<'a>(
        &self,
        annotation: impl Fn(&'static str) -> Option<&'a str>,
        conditions: &[Condition],
    ) -> Option<Timestamp> {
        let ready = conditions::find(conditions, ConditionType::Ready);
        let ready_since = ready.filter(|_| conditions::is_true(ready))?.last_transition_time.0;
        let active = time(annotation(annotations::LAST_ACTIVITY_AT))?;
        let due = active.max(ready_since).checked_add(signed(self.after)).ok()?;
        Some(time(annotation(annotations::KEEP_AWAKE_UNTIL)).map_or(due, |kept| due.max(kept)))
    }
}

/// When a running Sandbox is suspended whether or not it is used; `None` if that is not planned.
pub fn suspends_at<'a>(annotation: impl Fn(&'static str) -> Option<&'a str>) -> Option<Timestamp> {
    time(annotation(annotations::SUSPEND_AT))
}

/// When a Sandbox that is woken at `now` is suspended again; `None` if it has no such time.
pub fn suspends_again_at<'a>(
    annotation: impl Fn(&'static str) -> Option<&'a str>,
    now: Timestamp,
) -> Option<Timestamp> {
    let awake = parse_duration(annotation(annotations::AWAKE_FOR)?)?;
    (MIN_IDLE..=MAX_IDLE).contains(&awake).then(|| now.checked_add(signed(awake)).ok())?
}

/// The time in an annotation; `None` when there is none, or when it is not a time.
pub fn time(annotation: Option<&str>) -> Option<Timestamp> {
    annotation?.parse().ok()
}

/// A time as it is written in annotations: in milliseconds, rounded up so that it is never before `at`.
pub fn format_time(at: Timestamp) -> String {
    let up = at.as_nanosecond().div_euclid(1_000_000) + i128::from(at.as_nanosecond().rem_euclid(1_000_000) != 0);
    let at = i64::try_from(up).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or(at);
    format!("{at:.3}")
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

/// Parses one number and a unit: `500ms`, `90s`, `15m`, `2h`, `1d`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let split = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
    let (number, unit) = text.split_at(split);
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()
}

/// A duration as [`parse_duration`] reads it, in the largest unit that needs no fraction.
pub fn format_duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    for (unit, length) in [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)] {
        if ms > 0 && ms.is_multiple_of(length) {
            return format!("{}{unit}", ms / length);
        }
    }
    format!("{ms}ms")
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn read(pairs: &[(&'static str, &'static str)]) -> impl Fn(&'static str) -> Option<&'static str> {
        let pairs = pairs.to_vec();
        move |key| pairs.iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
    }

    fn ready(since: &str) -> Vec<Condition> {
        vec![Condition {
            type_: "Ready".to_owned(),
            status: "True".to_owned(),
            reason: "R".to_owned(),
            message: String::new(),
            observed_generation: None,
            last_transition_time: Time(since.parse().unwrap()),
        }]
    }

    #[test]
    fn durations_are_read_and_written() {
        for text in ["1s", "90s", "15m", "2h", "1d", "1500ms"] {
            assert_eq!(format_duration(parse_duration(text).unwrap()), text);
        }
        assert_eq!(parse_duration("1.5m"), Some(Duration::from_secs(90)));
        for wrong in ["", "15", "m", "-5m", "1w", "5 m", "1h30m", "1e9d"] {
            assert_eq!(parse_duration(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_policy_is_read_from_annotations_and_mistakes_are_named() {
        let of = |pairs: &[(&'static str, &'static str)]| IdlePolicy::read(read(pairs));
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[(annotations::IDLE_TIMEOUT, "off")]), Ok(None));
        let policy = |seconds, processes_count| IdlePolicy { after: Duration::from_secs(seconds), processes_count };
        assert_eq!(of(&[(annotations::IDLE_TIMEOUT, "15m")]), Ok(Some(policy(900, true))));
        let ignored = [(annotations::IDLE_TIMEOUT, "2s"), (annotations::IDLE_PROCESSES, "Ignore")];
        assert_eq!(of(&ignored), Ok(Some(policy(2, false))));
        for wrong in ["15", "0s", "500ms", "400d", "soon"] {
            let said = of(&[(annotations::IDLE_TIMEOUT, wrong)]).unwrap_err().to_string();
            assert!(said.contains(annotations::IDLE_TIMEOUT) && said.contains(wrong) && said.contains("15m"), "{said}");
        }
        let said = of(&[(annotations::IDLE_TIMEOUT, "2s"), (annotations::IDLE_PROCESSES, "no")]).unwrap_err();
        assert!(said.to_string().contains("KeepAwake or Ignore"), "{said}");
    }

    #[test]
    fn requests_wake_what_idleness_suspended_and_what_asks_for_it() {
        let wakes = |pairs: &[(&'static str, &'static str)]| wakes_on_request(read(pairs));
        let idle = (annotations::SUSPENDED_BY, "idle");
        assert!(!wakes(&[]), "a user's own suspend holds");
        assert!(wakes(&[idle]));
        assert!(wakes(&[idle, (annotations::WAKE, "IfIdle")]));
        assert!(wakes(&[(annotations::WAKE, "Always")]));
        assert!(!wakes(&[idle, (annotations::WAKE, "Never")]));
        assert!(!wakes(&[idle, (annotations::WAKE, "sometimes")]));
    }

    #[test]
    fn the_idle_time_counts_from_activity_and_from_becoming_ready() {
        let policy = IdlePolicy { after: Duration::from_secs(60), processes_count: true };
        let active = (annotations::LAST_ACTIVITY_AT, "2030-01-01T00:00:30.000Z");
        let due = |pairs: &[_], since| policy.due_at(read(pairs), &ready(since)).map(|at| at.to_string());
        assert_eq!(due(&[active], "2030-01-01T00:00:00Z").as_deref(), Some("2030-01-01T00:01:30Z"));
        assert_eq!(due(&[active], "2030-01-01T01:00:00Z").as_deref(), Some("2030-01-01T01:01:00Z"), "resumed since");
        let kept = (annotations::KEEP_AWAKE_UNTIL, "2030-01-01T05:00:00Z");
        assert_eq!(due(&[active, kept], "2030-01-01T00:00:00Z").as_deref(), Some("2030-01-01T05:00:00Z"));
        assert_eq!(due(&[], "2030-01-01T00:00:00Z"), None, "nothing is recorded yet");
        assert_eq!(due(&[(annotations::LAST_ACTIVITY_AT, "yesterday")], "2030-01-01T00:00:00Z"), None);
        assert_eq!(policy.due_at(read(&[active]), &[]), None, "it is not Ready");
    }

    #[test]
    fn the_time_after_a_wake_is_bounded() {
        let now: Timestamp = "2030-01-01T00:00:00Z".parse().unwrap();
        let again = |text| suspends_again_at(read(&[(annotations::AWAKE_FOR, text)]), now).map(|at| at.to_string());
        assert_eq!(again("5m").as_deref(), Some("2030-01-01T00:05:00Z"));
        for wrong in ["0s", "400d", "5", "soon"] {
            assert_eq!(again(wrong), None, "{wrong}");
        }
        assert_eq!(suspends_again_at(read(&[]), now), None);
    }

    #[test]
    fn times_are_written_in_milliseconds_and_never_early() {
        let at: Timestamp = "2030-01-01T00:00:00.000000001Z".parse().unwrap();
        assert_eq!(format_time(at), "2030-01-01T00:00:00.001Z");
        assert!(time(Some(&format_time(at))).unwrap() >= at);
        assert_eq!(format_time("2030-01-01T00:00:00Z".parse().unwrap()), "2030-01-01T00:00:00.000Z");
    }
}
