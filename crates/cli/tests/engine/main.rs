//! The engine on this machine, driven by the CLI as a user would.

#![expect(clippy::unwrap_used, reason = "a test fails at the first error")]

mod archive;
mod fixture;
mod images;
mod isolation;
mod lifecycle;
mod outputs;
mod run;
mod tenants;
