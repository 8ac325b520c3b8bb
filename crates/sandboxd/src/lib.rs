//! The daemon in each sandbox: processes, terminals, files, watches. One small static binary for any image.
//!
//! It owns the process it runs in: its signals, its children and their exit. It knows nothing of Kubernetes.
//!
//! `start` reads the `config` and starts the `server`, which passes each request to one of the `dialects`. They use
//! `http_io` and `core`; `core` uses none of them.

pub mod config;
pub mod core;
pub mod dialects;
/// Entry points for `make fuzz`, and for the test that repeats its corpora.
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod http_io;
mod memory;
pub mod server;
mod start;

pub use memory::Allocator;
pub use start::{RunError, main_with, run};
