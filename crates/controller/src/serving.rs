//! What the controller shows to the outside: metrics, health probes, the conversion webhook, Events and trace spans.

pub mod events;
pub mod metrics;
pub mod probes;
pub mod tracing_context;
pub mod webhook;
