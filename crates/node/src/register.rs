//! The Node object and its Lease: registered once, then renewed, and otherwise silent.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{
    DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeStatus, NodeSystemInfo,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference, Time};
use kube::api::{Api, Patch, PatchParams, PostParams};
use tracing::{debug, warn};

use crate::pods::resources::Allocatable;

/// How often the Lease is renewed. Kubernetes gives a node 40 s; four chances in that time are plenty.
const RENEW_EVERY: Duration = Duration::from_secs(10);
const LEASE_SECONDS: i32 = 40;
const LEASES: &str = "kube-node-lease";
/// Pods one node may have; the density promise is 3,000.
const MAX_PODS: u32 = 4000;

/// What the Node object says.
#[derive(Clone, Debug)]
pub struct Registration {
    pub node_name: String,
    pub host_ips: Vec<String>,
    pub allocatable: Allocatable,
    pub labels: BTreeMap<String, String>,
    /// The port of the TLS server for logs, exec and port-forward, when it runs.
    pub kubelet_port: Option<u16>,
}

/// The labels every node has.
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
pub fn node(registration: &Registration, machine: &Machine, now: Timestamp) -> Node {
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
    addresses.push(NodeAddress { address: registration.node_name.clone(), type_: "Hostname".to_owned() });
    Node {
        metadata: ObjectMeta {
            name: Some(registration.node_name.clone()),
            labels: Some(registration.labels.clone()),
            ..ObjectMeta::default()
        },
        spec: None,
        status: Some(NodeStatus {
            capacity: Some(resources.clone()),
            allocatable: Some(resources),
            conditions: Some(conditions(now)),
            addresses: Some(addresses),
            daemon_endpoints: registration
                .kubelet_port
                .map(|port| NodeDaemonEndpoints { kubelet_endpoint: Some(DaemonEndpoint { port: i32::from(port) }) }),
            node_info: Some(system_info(machine, &registration.labels)),
            ..NodeStatus::default()
        }),
    }
}

fn conditions(now: Timestamp) -> Vec<NodeCondition> {
    let at = Some(Time(now));
    let condition = |type_: &str, status: &str, reason: &str, message: &str| NodeCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: at.clone(),
        last_transition_time: at.clone(),
    };
    vec![
        condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ]
}

/// Facts of the machine, read once.
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
pub async fn register(client: &kube::Client, registration: &Registration) -> Result<String, kube::Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    let now = Timestamp::now();
    let machine = tokio::task::spawn_blocking(Machine::read).await.unwrap_or_default();
    let wanted = node(registration, &machine, now);
    let name = &registration.node_name;
    let stored = match nodes.create(&PostParams::default(), &wanted).await {
        Ok(stored) => stored,
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let labels = serde_json::json!({"metadata": {"labels": registration.labels}});
            nodes.patch(name, &PatchParams::default(), &Patch::Merge(&labels)).await?
        }
        Err(error) => return Err(error),
    };
    // A control plane drops the status of a create.
    let status = serde_json::json!({"status": wanted.status});
    nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await?;
    let uid = stored.metadata.uid.unwrap_or_default();
    renew(client, name, &uid).await?;
    Ok(uid)
}

async fn renew(client: &kube::Client, node_name: &str, node_uid: &str) -> Result<(), kube::Error> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASES);
    let now = MicroTime(Timestamp::now());
    let patch = serde_json::json!({"spec": {"renewTime": now, "holderIdentity": node_name}});
    match leases.patch(node_name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(node_name.to_owned()),
                    namespace: Some(LEASES.to_owned()),
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

/// Registers, with retries, then renews for as long as it is polled.
pub async fn run(client: kube::Client, registration: Registration) {
    let mut uid = None;
    loop {
        let result = match &uid {
            None => register(&client, &registration).await.map(|registered| uid = Some(registered)),
            Some(uid) => renew(&client, &registration.node_name, uid).await,
        };
        let pause = match (&result, &uid) {
            (Ok(()), _) => RENEW_EVERY,
            (Err(error), None) => {
                warn!(%error, "Could not register the node, trying again");
                Duration::from_secs(1)
            }
            (Err(error), Some(_)) => {
                debug!(%error, "Could not renew the node's lease");
                RENEW_EVERY / 2
            }
        };
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::quantity::Milli;

    #[test]
    fn the_node_object_is_what_schedulers_and_kubectl_read() {
        let registration = Registration {
            node_name: "n1".into(),
            host_ips: vec!["192.0.2.1".into()],
            allocatable: Allocatable { cpu: Milli(2000), memory: Milli(4_096_000), ephemeral_storage: Milli(1000) },
            labels: labels("n1"),
            kubelet_port: Some(10250),
        };
        let node = node(&registration, &Machine::default(), Timestamp::UNIX_EPOCH);
        let status = node.status.unwrap();
        assert_eq!(status.capacity.as_ref().unwrap()["cpu"].0, "2000m");
        assert_eq!(status.capacity.as_ref().unwrap()["memory"].0, "4096");
        assert_eq!(status.capacity.as_ref().unwrap()["pods"].0, "4000");
        let ready = status.conditions.unwrap().into_iter().find(|c| c.type_ == "Ready").unwrap();
        assert_eq!(ready.status, "True");
        assert_eq!(status.daemon_endpoints.unwrap().kubelet_endpoint.unwrap().port, 10250);
        assert_eq!(node.metadata.labels.unwrap()["kubernetes.io/hostname"], "n1");
    }
}
