//! The kernel half on a real kernel: Pods made, run, entered, killed and removed.
//!
//! Needs root; every test says so and passes without doing anything where it is missing.

#![expect(clippy::unwrap_used, unreachable_pub, reason = "a failed step of a test is a failed test")]

mod fixture;
mod lifecycle;
