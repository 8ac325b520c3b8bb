//! The four reconcilers (observe, plan, apply), leader election, metrics and the conversion webhook.
//!
//! Refuses: deciding inside IO. Every `plan` is a pure, total function of what was observed; requests are data with
//! preconditions, and a thin layer sends them. The library sees only a `kube::Client`, so it runs unchanged on a
//! cluster and on the embedded API.
//!
//! The path of a change: [`cache`] (reflector, store, routes) → [`reconcile`] (queue, workers) → [`sandbox`],
//! [`claim`], [`pool`] or [`template`] (observe → plan → apply) → [`api_client`] (writer, connections) → the API
//! server.

pub mod api_client;
pub mod cache;
pub mod claim;
pub mod clock;
pub mod config;
pub mod controller;
pub mod flags;
pub mod leader_election;
mod memory;
pub mod pool;
pub mod process;
pub mod reconcile;
pub mod sandbox;
pub mod sandbox_spec;
pub mod serving;
pub mod template;
#[cfg(test)]
mod testing;

pub use api_client::Clients;
pub use config::{Config, Workers};
pub use controller::{Controller, ControllerError};
pub use flags::Flags;
pub use memory::release_code_pages;
pub use process::{ProcessError, run_process, version_text};
