//! The image store. Layers are unpacked once, under the digest of their content, and shared by all images and
//! sandboxes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::runtime::{
    ImageConfig, ImageContent, ImageError, ImageSummary, PullPolicy, PullProgress, RegistryCredentials, ResolvedImage,
};

mod aliases;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;
pub(crate) mod host;
mod import;
mod layer;
mod manifest;
mod pull;
mod pull_guard;
mod pull_proxy;
mod shared_dir;
mod unpack;

pub use aliases::ImageAlias;
use shared_dir::{CachedList, SharedDir};

/// Image name that is an alias of the built-in image, unless the operator has changed the alias or imported such an
/// image.
pub(crate) const BUILT_IN_ALIAS: (&str, &str) = ("python-runtime-sandbox", host::NAME);

/// File names of the lists.
const IMAGES: &str = "images.json";
const ALIASES: &str = "aliases.json";

/// The images of one node, in a folder that other nodes of this machine may use too.
pub(crate) struct ImageStore {
    dir: PathBuf,
    privileged: bool,
    host: tokio::sync::OnceCell<ResolvedImage>,
    host_paths: Vec<PathBuf>,
    mirrors: Vec<(String, String)>,
    shared: SharedDir,
    known: Mutex<CachedList<ImageList>>,
    /// The table of aliases as changed by the operator; without a change, `own_aliases` applies.
    aliases: Mutex<CachedList<Vec<ImageAlias>>>,
    own_aliases: Vec<ImageAlias>,
    /// Locks that serialise pulls of the same reference: later callers wait, and find the image.
    pulls: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// Images by canonical name.
type ImageList = BTreeMap<String, StoredImage>;

/// An image whose layers are all in the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct StoredImage {
    digest: String,
    /// Content digests of the layers, lowest first.
    diff_ids: Vec<String>,
    config: ImageConfig,
}

impl ImageStore {
    /// Opens the store below `dir`.
    pub(crate) fn open(
        dir: &Path,
        host_paths: &[PathBuf],
        aliases: Vec<(String, String)>,
        mirrors: Vec<(String, String)>,
        privileged: bool,
    ) -> io::Result<Self> {
        let (shared, alone) = SharedDir::open(dir)?;
        let mut known = CachedList::new(dir.join(IMAGES));
        known.get()?;
        if alone {
            // Only when no other process uses the folder: its staging folders are not left over.
            remove_staging(dir);
            remove_staging(&dir.join("layers"));
            remove_staging(&dir.join("host"));
        }
        let own_aliases = aliases.into_iter().map(|(pattern, image)| ImageAlias { pattern, image }).collect();
        Ok(Self {
            dir: dir.to_owned(),
            privileged,
            host: tokio::sync::OnceCell::new(),
            host_paths: host_paths.to_vec(),
            mirrors,
            shared,
            known: Mutex::new(known),
            aliases: Mutex::new(CachedList::new(dir.join(ALIASES))),
            own_aliases,
            pulls: Mutex::default(),
        })
    }

    /// The image `host`, prepared on first use.
    pub(crate) async fn host(&self) -> Result<&ResolvedImage, ImageError> {
        let failed = |source| ImageError::Store { step: "preparing the image `host`".to_owned(), source };
        let prepare = || async {
            let (dir, paths, privileged) = (self.dir.clone(), self.host_paths.clone(), self.privileged);
            let work = move || host::prepare(&dir, &paths, privileged);
            tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
        };
        self.host.get_or_try_init(prepare).await.map_err(failed)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes an image available.
    pub(crate) async fn ensure(
        &self,
        reference: &str,
        policy: PullPolicy,
        credentials: &[RegistryCredentials],
        progress: Option<watch::Sender<PullProgress>>,
    ) -> Result<ResolvedImage, ImageError> {
        if reference == host::NAME {
            return self.host().await.cloned();
        }
        let name = pull::parse(reference)?;
        let canonical = name.whole();
        if policy != PullPolicy::Always
            && let Some(found) = self.find(reference, &canonical)
        {
            return Ok(found);
        }
        if let Some(target) = self.alias(reference)
            && self.find(reference, &canonical).is_none()
        {
            return self.resolve_alias(reference, &target).await;
        }
        if policy == PullPolicy::Never {
            return Err(ImageError::NotPresent(reference.to_owned()));
        }
        let pull_lock = Arc::clone(self.pulls.lock().entry(canonical.clone()).or_default());
        let guard = pull_lock.lock().await;
        // A caller that waited finds what the first one pulled.
        let here = self.find(reference, &canonical).filter(|_| policy == PullPolicy::IfNotPresent);
        if let Some(found) = here {
            return Ok(found);
        }
        let stored = pull::pull(self, reference, &name, credentials, progress).await;
        drop(guard);
        self.pulls.lock().retain(|_, lock| Arc::strong_count(lock) > 1);
        self.remember(&canonical, stored?)?;
        self.find(reference, &canonical).ok_or_else(|| ImageError::NotPresent(reference.to_owned()))
    }

    fn find(&self, reference: &str, canonical: &str) -> Option<ResolvedImage> {
        let stored = self.known.lock().get().ok()??.get(canonical).cloned()?;
        let layers =
            stored.diff_ids.iter().rev().map(|id| layer::layer_path(&self.dir, id)).collect::<Option<Vec<_>>>()?;
        // If a layer was removed by hand, the image is pulled again.
        layers.iter().all(|path| path.exists()).then(|| ResolvedImage {
            reference: reference.to_owned(),
            digest: stored.digest,
            content: ImageContent::Layers { layers },
            config: stored.config,
            alias_of: None,
        })
    }

    fn remember(&self, canonical: &str, stored: StoredImage) -> Result<(), ImageError> {
        let add = |known: &mut ImageList| drop(known.insert(canonical.to_owned(), stored));
        self.shared.update(IMAGES, ImageList::new, add).map(drop).map_err(step("saving the list of images"))
    }

    /// The current table of aliases.
    pub(crate) fn aliases(&self) -> Result<Vec<ImageAlias>, ImageError> {
        let mut changed = self.aliases.lock();
        let changed = changed.get().map_err(step("reading the table of aliases"))?;
        Ok(changed.unwrap_or(&self.own_aliases).clone())
    }

    /// Changes the table of aliases permanently.
    pub(crate) fn change_aliases(&self, with: impl FnOnce(&mut Vec<ImageAlias>)) -> Result<(), ImageError> {
        let changed = self.shared.update(ALIASES, || self.own_aliases.clone(), with);
        changed.map(drop).map_err(step("saving the table of aliases"))
    }

    fn alias(&self, reference: &str) -> Option<String> {
        aliases::resolve(&self.aliases().ok()?, reference).map(str::to_owned)
    }

    async fn resolve_alias(&self, reference: &str, target: &str) -> Result<ResolvedImage, ImageError> {
        let image = if target == host::NAME {
            self.host().await?.clone()
        } else {
            let canonical = pull::parse(target)?.whole();
            self.find(target, &canonical).ok_or_else(|| ImageError::NotPresent(target.to_owned()))?
        };
        Ok(ResolvedImage { reference: reference.to_owned(), alias_of: Some(target.to_owned()), ..image })
    }

    /// Imports an OCI layout folder, an archive of one, or a Docker archive. Returns the imported names.
    pub(crate) fn import(&self, path: &Path, name: Option<&str>) -> Result<Vec<String>, ImageError> {
        import::import(self, path, name)
    }

    /// All images in the store.
    pub(crate) fn list(&self) -> Result<Vec<ImageSummary>, ImageError> {
        let known = self.known.lock().get().map_err(step("reading the list of images"))?.cloned().unwrap_or_default();
        let summary = |(name, image): (String, StoredImage)| {
            let layers = image.diff_ids.iter().filter_map(|id| layer::layer_path(&self.dir, id));
            let size = layers.map(|path| crate::kernel::storage::tree::usage(&path).bytes).sum();
            ImageSummary { name, digest: image.digest, size }
        };
        Ok(known.into_iter().map(summary).collect())
    }

    /// Removes an image by name, unless a sandbox needs it (`used`, by manifest digest), and the layers that no image
    /// needs.
    pub(crate) fn remove(&self, reference: &str, used: &BTreeSet<String>) -> Result<u64, ImageError> {
        let canonical = pull::parse(reference)?.whole();
        let stored = self.known.lock().get().ok().flatten().and_then(|known| known.get(&canonical).cloned());
        let stored = stored.ok_or_else(|| ImageError::Unknown(reference.to_owned()))?;
        // Also when the image has another name: a suspended sandbox asks for it by the name it was created with.
        if used.contains(&stored.digest) {
            return Err(ImageError::InUse(reference.to_owned()));
        }
        self.forget(|name, _| *name != canonical)
    }

    /// Removes images not in `used` (by manifest digest), and the layers that no image needs.
    pub(crate) fn prune(&self, used: &BTreeSet<String>) -> Result<u64, ImageError> {
        self.forget(|_, image| used.contains(&image.digest))
    }

    fn forget(&self, keep: impl Fn(&String, &StoredImage) -> bool) -> Result<u64, ImageError> {
        let drop_rest = |known: &mut ImageList| known.retain(|name, image| keep(name, image));
        let work = || -> io::Result<u64> {
            let known = self.shared.update(IMAGES, ImageList::new, drop_rest)?;
            let needed = known.values().flat_map(|image| image.diff_ids.iter().cloned()).collect();
            remove_layers(&self.dir.join("layers"), &needed)
        };
        let freed = self.shared.exclusively(work).map_err(step("locking the image store"))?;
        freed.ok_or(ImageError::OthersUseStore)?.map_err(step("removing unused layers"))
    }
}

fn step(text: &'static str) -> impl Fn(io::Error) -> ImageError {
    move |source| ImageError::Store { step: text.to_owned(), source }
}

/// Removes layers that no image needs; returns the bytes freed.
fn remove_layers(folder: &Path, needed: &BTreeSet<String>) -> io::Result<u64> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(0) };
    let mut freed = 0;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !needed.contains(&format!("sha256:{name}")) && !name.starts_with("staging-") {
            freed += crate::kernel::storage::tree::usage(&entry.path()).bytes;
            crate::kernel::storage::tree::remove(&entry.path())?;
        }
    }
    Ok(freed)
}

/// Removes what a killed unpacking left behind.
fn remove_staging(layers: &Path) {
    let Ok(entries) = fs::read_dir(layers) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("staging-")) {
        if let Err(error) = crate::kernel::storage::tree::remove(&entry.path()) {
            tracing::warn!(%error, path = %entry.path().display(), "An unfinished layer could not be removed");
        }
    }
}
