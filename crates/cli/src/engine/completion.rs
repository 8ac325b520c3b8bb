//! What the engine adds to new objects as they are stored, because one of its own parts would write it a moment later: the node of a
//! Pod, and the Pod's name in a Sandbox. One write less each, for the disk and for everybody who watches.

use std::collections::BTreeMap;

use agent_sandbox_api::{groups, keys::annotations};
use agent_sandbox_apiserver::Completer;
use agent_sandbox_node::{NodeOptions, register, schedule};
use serde_json::{Value, json};

pub(super) struct Completion {
    node_name: String,
    labels: BTreeMap<String, String>,
}

impl Default for Completion {
    fn default() -> Self {
        let node_name = NodeOptions::default().node_name;
        Self { labels: register::labels(&node_name), node_name }
    }
}

impl Completer for Completion {
    fn complete(&self, group: &str, plural: &str, object: &mut Value) {
        match (group, plural) {
            ("", "pods") if schedule::is_to_bind(object, &self.labels) => {
                object["spec"]["nodeName"] = self.node_name.as_str().into();
            }
            (groups::CORE, "sandboxes") => name_pod(object),
            _ => {}
        }
    }
}

/// A Sandbox's Pod is called like it. Left alone is what has no Pod yet, has one of another name, or may still be called otherwise.
fn name_pod(sandbox: &mut Value) {
    let spec = &sandbox["spec"];
    let suspended = spec["operatingMode"] == "Suspended" || spec["replicas"] == 0;
    let metadata = &sandbox["metadata"];
    let given = !metadata["annotations"][annotations::POD_NAME].is_null();
    let drawn = !metadata["generateName"].is_null();
    if suspended || given || drawn {
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

    fn completed(group: &str, plural: &str, mut object: Value) -> Value {
        Completion::default().complete(group, plural, &mut object);
        object
    }

    #[test]
    fn a_pod_that_may_run_here_has_a_node_at_once() {
        let node = |spec: Value| completed("", "pods", json!({ "spec": spec }))["spec"]["nodeName"].clone();
        assert_eq!(node(json!({})), "local");
        assert_eq!(node(json!({ "nodeName": "elsewhere" })), "elsewhere");
        assert_eq!(node(json!({ "nodeSelector": { "gpu": "yes" } })), Value::Null);
        assert_eq!(node(json!({ "schedulerName": "mine" })), Value::Null);
        assert_eq!(completed("other", "pods", json!({ "spec": {} })), json!({ "spec": {} }));
    }

    #[test]
    fn a_running_sandbox_names_its_pod_at_once() {
        let name = |metadata: Value, spec: Value| {
            let sandbox = completed(groups::CORE, "sandboxes", json!({ "metadata": metadata, "spec": spec }));
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
