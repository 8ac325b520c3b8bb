//! Sealed layers: writable layers of which a snapshot was taken. Nothing writes to them any more, so any number of
//! sandboxes mount the same one below a writable layer of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::{Storage, atomic_file, copy_tree, layers};
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
    /// Layers that are kept although nothing on disk may name them yet, and by how many [`HeldLayers`].
    held: Arc<Mutex<BTreeMap<String, usize>>>,
}

/// Layers that no sweep removes as long as this exists.
#[derive(Debug)]
pub(crate) struct HeldLayers {
    ids: Vec<String>,
    held: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Drop for HeldLayers {
    fn drop(&mut self) {
        let mut held = self.held.lock();
        for id in &self.ids {
            let left = held.get(id).map_or(0, |count| count.saturating_sub(1));
            match left {
                0 => held.remove(id),
                _ => held.insert(id.clone(), left),
            };
        }
    }
}

/// A layer that was just created, without its files.
#[derive(Debug)]
pub(crate) struct NewLayer {
    pub(crate) id: String,
    /// Dropped when a record names the layer.
    pub(crate) held: HeldLayers,
}

impl SealedLayers {
    pub(crate) fn new(data_dir: &Path) -> Self {
        Self { folder: data_dir.join("sealed"), held: Arc::default() }
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

    /// The layers that a container mounts below its own, topmost first. The node writes and reads `marks`: under
    /// others, deleted files and replaced folders of the layers below would show through.
    pub(crate) fn lowers(&self, ids: &[String], marks: Marks) -> io::Result<Vec<LowerLayer>> {
        let lower = |id: &String| {
            let layer = self.read(id)?;
            if layer.marks != marks {
                let (then, now) = match marks {
                    Marks::User => ("with root", "without"),
                    Marks::Trusted => ("without root", "with"),
                };
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!(
                        "the files come from a snapshot that was taken {then}, and this node runs {now}: overlayfs \
                         records deletions differently then; start the node {then} to use them"
                    ),
                ));
            }
            Ok(LowerLayer { path: self.upper(id)?, root: layer.root })
        };
        ids.iter().map(lower).collect()
    }

    /// Keeps layers from being swept.
    pub(crate) fn hold(&self, ids: Vec<String>) -> HeldLayers {
        let mut held = self.held.lock();
        for id in &ids {
            *held.entry(id.clone()).or_default() += 1;
        }
        drop(held);
        HeldLayers { ids, held: Arc::clone(&self.held) }
    }

    /// Creates the folder of a new layer, without its files.
    pub(crate) fn create(&self, layer: &SealedLayer, storage: &Storage) -> io::Result<NewLayer> {
        let id = uuid::Uuid::new_v4().simple().to_string();
        let held = self.hold(vec![id.clone()]);
        let folder = self.path(&id)?;
        storage.ensure(&folder, None)?;
        atomic_file::replace_durably(&folder.join(DESCRIPTION), layer)?;
        Ok(NewLayer { id, held })
    }

    /// Describes the files of a writable layer.
    pub(crate) fn describe(layer: &Path, marks: Marks) -> io::Result<SealedLayer> {
        let digest = fs::read_to_string(layer.join(layers::MARK))?;
        // The top of a writable layer is given to the container's root when it is made.
        let root = fs::metadata(layer.join("upper"))?.uid();
        Ok(SealedLayer { digest, root, marks })
    }

    /// Whether a writable layer that is not mounted changes nothing of the layers below it, so that these alone are its
    /// files. One without layers below may have changed the top of its image.
    pub(crate) fn is_unchanged(&self, layer: &Path, below: &Below, marks: Marks) -> io::Result<bool> {
        match below.layers.first() {
            Some(top) => copy_tree::adds_nothing(&layer.join("upper"), &self.upper(top)?, marks),
            None => Ok(false),
        }
    }

    /// Moves the files of a writable layer that is not mounted into a sealed one, which then lies below it; returns what
    /// lies below it now. A node that dies meanwhile completes this with [`Self::complete`].
    pub(crate) fn seal(&self, layer: &Path, marks: Marks, storage: &Storage) -> io::Result<Below> {
        self.complete(layer, storage)?;
        let new = self.create(&Self::describe(layer, marks)?, storage)?;
        atomic_file::replace_durably(&layer.join(SEALING), &new.id)?;
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

    /// The layers that writable layers below `base` need. `prepare` makes the files of each of those readable: a layer
    /// with a size limit may have to be mounted.
    pub(crate) fn used_by_layers(
        base: &Path,
        prepare: impl Fn(&Path) -> io::Result<()>,
    ) -> io::Result<BTreeSet<String>> {
        let mut used = BTreeSet::new();
        for layer in folders(base)?.iter().map(|owner| folders(owner)).collect::<io::Result<Vec<_>>>()?.concat() {
            prepare(&layer)?;
            used.extend(Below::read(&layer)?.layers);
            match atomic_file::read::<String>(&layer.join(SEALING)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                id => used.extend([id?]),
            }
        }
        Ok(used)
    }

    /// Removes every layer that is neither in `used` nor held.
    pub(crate) fn sweep(&self, used: &BTreeSet<String>, storage: &Storage) -> io::Result<usize> {
        let mut removed = 0;
        for id in self.all()? {
            if !used.contains(&id) && !self.held.lock().contains_key(&id) {
                storage.remove(&self.path(&id)?)?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// The ids of all layers.
    pub(crate) fn all(&self) -> io::Result<BTreeSet<String>> {
        let name = |folder: PathBuf| folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(folders(&self.folder)?.into_iter().map(name).collect())
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
            SealedLayers::used_by_layers(&self.data.path().join("layers"), |_| Ok(())).unwrap()
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
    fn only_a_writable_layer_that_is_really_empty_is_unchanged() {
        let world = World::new();
        let layer = world.layer();
        let upper = layer.join("upper");
        let is_unchanged = || world.sealed.is_unchanged(&layer, &Below::read(&layer).unwrap(), Marks::User).unwrap();
        assert!(!is_unchanged(), "nothing lies below it");
        world.sealed.seal(&layer, Marks::User, &world.storage).unwrap();
        assert!(is_unchanged());
        fs::write(upper.join("file"), "").unwrap();
        assert!(!is_unchanged(), "a file, or the whiteout of one");
        fs::remove_file(upper.join("file")).unwrap();
        let mode = fs::metadata(&upper).unwrap().permissions();
        fs::set_permissions(&upper, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        assert!(!is_unchanged(), "permissions");
        fs::set_permissions(&upper, mode).unwrap();
        let mark = |name: &str| {
            rustix::fs::setxattr(&upper, name, b"y", rustix::fs::XattrFlags::empty()).unwrap();
        };
        mark("user.overlay.impure");
        assert!(is_unchanged(), "overlayfs notes that for itself");
        mark("user.overlay.opaque");
        assert!(!is_unchanged(), "hides what lies below");
    }

    #[test]
    fn a_layer_that_is_being_made_is_not_swept() {
        let world = World::new();
        let described = SealedLayers::describe(&world.layer(), Marks::Trusted).unwrap();
        let new = world.sealed.create(&described, &world.storage).unwrap();
        let again = world.sealed.hold(vec![new.id.clone()]);
        for held in [new.held, again] {
            assert_eq!(world.sealed.sweep(&BTreeSet::new(), &world.storage).unwrap(), 0);
            drop(held);
        }
        assert_eq!(world.sealed.sweep(&BTreeSet::new(), &world.storage).unwrap(), 1);
    }

    #[test]
    fn layers_with_the_marks_of_the_other_mode_are_refused_with_the_reason() {
        for (then, now, expected) in [
            (Marks::Trusted, Marks::User, "was taken with root, and this node runs without:"),
            (Marks::User, Marks::Trusted, "was taken without root, and this node runs with:"),
        ] {
            let world = World::new();
            let below = world.sealed.seal(&world.layer(), then, &world.storage).unwrap();
            assert_eq!(world.sealed.lowers(&below.layers, then).unwrap().len(), 1);
            let error = world.sealed.lowers(&below.layers, now).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn a_layer_with_a_size_limit_is_mounted_before_it_is_asked_what_it_needs() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let data = tempfile::tempdir().unwrap();
        let storage = Storage::new(data.path(), true, FileAccess::Direct);
        let layer = data.path().join("layers/owner/main");
        if storage.ensure(&layer, Some(8 << 20)).unwrap() != crate::runtime::StorageMechanism::LoopFile {
            eprintln!("skipped: needs mkfs.ext4, loop devices and a file system without project quotas");
            return;
        }
        Below { origin: None, layers: vec!["id".to_owned()] }.write(&layer).unwrap();
        // As after a restart of the node.
        storage.close();
        assert!(!layer.join(BELOW).exists(), "it is not mounted");
        let base = data.path().join("layers");
        let used = SealedLayers::used_by_layers(&base, |layer| storage.make_readable(layer)).unwrap();
        assert_eq!(used.into_iter().collect::<Vec<_>>(), ["id"]);
        storage.close();
    }

    #[test]
    fn a_sealing_that_ended_after_any_step_is_completed_with_every_byte() {
        // What each step leaves behind, in order.
        for steps in 0..4 {
            let world = World::new();
            let layer = world.layer();
            let described = SealedLayers::describe(&layer, Marks::Trusted).unwrap();
            let id = world.sealed.create(&described, &world.storage).unwrap().id;
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
