//! The kubelet half of the node: it watches Pods, decides what to do for each of them, and reports their status.
//!
//! [`node`] starts everything and is the public entry. `manager` is the main loop: it turns watch events into messages
//! to one [`actor`] per Pod. Deciding and reporting are pure ([`plan`], [`status`], [`admission`], [`policy`],
//! [`eviction`]); the actors carry decisions out through the [`runtime`](crate::runtime) and the API.

pub mod actor;
pub mod admission;
pub mod backoff;
pub mod container;
pub mod context;
pub mod dns;
pub mod downward_api;
pub mod egress;
pub mod events;
pub mod eviction;
pub mod logs;
pub mod model;
pub mod node;
pub mod plan;
pub mod pod_sandbox;
pub mod policy;
pub mod probes;
pub mod recovery;
pub mod references;
pub mod registration;
pub mod resources;
pub mod scheduling;
pub mod server;
pub mod status;
pub mod volume_binding;
pub mod volumes;

mod manager;
mod owners;
mod stopped_pods;

#[cfg(test)]
pub(crate) mod fake_runtime;
#[cfg(test)]
mod scenario;
