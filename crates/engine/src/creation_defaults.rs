//! Fields that the engine sets in new objects as they are stored, because one of its own parts would write them a
//! moment later: the node name of a Pod, and the Pod's name in a Sandbox. That saves a write and a watch event each.

use std::collections::BTreeMap;

use agent_sandbox_api::{groups, keys::annotations};
use agent_sandbox_apiserver::MutatingAdmission;
use agent_sandbox_node::{
    NodeOptions,
    kubelet::{registration, scheduling},
};
use serde_json::{Value, json};

use crate::router_objects;

pub(crate) struct CreationDefaults {
    node_name: String,
    labels: BTreeMap<String, String>,
}

impl Default for CreationDefaults {
    fn default() -> Self {
        let node_name = NodeOptions::default().node_name;
        Self { labels: registration::labels(&node_name), node_name }
    }
}

impl MutatingAdmission for CreationDefaults {
    fn mutate(&self, group: &str, plural: &str, object: &mut Value) {
        match (group, plural) {
            ("", "pods") if scheduling::is_to_bind(object, &self.labels) => {
                object["spec"]["nodeName"] = self.node_name.as_str().into();
            }
            (groups::CORE, "sandboxes") => set_pod_name(object),
            _ => {}
        }
    }

    fn is_exempt(&self, group: &str, plural: &str, object: &Value) -> bool {
        group.is_empty() && router_objects::is_placeholder(plural, object)
    }
}

/// Sets the annotation with the Pod's name, which is the Sandbox's own. Left unchanged: a suspended Sandbox, one that
/// already has a Pod's name, and one whose own name is generated.
fn set_pod_name(sandbox: &mut Value) {
    let spec = &sandbox["spec"];
    let suspended = spec["operatingMode"] == "Suspended" || spec["replicas"] == 0;
    let metadata = &sandbox["metadata"];
    let named = !metadata["annotations"][annotations::POD_NAME].is_null();
    let generated = !metadata["generateName"].is_null();
    if suspended || named || generated {
        return;
    }
    let name = metadata["name"].clone();
    match &mut sandbox["metadata"]["annotations"] {
        Value::Object(members) => drop(members.insert(annotations::POD_NAME.to_owned(), name)),
        absent => *absent = json!({ annotations::POD_NAME: name }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_defaults(group: &str, plural: &str, mut object: Value) -> Value {
        CreationDefaults::default().mutate(group, plural, &mut object);
        object
    }

    #[test]
    fn a_pod_that_may_run_here_has_a_node_at_once() {
        let node = |spec: Value| with_defaults("", "pods", json!({ "spec": spec }))["spec"]["nodeName"].clone();
        assert_eq!(node(json!({})), "local");
        assert_eq!(node(json!({ "nodeName": "elsewhere" })), "elsewhere");
        assert_eq!(node(json!({ "nodeSelector": { "gpu": "yes" } })), Value::Null);
        assert_eq!(node(json!({ "schedulerName": "mine" })), Value::Null);
        assert_eq!(with_defaults("other", "pods", json!({ "spec": {} })), json!({ "spec": {} }));
    }

    #[test]
    fn only_the_placeholders_of_the_router_are_exempt_from_limits() {
        let exempt = |plural: &str, name: &str, node: &str| {
            let object = json!({ "metadata": { "name": name }, "spec": { "nodeName": node } });
            CreationDefaults::default().is_exempt("", plural, &object)
        };
        assert!(exempt("pods", "sandbox-router", "agent-sandbox-router"));
        assert!(!exempt("pods", "sandbox-router", "local"), "a Pod that runs is never exempt");
        assert!(!exempt("pods", "other", "agent-sandbox-router"));
        assert!(exempt("services", "sandbox-router-svc", "") && !exempt("services", "other", ""));
        assert!(!exempt("configmaps", "sandbox-router", "agent-sandbox-router"));
    }

    #[test]
    fn a_running_sandbox_names_its_pod_at_once() {
        let name = |metadata: Value, spec: Value| {
            let sandbox = with_defaults(groups::CORE, "sandboxes", json!({ "metadata": metadata, "spec": spec }));
            sandbox["metadata"]["annotations"][annotations::POD_NAME].clone()
        };
        assert_eq!(name(json!({ "name": "a" }), json!({})), "a");
        assert_eq!(name(json!({ "name": "a", "annotations": { "x": "y" } }), json!({ "replicas": 1 })), "a");
        assert_eq!(name(json!({ "name": "a", "annotations": { annotations::POD_NAME: "b" } }), json!({})), "b");
        assert_eq!(name(json!({ "name": "a-x", "generateName": "a-" }), json!({})), Value::Null);
        assert_eq!(name(json!({ "name": "a" }), json!({ "operatingMode": "Suspended" })), Value::Null);
        assert_eq!(name(json!({ "name": "a" }), json!({ "replicas": 0 })), Value::Null);
    }
}
