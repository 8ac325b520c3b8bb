//! Processes: launching, reaping, bounded output, time limits, signals to process groups.

mod fork_exec;
pub mod inherited;
pub mod launch;
pub mod log;
pub(crate) mod lookup;
pub mod managed;
mod posix_spawn;
pub mod reaper;
pub mod run;
pub(crate) mod users;

pub use launch::{Launch, LaunchError, Stdin};
pub use reaper::{Exit, Reaper};
