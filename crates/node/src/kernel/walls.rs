//! The last steps before a sandboxed program runs: user, capabilities, no-new-privileges, Landlock, seccomp. Used for a
//! container's first process and for every command run in it later, so that both stand behind the same walls.

use std::io;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr,
};

use super::plan::Walls;
use super::sys;
use crate::runtime::Capability;

/// Highest capability number any kernel we know has, and room for some more.
const LAST_CAPABILITY: u32 = 63;

/// The process's identity inside its user namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// `None` when groups cannot be changed (a user namespace with a single id).
    pub(crate) groups: Option<Vec<u32>>,
}

/// A step that failed, by name.
pub(crate) type Step<T> = Result<T, (&'static str, io::Error)>;

/// Names the step an error belongs to.
pub(crate) trait Named<T> {
    fn step(self, name: &'static str) -> Step<T>;
}

impl<T, E: Into<io::Error>> Named<T> for Result<T, E> {
    fn step(self, name: &'static str) -> Step<T> {
        self.map_err(|error| (name, error.into()))
    }
}

/// Becomes `identity` and gives up everything else, for good. Must be the last thing before exec.
pub(crate) fn close_in(
    identity: &Identity,
    capabilities: &[Capability],
    walls: Walls,
    filter: &[libc::sock_filter],
) -> Step<()> {
    let mask = capabilities.iter().fold(0u64, |mask, capability| mask | (1 << capability.number()));
    let mask = if walls.capabilities { mask } else { u64::MAX >> (63 - 40) };
    sys::clear_ambient().step("clearing ambient capabilities")?;
    if walls.capabilities {
        for capability in (0..=LAST_CAPABILITY).filter(|number| mask & (1 << number) == 0) {
            match sys::drop_bounding(capability) {
                // This kernel has no more.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => break,
                other => other.step("dropping the capability bounding set")?,
            }
        }
    }
    if let Some(groups) = &identity.groups {
        sys::set_groups(groups).step("setting supplementary groups")?;
    }
    sys::keep_capabilities().step("keeping capabilities over the change of user")?;
    sys::set_gid(identity.gid).step("setting the group")?;
    sys::set_uid(identity.uid).step("setting the user")?;
    let held = if walls.capabilities { mask } else { mask & permitted_mask() };
    sys::set_capabilities(held).step("setting capabilities")?;
    // The change of user may have opened the process again, by a setting of the host's.
    sys::set_dumpable(false).step("closing the process to tracing")?;
    if identity.uid != 0 {
        // Without this an ordinary user would lose what the Pod asked for at exec.
        for capability in (0..=LAST_CAPABILITY).filter(|number| held & (1 << number) != 0) {
            sys::raise_ambient(capability).step("raising ambient capabilities")?;
        }
    }
    if walls.landlock {
        restrict_by_landlock(walls).step("restricting by Landlock")?;
    }
    if walls.no_new_privileges {
        sys::set_no_new_privileges().step("setting no-new-privileges")?;
    }
    if walls.seccomp {
        sys::install_seccomp(filter).step("installing the system call filter")?;
    }
    Ok(())
}

/// What this process may hold at most: the kernel's last capability bounds the mask.
fn permitted_mask() -> u64 {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("CapPrm:"))?.trim().to_owned();
            u64::from_str_radix(&line, 16).ok()
        })
        .unwrap_or(0)
}

/// The whole tree stays usable, except that no device node can be made and no device but terminals controlled; and the
/// process can neither mount nor trace anything outside its own domain. Signals and abstract sockets are left to the
/// process and network namespaces: scoping them would keep `exec … kill 1` from working.
fn restrict_by_landlock(walls: Walls) -> io::Result<()> {
    let everything = AccessFs::from_all(ABI::V5);
    let devices: BitFlags<AccessFs> = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev;
    let build = || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(everything)?
            .create()?
            .no_new_privs(walls.no_new_privileges)
            .add_rule(PathBeneath::new(PathFd::new("/")?, everything & !devices))?;
        for terminal in
            ["/dev/pts", "/dev/tty", "/dev/null", "/dev/zero", "/dev/urandom", "/dev/random", "/dev/console"]
        {
            if let Ok(path) = PathFd::new(terminal) {
                let access = AccessFs::IoctlDev | AccessFs::ReadFile | AccessFs::WriteFile;
                ruleset = ruleset.add_rule(PathBeneath::new(path, access))?;
            }
        }
        ruleset.restrict_self()?;
        Ok(())
    };
    build().map_err(io::Error::other)
}
