//! What can be asked of an image store, by this process or by another one through the engine's control socket.

use agent_sandbox_node::{
    kernel::{ImageAlias, KernelRuntime},
    runtime::{ImageError, ImageService as _, ImageSummary, PullPolicy, PullProgress, RegistryCredentials},
};
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, sync::Arc};
use tokio::sync::watch;

/// A request about images.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "do")]
pub(crate) enum ImageRequest {
    /// Fetches an image, also when an older one of that name is here.
    Pull {
        reference: String,
        credentials: Option<Login>,
    },
    /// Brings in an OCI layout or a Docker archive.
    Import {
        path: PathBuf,
        name: Option<String>,
    },
    List,
    Remove {
        reference: String,
    },
    Aliases,
    SetAlias {
        pattern: String,
        image: String,
    },
    RemoveAlias {
        pattern: String,
    },
    ClearAliases,
}

/// Who pulls.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Login {
    pub(crate) registry: String,
    pub(crate) username: String,
    pub(crate) password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} at {}, password [redacted]", self.username, self.registry)
    }
}

impl From<Login> for RegistryCredentials {
    fn from(login: Login) -> Self {
        Self { registry: login.registry, username: login.username, password: login.password }
    }
}

/// The answer to a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum ImageReply {
    /// Names and, where one image was asked for, its digest.
    Here {
        names: Vec<String>,
        digest: Option<String>,
    },
    Images(Vec<ImageSummary>),
    Removed {
        freed: u64,
    },
    Aliases(Vec<ImageAlias>),
}

/// Carries a request out.
pub(crate) async fn perform(
    runtime: &Arc<KernelRuntime>,
    request: ImageRequest,
    progress: watch::Sender<PullProgress>,
) -> Result<ImageReply, ImageError> {
    match request {
        ImageRequest::Pull { reference, credentials } => {
            let credentials: Vec<_> = credentials.into_iter().map(RegistryCredentials::from).collect();
            let image = runtime.ensure(&reference, PullPolicy::Always, &credentials, Some(progress)).await?;
            Ok(ImageReply::Here { names: vec![reference], digest: Some(image.digest) })
        }
        ImageRequest::Import { path, name } => {
            let names = runtime.import_image(&path, name.as_deref()).await?;
            Ok(ImageReply::Here { names, digest: None })
        }
        ImageRequest::List => Ok(ImageReply::Images(runtime.images().await?)),
        ImageRequest::Remove { reference } => {
            Ok(ImageReply::Removed { freed: runtime.remove_image(&reference).await? })
        }
        ImageRequest::Aliases => Ok(ImageReply::Aliases(runtime.image_aliases()?)),
        ImageRequest::SetAlias { pattern, image } => {
            let set = move |table: &mut Vec<ImageAlias>| {
                table.retain(|line| line.pattern != pattern);
                table.push(ImageAlias { pattern, image });
            };
            changed(runtime, set).await
        }
        ImageRequest::RemoveAlias { pattern } => {
            changed(runtime, move |table| table.retain(|line| line.pattern != pattern)).await
        }
        ImageRequest::ClearAliases => changed(runtime, Vec::clear).await,
    }
}

async fn changed(
    runtime: &Arc<KernelRuntime>,
    with: impl FnOnce(&mut Vec<ImageAlias>) + Send + 'static,
) -> Result<ImageReply, ImageError> {
    runtime.change_image_aliases(with).await?;
    Ok(ImageReply::Aliases(runtime.image_aliases()?))
}
