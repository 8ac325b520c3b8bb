//! Network settings of clients as a NetworkPolicy of the Sandbox: addresses that may be reached, and those that may not.

use agent_sandbox_api::keys::{annotations, labels};
use agent_sandbox_api::names;
use agent_sandbox_api::v1beta1::Sandbox;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::error::Error;
use crate::server::Call;

/// Addresses that are not the Internet: never reached unless a client allows them by address.
const PRIVATE_V4: [&str; 4] = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"];
const PRIVATE_V6: [&str; 2] = ["fc00::/7", "fe80::/10"];
const ALL_V4: &str = "0.0.0.0/0";
const ALL_V6: &str = "::/0";
/// Resolvers of sandboxes that reach only the Internet, as for templates with the default policy.
const RESOLVERS: [&str; 2] = ["8.8.8.8", "1.1.1.1"];
const MANAGER: &str = "agent-sandbox-e2b";

/// Network settings as clients send them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Network {
    #[serde(rename = "allow_internet_access", skip_serializing_if = "Option::is_none")]
    pub(crate) allow_internet_access: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allow_public_traffic: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allow_out: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deny_out: Option<Vec<String>>,
    /// Settings that are not supported.
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl Network {
    /// Refuses what cannot be enforced.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let given = |value: &Value| !value.is_null() && value != &json!([]) && value != &json!({});
        if let Some((name, _)) = self.others.iter().find(|(_, value)| given(value)) {
            return Err(Error::Unsupported(format!("network.{name} is not supported")));
        }
        for entry in self.allow_out.iter().flatten() {
            if block(entry).is_none() {
                let why = format!("network.allowOut: {entry:?} is not an address; rules by name are not supported yet");
                return Err(Error::Unsupported(why));
            }
        }
        match self.deny_out.iter().flatten().find(|entry| block(entry).is_none()) {
            Some(entry) => Err(Error::Invalid(format!("network.denyOut: {entry:?} is not an address"))),
            None => Ok(()),
        }
    }

    /// Whether a client wants another network than the default.
    pub(crate) fn restricts_egress(&self) -> bool {
        let given = |list: &Option<Vec<String>>| list.as_ref().is_some_and(|list| !list.is_empty());
        self.allow_internet_access == Some(false) || given(&self.allow_out) || given(&self.deny_out)
    }

    /// What is stored with the sandbox, if a client gave anything.
    pub(crate) fn annotation(&self) -> Option<String> {
        serde_json::to_string(self).ok().filter(|text| text != "{}")
    }

    /// Sandboxes reach no private addresses, hence no resolver of the host or the cluster.
    pub(crate) fn set_resolvers(&self, pod: &mut Value) {
        pod["dnsPolicy"] = "None".into();
        pod["dnsConfig"] = json!({ "nameservers": RESOLVERS });
    }

    /// What the sandbox may reach. What is allowed by address is never denied.
    fn egress(&self) -> Value {
        let (mut to, mut except_v4, mut except_v6) =
            (Vec::new(), PRIVATE_V4.map(str::to_owned).to_vec(), PRIVATE_V6.map(str::to_owned).to_vec());
        let mut internet = self.allow_internet_access.unwrap_or(true);
        for denied in self.deny_out.iter().flatten().filter_map(|entry| block(entry)) {
            match denied.as_str() {
                ALL_V4 | ALL_V6 => internet = false,
                _ if denied.contains(':') => except_v6.push(denied),
                _ => except_v4.push(denied),
            }
        }
        to.extend(
            self.allow_out
                .iter()
                .flatten()
                .filter_map(|entry| block(entry))
                .map(|cidr| json!({ "ipBlock": { "cidr": cidr } })),
        );
        if internet {
            to.push(json!({ "ipBlock": { "cidr": ALL_V4, "except": except_v4 } }));
            to.push(json!({ "ipBlock": { "cidr": ALL_V6, "except": except_v6 } }));
        }
        // An empty list of peers would allow everything.
        if to.is_empty() { json!([]) } else { json!([{ "to": to }]) }
    }
}

/// An address or a block of addresses as a block.
fn block(entry: &str) -> Option<String> {
    let (address, length) = match entry.split_once('/') {
        Some((address, length)) => (address, Some(length.parse::<u8>().ok()?)),
        None => (entry, None),
    };
    let address: std::net::IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let length = length.unwrap_or(most);
    (length <= most).then(|| format!("{address}/{length}"))
}

impl Call<'_> {
    /// Writes the NetworkPolicy of a Sandbox, which is deleted with it. Until there is one, our node keeps the Pod closed.
    pub(crate) async fn write_policy(&self, sandbox: &Sandbox, network: &Network) -> Result<(), Error> {
        let name = sandbox.metadata.name.as_deref().unwrap_or_default();
        let router = json!({
            "namespaceSelector": {},
            "podSelector": { "matchLabels": { "app": "sandbox-router" } },
        });
        let policy = json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {
                "name": name,
                "ownerReferences": [{
                    "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "name": name,
                    "uid": sandbox.metadata.uid, "controller": false,
                }],
            },
            "spec": {
                "podSelector": { "matchLabels": { labels::SANDBOX_NAME_HASH: names::name_hash(name) } },
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [{ "from": [router] }],
                "egress": network.egress(),
            },
        });
        let policies: Api<NetworkPolicy> = Api::namespaced(self.account.client.clone(), &self.account.namespace);
        policies.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&policy)).await?;
        Ok(())
    }

    /// Replaces the rules for what a sandbox may reach. Who reaches the sandbox stays.
    pub(crate) async fn set_network(&self, id: &str) -> Result<(), Error> {
        let mut network: Network = self.json()?;
        network.check()?;
        let record = self.running(id).await?;
        network.allow_public_traffic = (!record.is_public()).then_some(false);
        if record.claim.is_some() {
            let why = "the network of a sandbox from a template is that of the SandboxTemplate (spec.networkPolicy)";
            return Err(Error::Unsupported(why.to_owned()));
        }
        self.write_policy(&record.sandbox, &network).await?;
        let patch = json!({
            "metadata": {
                "uid": record.sandbox.metadata.uid,
                "annotations": { annotations::E2B_NETWORK: network.annotation() },
            },
        });
        self.sandboxes().patch(record.name(), &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(value: Value) -> Network {
        serde_json::from_value(value).unwrap()
    }

    /// E-032, E-043
    #[test]
    fn addresses_become_rules() {
        let public = json!([
            { "ipBlock": { "cidr": ALL_V4, "except": PRIVATE_V4 } },
            { "ipBlock": { "cidr": ALL_V6, "except": PRIVATE_V6 } },
        ]);
        assert_eq!(Network::default().egress(), json!([{ "to": public }]));
        assert_eq!(network(json!({"allow_internet_access": false})).egress(), json!([]));
        let one = network(json!({"allowOut": ["1.1.1.1"], "denyOut": ["0.0.0.0/0"]}));
        assert_eq!(one.egress(), json!([{ "to": [{ "ipBlock": { "cidr": "1.1.1.1/32" } }] }]));
        let some = network(json!({"denyOut": ["8.8.8.0/24"]})).egress();
        assert_eq!(some[0]["to"][0]["ipBlock"]["except"][4], "8.8.8.0/24");
    }

    /// E-126
    #[test]
    fn what_cannot_be_enforced_is_refused() {
        assert!(network(json!({"allowOut": ["1.1.1.0/24"], "rules": {}, "dnsServers": []})).check().is_ok());
        for unsupported in [json!({"allowOut": ["example.com"]}), json!({"egressProxy": {"address": "x"}})] {
            assert!(matches!(network(unsupported).check(), Err(Error::Unsupported(_))));
        }
        for invalid in ["example.com", "1.1.1.1/33", "x/8"] {
            assert!(matches!(network(json!({ "denyOut": [invalid] })).check(), Err(Error::Invalid(_))), "{invalid}");
        }
    }
}
