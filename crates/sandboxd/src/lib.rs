//! The daemon in each sandbox: processes, terminals, files, watches. One small static binary for any image.
//!
//! It owns the process it runs in: signals, children and their ends. It knows nothing of Kubernetes.

pub mod config;
pub mod files;
mod memory;
pub mod native;
pub mod paths;
pub mod process;
mod random;
pub mod runtime;
pub mod server;
mod start;
mod users;
pub mod workspace;

pub use memory::Allocator;
pub use start::{RunError, main_with, run};
