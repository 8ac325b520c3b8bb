//! Fuzz targets of images: layers, archives and documents.

use std::fs;
use std::path::Path;

use super::manifest::{ConfigFile, Manifest, choose};
use super::unpack::{LayerBounds, unpack};
use super::{ImageStore, import as archive};
use crate::fuzzing::tar_checksums::with_checksums;

const BOUNDS: LayerBounds = LayerBounds { bytes: 1 << 20, entries: 100 };

fn names(folder: &Path) -> Vec<std::ffi::OsString> {
    fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.file_name()).collect()
}

/// The bytes are a tar stream. Nothing may appear beside the folder of the layer.
pub(crate) fn layer(data: &[u8]) {
    let outside = tempfile::tempdir().expect("a folder");
    let folder = outside.path().join("layer");
    fs::create_dir(&folder).expect("a folder");
    let _ = unpack(with_checksums(data).as_slice(), &folder, BOUNDS, rustix::process::geteuid().is_root());
    assert_eq!(names(outside.path()), ["layer"]);
    // Folders without permissions cannot be removed by an ordinary user.
    drop(super::layer::Staging(folder));
}

/// The bytes are an archive with an image.
pub(crate) fn import(data: &[u8]) {
    let outside = tempfile::tempdir().expect("a folder");
    let (images, file) = (outside.path().join("images"), outside.path().join("archive"));
    fs::create_dir(&images).expect("a folder");
    fs::write(&file, with_checksums(data)).expect("a file");
    let store = ImageStore::open(&images, &[], Vec::new(), Vec::new(), false).expect("a store");
    let _ = archive::import(&store, &file, None);
    assert_eq!(names(outside.path()).len(), 2);
}

/// The bytes are a manifest, an index or a configuration.
pub(crate) fn documents(data: &[u8]) {
    if let Ok(config) = serde_json::from_slice::<ConfigFile>(data) {
        let _ = (config.image_config(), config.check_platform("image"), config.layers("image", &[]));
    }
    if let Ok(manifest) = serde_json::from_slice::<Manifest>(data) {
        let _ = choose(&manifest.manifests);
    }
}
