//! `--network`: NetworkPolicies, and whether this machine has a network for sandboxes.

use crate::{
    args::{GlobalArgs, Network},
    cluster::ClusterClient,
};
use agent_sandbox_engine::{DataDir, EngineReply, EngineRequest, send_request};
use agent_sandbox_node::runtime::{Weakness, WeaknessKind};
use anyhow::{Result, bail};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde_json::{Value, json};

/// Private and special address ranges that `--network public` does not open.
const NOT_PUBLIC: &[&str] =
    &["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16", "127.0.0.0/8"];

/// The policy for the Pods that the selector matches.
pub(crate) fn policy(name: &str, pod_selector: Value, network: Network) -> Result<NetworkPolicy> {
    let egress = match network {
        Network::None => json!([]),
        Network::Public => json!([{"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": NOT_PUBLIC}}]}]),
    };
    Ok(serde_json::from_value(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name},
        "spec": {"podSelector": pod_selector, "policyTypes": ["Egress"], "egress": egress},
    }))?)
}

/// Refuses `--network public` where the engine on this machine has no network for sandboxes. Of other clusters, and of an
/// engine of another user, that is not known.
pub(crate) async fn check_engine(global: &GlobalArgs, cluster: &ClusterClient, network: Option<Network>) -> Result<()> {
    if network != Some(Network::Public) || !cluster.is_local() {
        return Ok(());
    }
    let data = DataDir::locate(global.data_dir.as_deref())?;
    match send_request(&data.control(), &EngineRequest::Weaknesses, |_| {}).await {
        Ok(EngineReply::Weaknesses(list)) => check(&list, Network::Public),
        _ => Ok(()),
    }
}

/// Refuses `--network public` on a machine without a network for sandboxes.
pub(crate) fn check(weaknesses: &[Weakness], network: Network) -> Result<()> {
    match weaknesses.iter().find(|weakness| weakness.kind == WeaknessKind::NoEgress) {
        Some(weakness) if network == Network::Public => {
            bail!("--network public is not available here: {}", weakness.message)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_leaves_private_ranges_closed() {
        let value = |network| serde_json::to_value(policy("p", json!({}), network).unwrap()).unwrap();
        assert_eq!(value(Network::None)["spec"]["egress"], json!([]));
        let except = &value(Network::Public)["spec"]["egress"][0]["to"][0]["ipBlock"]["except"];
        assert!(except.as_array().unwrap().contains(&json!("169.254.0.0/16")), "{except}");
    }
}
