//! Every environment variable the daemon reads. Nothing else asks the environment for anything but to hand it on.

use std::time::Duration;

/// Working directory of commands and, in strict mode, root of every file operation. Blank means the default.
pub const BASE_DIR: &str = "SANDBOX_BASE_DIR";

/// Wall-clock limit of one `/execute` in seconds. Anything but a finite number above zero is ignored.
pub const EXEC_TIMEOUT_SECONDS: &str = "SANDBOX_EXEC_TIMEOUT_SECONDS";

/// A value without surrounding white space, unless nothing is left.
pub(crate) fn trimmed(value: Option<String>) -> Option<String> {
    value.map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// A usable time limit, or `None`.
pub(crate) fn seconds(value: &str) -> Option<Duration> {
    let seconds: f64 = value.trim().parse().ok()?;
    if seconds.is_finite() && seconds > 0.0 { Duration::try_from_secs_f64(seconds).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// D-004
    #[test]
    fn blank_means_unset() {
        assert_eq!(trimmed(Some("   ".into())), None);
        assert_eq!(trimmed(Some(" /work ".into())).as_deref(), Some("/work"));
    }

    /// D-006
    #[test]
    fn only_finite_positive_numbers_limit_time() {
        for bad in ["not-a-number", "0", "-3", "nan", "inf", "", "1e400", "1e300"] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
        assert_eq!(seconds("2.5"), Some(Duration::from_millis(2500)));
    }
}
