//! Pods that really run: the embedded API, the node and the kernel together.
//!
//! Needs root; every test but those that are run as an ordinary user says so and passes without doing anything where it is missing.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed step of a test is a failed test")]

mod bench;
mod lifecycle;
mod oci;
#[path = "../plain_user/run.rs"]
#[expect(dead_code, reason = "other tests use the rest of it")]
mod plain_user;
mod policy;
mod rootless;
mod shared;
mod state;
