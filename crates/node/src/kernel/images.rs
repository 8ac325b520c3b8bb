//! The image store: what is here, and how it gets here. Layers are unpacked once, under the digest of their content, and
//! shared by all images and sandboxes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::host_image;
use crate::runtime::{
    ImageConfig, ImageContent, ImageError, ImageSummary, PullPolicy, PullProgress, RegistryCredentials, ResolvedImage,
};

mod aliases;
mod import;
mod layer;
mod manifest;
mod pull;
mod shared;
mod unpack;

pub use aliases::ImageAlias;
use shared::Cached;

/// Image name that means the built-in runtime unless the operator says otherwise or has such an image.
pub(crate) const BUILT_IN_ALIAS: (&str, &str) = ("python-runtime-sandbox", host_image::NAME);

/// Names of the lists.
const IMAGES: &str = "images.json";
const ALIASES: &str = "aliases.json";

/// Images of one node, in a folder that other nodes of this machine may use too.
pub(crate) struct ImageStore {
    dir: PathBuf,
    privileged: bool,
    host: tokio::sync::OnceCell<ResolvedImage>,
    host_paths: Vec<PathBuf>,
    mirrors: Vec<(String, String)>,
    used: shared::Use,
    known: Mutex<Cached<Known>>,
    /// What the operator changed the table of aliases to; until then the node's own applies.
    aliases: Mutex<Cached<Vec<ImageAlias>>>,
    own_aliases: Vec<ImageAlias>,
    /// One pull of a reference at a time; the others wait and find it.
    pulls: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// Images by whole name.
type Known = BTreeMap<String, StoredImage>;

/// An image whose layers are all here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct StoredImage {
    digest: String,
    /// Content digests, lowest first.
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
        let (used, alone) = shared::Use::begin(dir)?;
        let mut known = Cached::new(dir.join(IMAGES));
        known.get()?;
        if alone {
            // What another process is unpacking is not left over.
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
            used,
            known: Mutex::new(known),
            aliases: Mutex::new(Cached::new(dir.join(ALIASES))),
            own_aliases,
            pulls: Mutex::default(),
        })
    }

    /// The image `host`, prepared by whoever asks first.
    pub(crate) async fn host(&self) -> Result<&ResolvedImage, ImageError> {
        let failed = |source| ImageError::Store { step: "preparing the image `host`".to_owned(), source };
        let prepare = || async {
            let (dir, paths, privileged) = (self.dir.clone(), self.host_paths.clone(), self.privileged);
            let work = move || host_image::prepare(&dir, &paths, privileged);
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
        if reference == host_image::NAME {
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
        let turn = Arc::clone(self.pulls.lock().entry(canonical.clone()).or_default());
        let guard = turn.lock().await;
        // Whoever waited here gets what the first one pulled.
        let here = self.find(reference, &canonical).filter(|_| policy == PullPolicy::IfNotPresent);
        if let Some(found) = here {
            return Ok(found);
        }
        let stored = pull::pull(self, reference, &name, credentials, progress).await;
        drop(guard);
        self.pulls.lock().retain(|_, turn| Arc::strong_count(turn) > 1);
        self.remember(&canonical, stored?)?;
        self.find(reference, &canonical).ok_or_else(|| ImageError::NotPresent(reference.to_owned()))
    }

    fn find(&self, reference: &str, canonical: &str) -> Option<ResolvedImage> {
        let stored = self.known.lock().get().ok()??.get(canonical).cloned()?;
        let layers =
            stored.diff_ids.iter().rev().map(|id| layer::layer_path(&self.dir, id)).collect::<Option<Vec<_>>>()?;
        // A layer removed by hand means pulling again.
        layers.iter().all(|path| path.exists()).then(|| ResolvedImage {
            reference: reference.to_owned(),
            digest: stored.digest,
            content: ImageContent::Layers { layers },
            config: stored.config,
            alias_of: None,
        })
    }

    fn remember(&self, canonical: &str, stored: StoredImage) -> Result<(), ImageError> {
        let add = |known: &mut Known| drop(known.insert(canonical.to_owned(), stored));
        self.used.change(IMAGES, Known::new, add).map(drop).map_err(step("saving the list of images"))
    }

    /// The table of aliases as it is now.
    pub(crate) fn aliases(&self) -> Result<Vec<ImageAlias>, ImageError> {
        let mut changed = self.aliases.lock();
        let changed = changed.get().map_err(step("reading the table of aliases"))?;
        Ok(changed.unwrap_or(&self.own_aliases).clone())
    }

    /// Changes the table of aliases for good.
    pub(crate) fn change_aliases(&self, with: impl FnOnce(&mut Vec<ImageAlias>)) -> Result<(), ImageError> {
        let changed = self.used.change(ALIASES, || self.own_aliases.clone(), with);
        changed.map(drop).map_err(step("saving the table of aliases"))
    }

    fn alias(&self, reference: &str) -> Option<String> {
        aliases::resolve(&self.aliases().ok()?, reference).map(str::to_owned)
    }

    async fn resolve_alias(&self, reference: &str, target: &str) -> Result<ResolvedImage, ImageError> {
        let image = if target == host_image::NAME {
            self.host().await?.clone()
        } else {
            let canonical = pull::parse(target)?.whole();
            self.find(target, &canonical).ok_or_else(|| ImageError::NotPresent(target.to_owned()))?
        };
        Ok(ResolvedImage { reference: reference.to_owned(), alias_of: Some(target.to_owned()), ..image })
    }

    /// Brings in an OCI layout folder, or an archive of one, or a Docker archive. Gives the names it is known under.
    pub(crate) fn import(&self, path: &Path, name: Option<&str>) -> Result<Vec<String>, ImageError> {
        import::import(self, path, name)
    }

    /// Everything that is here.
    pub(crate) fn list(&self) -> Result<Vec<ImageSummary>, ImageError> {
        let known = self.known.lock().get().map_err(step("reading the list of images"))?.cloned().unwrap_or_default();
        let summary = |(name, image): (String, StoredImage)| {
            let layers = image.diff_ids.iter().filter_map(|id| layer::layer_path(&self.dir, id));
            let size = layers.map(|path| super::tree::usage(&path).bytes).sum();
            ImageSummary { name, digest: image.digest, size }
        };
        Ok(known.into_iter().map(summary).collect())
    }

    /// Forgets an image by name, unless a sandbox needs it (`used`, by manifest digest), and removes layers no image needs.
    pub(crate) fn remove(&self, reference: &str, used: &BTreeSet<String>) -> Result<u64, ImageError> {
        let canonical = pull::parse(reference)?.whole();
        let stored = self.known.lock().get().ok().flatten().and_then(|known| known.get(&canonical).cloned());
        let stored = stored.ok_or_else(|| ImageError::Unknown(reference.to_owned()))?;
        let known = self.list()?;
        let other_name = known.iter().any(|image| image.name != canonical && image.digest == stored.digest);
        if used.contains(&stored.digest) && !other_name {
            return Err(ImageError::InUse(reference.to_owned()));
        }
        self.forget(|name, _| *name != canonical)
    }

    /// Forgets images not in `used` (by manifest digest) and removes layers no image needs.
    pub(crate) fn prune(&self, used: &BTreeSet<String>) -> Result<u64, ImageError> {
        self.forget(|_, image| used.contains(&image.digest))
    }

    fn forget(&self, keep: impl Fn(&String, &StoredImage) -> bool) -> Result<u64, ImageError> {
        let drop_rest = |known: &mut Known| known.retain(|name, image| keep(name, image));
        let work = || -> io::Result<u64> {
            let known = self.used.change(IMAGES, Known::new, drop_rest)?;
            let needed = known.values().flat_map(|image| image.diff_ids.iter().cloned()).collect();
            remove_layers(&self.dir.join("layers"), &needed)
        };
        let freed = self.used.alone(work).map_err(step("locking the image store"))?;
        freed.ok_or(ImageError::OthersUseStore)?.map_err(step("removing unused layers"))
    }
}

fn step(text: &'static str) -> impl Fn(io::Error) -> ImageError {
    move |source| ImageError::Store { step: text.to_owned(), source }
}

/// Removes layers that no image needs; gives the bytes freed.
fn remove_layers(folder: &Path, needed: &BTreeSet<String>) -> io::Result<u64> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(0) };
    let mut freed = 0;
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !needed.contains(&format!("sha256:{name}")) && !name.starts_with("staging-") {
            freed += super::tree::usage(&entry.path()).bytes;
            super::tree::remove(&entry.path())?;
        }
    }
    Ok(freed)
}

/// What an unpacking that was killed left behind.
fn remove_staging(layers: &Path) {
    let Ok(entries) = fs::read_dir(layers) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("staging-")) {
        if let Err(error) = super::tree::remove(&entry.path()) {
            tracing::warn!(%error, path = %entry.path().display(), "An unfinished layer stays behind");
        }
    }
}
