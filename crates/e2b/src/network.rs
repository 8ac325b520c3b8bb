//! Network settings of clients as a NetworkPolicy of the Sandbox: addresses that may be reached, and those that may not.

use std::sync::Arc;

use agent_sandbox_api::keys::{annotations, labels};
use agent_sandbox_api::names;
use agent_sandbox_api::snapshot::SandboxSnapshot;
use agent_sandbox_api::template::PodTemplate;
use agent_sandbox_api::v1beta1::{Sandbox, SandboxTemplate};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::block::Block;
use crate::error::Error;
use crate::record::Record;
use crate::server::Call;

/// Addresses that are not the Internet: never reached unless a client allows one of these blocks, or a part of it.
const PRIVATE_V4: [&str; 4] = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"];
const PRIVATE_V6: [&str; 2] = ["fc00::/7", "fe80::/10"];
/// Addresses that no client may open: of the machine itself, and of services that give credentials of the machine to
/// every program on it.
const NEVER: [&str; 8] = [
    "127.0.0.0/8",
    "169.254.0.0/16",
    "100.100.100.200/32",
    "168.63.129.16/32",
    "192.0.0.192/32",
    "::1/128",
    "fe80::/10",
    "fd00:ec2::254/128",
];
const ALL_V4: &str = "0.0.0.0/0";
const ALL_V6: &str = "::/0";
/// Resolvers of sandboxes that reach only the Internet, as for templates with the default policy.
const RESOLVERS: [&str; 2] = ["8.8.8.8", "1.1.1.1"];
/// What a client is told that wants another network for a sandbox whose files are those of a template's.
const OF_TEMPLATE: &str = "the network of a sandbox from a template, or from a snapshot of one, is that of the SandboxTemplate (spec.networkPolicy)";
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
    /// Refuses what cannot be enforced, and what clients may not open. With a ceiling, an administrator decides what
    /// sandboxes reach; addresses that a client allows would go past it.
    fn check(&self, ceiling: bool) -> Result<(), Error> {
        let given = |value: &Value| !value.is_null() && value != &json!([]) && value != &json!({});
        if let Some((name, _)) = self.others.iter().find(|(_, value)| given(value)) {
            return Err(Error::Unsupported(format!("network.{name} is not supported")));
        }
        for entry in self.allow_out.iter().flatten() {
            let Ok(allowed) = entry.parse::<Block>() else {
                let why = format!("network.allowOut: {entry:?} is not an address; rules by name are not supported yet");
                return Err(Error::Unsupported(why));
            };
            if is_never_open(&allowed) {
                return Err(Error::Invalid(format!(
                    "network.allowOut: {entry:?} is a loopback, link-local or metadata address, which no sandbox may reach"
                )));
            }
            if ceiling {
                return Err(Error::Forbidden(format!(
                    "network.allowOut: {entry:?} is an address, and the namespace has the annotation {}, which says what \
                     its sandboxes reach",
                    annotations::EGRESS_CEILING
                )));
            }
        }
        match self.deny_out.iter().flatten().find(|entry| entry.parse::<Block>().is_err()) {
            Some(entry) => Err(Error::Invalid(format!("network.denyOut: {entry:?} is not an address"))),
            None => Ok(()),
        }
    }

    /// Whether a client wants another network than the default.
    fn restricts_egress(&self) -> bool {
        let given = |list: &Option<Vec<String>>| list.as_ref().is_some_and(|list| !list.is_empty());
        self.allow_internet_access == Some(false) || given(&self.allow_out) || given(&self.deny_out)
    }

    /// What is stored with the sandbox, if a client gave anything.
    pub(crate) fn annotation(&self) -> Option<String> {
        serde_json::to_string(self).ok().filter(|text| text != "{}")
    }

    /// Refuses settings that a sandbox with the network of a template does not have.
    pub(crate) fn check_of_template(&self) -> Result<(), Error> {
        match self.restricts_egress() {
            true => Err(Error::Unsupported(OF_TEMPLATE.to_owned())),
            false => Ok(()),
        }
    }

    /// Sandboxes reach no private addresses, hence no resolver of the host or the cluster.
    fn set_resolvers(pod: &mut Value) {
        pod["dnsPolicy"] = "None".into();
        pod["dnsConfig"] = json!({ "nameservers": RESOLVERS });
    }

    /// What the sandbox may reach. What is allowed by address is never denied.
    fn egress(&self) -> Value {
        let denied: Vec<Block> = blocks(&self.deny_out).collect();
        let allowed = blocks(&self.allow_out).filter(|allowed| !is_never_open(allowed));
        let mut to: Vec<Value> = allowed.map(|allowed| peer(&allowed.to_string(), closed_parts(&allowed))).collect();
        if self.allow_internet_access.unwrap_or(true) && !denied.iter().any(Block::is_everything) {
            let (v4, v6): (Vec<Block>, Vec<Block>) = denied.into_iter().partition(Block::is_v4);
            for (all, private, denied) in [(ALL_V4, &PRIVATE_V4[..], v4), (ALL_V6, &PRIVATE_V6[..], v6)] {
                let private = private.iter().map(|text| (*text).to_owned());
                to.push(peer(all, private.chain(denied.iter().map(Block::to_string)).collect()));
            }
        }
        // An empty list of peers would allow everything.
        if to.is_empty() { json!([]) } else { json!([{ "to": to }]) }
    }
}

fn blocks(entries: &Option<Vec<String>>) -> impl Iterator<Item = Block> {
    entries.iter().flatten().filter_map(|entry| entry.parse().ok())
}

/// Whether every address of a block is one that no client may open.
fn is_never_open(allowed: &Block) -> bool {
    NEVER.iter().filter_map(|text| text.parse::<Block>().ok()).any(|never| never.contains(allowed))
}

/// The blocks that an allowed one contains without naming them: it is larger.
fn closed_parts(allowed: &Block) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for text in PRIVATE_V4.iter().chain(&PRIVATE_V6).chain(&NEVER) {
        let inside = text.parse::<Block>().is_ok_and(|part| allowed.contains(&part) && *allowed != part);
        if inside && !parts.iter().any(|part| part == text) {
            parts.push((*text).to_owned());
        }
    }
    parts
}

/// A peer of a NetworkPolicy.
fn peer(cidr: &str, except: Vec<String>) -> Value {
    match except.is_empty() {
        true => json!({ "ipBlock": { "cidr": cidr } }),
        false => json!({ "ipBlock": { "cidr": cidr, "except": except } }),
    }
}

/// Where the rules of a new sandbox come from.
#[derive(Debug)]
pub(crate) enum Rules<'a> {
    /// What its client asked for.
    Client(&'a Network),
    /// A template, because the sandbox has files of one of its sandboxes.
    Template {
        /// The label that the template's Pods have.
        hash: String,
        /// The spec of their policy; without one the node keeps the new sandbox closed, as it keeps them.
        policy: Option<Value>,
    },
}

impl Rules<'_> {
    /// Prepares a Sandbox for these rules.
    pub(crate) fn prepare(&self, sandbox: &mut Sandbox) {
        match self {
            Self::Client(_) => Network::set_resolvers(sandbox.spec.pod_template.spec.make_mut()),
            // Controllers put this label only on Pods of claims. Here it says whose rules hold for copies of this sandbox.
            Self::Template { hash, .. } => {
                let mut pod = sandbox.spec.pod_template.metadata();
                pod.labels.get_or_insert_default().insert(labels::TEMPLATE_REF_HASH.to_owned(), hash.clone());
                sandbox.spec.pod_template.metadata = Some(Arc::new(pod));
            }
        }
    }

    /// The spec of the Sandbox's NetworkPolicy; `None` if it has none of its own.
    fn policy_spec(&self, sandbox: &str) -> Option<Value> {
        let mut spec = match self {
            Self::Client(network) => {
                let router = json!({
                    "namespaceSelector": {},
                    "podSelector": { "matchLabels": { "app": "sandbox-router" } },
                });
                json!({
                    "policyTypes": ["Ingress", "Egress"],
                    "ingress": [{ "from": [router] }],
                    "egress": network.egress(),
                })
            }
            Self::Template { policy, .. } => policy.clone()?,
        };
        spec["podSelector"] = json!({ "matchLabels": { labels::SANDBOX_NAME_HASH: names::name_hash(sandbox) } });
        Some(spec)
    }
}

/// The label of the template that a sandbox with this Pod template came from, or that its files came from.
fn template_hash(pod: &PodTemplate) -> Option<String> {
    pod.metadata().labels?.remove(labels::TEMPLATE_REF_HASH)
}

/// Whether a policy selects Pods by the label of this template, as the template's own does.
fn is_of_template(policy: &NetworkPolicy, hash: &str) -> bool {
    let labels = policy.spec.as_ref().and_then(|spec| spec.pod_selector.as_ref()?.match_labels.as_ref());
    labels.is_some_and(|labels| labels.get(labels::TEMPLATE_REF_HASH).is_some_and(|found| found == hash))
}

impl Record {
    /// Whether the network of the sandbox is that of a template.
    fn has_network_of_template(&self) -> bool {
        self.claim.is_some() || template_hash(&self.sandbox.spec.pod_template).is_some()
    }
}

impl Call<'_> {
    /// The rules of a sandbox with the files of a snapshot: at most what the sandbox of the snapshot reaches.
    pub(crate) async fn rules_for<'a>(
        &self,
        network: &'a Network,
        snapshot: &SandboxSnapshot,
    ) -> Result<Rules<'a>, Error> {
        let source = snapshot.status.as_ref().and_then(|status| status.sandbox.as_ref());
        let Some(hash) = source.and_then(|source| template_hash(&source.pod_template)) else {
            return Ok(Rules::Client(network));
        };
        network.check_of_template()?;
        let (client, namespace) = (&self.account.client, &self.account.namespace);
        let templates: Api<SandboxTemplate> = Api::namespaced(client.clone(), namespace);
        let templates = templates.list_metadata(&ListParams::default()).await?.items;
        let template = templates
            .into_iter()
            .filter_map(|template| template.metadata.name)
            .find(|name| names::name_hash(name) == hash);
        let policy = match template {
            Some(template) => {
                let policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), namespace);
                policies.get_opt(&names::network_policy(&template)).await?
            }
            None => None,
        };
        let policy = policy.filter(|policy| is_of_template(policy, &hash)).map(|policy| json!(policy.spec));
        Ok(Rules::Template { hash, policy })
    }

    /// Refuses network settings that a client of this account may not have.
    pub(crate) fn check_network(&self, network: &Network) -> Result<(), Error> {
        network.check(self.account.egress_ceiling)
    }

    /// Writes the NetworkPolicy of a Sandbox, which is deleted with it. Until there is one, our node keeps the Pod closed.
    pub(crate) async fn write_policy(&self, sandbox: &Sandbox, rules: &Rules<'_>) -> Result<(), Error> {
        let name = sandbox.metadata.name.as_deref().unwrap_or_default();
        let Some(spec) = rules.policy_spec(name) else { return Ok(()) };
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
            "spec": spec,
        });
        let policies: Api<NetworkPolicy> = Api::namespaced(self.account.client.clone(), &self.account.namespace);
        policies.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&policy)).await?;
        Ok(())
    }

    /// Replaces the rules for what a sandbox may reach. Who reaches the sandbox stays.
    pub(crate) async fn set_network(&self, id: &str) -> Result<(), Error> {
        let mut network: Network = self.json()?;
        self.check_network(&network)?;
        let record = self.running(id).await?;
        network.allow_public_traffic = (!record.is_public()).then_some(false);
        if record.has_network_of_template() {
            return Err(Error::Unsupported(OF_TEMPLATE.to_owned()));
        }
        self.write_policy(&record.sandbox, &Rules::Client(&network)).await?;
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

    /// E-032, E-043
    #[test]
    fn private_addresses_are_open_only_where_a_block_names_them() {
        let only = |allowed: &str| {
            let found = network(json!({ "allowOut": [allowed], "denyOut": [ALL_V4] })).egress();
            found[0]["to"][0]["ipBlock"].clone()
        };
        let except = |allowed: &str| only(allowed)["except"].as_array().unwrap().clone();
        let everything = except("0.0.0.0/0");
        assert!(PRIVATE_V4.iter().all(|private| everything.contains(&json!(private))), "{everything:?}");
        assert_eq!(except("9.9.9.9/0"), everything, "however it is written");
        assert!(PRIVATE_V6.iter().all(|private| except("::/0").contains(&json!(private))));
        assert_eq!(except("192.0.0.0/8"), ["192.168.0.0/16", "192.0.0.192/32"]);
        for named in ["10.0.0.0/8", "192.168.1.0/24", "172.16.0.1/32"] {
            assert_eq!(only(named), json!({ "cidr": named }), "{named}");
        }
    }

    /// E-032, E-043
    #[test]
    fn metadata_and_loopback_addresses_are_never_open() {
        for never in ["169.254.169.254", "169.254.0.0/16", "127.0.0.1", "100.100.100.200", "::1", "fe80::/64"] {
            let asked = network(json!({ "allowOut": [never], "denyOut": [ALL_V4] }));
            assert!(matches!(asked.check(false), Err(Error::Invalid(_))), "{never}");
            assert_eq!(asked.egress(), json!([]), "{never}: not even if it was stored");
        }
        let shared = network(json!({ "allowOut": ["100.64.0.0/10"], "denyOut": [ALL_V4] }));
        assert!(shared.check(false).is_ok());
        assert_eq!(shared.egress()[0]["to"][0]["ipBlock"]["except"], json!(["100.100.100.200/32"]));
        let everything = network(json!({ "allowOut": [ALL_V4] })).egress();
        let except = everything[0]["to"][0]["ipBlock"]["except"].as_array().unwrap();
        assert_eq!(except.iter().filter(|part| **part == "169.254.0.0/16").count(), 1, "{except:?}");
    }

    /// E-032, E-043
    #[test]
    fn clients_allow_no_addresses_below_a_ceiling() {
        for allowed in ["203.0.113.0/24", "10.0.0.1", ALL_V4] {
            let asked = network(json!({ "allowOut": [allowed] }));
            assert!(asked.check(false).is_ok(), "{allowed}");
            let refused = asked.check(true).unwrap_err();
            assert!(matches!(&refused, Error::Forbidden(why) if why.contains(allowed)), "{refused}");
        }
        for narrower in [json!({}), json!({"denyOut": ["1.1.1.1"]}), json!({"allow_internet_access": false})] {
            assert!(network(narrower).check(true).is_ok());
        }
    }

    /// E-045
    #[test]
    fn a_copy_has_the_network_of_its_template_and_so_have_its_copies() {
        let hash = names::name_hash("closed");
        let spec = json!({
            "podSelector": { "matchLabels": { labels::TEMPLATE_REF_HASH: hash } },
            "policyTypes": ["Ingress", "Egress"],
            "egress": [{ "to": [{ "ipBlock": { "cidr": "192.0.2.1/32" } }] }],
        });
        let policy: NetworkPolicy = serde_json::from_value(json!({ "spec": spec })).unwrap();
        assert!(is_of_template(&policy, &hash) && !is_of_template(&policy, &names::name_hash("other")));

        let rules = Rules::Template { hash: hash.clone(), policy: Some(json!(policy.spec)) };
        let copied = rules.policy_spec("copy").unwrap();
        assert_eq!(copied["egress"], spec["egress"]);
        assert_eq!(copied["policyTypes"], spec["policyTypes"]);
        let own = json!({ "matchLabels": { labels::SANDBOX_NAME_HASH: names::name_hash("copy") } });
        assert_eq!(copied["podSelector"], own);
        assert_eq!(Rules::Template { hash: hash.clone(), policy: None }.policy_spec("copy"), None, "it stays closed");

        let mut sandbox = Sandbox::default();
        rules.prepare(&mut sandbox);
        assert_eq!(template_hash(&sandbox.spec.pod_template).as_deref(), Some(hash.as_str()));
        assert_eq!(sandbox.spec.pod_template.spec["dnsConfig"], Value::Null, "resolvers are the template's");
        assert!(Record { sandbox, claim: None }.has_network_of_template());

        let mut sandbox = Sandbox::default();
        Rules::Client(&Network::default()).prepare(&mut sandbox);
        assert_eq!(sandbox.spec.pod_template.spec["dnsConfig"]["nameservers"], json!(RESOLVERS));
        assert!(!Record { sandbox, claim: None }.has_network_of_template());
    }

    /// E-126
    #[test]
    fn what_cannot_be_enforced_is_refused() {
        assert!(network(json!({"allowOut": ["1.1.1.0/24"], "rules": {}, "dnsServers": []})).check(false).is_ok());
        for unsupported in [json!({"allowOut": ["example.com"]}), json!({"egressProxy": {"address": "x"}})] {
            assert!(matches!(network(unsupported).check(false), Err(Error::Unsupported(_))));
        }
        for invalid in ["example.com", "1.1.1.1/33", "x/8"] {
            assert!(
                matches!(network(json!({ "denyOut": [invalid] })).check(false), Err(Error::Invalid(_))),
                "{invalid}"
            );
        }
    }
}
