//! The kernel half on a real kernel: Pods made, run, entered, killed and removed.
//!
//! Tests of `lifecycle` and `escape` run as root and, through `rootless`, again as an ordinary user. The others need root;
//! each says so and passes without doing anything where it is missing.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed step of a test is a failed test")]

#[path = "../pods/bench.rs"]
#[expect(dead_code, reason = "other tests use the rest of it")]
mod bench;
mod crash;
mod escape;
mod fixture;
mod images;
mod kept;
mod leaks;
mod lifecycle;
mod limits;
mod machine;
mod network;
#[path = "../plain_user/run.rs"]
mod plain_user;
mod rootless;
mod sweep;
mod vm;
