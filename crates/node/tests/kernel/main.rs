//! The kernel half on a real kernel: Pods created, run, entered, killed and removed.
//!
//! Tests of `lifecycle` and `escape` run as root and, through `rootless`, again as an ordinary user. The others need
//! root; without it each prints that it is skipped.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed step of a test is a failed test")]

mod crash;
mod escape;
mod fixture;
mod host_folder;
mod host_image;
mod host_view;
mod images;
mod leaks;
mod lifecycle;
mod limits;
mod machine;
mod network;
mod persistence;
#[path = "../plain_user/run.rs"]
mod plain_user;
#[path = "../pods/fixture.rs"]
#[expect(dead_code, reason = "other tests use the rest of it")]
mod pod_fixture;
mod rootless;
mod snapshots;
mod user_limits;
mod vm;
