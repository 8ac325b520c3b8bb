//! Environment variables of claims.

use serde_json::Value;

use super::*;
use crate::reconcile::Next;

/// The reason and message of a claim with these variables, and its Sandbox's Pod spec, if it got one.
async fn outcome(policy: Option<&str>, pod: Value, env: Value) -> (String, String, Option<Value>, Next) {
    let fixture = Fixture::new();
    let mut spec = json!({"podTemplate": {"spec": pod}});
    if let Some(policy) = policy {
        spec["envVarsInjectionPolicy"] = policy.into();
    }
    fixture.template("t", spec);
    fixture.pool_of("p", "t", 0);
    fixture.claim_with("c", json!({}), json!({"warmPoolRef": {"name": "p"}, "env": env}));
    let next = fixture.claim("c").await.expect("no error");
    let (_, reason, message) = fixture.ready_of("c");
    let sandbox = fixture.api.typed::<crate::cache::Sandbox>(&key("c"));
    (reason, message, sandbox.map(|sandbox| sandbox.spec.pod_template.spec.into_value()), next)
}

fn pod() -> Value {
    json!({
        "containers": [{"name": "main", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}, {"name": "side"}],
        "initContainers": [{"name": "init"}],
    })
}

async fn injected(policy: &str, env: Value) -> Value {
    let (reason, message, pod, _) = outcome(Some(policy), pod(), env).await;
    assert_eq!(reason, "SandboxNotReady", "{message}");
    pod.expect("a Sandbox")
}

/// new variables come after the template's.
#[tokio::test]
async fn x_070_x_071_new_variables_are_appended() {
    for policy in ["Overrides", "Allowed"] {
        let pod = injected(policy, json!([{"name": "N", "value": "n"}])).await;
        assert_eq!(
            pod["containers"][0]["env"],
            json!([{"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "N", "value": "n"}])
        );
        assert_eq!(pod["containers"][1].get("env"), None);
    }
}

#[tokio::test]
async fn x_072_overrides_replace_in_place() {
    let pod = injected("Overrides", json!([{"name": "A", "value": "new"}])).await;
    assert_eq!(pod["containers"][0]["env"], json!([{"name": "A", "value": "new"}, {"name": "B", "value": "2"}]));
}

#[tokio::test]
async fn x_073_allowed_does_not_override() {
    let (reason, message, pod, next) = outcome(Some("Allowed"), pod(), json!([{"name": "A", "value": "new"}])).await;
    assert_eq!(reason, "ReconcilerError");
    assert_eq!(
        message,
        "Error seen: environment variable override is not allowed by the template policy for variable \"A\""
    );
    assert!(pod.is_none());
    assert_eq!(next, Next::After(std::time::Duration::from_secs(60)), "only an edit helps: no hot retry");
}

#[tokio::test]
async fn x_074_disallowed_refuses_everything() {
    for policy in [None, Some("Disallowed"), Some("Unheard")] {
        let (reason, message, pod, next) = outcome(policy, pod(), json!([{"name": "N", "value": "n"}])).await;
        assert_eq!(reason, "EnvVarsInjectionRejected");
        assert_eq!(
            message,
            "environment variable injection rejected: environment variable injection is not allowed by the template policy"
        );
        assert!(pod.is_none() && next == Next::Idle);
    }
}

#[tokio::test]
async fn x_075_variables_mean_a_new_sandbox() {
    let fixture = Fixture::new();
    fixture.template("t", json!({"envVarsInjectionPolicy": "Allowed"}));
    fixture.pool_of("p", "t", 1);
    fixture.fill("p").await;
    fixture.all_ready();
    let candidate = fixture.sandboxes().remove(0);
    fixture.claim_with("c", json!({}), json!({"warmPoolRef": {"name": "p"}, "env": [{"name": "N", "value": "n"}]}));
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.bound("c").as_deref(), Some("c"));
    assert_eq!(fixture.sandbox(candidate.name()), candidate, "untouched");
}

#[tokio::test]
async fn x_076_allowed_refuses_containers_with_sources() {
    let env_from = json!([{"configMapRef": {"name": "x"}}]);
    for (list, index, name, target) in [("containers", 0, "main", None), ("initContainers", 0, "init", Some("init"))] {
        let mut pod = pod();
        pod[list][index]["envFrom"] = env_from.clone();
        let mut variable = json!({"name": "N", "value": "n"});
        if let Some(target) = target {
            variable["containerName"] = target.into();
        }
        let (reason, message, pod, _) = outcome(Some("Allowed"), pod, json!([variable])).await;
        assert_eq!(reason, "EnvVarsInjectionRejected");
        assert_eq!(
            message,
            format!(
                "environment variable injection rejected: container \"{name}\" uses EnvFrom sources; Allowed policy cannot safely prevent overriding EnvFrom-provided variables"
            )
        );
        assert!(pod.is_none());
    }
}

#[tokio::test]
async fn x_077_sources_of_other_containers_do_not_matter() {
    let mut with_sources = pod();
    with_sources["containers"][1]["envFrom"] = json!([{"secretRef": {"name": "x"}}]);
    let (reason, ..) = outcome(Some("Allowed"), with_sources.clone(), json!([{"name": "N", "value": "n"}])).await;
    assert_eq!(reason, "SandboxNotReady");
    with_sources["containers"][0]["envFrom"] = json!([{"secretRef": {"name": "x"}}]);
    let (reason, ..) = outcome(Some("Allowed"), with_sources, json!([])).await;
    assert_eq!(reason, "SandboxNotReady");
}

/// the named container, regular or initial; named ones come before the others.
#[tokio::test]
async fn x_078_x_079_variables_go_to_the_container_they_name() {
    let env = json!([
        {"name": "ANY", "value": "1"},
        {"name": "MAIN", "value": "2", "containerName": "main"},
        {"name": "SIDE", "value": "3", "containerName": "side"},
        {"name": "INIT", "value": "4", "containerName": "init"},
        {"name": "EMPTY", "value": "5", "containerName": ""},
    ]);
    let pod = injected("Allowed", env).await;
    let names = |container: &Value| -> Vec<String> {
        container["env"]
            .as_array()
            .expect("env")
            .iter()
            .map(|entry| entry["name"].as_str().expect("name").to_owned())
            .collect()
    };
    assert_eq!(names(&pod["containers"][0]), ["A", "B", "MAIN", "ANY", "EMPTY"]);
    assert_eq!(names(&pod["containers"][1]), ["SIDE"]);
    assert_eq!(names(&pod["initContainers"][0]), ["INIT"]);
}

#[tokio::test]
async fn x_080_an_unknown_container_is_reported() {
    let env = json!([{"name": "N", "value": "n"}, {"name": "M", "value": "m", "containerName": "nowhere"}]);
    let (reason, message, pod, _) = outcome(Some("Overrides"), pod(), env).await;
    assert_eq!(reason, "ReconcilerError");
    assert_eq!(
        message,
        "Error seen: target container \"nowhere\" not found in template for environment variable \"M\""
    );
    assert!(pod.is_none());
}

#[tokio::test]
async fn a_variable_listed_twice_takes_its_last_value() {
    let pod = injected("Allowed", json!([{"name": "N", "value": "1"}, {"name": "N", "value": "2"}])).await;
    assert_eq!(pod["containers"][0]["env"][2], json!({"name": "N", "value": "2"}));
}
