//! Images, as requested by the kubelet half and as carried by a container spec.

use std::path::PathBuf;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// Finds, pulls and stores images.
#[async_trait]
pub trait ImageService: Send + Sync + 'static {
    /// Makes an image available by the given policy. Concurrent calls for one image share the work.
    async fn ensure(
        &self,
        reference: &str,
        policy: PullPolicy,
        credentials: &[RegistryCredentials],
        progress: Option<watch::Sender<PullProgress>>,
    ) -> Result<ResolvedImage, ImageError>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

/// Bytes transferred and in total, as far as known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PullProgress {
    pub done: u64,
    pub total: u64,
}

/// Credentials for one registry.
#[derive(Clone, PartialEq, Eq)]
pub struct RegistryCredentials {
    pub registry: String,
    pub username: String,
    pub password: String,
}

impl std::fmt::Debug for RegistryCredentials {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("RegistryCredentials")
            .field("registry", &self.registry)
            .field("username", &self.username)
            .field("password", &"[redacted]")
            .finish()
    }
}

/// One entry of the list of images.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageSummary {
    pub name: String,
    pub digest: String,
    /// Bytes on disk; a layer that several images share is counted for each.
    pub size: u64,
}

/// An image in the store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResolvedImage {
    /// The requested reference.
    pub reference: String,
    /// `sha256:…` of the manifest; for `host` a digest of its allow list.
    pub digest: String,
    pub content: ImageContent,
    pub config: ImageConfig,
    /// Set when an alias replaced the reference, for an event.
    pub alias_of: Option<String>,
}

/// The parts of the container's root.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ImageContent {
    /// The host's own programs, by allow list.
    Host {
        /// The generated part: `/etc`, `/home/user`, empty folders and links.
        skeleton: PathBuf,
        /// Host folders shown read-only at the same path.
        shown: Vec<PathBuf>,
    },
    /// Unpacked layers, topmost first.
    Layers { layers: Vec<PathBuf> },
}

/// The image's configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    pub entrypoint: Vec<String>,
    pub command: Vec<String>,
    pub env: Vec<(String, String)>,
    pub working_dir: Option<String>,
    pub user: Option<String>,
    pub exposed_ports: Vec<u16>,
    pub stop_signal: Option<String>,
    /// The container's first process is sandboxd, which starts the command as its child.
    pub inject_sandboxd: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("image reference {0:?} is not valid")]
    InvalidReference(String),
    #[error("image {0} is not present and its pull policy is Never")]
    NotPresent(String),
    #[error("there is no image {0} here")]
    Unknown(String),
    #[error("a sandbox, running or suspended, needs image {0}; delete it first")]
    InUse(String),
    #[error(
        "another process uses images now (an `agent-sandbox run`, or a second engine); try again when it has ended"
    )]
    OthersUseStore,
    #[error("cannot pull {reference}: {message}")]
    Pull { reference: String, message: String },
    #[error("{what} of {reference} does not match its digest {digest}")]
    DigestMismatch { reference: String, what: &'static str, digest: String },
    #[error("layer of {reference} is refused: {message}")]
    BadLayer { reference: String, message: String },
    #[error("image {reference} is for {found}, this machine needs {wanted}")]
    WrongPlatform { reference: String, found: String, wanted: String },
    #[error("image store: {step}")]
    Store {
        step: String,
        #[source]
        source: std::io::Error,
    },
}

impl ImageError {
    /// The waiting reason, as a kubelet would give it.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::InvalidReference(_) => "InvalidImageName",
            Self::NotPresent(_) => "ErrImageNeverPull",
            _ => "ErrImagePull",
        }
    }
}
