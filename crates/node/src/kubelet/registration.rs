//! Registers the Node object and renews its Lease; writes nothing else while nothing changes.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{
    DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeSpec, NodeStatus, NodeSystemInfo, Taint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use crate::kubelet::resources::Allocatable;

/// Interval of Lease renewals. Kubernetes considers a node lost after 40 s, so three renewals may fail.
const RENEW_INTERVAL: Duration = Duration::from_secs(10);
const LEASE_SECONDS: i32 = 40;
/// Minimum interval between two writes of the Node's conditions, whatever other clients write into them.
const MIN_REPORT_INTERVAL: Duration = Duration::from_secs(2);
const LEASE_NAMESPACE: &str = "kube-node-lease";
/// Maximum number of Pods that the node advertises; the promised density is 3,000.
const MAX_PODS: u32 = 4000;

/// The contents of the Node object.
#[derive(Clone, Debug)]
pub struct Registration {
    pub node_name: String,
    pub host_ips: Vec<String>,
    pub allocatable: Allocatable,
    pub labels: BTreeMap<String, String>,
    /// Port of the kubelet's HTTPS server for logs, exec and port-forward, when it runs.
    pub kubelet_port: Option<u16>,
    pub taints: Vec<Taint>,
}

/// The standard labels of a node.
pub fn labels(node_name: &str) -> BTreeMap<String, String> {
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    [
        ("kubernetes.io/hostname", node_name),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", arch),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", arch),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

/// Builds the Node object.
pub fn node(registration: &Registration, machine: &Machine, health: &Health, now: Timestamp) -> Node {
    let Allocatable { cpu, memory, ephemeral_storage } = registration.allocatable;
    let resources = BTreeMap::from([
        ("cpu".to_owned(), Quantity(format!("{}m", cpu.0))),
        ("memory".to_owned(), Quantity(memory.units().to_string())),
        ("ephemeral-storage".to_owned(), Quantity(ephemeral_storage.units().to_string())),
        ("pods".to_owned(), Quantity(MAX_PODS.to_string())),
    ]);
    let mut addresses: Vec<NodeAddress> = registration
        .host_ips
        .iter()
        .map(|ip| NodeAddress { address: ip.clone(), type_: "InternalIP".to_owned() })
        .collect();
    // A control plane prefers the host name over addresses when it connects to the node, and DNS may not resolve this
    // name.
    if registration.kubelet_port.is_none() {
        addresses.push(NodeAddress { address: registration.node_name.clone(), type_: "Hostname".to_owned() });
    }
    Node {
        metadata: ObjectMeta {
            name: Some(registration.node_name.clone()),
            labels: Some(registration.labels.clone()),
            ..ObjectMeta::default()
        },
        spec: (!registration.taints.is_empty())
            .then(|| NodeSpec { taints: Some(registration.taints.clone()), ..NodeSpec::default() }),
        status: Some(NodeStatus {
            capacity: Some(resources.clone()),
            allocatable: Some(resources),
            conditions: Some(conditions(health, &[], now)),
            addresses: Some(addresses),
            daemon_endpoints: registration
                .kubelet_port
                .map(|port| NodeDaemonEndpoints { kubelet_endpoint: Some(DaemonEndpoint { port: i32::from(port) }) }),
            node_info: Some(system_info(machine, &registration.labels)),
            ..NodeStatus::default()
        }),
    }
}

/// Health of the node that goes into its conditions.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Health {
    /// Why the node is under disk pressure: it accepts no new Pods and may evict some. `None` without pressure.
    pub disk_pressure: Option<String>,
}

/// The Node's conditions; a condition whose status has not changed keeps its transition time.
fn conditions(health: &Health, before: &[NodeCondition], now: Timestamp) -> Vec<NodeCondition> {
    let condition = |type_: &str, status: &str, reason: &str, message: &str| {
        let known = before.iter().find(|c| c.type_ == type_ && c.status == status);
        NodeCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_heartbeat_time: Some(Time(now)),
            last_transition_time: known.and_then(|c| c.last_transition_time.clone()).or(Some(Time(now))),
        }
    };
    let disk = match &health.disk_pressure {
        Some(message) => condition("DiskPressure", "True", "KubeletHasDiskPressure", message),
        None => condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    };
    vec![
        condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        disk,
        condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ]
}

/// Facts about the machine, read once.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    pub machine_id: String,
    pub boot_id: String,
    pub kernel: String,
    pub os_image: String,
}

impl Machine {
    pub fn read() -> Self {
        let line = |path: &str| std::fs::read_to_string(path).map(|t| t.trim().to_owned()).unwrap_or_default();
        let release = line("/etc/os-release");
        let pretty = release.lines().find_map(|l| l.strip_prefix("PRETTY_NAME=")).unwrap_or("Linux");
        Self {
            machine_id: line("/etc/machine-id"),
            boot_id: line("/proc/sys/kernel/random/boot_id"),
            kernel: line("/proc/sys/kernel/osrelease"),
            os_image: pretty.trim_matches('"').to_owned(),
        }
    }
}

fn system_info(machine: &Machine, labels: &BTreeMap<String, String>) -> NodeSystemInfo {
    NodeSystemInfo {
        architecture: labels.get("kubernetes.io/arch").cloned().unwrap_or_default(),
        boot_id: machine.boot_id.clone(),
        machine_id: machine.machine_id.clone(),
        system_uuid: machine.machine_id.clone(),
        kernel_version: machine.kernel.clone(),
        os_image: machine.os_image.clone(),
        operating_system: "linux".to_owned(),
        container_runtime_version: format!("agent-sandbox://{}", env!("CARGO_PKG_VERSION")),
        kubelet_version: format!("v1.36.0-agent-sandbox.{}", env!("CARGO_PKG_VERSION")),
        kube_proxy_version: String::new(),
        ..NodeSystemInfo::default()
    }
}

/// Writes the Node and its first Lease. Returns the Node's uid.
pub async fn register(
    client: &kube::Client,
    registration: &Registration,
    health: &Health,
) -> Result<String, kube::Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    let machine = tokio::task::spawn_blocking(Machine::read).await.unwrap_or_default();
    let wanted = node(registration, &machine, health, Timestamp::now());
    let name = &registration.node_name;
    let stored = match nodes.create(&PostParams::default(), &wanted).await {
        Ok(stored) => stored,
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let labels = serde_json::json!({"metadata": {"labels": registration.labels}});
            nodes.patch(name, &PatchParams::default(), &Patch::Merge(&labels)).await?
        }
        Err(error) => return Err(error),
    };
    // An API server ignores the status in a create request. A strategic patch keeps conditions that other clients own.
    let status = serde_json::json!({"status": wanted.status});
    nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(&status)).await?;
    let uid = stored.metadata.uid.unwrap_or_default();
    renew(client, name, &uid).await?;
    Ok(uid)
}

async fn renew(client: &kube::Client, node_name: &str, node_uid: &str) -> Result<(), kube::Error> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASE_NAMESPACE);
    let now = MicroTime(Timestamp::now());
    let patch = serde_json::json!({"spec": {"renewTime": now, "holderIdentity": node_name}});
    match leases.patch(node_name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(node_name.to_owned()),
                    namespace: Some(LEASE_NAMESPACE.to_owned()),
                    owner_references: Some(vec![OwnerReference {
                        api_version: "v1".to_owned(),
                        kind: "Node".to_owned(),
                        name: node_name.to_owned(),
                        uid: node_uid.to_owned(),
                        ..OwnerReference::default()
                    }]),
                    ..ObjectMeta::default()
                },
                spec: Some(LeaseSpec {
                    holder_identity: Some(node_name.to_owned()),
                    lease_duration_seconds: Some(LEASE_SECONDS),
                    renew_time: Some(now),
                    ..LeaseSpec::default()
                }),
            };
            leases.create(&PostParams::default(), &lease).await.map(drop)
        }
        Err(error) => Err(error),
    }
}

/// Registers the node, with retries, and keeps its Node and Lease up to date until the future is dropped.
pub async fn run(client: kube::Client, registration: Registration, mut health: watch::Receiver<Health>) {
    loop {
        let now = health.borrow_and_update().clone();
        match register(&client, &registration, &now).await {
            Ok(uid) => {
                keep_registered(&client, &registration, &uid, &mut health).await;
                info!(node = registration.node_name, "The Node object was deleted, registering again");
            }
            Err(error) => {
                warn!(%error, "Could not register the node, retrying");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// Renews the Lease, and writes the conditions when they change or when another client marked the node as not ready.
/// Returns when the registered Node object no longer exists.
async fn keep_registered(
    client: &kube::Client,
    registration: &Registration,
    uid: &str,
    health: &mut watch::Receiver<Health>,
) {
    let nodes: Api<Node> = Api::all(client.clone());
    let only_this_node = watcher::Config::default().fields(&format!("metadata.name={}", registration.node_name));
    let mut events = watcher(nodes, only_this_node).default_backoff().boxed();
    let mut renew_at = Instant::now() + RENEW_INTERVAL;
    let (mut report_due, mut reported_at, mut listed) = (false, Instant::now(), false);
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(renew_at) => {
                let renewed = renew(client, &registration.node_name, uid).await;
                if let Err(error) = &renewed {
                    debug!(%error, "Could not renew the node's lease");
                }
                renew_at = Instant::now() + if renewed.is_ok() { RENEW_INTERVAL } else { RENEW_INTERVAL / 2 };
            }
            Ok(()) = health.changed() => report_due = true,
            Some(event) = events.next() => match event {
                Ok(watcher::Event::Init) => listed = false,
                Ok(watcher::Event::InitApply(node) | watcher::Event::Apply(node)) => {
                    listed = true;
                    if node.metadata.uid.as_deref() != Some(uid) {
                        return;
                    }
                    report_due |= !is_ready(&node);
                }
                Ok(watcher::Event::InitDone) if listed => {}
                Ok(watcher::Event::InitDone | watcher::Event::Delete(_)) => return,
                Err(error) => debug!(%error, "Watch of the own Node was interrupted"),
            },
        }
        // Writes are rate-limited: a client that keeps overwriting the conditions does not cause a write for each of
        // its own.
        if report_due && reported_at.elapsed() > MIN_REPORT_INTERVAL {
            let now = health.borrow_and_update().clone();
            report_due = report(client, &registration.node_name, &now).await.is_err();
            reported_at = Instant::now();
        } else if report_due {
            renew_at = renew_at.min(reported_at + MIN_REPORT_INTERVAL + Duration::from_millis(10));
        }
    }
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

async fn report(client: &kube::Client, node_name: &str, health: &Health) -> Result<(), kube::Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    let before = nodes.get_status(node_name).await?;
    let before = before.status.and_then(|s| s.conditions).unwrap_or_default();
    let status = serde_json::json!({"status": {"conditions": conditions(health, &before, Timestamp::now())}});
    nodes.patch_status(node_name, &PatchParams::default(), &Patch::Strategic(&status)).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::resources::quantity::Milli;

    #[test]
    fn the_node_object_has_what_schedulers_and_kubectl_read() {
        let registration = Registration {
            node_name: "n1".into(),
            host_ips: vec!["192.0.2.1".into()],
            allocatable: Allocatable { cpu: Milli(2000), memory: Milli(4_096_000), ephemeral_storage: Milli(1000) },
            labels: labels("n1"),
            kubelet_port: Some(10250),
            taints: vec![],
        };
        let node = node(&registration, &Machine::default(), &Health::default(), Timestamp::UNIX_EPOCH);
        let status = node.status.unwrap();
        assert_eq!(status.capacity.as_ref().unwrap()["cpu"].0, "2000m");
        assert_eq!(status.capacity.as_ref().unwrap()["memory"].0, "4096");
        assert_eq!(status.capacity.as_ref().unwrap()["pods"].0, "4000");
        let ready = status.conditions.unwrap().into_iter().find(|c| c.type_ == "Ready").unwrap();
        assert_eq!(ready.status, "True");
        assert_eq!(status.daemon_endpoints.unwrap().kubelet_endpoint.unwrap().port, 10250);
        assert_eq!(node.metadata.labels.unwrap()["kubernetes.io/hostname"], "n1");
    }

    #[test]
    fn conditions_keep_the_time_of_their_last_change() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let first = conditions(&Health::default(), &[], at(1));
        let pressed = Health { disk_pressure: Some("2 % of the disk is free".into()) };
        let second = conditions(&pressed, &first, at(9));
        let of = |list: &[NodeCondition], type_: &str| {
            let found = list.iter().find(|c| c.type_ == type_).unwrap().clone();
            (found.status, found.last_transition_time.unwrap().0)
        };
        assert_eq!(of(&second, "Ready"), ("True".to_owned(), at(1)));
        assert_eq!(of(&second, "DiskPressure"), ("True".to_owned(), at(9)));
    }
}
