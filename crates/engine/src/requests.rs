//! Requests to an engine that are not part of a Kubernetes API: images, resource usage of sandboxes, metrics. They come
//! from this process, or from another one through the engine's control socket.

use crate::metrics::Page;
use agent_sandbox_apiserver::IssuedToken;
use agent_sandbox_node::{
    GrantedFolder, NodeHandle,
    kernel::{ImageAlias, KernelRuntime, PodUsage},
    runtime::{
        ImageError, ImageService as _, ImageSummary, PodRuntime as _, PullPolicy, PullProgress, RegistryCredentials,
        Weakness,
    },
};
use serde::{Deserialize, Serialize};
use std::{io, path::PathBuf, sync::Arc};
use thiserror::Error;
use tokio::sync::watch;

/// A request to the engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "do")]
pub enum EngineRequest {
    /// Pulls an image, also when an older one of that name is in the store.
    Pull {
        reference: String,
        credentials: Option<Login>,
    },
    /// Imports an OCI layout or a Docker archive.
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
    /// Give folders of this machine to the Pod of a Sandbox that is about to be created.
    AllowFolders {
        namespace: String,
        name: String,
        folders: Vec<GrantedFolder>,
    },
    /// Resource usage of every running Pod.
    Usage,
    /// The controller's metrics as a page of text.
    Metrics,
    /// What this machine cannot enforce or offer for any sandbox.
    Weaknesses,
}

/// Why a request failed.
#[derive(Debug, Error)]
pub enum RequestError {
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error("cannot record which folders the sandbox may have")]
    Folders(#[source] io::Error),
}

/// Credentials for a registry.
#[derive(Clone, Serialize, Deserialize)]
pub struct Login {
    pub registry: String,
    pub username: String,
    pub password: String,
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

/// The response to a request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EngineReply {
    /// The image is in the store: its names and, after a pull, its digest.
    #[serde(rename = "here")]
    Present {
        names: Vec<String>,
        digest: Option<String>,
    },
    Images(Vec<ImageSummary>),
    Removed {
        freed: u64,
    },
    Aliases(Vec<ImageAlias>),
    Allowed,
    Usage(Vec<PodUsage>),
    Metrics(String),
    Weaknesses(Vec<Weakness>),
    Tokens(Vec<IssuedToken>),
    Revoked {
        id: String,
    },
    /// The administrator's token was replaced.
    Rotated,
}

/// The parts of an engine that requests are carried out with.
#[derive(Clone)]
pub struct RequestContext {
    pub runtime: Arc<KernelRuntime>,
    /// The node, where one runs.
    pub node: Option<NodeHandle>,
    /// Renders the controller's metrics; an empty page where no controller runs.
    pub metrics: Page,
}

/// Carries out a request. Progress of a pull goes to `progress`.
pub async fn handle_request(
    RequestContext { runtime, node, metrics }: &RequestContext,
    request: EngineRequest,
    progress: watch::Sender<PullProgress>,
) -> Result<EngineReply, RequestError> {
    match request {
        EngineRequest::Pull { reference, credentials } => {
            let credentials: Vec<_> = credentials.into_iter().map(RegistryCredentials::from).collect();
            let image = runtime.ensure(&reference, PullPolicy::Always, &credentials, Some(progress)).await?;
            Ok(EngineReply::Present { names: vec![reference], digest: Some(image.digest) })
        }
        EngineRequest::Import { path, name } => {
            let names = runtime.import_image(&path, name.as_deref()).await?;
            Ok(EngineReply::Present { names, digest: None })
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
            change_aliases(runtime, set).await
        }
        EngineRequest::RemoveAlias { pattern } => {
            change_aliases(runtime, move |table| table.retain(|line| line.pattern != pattern)).await
        }
        EngineRequest::AllowFolders { namespace, name, folders } => {
            let node = node.as_ref().ok_or_else(|| io::Error::other("no node runs"));
            let allowed = node.and_then(|node| node.allow_folders(&namespace, &name, &folders));
            allowed.map_err(RequestError::Folders)?;
            Ok(EngineReply::Allowed)
        }
        EngineRequest::Usage => Ok(EngineReply::Usage(runtime.usage())),
        EngineRequest::Weaknesses => Ok(EngineReply::Weaknesses(runtime.weaknesses())),
        EngineRequest::Metrics => Ok(EngineReply::Metrics(metrics())),
        EngineRequest::ClearAliases => change_aliases(runtime, Vec::clear).await,
    }
}

async fn change_aliases(
    runtime: &Arc<KernelRuntime>,
    change: impl FnOnce(&mut Vec<ImageAlias>) + Send + 'static,
) -> Result<EngineReply, RequestError> {
    runtime.change_image_aliases(change).await?;
    Ok(EngineReply::Aliases(runtime.image_aliases()?))
}
