//! Tests of Pods that really run: the embedded API, the node and the kernel runtime together.
//!
//! Root is needed. Without it, every test prints that it is skipped and passes, except those that run as an ordinary
//! user.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed step of a test is a failed test")]

mod egress;
mod fixture;
mod lifecycle;
mod oci;
#[path = "../plain_user/run.rs"]
#[expect(dead_code, reason = "other tests use the rest of it")]
mod plain_user;
mod policy;
mod rootless;
mod shared;
mod state;
