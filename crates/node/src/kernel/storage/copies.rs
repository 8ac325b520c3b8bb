//! Copies of host folders for containers: made and found here, described in [`crate::changes::copy`], mounted by
//! `container/rootfs/copied_folder.rs`.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{Storage, atomic_file, layers};
use crate::changes::copy::{DESCRIPTION, LOCK, RECORD, folder_name};
use crate::changes::{Copy, CopyInfo, record};

/// Finds or creates a container's copy of a folder below `base`, and begins to record the folder.
pub(crate) fn ensure(
    base: &Path,
    container: &str,
    info: CopyInfo,
    storage: &Storage,
    cancelled: &Arc<AtomicBool>,
) -> io::Result<PathBuf> {
    let folder = base.join(layers::single_component(&folder_name(container, &info.volume))?);
    refuse_nested(&info.source, base)?;
    let copy = match Copy::open(&folder)? {
        Some(copy) if copy.info.source == info.source && copy.info.marks == info.marks => {
            storage.clear(&folder.join("work/work"))?;
            copy
        }
        Some(copy) => {
            let other = copy.info.source.display();
            return Err(io::Error::other(format!(
                "the sandbox has a copy of {other} with another source or owner; delete the sandbox, or discard its changes"
            )));
        }
        None => {
            // Left by a node that died before it wrote the description.
            storage.remove(&folder)?;
            storage.ensure(&folder, None)?;
            for name in ["upper", "work"] {
                fs::create_dir(folder.join(name))?;
            }
            File::create(folder.join(LOCK))?;
            atomic_file::replace(&folder.join(DESCRIPTION), &info)?;
            Copy { folder: folder.clone(), info: info.clone() }
        }
    };
    if !copy.info.private {
        record_in_background(copy, info.began, Arc::clone(cancelled))?;
    }
    Ok(folder)
}

/// An overlay whose upper folder is inside its lower one would show itself.
fn refuse_nested(source: &Path, base: &Path) -> io::Result<()> {
    // The folder of the copy may not exist yet.
    let existing = base.ancestors().find_map(|path| path.canonicalize().ok());
    match existing.is_some_and(|existing| existing.starts_with(source)) {
        true => Err(io::Error::other(format!(
            "the changes of the sandbox would be stored inside {} itself; choose a folder that does not contain the engine's data",
            source.display()
        ))),
        false => Ok(()),
    }
}

/// The sandbox does not wait for the record. The thread ends by itself, or when the node closes.
fn record_in_background(copy: Copy, began: (i64, u32), cancelled: Arc<AtomicBool>) -> io::Result<()> {
    let (source, upper) = (copy.source()?, copy.upper_tree()?);
    let work = move || {
        let taken = record::take(&source, (&upper, copy.info.marks), &copy.folder.join(RECORD), began, &cancelled);
        if let Err(error) = taken {
            tracing::warn!(%error, folder = %copy.info.source.display(), "A folder could not be recorded");
        }
    };
    std::thread::Builder::new().name("record".to_owned()).spawn(work).map(drop)
}
