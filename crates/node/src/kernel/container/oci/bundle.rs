//! The bundle of one container: its root and its volumes, mounted in the supervisor's own mount namespace, where only
//! the runtime finds them by path.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, UnmountFlags, unmount};

use super::config::{self, NamespacePaths, PreparedBind};
use super::{Convention, OciRuntime};
use crate::kernel::container::rootfs::{self, BindContext, MountStep, Owner};
use crate::kernel::container::step::{StepExt, StepResult};
use crate::kernel::container::user::{FoundUser, find_user};
use crate::kernel::supervisor::plan::{ContainerPlan, PodPlan};
use crate::kernel::supervisor::protocol::Failure;
use crate::kernel::sys::{ATTR_NODEV, ATTR_NOSUID};

/// Folder of bundles: a tmpfs in the mount namespace of each Pod's supervisor. Every folder on the way to a container's
/// root must be accessible to the container's root, which is an unprivileged user on this host.
const BUNDLES: &str = "/run/agent-sandbox";

/// Mounts the folder of bundles, in the supervisor's own mount namespace.
pub(crate) fn prepare() -> StepResult<()> {
    fs::create_dir_all(BUNDLES).step("making the folder for bundles")?;
    let options = [("mode", "0711"), ("size", "16m")];
    let place = rootfs::new_mount("tmpfs", &options, ATTR_NOSUID | ATTR_NODEV).step("making a place for bundles")?;
    rustix::mount::move_mount(&place, "", CWD, BUNDLES, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .step("making a place for bundles")
}

/// A bundle on disk, and the mounts in it. Unmounted and removed when dropped.
pub(crate) struct Bundle {
    dir: PathBuf,
    mounted: Vec<PathBuf>,
    passwd: String,
    groups: String,
}

impl Bundle {
    /// Mounts everything and writes `config.json`.
    pub(crate) fn make(
        pod: &PodPlan,
        container: &ContainerPlan,
        runtime: &OciRuntime,
        namespaces: &NamespacePaths,
        owner: Owner<'_>,
    ) -> Result<Self, Failure> {
        let failed = |step: &'static str| move |error: io::Error| Failure::kernel(step, &error);
        let dir = Path::new(BUNDLES).join(&container.id);
        fs::create_dir_all(dir.join("rootfs")).map_err(failed("making the bundle"))?;
        let mut bundle = Self { dir, mounted: Vec::new(), passwd: String::new(), groups: String::new() };
        let convention = runtime.convention();
        // A runtime that manages users itself sees the files with the ids they have on disk.
        let owner = if convention.user_namespace { owner } else { Owner { uid: 0, gid: 0, idmap: None } };
        bundle.mount(pod, container, owner).and_then(|binds| {
            let user = bundle.find_user(container).map_err(|message| Failure::CannotRun {
                command: container.spec.command.first().cloned().unwrap_or_default(),
                message,
                missing: false,
            })?;
            bundle.write_config(pod, container, convention, namespaces, &user, &binds)
        })?;
        Ok(bundle)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    fn rootfs(&self) -> PathBuf {
        self.dir.join("rootfs")
    }

    fn mount(
        &mut self,
        pod: &PodPlan,
        container: &ContainerPlan,
        owner: Owner<'_>,
    ) -> Result<Vec<PreparedBind>, Failure> {
        let failed = |(step, error): (&'static str, io::Error)| Failure::kernel(step, &error);
        let plan = rootfs::plan_root(pod, container);
        let root = self.rootfs();
        rootfs::mount_tree(&plan, owner, &pod.stage, &root, &container.spec.working_dir).map_err(failed)?;
        self.mounted.push(root);
        let read = |path: &str| rootfs::read_beneath(&self.rootfs(), path).unwrap_or_default();
        (self.passwd, self.groups) = (read("etc/passwd"), read("etc/group"));
        let guest = self.find(&container.spec.user).ok();
        let guest = guest.and_then(|user| Some((pod.ids.seen_by_setup(user.uid)?, pod.ids.seen_by_setup(user.gid)?)));
        let context = BindContext { owner, stage: None, guest: &|| guest };
        let mut binds = Vec::new();
        for step in &plan.steps {
            let MountStep::Bind { source, target, read_only } = step else { continue };
            let at = self.dir.join(format!("mount-{}", binds.len()));
            rootfs::expose(source, *read_only, &context, &at).map_err(failed)?;
            self.mounted.push(at.clone());
            binds.push(PreparedBind { source: at, target: target.clone(), read_only: *read_only });
        }
        Ok(binds)
    }

    /// A container's user, resolved by the image's own files.
    pub(crate) fn find_user(&self, container: &ContainerPlan) -> Result<FoundUser, String> {
        self.find(&container.spec.user)
    }

    pub(crate) fn find(&self, user: &crate::runtime::User) -> Result<FoundUser, String> {
        find_user(user, &self.passwd, &self.groups).map_err(|error| error.to_string())
    }

    fn write_config(
        &self,
        pod: &PodPlan,
        container: &ContainerPlan,
        convention: Convention,
        namespaces: &NamespacePaths,
        user: &FoundUser,
        binds: &[PreparedBind],
    ) -> Result<(), Failure> {
        let document = config::document(pod, container, convention, namespaces, user, &self.rootfs(), binds);
        fs::write(self.dir.join("config.json"), document.to_string())
            .map_err(|error| Failure::kernel("writing the bundle's configuration", &error))
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        for mount in self.mounted.iter().rev() {
            let _ = unmount(mount, UnmountFlags::DETACH);
        }
        // A mount that could not be unmounted must not be emptied, so only files created here are removed.
        for mount in &self.mounted {
            let _ = fs::remove_dir(mount);
        }
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let _ = fs::remove_file(entry.path());
        }
        let _ = fs::remove_dir(&self.dir);
    }
}
