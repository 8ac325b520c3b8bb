//! Running programs: launching, reaping, bounded output, time limits, signals to whole groups.

pub mod capture;
pub mod inherited;
pub mod launch;
pub mod log;
pub(crate) mod lookup;
pub mod managed;
pub mod reaper;
pub mod run;
mod spawn_fast;
mod spawn_full;

pub use launch::{Launch, LaunchError, Stdin};
pub use reaper::{Exit, Reaper};
