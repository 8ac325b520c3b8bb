//! Sealed layers: writable layers of which a snapshot was taken. Nothing writes to them any more, so any number of
//! sandboxes mount the same one below a writable layer of their own.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Storage, atomic_file, layers};
use crate::changes::Marks;

/// File with the description of a sealed layer. It is written before the layer's files are moved or copied to it.
const DESCRIPTION: &str = "sealed.json";

/// File of a writable layer with the layers between it and its image.
const BELOW: &str = "below.json";

/// File of a writable layer that is being sealed; it holds the new layer's id.
const SEALING: &str = "sealing";

/// The description of a sealed layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SealedLayer {
    /// Digest of the image below.
    pub(crate) digest: String,
    /// Host uid of root inside the Pod that wrote the files.
    pub(crate) root: u32,
    pub(crate) marks: Marks,
}

/// What lies between a writable layer and its image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Below {
    /// The snapshot that the layer was made from, as the Pod asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) origin: Option<String>,
    /// Ids of sealed layers, topmost first.
    pub(crate) layers: Vec<String>,
}

impl Below {
    /// Reads what lies below a writable layer.
    pub(crate) fn read(layer: &Path) -> io::Result<Self> {
        match atomic_file::read(&layer.join(BELOW)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            other => other,
        }
    }

    pub(crate) fn write(&self, layer: &Path) -> io::Result<()> {
        atomic_file::replace_durably(&layer.join(BELOW), self)
    }
}

/// A sealed layer as a container mounts it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LowerLayer {
    pub(crate) path: PathBuf,
    /// Host uid of the root user that the files belong to.
    pub(crate) root: u32,
}

/// The folder with all sealed layers of a node.
#[derive(Debug, Clone)]
pub(crate) struct SealedLayers {
    folder: PathBuf,
}

impl SealedLayers {
    pub(crate) fn new(data_dir: &Path) -> Self {
        Self { folder: data_dir.join("sealed") }
    }

    pub(crate) fn path(&self, id: &str) -> io::Result<PathBuf> {
        Ok(self.folder.join(layers::single_component(id)?))
    }

    pub(crate) fn upper(&self, id: &str) -> io::Result<PathBuf> {
        Ok(self.path(id)?.join("upper"))
    }

    pub(crate) fn read(&self, id: &str) -> io::Result<SealedLayer> {
        atomic_file::read(&self.path(id)?.join(DESCRIPTION))
    }

    /// The layers that a container mounts below its own, topmost first.
    pub(crate) fn lowers(&self, ids: &[String]) -> io::Result<Vec<LowerLayer>> {
        let lower = |id: &String| Ok(LowerLayer { path: self.upper(id)?, root: self.read(id)?.root });
        ids.iter().map(lower).collect()
    }

    /// Creates the folder of a new layer, without its files.
    pub(crate) fn create(&self, layer: &SealedLayer, storage: &Storage) -> io::Result<String> {
        let id = uuid::Uuid::new_v4().simple().to_string();
        let folder = self.path(&id)?;
        storage.ensure(&folder, None)?;
        atomic_file::replace_durably(&folder.join(DESCRIPTION), layer)?;
        Ok(id)
    }

    /// Describes the files of a writable layer.
    pub(crate) fn describe(layer: &Path, marks: Marks) -> io::Result<SealedLayer> {
        let digest = fs::read_to_string(layer.join(layers::MARK))?;
        // The top of a writable layer is given to the container's root when it is made.
        let root = fs::metadata(layer.join("upper"))?.uid();
        Ok(SealedLayer { digest, root, marks })
    }

    /// Moves the files of a writable layer that is not mounted into a sealed one, which then lies below it; returns what
    /// lies below it now. A node that dies meanwhile completes this with [`Self::complete`].
    pub(crate) fn seal(&self, layer: &Path, marks: Marks, storage: &Storage) -> io::Result<Below> {
        self.complete(layer, storage)?;
        let id = self.create(&Self::describe(layer, marks)?, storage)?;
        atomic_file::replace_durably(&layer.join(SEALING), &id)?;
        self.complete(layer, storage)?;
        Below::read(layer)
    }

    /// Completes, or takes back, a sealing that was interrupted. Does nothing for all other layers.
    pub(crate) fn complete(&self, layer: &Path, storage: &Storage) -> io::Result<()> {
        let id: String = match atomic_file::read(&layer.join(SEALING)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        let mut below = Below::read(layer)?;
        if below.layers.first() != Some(&id) {
            match fs::rename(layer.join("upper"), self.upper(&id)?) {
                // An earlier attempt moved the files and ended before it wrote so.
                Err(error) if error.kind() == io::ErrorKind::NotFound && self.upper(&id)?.exists() => {}
                done => done?,
            }
            below.layers.insert(0, id.clone());
            below.write(layer)?;
        }
        storage.clear(&layer.join("work"))?;
        let like = self.upper(&id)?;
        for name in ["upper", "work"] {
            make_like(&layer.join(name), &like)?;
        }
        fs::remove_file(layer.join(SEALING))
    }

    /// The layers that writable layers below `base` need.
    pub(crate) fn used_by_layers(base: &Path) -> io::Result<BTreeSet<String>> {
        let mut used = BTreeSet::new();
        for layer in folders(base)?.iter().map(|owner| folders(owner)).collect::<io::Result<Vec<_>>>()?.concat() {
            used.extend(Below::read(&layer)?.layers);
            match atomic_file::read::<String>(&layer.join(SEALING)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                id => used.extend([id?]),
            }
        }
        Ok(used)
    }

    /// Removes every layer that is not in `used`.
    pub(crate) fn sweep(&self, used: &BTreeSet<String>, storage: &Storage) -> io::Result<usize> {
        let mut removed = 0;
        for folder in folders(&self.folder)? {
            let id = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !used.contains(&id) {
                storage.remove(&folder)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Digests of the images below all sealed layers.
    pub(crate) fn digests(&self) -> BTreeSet<String> {
        let found = folders(&self.folder).unwrap_or_default();
        let read = |folder: PathBuf| atomic_file::read::<SealedLayer>(&folder.join(DESCRIPTION)).ok();
        found.into_iter().filter_map(read).map(|layer| layer.digest).collect()
    }
}

/// Creates an empty folder with the owner and the permissions of another one; it may exist.
fn make_like(path: &Path, like: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let like = fs::metadata(like)?;
    std::os::unix::fs::lchown(path, Some(like.uid()), Some(like.gid()))?;
    fs::set_permissions(path, like.permissions())
}

/// The folders in a folder, which may be missing.
fn folders(base: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(base) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::storage::owned_files::FileAccess;

    struct World {
        data: tempfile::TempDir,
        storage: Storage,
        sealed: SealedLayers,
    }

    impl World {
        fn new() -> Self {
            let data = tempfile::tempdir().unwrap();
            let storage = Storage::new(data.path(), false, FileAccess::Direct);
            let sealed = SealedLayers::new(data.path());
            Self { data, storage, sealed }
        }

        fn layer(&self) -> PathBuf {
            let layer = self.data.path().join("layers/owner/main");
            for name in ["upper", "work"] {
                fs::create_dir_all(layer.join(name)).unwrap();
            }
            fs::write(layer.join(layers::MARK), "sha256:1").unwrap();
            fs::write(layer.join("upper/kept"), "bytes").unwrap();
            layer
        }

        fn used(&self) -> BTreeSet<String> {
            SealedLayers::used_by_layers(&self.data.path().join("layers")).unwrap()
        }
    }

    #[test]
    fn a_sealed_layer_has_the_files_and_the_writable_one_lies_empty_above_it() {
        let world = World::new();
        let layer = world.layer();
        let below = world.sealed.seal(&layer, Marks::Trusted, &world.storage).unwrap();
        let [id] = below.layers.as_slice() else { panic!("{below:?}") };
        assert_eq!(fs::read_to_string(world.sealed.upper(id).unwrap().join("kept")).unwrap(), "bytes");
        assert_eq!(fs::read_dir(layer.join("upper")).unwrap().count(), 0);
        assert!(layer.join("work").exists() && !layer.join(SEALING).exists());
        assert_eq!(world.sealed.read(id).unwrap().digest, "sha256:1");
        fs::write(layer.join("upper/second"), "").unwrap();
        let again = world.sealed.seal(&layer, Marks::Trusted, &world.storage).unwrap();
        assert_eq!(again.layers.get(1), Some(id), "the newest is the topmost");
        assert_eq!(world.sealed.sweep(&world.used(), &world.storage).unwrap(), 0);
        fs::remove_dir_all(&layer).unwrap();
        assert_eq!(world.sealed.sweep(&world.used(), &world.storage).unwrap(), 2);
    }

    #[test]
    fn a_sealing_that_ended_after_any_step_is_completed_with_every_byte() {
        // What each step leaves behind, in order.
        for steps in 0..4 {
            let world = World::new();
            let layer = world.layer();
            let id =
                world.sealed.create(&SealedLayers::describe(&layer, Marks::Trusted).unwrap(), &world.storage).unwrap();
            if steps >= 1 {
                atomic_file::replace_durably(&layer.join(SEALING), &id).unwrap();
            }
            if steps >= 2 {
                fs::rename(layer.join("upper"), world.sealed.upper(&id).unwrap()).unwrap();
            }
            if steps >= 3 {
                Below { origin: None, layers: vec![id.clone()] }.write(&layer).unwrap();
            }
            world.sealed.sweep(&world.used(), &world.storage).unwrap();
            world.sealed.complete(&layer, &world.storage).unwrap();
            let below = Below::read(&layer).unwrap();
            let file = match below.layers.first() {
                Some(id) => world.sealed.upper(id).unwrap().join("kept"),
                None => layer.join("upper/kept"),
            };
            assert_eq!(fs::read_to_string(file).unwrap(), "bytes", "after step {steps}");
            assert_eq!(below.layers.len(), usize::from(steps > 0), "after step {steps}");
            assert!(layer.join("upper").exists() && layer.join("work").exists());
        }
    }
}
