//! The router as a process: start, ports, probes, certificates, signals, memory.
//!
//! The child is this test binary itself; a variable makes it a router: see [`child::be_a_router`].

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should stop")]

mod child;
mod idle_upgrades;
mod lifecycle;
mod tls;
