//! The sealed layers of snapshots, mounted beside the images for the overlay of a container. Their files belong to the
//! ids of the sandbox that wrote them: an id-mapped mount shows them under those of this one.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};

use super::host_folder::user_namespace;
use super::{Owner, attach, clone_tree, openat};
use crate::kernel::container::step::{StepExt, StepResult};
use crate::kernel::storage::sealed::LowerLayer;
use crate::kernel::supervisor::plan::BLOCK_SIZE;
use crate::kernel::sys::{self, ATTR_NODEV, ATTR_NOSUID, ATTR_RDONLY, MountChange};

/// The folder of the stage with one mount point for each layer.
pub(super) const FOLDER: &str = "sealed";

/// The mount point of a layer, relative to the stage's folder of images.
pub(super) fn path_from_images(index: usize) -> String {
    format!("../{FOLDER}/{index}")
}

/// Attaches every layer below the stage.
pub(super) fn attach_all(layers: &[LowerLayer], owner: Owner<'_>, stage: BorrowedFd<'_>) -> StepResult<()> {
    const STEP: &str = "mounting the layers of a snapshot";
    for (index, layer) in layers.iter().enumerate() {
        let name = Path::new(FOLDER).join(index.to_string());
        rustix::fs::mkdirat(stage, &name, Mode::from_raw_mode(0o700)).step(STEP)?;
        let tree = clone_tree(CWD, &layer.path, false).step(STEP)?;
        let mapping = match owner.idmap {
            Some(_) if layer.root != owner.uid => {
                let ids = (layer.root, owner.uid);
                Some(user_namespace(ids, ids, BLOCK_SIZE).step(STEP)?)
            }
            _ => None,
        };
        let change = MountChange {
            set: ATTR_NOSUID | ATTR_NODEV | ATTR_RDONLY,
            idmap: mapping.as_ref().map(AsFd::as_fd),
            ..MountChange::default()
        };
        sys::mount_setattr(tree.as_fd(), change).step(STEP)?;
        let name = name.to_str().unwrap_or_default();
        let at = openat(stage, name, OFlags::PATH | OFlags::DIRECTORY).step(STEP)?;
        attach(&tree, at.as_fd()).step(STEP)?;
    }
    Ok(())
}
