//! The life of Pods on this node: what to do next, what to report, and the actors that do it.
//!
//! Deciding and reporting are pure ([`plan`], [`status`]); an actor per Pod carries decisions out through the
//! [`runtime`](crate::runtime) and the API.

pub mod backoff;
pub mod conditions;
pub mod container;
pub mod downward;
pub mod env;
pub mod expand;
pub mod files;
pub mod model;
pub mod mounts;
pub mod plan;
pub mod probe;
pub mod quantity;
pub mod refuse;
pub mod resources;
pub mod sandboxd;
pub mod sources;
pub mod status;

#[cfg(test)]
mod scenario;
