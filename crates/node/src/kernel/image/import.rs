//! Images from files: OCI layouts (folder or archive) and Docker archives.

use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::layer::{self, LayerDigests, Staging};
use super::manifest::{ConfigFile, Descriptor, Manifest, choose};
use super::unpack::{LayerBounds, unpack};
use super::{ImageStore, StoredImage, pull};
use crate::runtime::ImageError;

pub(super) fn import(store: &ImageStore, path: &Path, name: Option<&str>) -> Result<Vec<String>, ImageError> {
    let shown = path.display().to_string();
    let step = |text: &str| {
        let text = format!("{text} {shown}");
        move |source: std::io::Error| ImageError::Store { step: text.clone(), source }
    };
    let unpacked;
    let folder = if path.is_dir() {
        path
    } else {
        unpacked = Staging::new(&store.dir).map_err(step("reading"))?;
        let file = fs::File::open(path).map_err(step("opening"))?;
        unpack(file, &unpacked.0, LayerBounds::DEFAULT, false)
            .map_err(|error| ImageError::BadLayer { reference: shown.clone(), message: error.to_string() })?;
        &unpacked.0
    };
    // Links are not followed: in an archive, the index could be a link to a file of the host.
    let has = |name: &str| fs::symlink_metadata(folder.join(name)).is_ok();
    let images = if has("index.json") {
        read_layout(store, folder, &shown)?
    } else if has("manifest.json") {
        read_docker(store, folder, &shown)?
    } else {
        let message = "neither an OCI layout nor a Docker archive".to_owned();
        return Err(ImageError::BadLayer { reference: shown, message });
    };
    let mut names = Vec::new();
    for (own_names, image) in images {
        let own_names = match name {
            Some(name) => vec![name.to_owned()],
            None => own_names,
        };
        for name in own_names {
            store.remember(&pull::parse(&name)?.whole(), image.clone())?;
            names.push(name);
        }
    }
    Ok(names)
}

type Found = Vec<(Vec<String>, StoredImage)>;

fn read_layout(store: &ImageStore, folder: &Path, shown: &str) -> Result<Found, ImageError> {
    #[derive(Deserialize)]
    struct Index {
        manifests: Vec<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        #[serde(flatten)]
        descriptor: Descriptor,
        #[serde(default)]
        annotations: std::collections::BTreeMap<String, String>,
    }
    let index: Index = parse(&read_file(&beneath(folder, "index.json", shown)?, shown)?, shown)?;
    let mut found = Vec::new();
    for entry in index.manifests {
        let mut digest = entry.descriptor.digest.clone();
        let mut manifest: Manifest = parse(&read_blob(folder, &digest, shown)?, shown)?;
        if !manifest.manifests.is_empty() {
            let chosen = choose(&manifest.manifests).ok_or_else(|| wrong_platform(shown))?;
            digest = chosen.digest.clone();
            manifest = parse(&read_blob(folder, &digest, shown)?, shown)?;
        }
        let config_digest = manifest.config.map(|config| config.digest).unwrap_or_default();
        let config: ConfigFile = parse(&read_blob(folder, &config_digest, shown)?, shown)?;
        config.check_platform(shown)?;
        for digests in config.layers(shown, &manifest.layers)? {
            let file = open(&blob_path(folder, &digests.digest, shown)?, shown)?;
            layer::store(&store.dir, shown, &digests, file, store.privileged)?;
        }
        let name = entry
            .annotations
            .get("io.containerd.image.name")
            .or(entry.annotations.get("org.opencontainers.image.ref.name"));
        let image = StoredImage { digest, diff_ids: config.diff_ids().to_vec(), config: config.image_config() };
        found.push((name.into_iter().cloned().collect(), image));
    }
    Ok(found)
}

fn read_docker(store: &ImageStore, folder: &Path, shown: &str) -> Result<Found, ImageError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Entry {
        config: String,
        #[serde(default)]
        repo_tags: Option<Vec<String>>,
        layers: Vec<String>,
    }
    let entries: Vec<Entry> = parse(&read_file(&beneath(folder, "manifest.json", shown)?, shown)?, shown)?;
    let mut found = Vec::new();
    for entry in entries {
        let bytes = read_file(&beneath(folder, &entry.config, shown)?, shown)?;
        let config: ConfigFile = parse(&bytes, shown)?;
        config.check_platform(shown)?;
        if entry.layers.len() != config.diff_ids().len() {
            return Err(config.layers(shown, &[]).err().unwrap_or_else(|| wrong_platform(shown)));
        }
        for (path, diff_id) in entry.layers.iter().zip(config.diff_ids()) {
            let path = beneath(folder, path, shown)?;
            // Docker archives contain no digest of the layer file itself; its content is checked against the
            // configuration.
            let digest = digest_of(open(&path, shown)?, shown)?;
            let digests = LayerDigests { digest, diff_id: diff_id.clone(), media_type: String::new() };
            layer::store(&store.dir, shown, &digests, open(&path, shown)?, store.privileged)?;
        }
        let digest = digest_of(bytes.as_slice(), shown)?;
        let image = StoredImage { digest, diff_ids: config.diff_ids().to_vec(), config: config.image_config() };
        found.push((entry.repo_tags.unwrap_or_default(), image));
    }
    Ok(found)
}

fn wrong_platform(shown: &str) -> ImageError {
    let wanted = format!("linux/{}", super::manifest::own_architecture());
    ImageError::WrongPlatform { reference: shown.to_owned(), found: "other platforms".to_owned(), wanted }
}

fn parse<T: serde::de::DeserializeOwned>(bytes: &[u8], shown: &str) -> Result<T, ImageError> {
    serde_json::from_slice(bytes)
        .map_err(|error| ImageError::BadLayer { reference: shown.to_owned(), message: error.to_string() })
}

/// A path named inside an archive; it must stay inside.
fn beneath(folder: &Path, name: &str, shown: &str) -> Result<PathBuf, ImageError> {
    let clean = Path::new(name).components().all(|part| matches!(part, std::path::Component::Normal(_)));
    let path = folder.join(name);
    // A link inside the archive could lead anywhere.
    let inside =
        clean && path.canonicalize().ok().zip(folder.canonicalize().ok()).is_some_and(|(p, f)| p.starts_with(f));
    if inside {
        return Ok(path);
    }
    Err(ImageError::BadLayer { reference: shown.to_owned(), message: format!("{name:?} is not in the archive") })
}

fn blob_path(folder: &Path, digest: &str, shown: &str) -> Result<PathBuf, ImageError> {
    beneath(folder, &format!("blobs/{}", digest.replacen(':', "/", 1)), shown)
}

/// Reads a blob and checks it against its digest.
fn read_blob(folder: &Path, digest: &str, shown: &str) -> Result<Vec<u8>, ImageError> {
    let bytes = read_file(&blob_path(folder, digest, shown)?, shown)?;
    if digest_of(bytes.as_slice(), shown)? != digest {
        let (reference, digest) = (shown.to_owned(), digest.to_owned());
        return Err(ImageError::DigestMismatch { reference, what: "blob", digest });
    }
    Ok(bytes)
}

/// Opens a regular file; a named pipe in an archive must not block the import.
fn open(path: &Path, shown: &str) -> Result<fs::File, ImageError> {
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let opened = fs::OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = opened.map_err(|source| ImageError::Store { step: format!("opening a part of {shown}"), source })?;
    match file.metadata() {
        Ok(metadata) if metadata.is_file() => Ok(file),
        _ => {
            let message = format!("{} is not a file", path.display());
            Err(ImageError::BadLayer { reference: shown.to_owned(), message })
        }
    }
}

/// Maximum size of a manifest or configuration; real ones are small.
const MAX_DOCUMENT: u64 = 16 << 20;

fn read_file(path: &Path, shown: &str) -> Result<Vec<u8>, ImageError> {
    let mut bytes = Vec::new();
    open(path, shown)?
        .take(MAX_DOCUMENT)
        .read_to_end(&mut bytes)
        .map_err(|source| ImageError::Store { step: format!("reading a part of {shown}"), source })?;
    Ok(bytes)
}

fn digest_of(mut reader: impl Read, shown: &str) -> Result<String, ImageError> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = reader
            .read(&mut buffer)
            .map_err(|source| ImageError::Store { step: format!("reading a part of {shown}"), source })?;
        if length == 0 {
            break;
        }
        hash.update(buffer.get(..length).unwrap_or_default());
    }
    let hex: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("sha256:{hex}"))
}
