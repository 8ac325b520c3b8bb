//! Fixtures, a fake clock, a simulated kubelet and clusters for tests. Nothing in production depends on it.

mod cluster;
pub mod control_plane;
mod kubelet;
mod recorder;
mod wait;
mod weather;
mod workbench;

pub use cluster::Cluster;
pub use control_plane::{ControlPlane, ControlPlaneConfig, FakeNodes};
pub use kubelet::{Kubelet, KubeletConfig};
pub use recorder::{Recorder, Sent};
pub use wait::{eventually, eventually_within};
pub use weather::{Sky, Weather};
pub use workbench::{BURST, Served, Workbench, from};
