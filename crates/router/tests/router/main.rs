//! The router as its clients see it: real sockets on both sides, live Pods fed into the index by hand.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should stop")]

mod contract;
mod support;
