//! The controller on the embedded API, with a simulated kubelet. One test binary, because linking takes longer than
//! most of these tests.

mod api_failures;
mod child;
mod claims;
mod failover;
mod fixture;
mod kill;
mod kubectl;
mod process;
mod sandboxes;
mod spans;
