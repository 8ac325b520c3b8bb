//! The four reconcilers: observe, plan (pure), apply; leader election, metrics, conversion webhook.
//!
//! Refuses: deciding inside IO. Every `plan` is a pure, total function of what was observed; requests are data with preconditions, and a
//! thin layer sends them. The library sees only a `kube::Client`, so it runs unchanged on a cluster and on the embedded API.

pub mod blueprint;
pub mod claim;
pub mod clock;
pub mod config;
pub mod connections;
pub mod controller;
pub mod events;
pub mod flags;
mod intern;
pub mod kube_ports;
pub mod lease;
mod memory;
pub mod metrics;
#[cfg(test)]
mod model;
pub mod object;
pub mod pace;
pub mod pool;
pub mod ports;
pub mod probes;
pub mod process;
#[cfg(test)]
mod property;
pub mod queue;
pub mod reconcile;
pub mod reflector;
pub mod request;
#[cfg(test)]
#[allow(dead_code, reason = "a kit: not every test needs every tool")]
mod rig;
pub mod sandbox;
pub mod store;
pub mod template;
pub mod tracing_context;
pub mod webhook;
pub mod world;

pub use config::{Config, Workers};
pub use controller::{Controller, ControllerError};
pub use flags::Flags;
pub use kube_ports::Clients;
pub use memory::forget_code;
pub use process::{ProcessError, run_process, version_text};
