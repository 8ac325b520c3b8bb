//! Pods that really run: the embedded API, the node and the kernel together.
//!
//! Needs root; every test says so and passes without doing anything where it is missing.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed step of a test is a failed test")]

mod bench;
mod lifecycle;
mod oci;
mod policy;
mod shared;
mod state;
