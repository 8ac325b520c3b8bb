//! The PersistentVolumeClaims of a Sandbox: created once, adopted when check_adoptable, never changed and never
//! deleted.

use std::{collections::BTreeMap, sync::Arc};

use agent_sandbox_api::{
    keys::{self, labels},
    names,
    owners::{self, Ownership},
    template::VolumeClaimTemplate,
};
use serde_json::json;

use super::{
    adoption::{self, Child},
    plan::Step,
    pod::owner_references,
};
use crate::{
    api_client::Request,
    cache::{Key, Kind, Pvc, Sandbox},
};

/// The writes in order; the first refusal ends the list, and later templates wait.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumePlan {
    pub steps: Vec<Step>,
    pub refusal: Option<String>,
}

/// `existing` holds the PVC of each volume claim template, in the templates' order.
pub(super) fn plan_volumes(sandbox: &Sandbox, existing: &[Option<Arc<Pvc>>]) -> VolumePlan {
    let mut plan = VolumePlan::default();
    for (template, existing) in sandbox.volume_claim_templates().iter().zip(existing) {
        let Some(pvc) = existing else {
            plan.steps.push(Step::new(create(sandbox, template), ""));
            continue;
        };
        let refusal = match owners::ownership(&pvc.metadata, sandbox.uid()) {
            Ownership::Owned => continue,
            Ownership::Foreign => adoption::foreign_owner_error(Child::Pvc, &**pvc, sandbox),
            Ownership::Unowned => match adoption::check_adoptable(Child::Pvc, &**pvc, sandbox) {
                Ok(()) => {
                    let patch = json!({ "metadata": { "ownerReferences": owner_references(sandbox, &pvc.metadata) } });
                    plan.steps.push(Step::new(
                        Request::patch_exact(&**pvc, patch),
                        "failed to patch PVC with owner reference: ",
                    ));
                    continue;
                }
                Err(refusal) => refusal,
            },
        };
        plan.refusal = Some(refusal);
        break;
    }
    plan
}

fn create(sandbox: &Sandbox, template: &VolumeClaimTemplate) -> Request {
    let name = names::volume_claim(template.name(), sandbox.name());
    let given = template.metadata.as_ref();
    // With keys that only controllers may set, a user could forge another Sandbox's tracking label or the adoption
    // label.
    let mut pvc_labels: BTreeMap<String, String> = given
        .and_then(|metadata| metadata.labels.as_ref())
        .into_iter()
        .flatten()
        .filter(|(key, _)| !keys::is_reserved_label(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    pvc_labels.insert(labels::SANDBOX_NAME_HASH.to_owned(), names::name_hash(sandbox.name()));
    let mut metadata = json!({
        "name": name,
        "namespace": sandbox.namespace(),
        "labels": pvc_labels,
        "ownerReferences": [sandbox.controller_reference()],
    });
    if let Some(annotations) =
        given.and_then(|metadata| metadata.annotations.as_ref()).filter(|annotations| !annotations.is_empty())
    {
        metadata["annotations"] = json!(annotations);
    }
    Request::create(
        Kind::Pvc,
        Key::new(sandbox.namespace(), name),
        json!({ "metadata": metadata, "spec": &*template.spec }),
    )
}
