//! Fixtures, a fake clock, a simulated kubelet and clusters for tests. Nothing in production depends on it.

mod cluster;
mod kubelet;
mod recorder;
mod wait;

pub use cluster::Cluster;
pub use kubelet::{Kubelet, KubeletConfig};
pub use recorder::{Recorder, Sent};
pub use wait::{eventually, eventually_within};
