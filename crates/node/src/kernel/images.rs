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
use super::supervisor::records;
use crate::runtime::{
    ImageConfig, ImageContent, ImageError, PullPolicy, PullProgress, RegistryCredentials, ResolvedImage,
};

mod import;
mod layer;
mod manifest;
mod pull;
mod unpack;

/// Image name that means the built-in runtime unless the operator says otherwise or has such an image.
pub(crate) const BUILT_IN_ALIAS: (&str, &str) = ("python-runtime-sandbox", host_image::NAME);

/// Images of one node.
pub(crate) struct ImageStore {
    dir: PathBuf,
    privileged: bool,
    host: ResolvedImage,
    /// Last part of an image's name to the image used instead.
    aliases: Vec<(String, String)>,
    mirrors: Vec<(String, String)>,
    known: Mutex<BTreeMap<String, StoredImage>>,
    /// One pull of a reference at a time; the others wait and find it.
    pulls: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

/// An image whose layers are all here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct StoredImage {
    digest: String,
    /// Content digests, lowest first.
    diff_ids: Vec<String>,
    config: ImageConfig,
}

impl ImageStore {
    /// Opens the store below `dir` and prepares the image `host`.
    pub(crate) fn open(
        dir: &Path,
        host_paths: &[PathBuf],
        aliases: Vec<(String, String)>,
        mirrors: Vec<(String, String)>,
        privileged: bool,
    ) -> io::Result<Self> {
        let host = host_image::prepare(dir, host_paths, privileged)?;
        let known = match fs::read(dir.join("images.json")) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        remove_staging(dir);
        remove_staging(&dir.join("layers"));
        let (known, pulls) = (Mutex::new(known), Mutex::new(HashMap::new()));
        Ok(Self { dir: dir.to_owned(), privileged, host, aliases, mirrors, known, pulls })
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
            return Ok(self.host.clone());
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
            return self.resolve_alias(reference, &target);
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
        let stored = self.known.lock().get(canonical).cloned()?;
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
        let mut known = self.known.lock();
        known.insert(canonical.to_owned(), stored);
        records::replace_durably(&self.dir.join("images.json"), &*known)
            .map_err(|source| ImageError::Store { step: "saving the list of images".to_owned(), source })
    }

    fn alias(&self, reference: &str) -> Option<String> {
        let name = base_name(reference);
        self.aliases.iter().find(|(pattern, _)| pattern == name).map(|(_, target)| target.clone())
    }

    fn resolve_alias(&self, reference: &str, target: &str) -> Result<ResolvedImage, ImageError> {
        let image = if target == host_image::NAME {
            self.host.clone()
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

    /// Forgets images not in `used` (by manifest digest) and removes layers no image needs.
    pub(crate) fn prune(&self, used: &BTreeSet<String>) -> Result<u64, ImageError> {
        let step = |source| ImageError::Store { step: "removing unused layers".to_owned(), source };
        let mut known = self.known.lock();
        known.retain(|_, image| used.contains(&image.digest));
        records::replace_durably(&self.dir.join("images.json"), &*known).map_err(step)?;
        let needed: BTreeSet<_> = known.values().flat_map(|image| &image.diff_ids).collect();
        let mut freed = 0;
        let Ok(entries) = fs::read_dir(self.dir.join("layers")) else { return Ok(0) };
        for entry in entries.flatten() {
            let id = format!("sha256:{}", entry.file_name().to_string_lossy());
            if !needed.contains(&id) && !entry.file_name().to_string_lossy().starts_with("staging-") {
                freed += super::tree::usage(&entry.path()).bytes;
                super::tree::remove(&entry.path()).map_err(step)?;
            }
        }
        Ok(freed)
    }
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

/// The last part of the name, without tag or digest.
fn base_name(reference: &str) -> &str {
    let name = reference.rsplit('/').next().unwrap_or(reference);
    name.split(['@', ':']).next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_match_the_last_part_of_the_name_only() {
        for reference in [
            "python-runtime-sandbox",
            "registry.example/team/python-runtime-sandbox:v1",
            "python-runtime-sandbox@sha256:0",
        ] {
            assert_eq!(base_name(reference), BUILT_IN_ALIAS.0, "{reference}");
        }
        for reference in ["python", "my-python-runtime-sandbox", "python-runtime-sandbox/other"] {
            assert_ne!(base_name(reference), BUILT_IN_ALIAS.0, "{reference}");
        }
    }
}
