//! The SandboxTemplate reconciler: the label that names the template's hash, and one NetworkPolicy for all its Pods.

mod policy;

use std::sync::Arc;

use agent_sandbox_api::{
    groups,
    keys::labels,
    names,
    owners::{self, Ownership},
    template::NetworkPolicyManagement,
    v1beta1::SandboxTemplate,
};
use async_trait::async_trait;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde_json::json;

pub use self::policy::desired_spec;
use crate::{
    object::{Cached, Key, Kind},
    ports::{ApiError, Lane, Ports, Writer},
    reconcile::{Next, ReconcileError, Reconciler},
    request::{Request, merge_diff},
    store::{Store, Target, Wake},
    world::{Change, World},
};

/// How often a pass may start over because the world moved under it.
const MAX_ATTEMPTS: usize = 5;

/// What to do about a template.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub label: Option<Request>,
    pub policy: Option<Request>,
    /// Somebody else's policy holds the name.
    pub refusal: Option<String>,
}

pub fn plan(template: &SandboxTemplate, policy: Option<&NetworkPolicy>) -> Plan {
    if template.is_deleting() {
        return Plan::default();
    }
    let hash = names::name_hash(template.name());
    let label = (template.label(labels::TEMPLATE_REF_HASH) != Some(&hash))
        .then(|| Request::patch(template, json!({ "metadata": { "labels": { labels::TEMPLATE_REF_HASH: hash } } })));
    let (policy, refusal) = match plan_policy(template, policy) {
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

pub struct TemplateReconciler {
    store: Arc<Store>,
    ports: Arc<dyn Ports>,
}

impl TemplateReconciler {
    pub fn new(store: Arc<Store>, ports: Arc<dyn Ports>) -> Self {
        Self { store, ports }
    }
}

#[async_trait]
impl Reconciler for TemplateReconciler {
    fn target(&self) -> Target {
        Target::Template
    }

    async fn reconcile(&self, key: &Key) -> Result<Next, ReconcileError> {
        let writer =
            Writer::new(self.ports.clone(), self.store.clone(), Lane::Core, Wake::new(Target::Template, key.clone()));
        for _ in 0..MAX_ATTEMPTS {
            let plan = {
                let world = self.store.read();
                let Some(template) = world.templates.get(key) else { return Ok(Next::Idle) };
                let policy = world.policies.get(&key.sibling(names::network_policy(template.name())));
                plan(template, policy.map(|policy| &**policy))
            };
            match apply(&writer, &plan).await {
                Ok(()) => {
                    return plan.refusal.map_or(Ok(Next::Idle), |refusal| Err(ReconcileError::transient(refusal)));
                }
                Err((
                    request,
                    ApiError::Conflict { .. } | ApiError::AlreadyExists { .. } | ApiError::NotFound { .. },
                )) => {
                    writer.read(request.kind, &request.key).await?;
                }
                Err((_, error)) => return Err(error.into()),
            }
        }
        Err(ReconcileError::transient("the objects of this SandboxTemplate keep changing"))
    }
}

async fn apply<'a>(writer: &Writer, plan: &'a Plan) -> Result<(), (&'a Request, ApiError)> {
    for request in plan.label.iter().chain(&plan.policy) {
        writer.send(request).await.map_err(|error| (request, error))?;
    }
    Ok(())
}

/// Whom a change concerns among templates.
pub fn route(_: &World, change: &Change, wakes: &mut Vec<Wake>) {
    match change {
        Change::Template(delta) => wakes.push(Wake::new(Target::Template, delta.key())),
        Change::NetworkPolicy(delta) => {
            for policy in delta.old.iter().chain(&delta.new) {
                if let Some(owner) = policy
                    .controller()
                    .filter(|owner| owners::is_kind(owner, groups::EXTENSIONS, groups::SANDBOX_TEMPLATE))
                {
                    wakes.push(Wake::new(Target::Template, policy.key().sibling(owner.name.as_str())));
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
