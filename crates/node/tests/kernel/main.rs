//! The kernel half on a real kernel: Pods made, run, entered, killed and removed.
//!
//! Needs root; every test says so and passes without doing anything where it is missing.

mod fixture;
mod lifecycle;
