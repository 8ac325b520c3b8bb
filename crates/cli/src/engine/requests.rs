//! What can be asked of an engine that is no question for a Kubernetes API: its images, what sandboxes use, what is counted. By this process, or by another one
//! through the engine's control socket.

use super::metrics::Page;
use agent_sandbox_node::{
    kernel::{ImageAlias, KernelRuntime, PodUsage},
    runtime::{ImageError, ImageService as _, ImageSummary, PullPolicy, PullProgress, RegistryCredentials},
};
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, sync::Arc};
use tokio::sync::watch;

/// A request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "do")]
pub(crate) enum EngineRequest {
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
    /// What every running Pod uses.
    Usage,
    /// What the controller counts, as a page of metrics.
    Metrics,
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
pub(crate) enum EngineReply {
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
    Usage(Vec<PodUsage>),
    Metrics(String),
}

/// The parts of an engine that answer requests.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) runtime: Arc<KernelRuntime>,
    /// The controller's page of metrics; empty where none runs.
    pub(crate) metrics: Page,
}

/// Carries a request out.
pub(crate) async fn perform(
    Parts { runtime, metrics }: &Parts,
    request: EngineRequest,
    progress: watch::Sender<PullProgress>,
) -> Result<EngineReply, ImageError> {
    match request {
        EngineRequest::Pull { reference, credentials } => {
            let credentials: Vec<_> = credentials.into_iter().map(RegistryCredentials::from).collect();
            let image = runtime.ensure(&reference, PullPolicy::Always, &credentials, Some(progress)).await?;
            Ok(EngineReply::Here { names: vec![reference], digest: Some(image.digest) })
        }
        EngineRequest::Import { path, name } => {
            let names = runtime.import_image(&path, name.as_deref()).await?;
            Ok(EngineReply::Here { names, digest: None })
        }
        EngineRequest::List => Ok(EngineReply::Images(runtime.images().await?)),
        EngineRequest::Remove { reference } => {
            Ok(EngineReply::Removed { freed: runtime.remove_image(&reference).await? })
        }
        EngineRequest::Aliases => Ok(EngineReply::Aliases(runtime.image_aliases()?)),
        EngineRequest::SetAlias { pattern, image } => {
            let set = move |table: &mut Vec<ImageAlias>| {
                table.retain(|line| line.pattern != pattern);
                table.push(ImageAlias { pattern, image });
            };
            changed(runtime, set).await
        }
        EngineRequest::RemoveAlias { pattern } => {
            changed(runtime, move |table| table.retain(|line| line.pattern != pattern)).await
        }
        EngineRequest::Usage => Ok(EngineReply::Usage(runtime.usage())),
        EngineRequest::Metrics => Ok(EngineReply::Metrics(metrics())),
        EngineRequest::ClearAliases => changed(runtime, Vec::clear).await,
    }
}

async fn changed(
    runtime: &Arc<KernelRuntime>,
    with: impl FnOnce(&mut Vec<ImageAlias>) + Send + 'static,
) -> Result<EngineReply, ImageError> {
    runtime.change_image_aliases(with).await?;
    Ok(EngineReply::Aliases(runtime.image_aliases()?))
}
