//! The life of Pods on this node: what to do next, what to report, and the actors that do it.
//!
//! Deciding and reporting are pure ([`plan`], [`status`]); an actor per Pod carries decisions out through the
//! [`runtime`](crate::runtime) and the API.

pub mod actor;
pub mod backoff;
pub mod check;
pub mod conditions;
pub mod container;
pub mod downward;
pub mod env;
pub mod expand;
pub mod fetch;
pub mod files;
pub mod host_path;
pub mod links;
pub mod model;
pub mod mounts;
pub mod plan;
pub mod probe;
pub mod prober;
pub mod quantity;
pub mod recorder;
pub mod recover;
pub mod refresh;
pub mod refuse;
pub mod resources;
pub mod sandbox;
pub mod sandboxd;
pub mod shared;
pub mod sources;
pub mod status;
pub mod volumes;

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod scenario;
