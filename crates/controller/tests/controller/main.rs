//! The controller on the embedded API, with a simulated kubelet. One program: linking takes longer than most of these tests.

mod bench;
mod child;
mod claims;
mod failover;
mod kill;
mod kubectl;
mod process;
mod sandboxes;
mod spans;
mod weather;
