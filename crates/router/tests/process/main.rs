//! The router as a process: start, ports, probes, certificates, signals, memory, audit log.
//!
//! The child is this test binary itself; a variable makes it a router: see [`child::be_a_router`].

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should stop")]

mod audit;
mod child;
mod idle_upgrades;
mod lifecycle;
mod tls;
