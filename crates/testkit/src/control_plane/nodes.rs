//! Fake nodes: kwok marks their Pods as Running and Ready within a second, without starting any process.

use anyhow::Context;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::PostParams};
use serde_json::json;

use super::ControlPlane;
use crate::eventually;

/// kwok's stages: the status changes that it applies to nodes and Pods.
pub(super) const STAGES: &str = include_str!("stages.yaml");
pub(super) const ANNOTATION: &str = "kwok.x-k8s.io/node";
pub(super) const FAKE: &str = "fake";

/// Key of the taint that keeps Pods that need a real node off the fake nodes.
pub const FAKE_NODE_TAINT: &str = ANNOTATION;

/// Which fake nodes to add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FakeNodes {
    pub count: usize,
    /// Add [`FAKE_NODE_TAINT`], so that only Pods that tolerate it are scheduled here.
    pub tainted: bool,
}

impl ControlPlane {
    /// Adds fake nodes and waits until Pods can be scheduled on them.
    pub async fn add_fake_nodes(&self, nodes: FakeNodes) -> anyhow::Result<()> {
        let api: Api<Node> = Api::all(self.client().await?);
        for _ in 0..nodes.count {
            let taints = if nodes.tainted {
                json!([{ "key": FAKE_NODE_TAINT, "value": FAKE, "effect": "NoSchedule" }])
            } else {
                json!([])
            };
            // A capacity that is printed as a plain number: some clients cannot parse 2k.
            let capacity = json!({ "cpu": "999", "memory": "999Gi", "pods": "4999" });
            let node = json!({
                "metadata": {
                    "generateName": "fake-",
                    "annotations": { (ANNOTATION): FAKE, "node.alpha.kubernetes.io/ttl": "0" },
                    "labels": { "type": "kwok", "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64" },
                },
                "spec": { "taints": taints },
                "status": { "allocatable": capacity, "capacity": capacity },
            });
            let node: Node = serde_json::from_value(node)?;
            let name = api.create(&PostParams::default(), &node).await.context("cannot add a fake node")?.metadata.name;
            let name = name.context("a node without a name")?;
            eventually("the fake node takes Pods", || async {
                let node = api.get(&name).await.map_err(|error| error.to_string())?;
                takes_pods(&node).then_some(()).ok_or_else(|| format!("{:?} {:?}", node.spec, node.status))
            })
            .await;
        }
        Ok(())
    }
}

/// True when the node is Ready and the node lifecycle controller has removed its own taints.
fn takes_pods(node: &Node) -> bool {
    let ready = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let waiting = node
        .spec
        .iter()
        .flat_map(|spec| spec.taints.iter().flatten())
        .any(|taint| taint.key.starts_with("node.kubernetes.io/"));
    ready && !waiting
}
