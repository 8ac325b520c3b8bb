//! Network settings of clients: addresses that may be reached, and those that may not, as a NetworkPolicy of the
//! Sandbox; names as its egress rules by domain.

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
/// Shortest prefix of an allowed block that a node opens for a sandbox with rules by name.
const SMALLEST_BESIDE_NAMES: u8 = 8;
/// What a client is told that wants another network for a sandbox whose files are those of a template's.
const OF_TEMPLATE: &str = "the network of a sandbox from a template, or from a snapshot of one, is that of the \
                           SandboxTemplate (spec.networkPolicy)";
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
    /// Refuses what cannot be enforced, and what clients may not open.
    fn check(&self, limits: Limits) -> Result<(), Error> {
        let given = |value: &Value| !value.is_null() && value != &json!([]) && value != &json!({});
        if let Some((name, _)) = self.others.iter().find(|(_, value)| given(value)) {
            return Err(Error::Unsupported(format!("network.{name} is not supported")));
        }
        for entry in self.allow_out.iter().flatten() {
            match entry.parse::<Block>() {
                Ok(allowed) => self.check_address(entry, &allowed, limits)?,
                Err(_) => self.check_name(entry, limits)?,
            }
        }
        match self.deny_out.iter().flatten().find(|entry| entry.parse::<Block>().is_err()) {
            Some(entry) => Err(Error::Invalid(format!("network.denyOut: {entry:?} is not an address"))),
            None => Ok(()),
        }
    }

    /// Whether a client may allow this address. With a ceiling, an administrator decides what sandboxes reach;
    /// addresses that a client allows would go past it.
    fn check_address(&self, entry: &str, allowed: &Block, limits: Limits) -> Result<(), Error> {
        if is_never_open(allowed) {
            return Err(Error::Invalid(format!(
                "network.allowOut: {entry:?} is a loopback, link-local or metadata address, which no sandbox may reach"
            )));
        }
        if limits.ceiling {
            return Err(Error::Forbidden(format!(
                "network.allowOut: {entry:?} is an address, and the namespace has the annotation {}, which says what \
                 its sandboxes reach",
                annotations::EGRESS_CEILING
            )));
        }
        if allowed.length() < SMALLEST_BESIDE_NAMES && self.rules_by_name().is_some() {
            return Err(Error::Unsupported(format!(
                "network.allowOut: {entry:?} is not opened beside rules by name; allow blocks of at most \
                 /{SMALLEST_BESIDE_NAMES}, or no names"
            )));
        }
        Ok(())
    }

    /// Whether a client may allow this name. The node closes everything else for a sandbox with rules by name.
    fn check_name(&self, entry: &str, limits: Limits) -> Result<(), Error> {
        if !is_name(entry) {
            return Err(Error::Invalid(format!(
                "network.allowOut: {entry:?} is neither an address nor a name such as example.com or *.example.com"
            )));
        }
        if !limits.by_name {
            return Err(Error::Unsupported(format!(
                "network.allowOut: {entry:?} is a name, and rules by name need an engine that runs as root"
            )));
        }
        if self.opens_internet() {
            return Err(Error::Unsupported(format!(
                "network.allowOut: {entry:?} is a name, and names can only be allowed where everything else is denied: \
                 add {ALL_V4:?} to network.denyOut"
            )));
        }
        Ok(())
    }

    /// Whether everything is open that is not denied.
    fn opens_internet(&self) -> bool {
        self.allow_internet_access.unwrap_or(true) && !blocks(&self.deny_out).any(|denied| denied.is_everything())
    }

    /// The egress rules of the names that a client allows, if there are any.
    fn rules_by_name(&self) -> Option<String> {
        let names: Vec<&str> =
            self.allow_out.iter().flatten().map(String::as_str).filter(|entry| is_name(entry)).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }

    /// Refuses settings that open what the egress rules of a snapshot close for every sandbox that is made from it.
    pub(crate) fn check_of_snapshot(&self, snapshot: &SandboxSnapshot) -> Result<(), Error> {
        let source = snapshot.status.as_ref().and_then(|status| status.sandbox.as_ref());
        let has_rules = source.is_some_and(|source| source.egress.contains_key(annotations::EGRESS));
        match has_rules && self.allow_out.as_ref().is_some_and(|allowed| !allowed.is_empty()) {
            true => Err(Error::Unsupported(
                "network.allowOut: the snapshot has egress rules of its own, which hold for sandboxes made from it"
                    .to_owned(),
            )),
            false => Ok(()),
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
        if self.opens_internet() {
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

/// What depends on the engine and on the account.
#[derive(Clone, Copy, Debug, Default)]
struct Limits {
    /// The namespace has an egress ceiling.
    ceiling: bool,
    /// The node enforces rules by name.
    by_name: bool,
}

/// Whether this is a host name, or `*.` with one, which stands for every name below it. Nodes read further rules, which
/// E2B's clients do not have.
fn is_name(entry: &str) -> bool {
    let name = entry.strip_prefix("*.").unwrap_or(entry);
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_label = |label: &str| {
        (1..=63).contains(&label.len()) && label.bytes().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    // A last label that begins with a digit can be read as an address.
    let ends =
        name.rsplit('.').next().is_some_and(|label| label.starts_with(|first: char| first.is_ascii_alphabetic()));
    name.len() <= 253 && name.split('.').all(is_label) && ends
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
    /// Prepares a Sandbox for these rules. One from a snapshot has the egress rules of the snapshot already; they stay.
    pub(crate) fn prepare(&self, sandbox: &mut Sandbox) {
        match self {
            Self::Client(network) => {
                let kept = sandbox.annotation(annotations::EGRESS).map(str::to_owned);
                let pod = sandbox.spec.pod_template.spec.make_mut();
                match kept.or_else(|| network.rules_by_name()) {
                    None => Network::set_resolvers(pod),
                    Some(rules) => {
                        // Only the node resolves names by rules.
                        if let Some(pod) = pod.as_object_mut() {
                            pod.remove("dnsPolicy");
                            pod.remove("dnsConfig");
                        }
                        let own = sandbox.metadata.annotations.get_or_insert_default();
                        own.insert(annotations::EGRESS.to_owned(), rules);
                    }
                }
            }
            // Controllers put this label only on Pods of claims. Here it says whose rules hold for further copies.
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

    /// The egress rules of a running sandbox with other network settings.
    fn replaced_rules(&self, network: &Network) -> Result<Option<String>, Error> {
        let stored = self.network().and_then(|stored| serde_json::from_value::<Network>(stored).ok());
        let own = stored.and_then(|stored| stored.rules_by_name());
        let present = self.sandbox.annotation(annotations::EGRESS);
        let of_snapshot = present.is_some() && self.sandbox.annotation(annotations::SNAPSHOT).is_some();
        if of_snapshot || present != own.as_deref() {
            let why =
                "the sandbox has egress rules of its snapshot or of an administrator, which clients cannot replace";
            return Err(Error::Unsupported(why.to_owned()));
        }
        let rules = network.rules_by_name();
        if rules.is_some() && self.sandbox.spec.pod_template.spec["dnsPolicy"] == "None" {
            let why = "network.allowOut: the sandbox was created without rules by name, so that it asks public \
                       resolvers, which such rules close; create it with names in allowOut";
            return Err(Error::Unsupported(why.to_owned()));
        }
        Ok(rules)
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
        network.check(Limits { ceiling: self.account.egress_ceiling, by_name: self.settings.egress_by_name })
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
        let rules = record.replaced_rules(&network)?;
        self.write_policy(&record.sandbox, &Rules::Client(&network)).await?;
        let patch = json!({
            "metadata": {
                "uid": record.sandbox.metadata.uid,
                "annotations": { annotations::E2B_NETWORK: network.annotation(), annotations::EGRESS: rules },
            },
        });
        self.sandboxes().patch(record.name(), &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }
}

/// Fuzz target: the settings in a body open no address that no client may open, and rules by name are names.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(body: &[u8]) {
    let Ok(network) = serde_json::from_slice::<Network>(body) else { return };
    let _ = network.check(Limits { ceiling: false, by_name: true });
    for peer in network.egress()[0]["to"].as_array().into_iter().flatten() {
        let opened: Block = peer["ipBlock"]["cidr"].as_str().and_then(|text| text.parse().ok()).expect("a block");
        assert!(!is_never_open(&opened), "{opened}");
    }
    let rules = network.rules_by_name().unwrap_or_default();
    assert!(rules.split(", ").all(|name| rules.is_empty() || is_name(name)), "{rules}");
}

#[cfg(test)]
mod tests;
