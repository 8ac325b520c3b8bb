//! The protocols that the daemon speaks, each a translation of requests into calls of [`crate::core`].

pub mod envd;
pub mod interpreter;
pub mod native;
pub mod runtime;
pub mod workspace;
