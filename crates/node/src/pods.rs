//! The life of Pods on this node: what to do next, what to report, and the actors that do it.
//!
//! Deciding and reporting are pure ([`plan`], [`status`]); an actor per Pod carries decisions out through the
//! [`runtime`](crate::runtime) and the API.

pub mod backoff;
pub mod conditions;
pub mod downward;
pub mod env;
pub mod expand;
pub mod model;
pub mod plan;
pub mod quantity;
pub mod resources;
pub mod sources;
pub mod status;

#[cfg(test)]
mod scenario;
