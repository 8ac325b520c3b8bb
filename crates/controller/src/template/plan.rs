//! The decision for a template: a pure, total function of what was observed.

use std::sync::Arc;

use agent_sandbox_api::{
    keys::labels,
    names,
    owners::{self, Ownership},
    template::NetworkPolicyManagement,
    v1beta1::SandboxTemplate,
};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde_json::json;

use super::policy::{self, desired_spec};
use crate::{
    api_client::{Request, merge_diff},
    cache::{Key, Kind},
};

/// Everything the decision may depend on, read once.
#[derive(Clone, Debug)]
pub struct Observed {
    pub template: Arc<SandboxTemplate>,
    /// The NetworkPolicy with the name of the template's own, of any owner.
    pub policy: Option<Arc<NetworkPolicy>>,
}

/// A complete decision.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub label: Option<Request>,
    pub policy: Option<Request>,
    /// A NetworkPolicy of another owner has the name.
    pub refusal: Option<String>,
}

/// Decides for a template.
pub fn plan(observed: &Observed) -> Plan {
    let template = &*observed.template;
    if template.is_deleting() {
        return Plan::default();
    }
    let hash = names::name_hash(template.name());
    let label = (template.label(labels::TEMPLATE_REF_HASH) != Some(&hash))
        .then(|| Request::patch(template, json!({ "metadata": { "labels": { labels::TEMPLATE_REF_HASH: hash } } })));
    let (policy, refusal) = match plan_policy(template, observed.policy.as_deref()) {
        Ok(request) => (request, None),
        Err(refusal) => (None, Some(refusal)),
    };
    Plan { label, policy, refusal }
}

fn plan_policy(template: &SandboxTemplate, policy: Option<&NetworkPolicy>) -> Result<Option<Request>, String> {
    let managed = template.network_policy_management() == NetworkPolicyManagement::Managed;
    let name = names::network_policy(template.name());
    let Some(policy) = policy else {
        let create = || {
            let metadata = json!({
                "name": name,
                "namespace": template.namespace(),
                "ownerReferences": [template.controller_reference()],
            });
            let key = Key::new(template.namespace(), name.as_str());
            Request::create(Kind::NetworkPolicy, key, json!({ "metadata": metadata, "spec": desired_spec(template) }))
        };
        return Ok(managed.then(create));
    };
    match (owners::ownership(&policy.metadata, template.uid()), managed) {
        (Ownership::Owned, false) => Ok(Some(Request::delete(policy, None))),
        (_, false) => Ok(None),
        (Ownership::Owned, true) => {
            let change = merge_diff(&policy::stored_spec(policy), &policy::with_defaults(desired_spec(template)));
            Ok(change.map(|spec| Request::patch(policy, json!({ "spec": spec }))))
        }
        (_, true) => Err(format!(
            "refusing to update NetworkPolicy \"{name}\" as it is not controlled by SandboxTemplate \"{}\"",
            template.name()
        )),
    }
}
