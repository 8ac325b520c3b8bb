//! Whether this machine lets programs make user namespaces, without which there is no sandbox; and what to do where it does not.

use std::{
    fs,
    process::{Command, Stdio},
};

/// Why no sandbox can be made here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocked {
    pub(crate) cause: &'static str,
    pub(crate) fix: &'static str,
}

impl std::fmt::Display for Blocked {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "no sandbox can run here: {}\n  fix: {}", self.cause, self.fix)
    }
}

impl std::error::Error for Blocked {}

const SWITCHED_OFF: Blocked =
    Blocked { cause: "user namespaces are switched off", fix: "sudo sysctl user.max_user_namespaces=15000" };
const ROOT_ONLY: Blocked =
    Blocked { cause: "user namespaces are only for root", fix: "sudo sysctl kernel.unprivileged_userns_clone=1" };
const APPARMOR: Blocked = Blocked {
    cause: "AppArmor keeps user namespaces from programs",
    fix: "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0, or run as root",
};
const REFUSED: Blocked = Blocked {
    cause: "the kernel refuses user namespaces (a container without that right, most likely)",
    fix: "run outside the container, or allow it unshare and mount (docker: --privileged)",
};

/// What the kernel's settings rule out for certain; a few files are read.
pub(crate) fn blocked() -> Option<Blocked> {
    ruled_out(rustix::process::geteuid().is_root(), setting)
}

/// What is most likely to blame when a sandbox could not be made: the settings, then a try.
pub(crate) fn suspected() -> Option<Blocked> {
    let root = rustix::process::geteuid().is_root();
    let refused = || {
        let tried =
            Command::new("unshare").args(["--user", "true"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        tried.is_ok_and(|status| !status.success())
    };
    blocked().or_else(|| refused().then(|| if confined(root, setting) { APPARMOR } else { REFUSED }))
}

/// Adds the machine's fault to an error about a sandbox, where there is one.
pub(crate) fn blame(error: anyhow::Error) -> anyhow::Error {
    match suspected() {
        Some(blocked) => error.context(blocked),
        None => error,
    }
}

fn setting(name: &str) -> String {
    fs::read_to_string(format!("/proc/sys/{name}")).unwrap_or_default().trim().to_owned()
}

fn ruled_out(root: bool, setting: impl Fn(&str) -> String) -> Option<Blocked> {
    // Root needs them too: every sandbox has a user namespace.
    if setting("user/max_user_namespaces") == "0" {
        return Some(SWITCHED_OFF);
    }
    (!root && setting("kernel/unprivileged_userns_clone") == "0").then_some(ROOT_ONLY)
}

/// A profile may let this very program through, so the setting alone says nothing for certain.
pub(crate) fn confined(root: bool, setting: impl Fn(&str) -> String) -> bool {
    !root && setting("kernel/apparmor_restrict_unprivileged_userns") == "1"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &'static [(&'static str, &'static str)]) -> impl Fn(&str) -> String {
        move |name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()).unwrap_or_default()
    }

    #[test]
    fn each_way_of_switching_them_off_has_its_own_remedy() {
        let off = with(&[("user/max_user_namespaces", "0")]);
        assert_eq!(ruled_out(true, &off), Some(SWITCHED_OFF));
        assert_eq!(ruled_out(false, &off), Some(SWITCHED_OFF));
        let root_only = with(&[("kernel/unprivileged_userns_clone", "0"), ("user/max_user_namespaces", "100")]);
        assert_eq!(ruled_out(false, &root_only), Some(ROOT_ONLY));
        assert_eq!(ruled_out(true, &root_only), None);
        let apparmor = with(&[("kernel/apparmor_restrict_unprivileged_userns", "1")]);
        assert_eq!(ruled_out(false, &apparmor), None, "this program may have a profile of its own");
        assert!(confined(false, &apparmor) && !confined(true, &apparmor));
        assert_eq!(ruled_out(false, with(&[])), None);
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
