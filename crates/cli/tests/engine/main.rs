//! The engine on this machine, driven by the CLI as a user would.

#![expect(clippy::unwrap_used, reason = "a test fails at the first error")]

mod archive;
mod autostart;
mod browser;
mod e2b;
mod everyday;
mod familiar;
mod file_snapshots;
mod fixture;
mod here;
mod history;
mod host_user;
mod images;
mod isolation;
mod lifecycle;
mod links;
mod messages;
mod namespace_life;
mod no_network;
mod online;
mod outputs;
mod packages;
mod plain_user;
mod run;
mod second_tenant;
mod session;
mod sleep;
mod tenants;
mod terminals;
mod volumes;
mod world;
