//! The last steps before a sandboxed program runs: user, capabilities, no-new-privileges, Landlock, seccomp. Used for a
//! container's first process and for every command run in it later, so that both have the same isolation.

use std::io;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr,
};

use super::step::{StepExt, StepResult};
use crate::kernel::supervisor::plan::Isolation;
use crate::kernel::sys;
use crate::runtime::Capability;

/// An upper bound of capability numbers, above those of all known kernels.
const LAST_CAPABILITY: u32 = 63;

/// The process's user and groups inside its user namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// `None` when groups cannot be changed (a user namespace with a single id).
    pub(crate) groups: Option<Vec<u32>>,
}

/// Changes to `identity` and permanently drops everything else. Must be the last step before exec.
pub(crate) fn restrict_process(
    identity: &Identity,
    capabilities: &[Capability],
    isolation: Isolation,
    filter: &[libc::sock_filter],
) -> StepResult<()> {
    let mask = capabilities.iter().fold(0u64, |mask, capability| mask | (1 << capability.number()));
    let mask = if isolation.capabilities { mask } else { u64::MAX >> (63 - 40) };
    sys::clear_ambient().step("clearing ambient capabilities")?;
    if isolation.capabilities {
        for capability in (0..=LAST_CAPABILITY).filter(|number| mask & (1 << number) == 0) {
            match sys::drop_bounding(capability) {
                // The kernel has no capability with this number or above.
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
    let held = if isolation.capabilities { mask } else { mask & permitted_mask() };
    sys::set_capabilities(held).step("setting capabilities")?;
    // Depending on a host setting, the change of user may have made the process dumpable again.
    sys::set_dumpable(false).step("making the process non-dumpable")?;
    if identity.uid != 0 {
        // Without ambient capabilities a non-root user would lose at exec what the Pod asked for.
        for capability in (0..=LAST_CAPABILITY).filter(|number| held & (1 << number) != 0) {
            sys::raise_ambient(capability).step("raising ambient capabilities")?;
        }
    }
    if isolation.landlock {
        restrict_by_landlock(isolation).step("restricting by Landlock")?;
    }
    if isolation.no_new_privileges {
        sys::set_no_new_privileges().step("setting no-new-privileges")?;
    }
    if isolation.seccomp {
        sys::install_seccomp(filter).step("installing the system call filter")?;
    }
    Ok(())
}

/// The process's permitted capabilities, limited to those that the kernel has.
fn permitted_mask() -> u64 {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("CapPrm:"))?.trim().to_owned();
            u64::from_str_radix(&line, 16).ok()
        })
        .unwrap_or(0)
}

/// The whole tree stays usable, except that no device node can be created and ioctls work on terminals and the few
/// harmless devices only. The process can neither mount nor trace anything outside its own Landlock domain. Signals and
/// abstract sockets are left to the pid and network namespaces: scoping them would break `exec … kill 1`.
fn restrict_by_landlock(isolation: Isolation) -> io::Result<()> {
    let everything = AccessFs::from_all(ABI::V5);
    let devices: BitFlags<AccessFs> = AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev;
    let build = || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(everything)?
            .create()?
            .no_new_privs(isolation.no_new_privileges)
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
