//! Every environment variable that the daemon reads. All other variables are only passed on to commands.

use std::time::Duration;

/// Working directory of commands and, in strict mode, root of every file operation. Blank means the default.
pub const BASE_DIR: &str = "SANDBOX_BASE_DIR";

/// Wall-clock limit of one `/execute` in seconds. A value that is not a finite number above zero is ignored.
pub const EXEC_TIMEOUT_SECONDS: &str = "SANDBOX_EXEC_TIMEOUT_SECONDS";

/// Comma lists of names and of web pages' origins, as in `--allowed-host` and `--allowed-origin`.
pub const ALLOWED_HOSTS: &str = "SANDBOX_ALLOWED_HOSTS";
pub const ALLOWED_ORIGINS: &str = "SANDBOX_ALLOWED_ORIGINS";

/// Public key (PEM) of the router whose tokens every request must carry, and UID of the Pod that they must be for.
pub const ROUTER_PUBLIC_KEY: &str = "SANDBOX_ROUTER_PUBLIC_KEY";
pub const POD_UID: &str = "SANDBOX_POD_UID";

/// `true` or `1` serves E2B's clients, as the flag `--e2b` does.
pub const E2B: &str = "SANDBOX_E2B";

/// Number of sockets that the parent process passes in, starting at descriptor 3, and the process they are for:
/// systemd's socket activation protocol.
pub const LISTEN_FDS: &str = "LISTEN_FDS";
pub const LISTEN_PID: &str = "LISTEN_PID";
/// Names of the passed sockets. The daemon does not need them, and no command sees them.
pub const LISTEN_FDNAMES: &str = "LISTEN_FDNAMES";

/// Number of sockets that were passed to process `own`. Variables meant for another process, inherited by mistake,
/// count as none.
pub(crate) fn inherited_sockets(count: Option<String>, pid: Option<String>, own: u32) -> u16 {
    let count = count.and_then(|count| count.trim().parse().ok()).unwrap_or(0);
    if pid.and_then(|pid| pid.trim().parse().ok()) == Some(own) { count } else { 0 }
}

/// The value without surrounding white space; `None` if nothing is left.
pub(crate) fn trimmed(value: Option<String>) -> Option<String> {
    value.map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// Parses a time limit; `None` if it is not a finite number above zero.
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

    #[test]
    fn sockets_for_another_process_are_not_ours() {
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(inherited_sockets(text("2"), text("7"), 7), 2);
        for (count, pid) in [(text("2"), text("8")), (text("2"), None), (None, text("7")), (text("-1"), text("7"))] {
            assert_eq!(inherited_sockets(count.clone(), pid.clone(), 7), 0, "{count:?} {pid:?}");
        }
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
