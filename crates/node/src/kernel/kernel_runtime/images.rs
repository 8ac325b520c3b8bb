//! The runtime's access to the image store, for Pods and for commands of the CLI.

use std::io;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use super::KernelRuntime;
use crate::kernel::image::ImageAlias;
use crate::kernel::storage::layers;
use crate::runtime::{
    ImageError, ImageService, ImageSummary, PullPolicy, PullProgress, RegistryCredentials, ResolvedImage,
};

#[async_trait]
impl ImageService for KernelRuntime {
    async fn ensure(
        &self,
        reference: &str,
        policy: PullPolicy,
        credentials: &[RegistryCredentials],
        progress: Option<watch::Sender<PullProgress>>,
    ) -> Result<ResolvedImage, ImageError> {
        self.images.ensure(reference, policy, credentials, progress).await
    }
}

impl KernelRuntime {
    /// Imports an image from an OCI layout (folder or archive) or a Docker archive, under its own names or `name`.
    pub async fn import_image(self: &Arc<Self>, path: &Path, name: Option<&str>) -> Result<Vec<String>, ImageError> {
        let (path, name) = (path.to_owned(), name.map(str::to_owned));
        self.with_images("importing an image", move |this| this.images.import(&path, name.as_deref())).await
    }

    /// All images in the store.
    pub async fn images(self: &Arc<Self>) -> Result<Vec<ImageSummary>, ImageError> {
        self.with_images("listing images", |this| this.images.list()).await
    }

    /// Removes an image that no sandbox of this node needs; returns the bytes freed.
    pub async fn remove_image(self: &Arc<Self>, reference: &str) -> Result<u64, ImageError> {
        let reference = reference.to_owned();
        let work = move |this: &Self| {
            let mut used = layers::digests(&this.layers_dir());
            used.extend(this.sealed.digests());
            this.images.remove(&reference, &used)
        };
        self.with_images("removing an image", work).await
    }

    /// The table of image aliases.
    pub fn image_aliases(&self) -> Result<Vec<ImageAlias>, ImageError> {
        self.images.aliases()
    }

    /// Changes the table of image aliases permanently, for this node and those that share its images.
    pub async fn change_image_aliases(
        self: &Arc<Self>,
        with: impl FnOnce(&mut Vec<ImageAlias>) + Send + 'static,
    ) -> Result<(), ImageError> {
        self.with_images("changing aliases", |this| this.images.change_aliases(with)).await
    }

    async fn with_images<T: Send + 'static>(
        self: &Arc<Self>,
        what: &'static str,
        work: impl FnOnce(&Self) -> Result<T, ImageError> + Send + 'static,
    ) -> Result<T, ImageError> {
        let this = Arc::clone(self);
        let lost = |error| ImageError::Store { step: what.to_owned(), source: io::Error::other(error) };
        tokio::task::spawn_blocking(move || work(&this)).await.map_err(lost)?
    }

    /// Removes images that no Pod in `used` (manifest digests) needs; returns the bytes freed.
    pub async fn prune_images(self: &Arc<Self>, used: Vec<String>) -> Result<u64, ImageError> {
        self.with_images("pruning images", move |this| {
            let mut used: std::collections::BTreeSet<String> = used.into_iter().collect();
            used.extend(this.sealed.digests());
            this.images.prune(&used)
        })
        .await
    }
}
