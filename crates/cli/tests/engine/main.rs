//! The engine on this machine, driven by the CLI as a user would.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod archive;
mod fixture;
mod images;
mod lifecycle;
mod outputs;
mod run;
mod tenants;
mod walls;
