//! The router as its clients see it: real sockets on both sides, live Pods put into the index by the tests.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should stop")]

mod admission;
mod browsers;
mod contract;
mod credentials;
mod dialling;
mod drain;
mod flood;
mod grpc;
mod links;
mod signed;
mod sleeping;
mod ssrf;
mod streams;
mod support;
mod timeouts;
mod upgrades;
mod watching;
