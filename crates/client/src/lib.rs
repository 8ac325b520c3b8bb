//! The Rust SDK: claims, sandboxes, commands and files, on a cluster or on the local engine.
//!
//! Everything goes through a [`kube::Client`]; whether that is a socket or the embedded API makes no difference here. A sandbox's
//! daemon is reached through the API's port-forward, so no network path to the Pod is needed.

mod error;
mod exec;
mod files;
mod lifecycle;
mod lookup;
mod manifest;
mod tunnel;
mod wait;

pub use error::ClientError;
pub use exec::{ExecOptions, ExecStreams, exec};
pub use files::{Files, RemoteKind};
pub use lifecycle::{Deleted, delete, resume, suspend};
pub use lookup::{Found, find, running_pod};
pub use manifest::{ClaimOptions, ContainerOptions, claim, pod, pool, sandbox, template};
pub use tunnel::dial;
pub use wait::{claim_ready, gone, pod_started, sandbox_ready, sandbox_suspended};
