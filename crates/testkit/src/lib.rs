//! Fixtures, fault injection, a simulated kubelet and clusters for tests. No production code depends on this crate.

mod cluster;
pub mod control_plane;
mod faults;
mod fixture;
mod kubelet;
mod recorder;
mod wait;

pub use cluster::Cluster;
pub use control_plane::{ControlPlane, ControlPlaneConfig, FakeNodes};
pub use faults::{ApiFault, FaultInjector};
pub use fixture::{BURST_TIMEOUT, ControllerFixture, ServedApi, from_json};
pub use kubelet::{Kubelet, KubeletConfig};
pub use recorder::{Recorder, Sent};
pub use wait::{eventually, eventually_within};
