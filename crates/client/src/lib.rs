//! The Rust SDK: claims, sandboxes, commands and files, on a cluster or on the local engine.
//!
//! ```no_run
//! # async fn example() -> Result<(), agent_sandbox_client::ClientError> {
//! use agent_sandbox_client::{ClaimRequest, Command, SandboxClient, Source};
//!
//! let client = SandboxClient::from_environment().await?;
//! let wanted = ClaimRequest::new(Source::Named("python-sandbox-template".into()), "default");
//! let sandbox = client.claim(&wanted).await?;
//! let output = sandbox.run(&Command::shell("echo hello")).await?;
//! assert_eq!(output.stdout_text(), "hello\n");
//! sandbox.delete().await?;
//! # Ok(())
//! # }
//! ```
//!
//! All Kubernetes requests go through a [`kube::Client`], which may be a socket or the embedded API. Commands and files
//! use a [`Connection`]: by default a tunnel through the API's port-forward, which needs only a kubeconfig.

mod call;
mod claims;
mod cleanup;
mod client;
mod cluster;
mod code;
mod command;
mod commands;
mod connection;
mod dial;
mod download;
mod error;
mod events;
mod exec;
mod files;
/// Entry points for `make fuzz`, and for the test that repeats its corpora.
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod gateway;
mod grpc;
mod handle;
mod lifecycle;
mod links;
mod local;
mod lookup;
mod manifest;
mod pools;
mod process;
mod responses;
mod snapshots;
mod start_failure;
mod trace;
mod transfer;
mod transport;
mod tunnel;
mod upgraded;
mod wait;

pub use agent_sandbox_protocol::{code as code_events, history, native};
pub use call::{ByteStream, Call, Payload, Retry};
pub use claims::{ClaimRequest, Source, create_claim, create_object};
pub use cleanup::wait_for_cleanup;
pub use client::{READY_TIMEOUT, SandboxClient, direct};
pub use cluster::{Cluster, ClusterOptions, connect};
pub use code::{CodeOptions, Execution};
pub use command::{Command, CommandEvent, Output};
pub use connection::{Address, Connection, DirectOptions, GatewayOptions, ROUTER_NAMESPACE, Tunnel};
pub use download::Download;
pub use error::ClientError;
pub use exec::{ExecOptions, ExecStreams, exec};
pub use files::{Files, RemoteKind};
pub use handle::{SandboxHandle, pod_name};
pub use lifecycle::{Deleted, delete, keep_alive, resume, suspend};
pub use links::{CreateLink, CreatedLink, LinkRouter, LinkUrl, bearer_token, create_link, revoke_link};
pub use local::LocalEngine;
pub use lookup::{Found, awake_pod, find, running_pod};
pub use manifest::{ClaimOptions, ContainerOptions, CopiedFolder, claim, pod, pool, sandbox, template};
pub use pools::{create_pool, delete_pool, list_pools};
pub use process::Process;
pub use snapshots::{
    SnapshotRequest, delete_snapshot, find_snapshot, list_snapshots, roll_back, sandbox_from, take_snapshot,
};
pub use start_failure::{Subject, start_failure, start_problem};
pub use trace::TraceContext;
pub use transport::{Transport, TransportOptions, select_pod_ip};
pub use tunnel::dial;
pub use wait::{claim_ready, gone, new_sandbox_ready, pod_started, sandbox_ready, sandbox_suspended};
