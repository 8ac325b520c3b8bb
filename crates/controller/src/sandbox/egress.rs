//! Egress rules of a Sandbox: what its Pod gets, and why a Sandbox with rules gets no Pod.

use agent_sandbox_api::keys;
use agent_sandbox_egress::RuleSet;

use crate::cache::Sandbox;

/// The annotations of the Pod with the rules that its node enforces.
pub(super) fn pod_rules(sandbox: &Sandbox) -> impl Iterator<Item = (String, String)> + '_ {
    rules(sandbox).map(|(key, value)| (key.to_owned(), value.to_owned()))
}

fn rules(sandbox: &Sandbox) -> impl Iterator<Item = (&'static str, &str)> {
    keys::EGRESS_RULES.into_iter().filter_map(|key| Some((key, sandbox.annotation(key)?)))
}

/// Why the Pod of this Sandbox is not created or changed: nodes here do not enforce rules, or a rule cannot be read.
pub(super) fn refusal(sandbox: &Sandbox, enforced: bool) -> Option<String> {
    rules(sandbox).find_map(|(key, text)| {
        if !enforced {
            return Some(format!(
                "annotation {key} is not enforced on this cluster: egress rules by domain need the engine of `agent-sandbox up`; \
                 remove the annotation and use a NetworkPolicy"
            ));
        }
        RuleSet::parse(text).err().map(|error| format!("annotation {key}: {error}"))
    })
}
