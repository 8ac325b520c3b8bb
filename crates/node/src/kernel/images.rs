//! The image store: what is here, and how it got here.

use std::path::{Path, PathBuf};

use super::host_image;
use crate::runtime::{ImageError, PullPolicy, ResolvedImage};

/// Images of one node.
pub(crate) struct ImageStore {
    dir: PathBuf,
    host: ResolvedImage,
}

impl ImageStore {
    /// Opens the store below `dir` and prepares the image `host`.
    pub(crate) fn open(dir: &Path, host_paths: &[PathBuf], give_away: bool) -> std::io::Result<Self> {
        let host = host_image::prepare(dir, host_paths, give_away)?;
        Ok(Self { dir: dir.to_owned(), host })
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Makes an image available.
    pub(crate) async fn ensure(&self, reference: &str, policy: PullPolicy) -> Result<ResolvedImage, ImageError> {
        if reference == host_image::NAME {
            return Ok(self.host.clone());
        }
        if is_built_in_runtime(reference) {
            return Ok(ResolvedImage {
                reference: reference.to_owned(),
                alias_of: Some(host_image::NAME.to_owned()),
                ..self.host.clone()
            });
        }
        let _ = policy;
        Err(ImageError::NotPresent(reference.to_owned()))
    }
}

/// The last part of the name, without tag or digest, is the runtime image of the published examples.
fn is_built_in_runtime(reference: &str) -> bool {
    let name = reference.rsplit('/').next().unwrap_or(reference);
    let name = name.split(['@', ':']).next().unwrap_or(name);
    name == "python-runtime-sandbox"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_runtime_image_is_built_in_under_any_registry_and_tag() {
        for reference in [
            "python-runtime-sandbox",
            "registry.example/team/python-runtime-sandbox:v1",
            "python-runtime-sandbox@sha256:0",
        ] {
            assert!(is_built_in_runtime(reference), "{reference}");
        }
        for reference in ["python", "my-python-runtime-sandbox", "python-runtime-sandbox/other"] {
            assert!(!is_built_in_runtime(reference), "{reference}");
        }
    }
}
