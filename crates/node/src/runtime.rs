//! The interface between the kubelet half and the kernel half of the node.
//!
//! Everything here is a complete decision: users, commands, environments, addresses and limits are resolved before they
//! arrive, and nothing in this module reads a Kubernetes object. All calls are idempotent by Pod uid, container name
//! and attempt, so a caller that is restarted in the middle may simply repeat them.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::net::TcpStream;
use tokio::sync::broadcast;

mod error;
mod image;
mod policy;
mod session;
mod spec;
mod state;
mod volume;

pub use error::{RuntimeError, chain};
pub use image::{
    ImageConfig, ImageContent, ImageError, ImageService, ImageSummary, PullPolicy, PullProgress, RegistryCredentials,
    ResolvedImage,
};
pub use policy::{Allow, IpBlock, PodRules, PortRange, Protocol};
pub use session::{AttachRequest, ExecRequest, ExecSession, TerminalSize};
pub use spec::{
    Capability, ContainerSpec, Limits, LogTarget, Mount, MountSource, NetworkMode, PodSandboxSpec, RuntimeHandler,
    SnapshotOrigin, User,
};
pub use state::{ContainerState, Exit, PodSandbox, PodState, PreviousAttempt, RuntimeEvent, Weakness, WeaknessKind};
pub use volume::{StorageMechanism, StorageUsage, Volume, VolumeKey, VolumeRequest, VolumeUsage};

/// Runs Pods. One implementation uses the kernel directly; tests of the kubelet half use a recording fake.
#[async_trait]
pub trait PodRuntime: Send + Sync + 'static {
    /// Creates the Pod's namespaces, cgroup, network and supervisor; no container yet. A Pod that already exists is
    /// returned as it is.
    async fn create_pod(&self, spec: PodSandboxSpec) -> Result<PodSandbox, RuntimeError>;

    /// Starts one container and returns once its command has been executed (or could not be).
    async fn start_container(&self, pod: &str, spec: ContainerSpec) -> Result<ContainerState, RuntimeError>;

    /// Sends `signal` to the container's first process. Its exit is reported as an event.
    async fn signal_container(&self, pod: &str, container: &str, signal: i32) -> Result<(), RuntimeError>;

    /// Kills all processes of the container at once. Its exit is reported as an event.
    async fn kill_container(&self, pod: &str, container: &str) -> Result<(), RuntimeError>;

    /// Kills what still runs and removes the Pod: processes, network, cgroup, supervisor, Pod folder. Writable layers
    /// stay with the owner until [`PodRuntime::delete_owner_storage`]. An unknown Pod is success.
    async fn remove_pod(&self, pod: &str) -> Result<(), RuntimeError>;

    /// Removes what is kept for an owner that no longer exists: writable layers and its block of user ids.
    async fn delete_owner_storage(&self, owner: &str) -> Result<(), RuntimeError>;

    /// Owners with kept data, so that the caller can forget those that no longer exist.
    async fn kept_owners(&self) -> Result<Vec<String>, RuntimeError>;

    /// Runs a command in a running container.
    async fn exec(&self, pod: &str, container: &str, request: ExecRequest) -> Result<ExecSession, RuntimeError>;

    /// Connects to the standard streams of a running container's first process.
    async fn attach(&self, pod: &str, container: &str, request: AttachRequest) -> Result<ExecSession, RuntimeError>;

    /// The last bytes, at most `max_bytes`, of a container's termination message.
    async fn termination_message(&self, pod: &str, container: &str, max_bytes: usize) -> Vec<u8>;

    /// Opens a TCP connection to `port` on the Pod's loopback address (and, failing that, its own address), from inside its
    /// network namespace.
    async fn dial(&self, pod: &str, port: u16) -> Result<TcpStream, RuntimeError>;

    /// Replaces the whole set of allowed flows of a Pod. A new Pod is closed both ways until this is called.
    async fn set_rules(&self, pod: &str, rules: PodRules) -> Result<(), RuntimeError>;

    /// The address to which connections of Pods with rules by domain are diverted; or why this host cannot enforce such
    /// rules. [`PodRuntime::set_rules`] then closes the Pod and returns an error.
    fn egress_proxy(&self) -> Result<SocketAddrV4, String> {
        Err("this node does not control the Pods' network".to_owned())
    }

    /// Opens pairs of address and TCP port for a Pod with rules by domain, each for its time from now on. They are open on
    /// return.
    async fn open_ports(&self, pod: &str, pairs: Vec<((Ipv4Addr, u16), Duration)>) -> Result<(), RuntimeError> {
        let _ = pairs;
        Err(RuntimeError::Refused(format!("this node cannot open ports for Pod {pod}")))
    }

    /// Closes pairs that [`PodRuntime::open_ports`] has opened. Connections that are established stay.
    async fn close_ports(&self, pod: &str, pairs: Vec<(Ipv4Addr, u16)>) -> Result<(), RuntimeError> {
        let _ = pairs;
        Err(RuntimeError::Refused(format!("this node cannot close ports of Pod {pod}")))
    }

    /// Creates or finds the folder of a volume, with the strongest limit that the host supports.
    async fn ensure_volume(&self, request: VolumeRequest) -> Result<Volume, RuntimeError>;

    /// Removes a volume and its data.
    async fn remove_volume(&self, key: &VolumeKey) -> Result<(), RuntimeError>;

    /// Bytes used by each writable layer and each ephemeral volume of a Pod, and their inodes, for eviction and statistics.
    async fn storage_usage(&self, pod: &str) -> Result<StorageUsage, RuntimeError>;

    /// Bytes and inodes that one volume uses on disk.
    async fn volume_usage(&self, key: &VolumeKey) -> Result<VolumeUsage, RuntimeError>;

    /// Every Pod of this data folder, including those whose supervisor died: called once after the node has started.
    /// Exits that happened while no node was running are in the containers' states.
    async fn list(&self) -> Result<Vec<PodState>, RuntimeError>;

    /// The current state of one Pod.
    async fn state(&self, pod: &str) -> Result<Option<PodState>, RuntimeError>;

    /// Events from now on. A lagging receiver should call [`PodRuntime::list`] and compare.
    fn events(&self) -> broadcast::Receiver<RuntimeEvent>;

    /// The memory limit of a container's processes: its own or its Pod's, whichever is lower.
    fn memory_limit(&self, _pod: &str, _container: &str) -> Option<u64> {
        None
    }

    /// What this host cannot enforce as strongly as a fully equipped one, for `doctor`, `up` and Pod events.
    fn weaknesses(&self) -> Vec<Weakness>;

    /// The address that the DNS server for Pods listens on, when Pods have a network (the server belongs to the kubelet
    /// half).
    fn dns_address(&self) -> Option<IpAddr>;

    /// Whether this machine can connect to Pods at their addresses; otherwise connections are made from inside.
    fn reaches_addresses(&self) -> bool {
        true
    }

    /// The address of the Pods' resolver, if there is one.
    fn resolver(&self) -> Option<IpAddr> {
        self.dns_address()
    }

    /// The network of this node's Pods, when Pods have a network: a policy that allows every address excludes it.
    fn pod_network(&self) -> Option<(IpAddr, u8)> {
        None
    }

    /// The folder in which the kubelet half may keep files of this Pod; removed with the Pod.
    fn pod_dir(&self, pod: &str) -> PathBuf;
}

/// A shared runtime.
pub type SharedRuntime = Arc<dyn PodRuntime>;
