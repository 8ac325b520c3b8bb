//! Whether this machine allows user namespaces, which every sandbox needs, and what to do where it does not.

use std::{
    fs,
    process::{Command, Stdio},
};

/// Why no sandbox can run on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostProblem {
    pub cause: &'static str,
    pub fix: &'static str,
}

impl std::fmt::Display for HostProblem {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "no sandbox can run here: {}\n  fix: {}", self.cause, self.fix)
    }
}

impl std::error::Error for HostProblem {}

const SWITCHED_OFF: HostProblem =
    HostProblem { cause: "user namespaces are switched off", fix: "sudo sysctl user.max_user_namespaces=15000" };
const ROOT_ONLY: HostProblem =
    HostProblem { cause: "user namespaces are only for root", fix: "sudo sysctl kernel.unprivileged_userns_clone=1" };
const APPARMOR: HostProblem = HostProblem {
    cause: "AppArmor keeps user namespaces from programs",
    fix: "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0, or run as root",
};
const REFUSED: HostProblem = HostProblem {
    cause: "the kernel refuses user namespaces (a container without that right, most likely)",
    fix: "run outside the container, or allow it unshare and mount (docker: --privileged)",
};

/// The problem that kernel settings show for certain. Reads a few files and starts nothing.
pub fn check_settings() -> Option<HostProblem> {
    settings_problem(rustix::process::geteuid().is_root(), setting)
}

/// The most likely problem after a sandbox could not be started: kernel settings, then an attempt to create a user
/// namespace.
pub fn diagnose() -> Option<HostProblem> {
    let root = rustix::process::geteuid().is_root();
    let refused = || {
        let attempt =
            Command::new("unshare").args(["--user", "true"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        attempt.is_ok_and(|status| !status.success())
    };
    check_settings()
        .or_else(|| refused().then(|| if restricted_by_apparmor(root, setting) { APPARMOR } else { REFUSED }))
}

/// Value of a sysctl; empty when the kernel does not have it.
fn setting(name: &str) -> String {
    fs::read_to_string(format!("/proc/sys/{name}")).unwrap_or_default().trim().to_owned()
}

fn settings_problem(root: bool, setting: impl Fn(&str) -> String) -> Option<HostProblem> {
    // Applies to root as well: every sandbox has a user namespace.
    if setting("user/max_user_namespaces") == "0" {
        return Some(SWITCHED_OFF);
    }
    (!root && setting("kernel/unprivileged_userns_clone") == "0").then_some(ROOT_ONLY)
}

/// Whether AppArmor restricts user namespaces. A profile may still allow them to this program, so the setting alone
/// proves nothing.
fn restricted_by_apparmor(root: bool, setting: impl Fn(&str) -> String) -> bool {
    !root && setting("kernel/apparmor_restrict_unprivileged_userns") == "1"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &'static [(&'static str, &'static str)]) -> impl Fn(&str) -> String {
        move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()).unwrap_or_default()
    }

    #[test]
    fn each_kernel_setting_has_its_own_fix() {
        let off = with(&[("user/max_user_namespaces", "0")]);
        assert_eq!(settings_problem(true, &off), Some(SWITCHED_OFF));
        assert_eq!(settings_problem(false, &off), Some(SWITCHED_OFF));
        let root_only = with(&[("kernel/unprivileged_userns_clone", "0"), ("user/max_user_namespaces", "100")]);
        assert_eq!(settings_problem(false, &root_only), Some(ROOT_ONLY));
        assert_eq!(settings_problem(true, &root_only), None);
        let apparmor = with(&[("kernel/apparmor_restrict_unprivileged_userns", "1")]);
        assert_eq!(settings_problem(false, &apparmor), None, "this program may have a profile of its own");
        assert!(restricted_by_apparmor(false, &apparmor) && !restricted_by_apparmor(true, &apparmor));
        assert_eq!(settings_problem(false, with(&[])), None);
    }

    #[test]
    fn a_message_names_cause_and_fix() {
        let text = SWITCHED_OFF.to_string();
        assert_eq!(
            text,
            "no sandbox can run here: user namespaces are switched off\n  fix: sudo sysctl user.max_user_namespaces=15000"
        );
    }
}
