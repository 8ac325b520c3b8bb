//! What a RuntimeClass adds to the Pods that name it, as the admission plugin of Kubernetes does: overhead and node selector.
//!
//! A class without an object is not refused: the embedded node knows common runtimes by name.

use serde_json::{Map, Value};

/// Adds the class's overhead and node selector to a new Pod. Fails with the reason if the Pod contradicts them.
pub(crate) fn apply(class: Option<&Value>, pod: &mut Value) -> Result<(), String> {
    let overhead = class.map_or(&Value::Null, |class| &class["overhead"]["podFixed"]);
    let own = &pod["spec"]["overhead"];
    match (is_empty(overhead), is_empty(own)) {
        (true, true) => {}
        (true, false) => {
            return Err("pod rejected: Pod's Overhead set without corresponding RuntimeClass defined Overhead".into());
        }
        (false, false) if own != overhead => {
            return Err("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead".into());
        }
        (false, _) => pod["spec"]["overhead"] = overhead.clone(),
    }
    let selector = class.and_then(|class| class["scheduling"]["nodeSelector"].as_object());
    for (key, value) in selector.into_iter().flatten() {
        let found = pod["spec"].get("nodeSelector").and_then(|own| own.get(key));
        if let Some(other) = found.filter(|other| *other != value) {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (wanted, other) = (text(value), text(other));
            return Err(format!(
                "pod rejected: conflict: runtimeClass.scheduling.nodeSelector[{key}] = {wanted}; \
                 pod.spec.nodeSelector[{key}] = {other}"
            ));
        }
        pod["spec"]["nodeSelector"][key] = value.clone();
    }
    Ok(())
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_none_or(Map::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: Value) -> Value {
        json!({"spec": spec})
    }

    #[test]
    fn a_pod_gets_the_overhead_and_the_node_selector_of_its_class() {
        let class = json!({
            "overhead": {"podFixed": {"memory": "160Mi"}},
            "scheduling": {"nodeSelector": {"kata": "yes"}},
        });
        let mut plain = pod(json!({"nodeSelector": {"zone": "a"}}));
        apply(Some(&class), &mut plain).unwrap();
        let expected = json!({"overhead": {"memory": "160Mi"}, "nodeSelector": {"zone": "a", "kata": "yes"}});
        assert_eq!(plain["spec"], expected);
        apply(Some(&class), &mut plain).expect("the same values again");
        assert_eq!(plain["spec"], expected);
        let mut without = pod(json!({}));
        apply(None, &mut without).unwrap();
        assert_eq!(without, pod(json!({})), "a class without an object adds nothing");
    }

    #[test]
    fn a_pod_cannot_contradict_its_class() {
        let class = json!({
            "overhead": {"podFixed": {"memory": "160Mi"}},
            "scheduling": {"nodeSelector": {"kata": "yes"}},
        });
        let refused = |class: Option<&Value>, spec: Value| apply(class, &mut pod(spec)).unwrap_err();
        assert!(refused(Some(&class), json!({"overhead": {"memory": "1Mi"}})).contains("doesn't match"));
        assert!(refused(None, json!({"overhead": {"memory": "1Mi"}})).contains("without corresponding"));
        assert!(refused(Some(&class), json!({"nodeSelector": {"kata": "no"}})).contains("nodeSelector[kata]"));
    }
}
