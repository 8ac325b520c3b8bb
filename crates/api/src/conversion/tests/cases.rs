//! The contract's cases, each with its id.

use serde_json::{Value, json};

use super::*;
use crate::keys::annotations as key;

fn pod() -> Value {
    let container = json!({"name": "c", "image": "i", "resources": {"limits": {"memory": "1024Mi"}}});
    json!({"spec": {"containers": [container]}, "metadata": {"labels": {"l": "v"}}})
}

fn old_sandbox(replicas: Option<i32>) -> Value {
    let mut spec = json!({"podTemplate": pod()});
    if let Some(replicas) = replicas {
        spec["replicas"] = replicas.into();
    }
    sandbox(CORE_V1ALPHA1, spec)
}

fn mode(object: &Value) -> &str {
    object["spec"]["operatingMode"].as_str().expect("mode")
}

fn old_claim(warmpool: Option<&str>, bound: Option<&str>) -> Value {
    let mut claim = extension(EXTENSIONS_V1ALPHA1, "SandboxClaim", json!({"sandboxTemplateRef": {"name": "t"}}));
    if let Some(warmpool) = warmpool {
        claim["spec"]["warmpool"] = warmpool.into();
    }
    if let Some(bound) = bound {
        claim["status"] = json!({"sandbox": {"name": bound, "podIPs": ["10.0.0.1"]}});
    }
    claim
}

fn new_claim(pool: &str) -> Value {
    extension(EXTENSIONS_V1BETA1, "SandboxClaim", json!({"warmPoolRef": {"name": pool}}))
}

fn pool_of(claim: &Value) -> &str {
    claim["spec"]["warmPoolRef"]["name"].as_str().expect("pool")
}

#[test]
fn s_010_absent_replicas_run_and_come_back_absent() {
    let stored = hub(&old_sandbox(None));
    assert_eq!(mode(&stored), "Running");
    let back = spoke(&stored);
    assert_eq!(back["spec"].get("replicas"), None);
    assert_eq!(back["status"]["replicas"], 1);
}

#[test]
fn s_011_one_replica_runs() {
    let stored = hub(&old_sandbox(Some(1)));
    assert_eq!(mode(&stored), "Running");
    let back = spoke(&stored);
    assert_eq!((&back["spec"]["replicas"], &back["status"]["replicas"]), (&json!(1), &json!(1)));
}

#[test]
fn s_012_no_replica_is_suspended() {
    let stored = hub(&old_sandbox(Some(0)));
    assert_eq!(mode(&stored), "Suspended");
    let back = spoke(&stored);
    assert_eq!((&back["spec"]["replicas"], &back["status"]["replicas"]), (&json!(0), &json!(0)));
}

/// S-013, X-014: an old state is replaced, never nested; the caller's object is not modified.
#[test]
fn s_013_x_014_an_old_state_is_replaced_and_never_nested() {
    for (object, state) in [
        (old_sandbox(Some(1)), key::V1ALPHA1_SANDBOX_STATE),
        (old_claim(Some("none"), None), key::V1ALPHA1_CLAIM_STATE),
        (
            extension(EXTENSIONS_V1ALPHA1, "SandboxTemplate", json!({"podTemplate": pod()})),
            key::V1ALPHA1_TEMPLATE_STATE,
        ),
        (extension(EXTENSIONS_V1ALPHA1, "SandboxWarmPool", json!({"replicas": 1})), key::V1ALPHA1_POOL_STATE),
    ] {
        let source = annotated(annotated(object, "mine", "kept"), state, "{\"old\":1}");
        let before = source.clone();
        let stored = hub(&source);
        assert_eq!(source, before);
        let written = stored["metadata"]["annotations"][state].as_str().expect("state");
        assert!(!written.contains(state) && !written.contains("old"), "{written}");
        assert_eq!(stored["metadata"]["annotations"]["mine"], "kept");
    }
}

#[test]
fn s_014_everything_else_survives_the_round_trip() {
    let mut source = old_sandbox(Some(1));
    source["spec"]["volumeClaimTemplates"] =
        json!([{"metadata": {"name": "data"}, "spec": {"resources": {"requests": {"storage": "1024Mi"}}}}]);
    source["spec"]["shutdownTime"] = "2030-01-01T00:00:00Z".into();
    source["spec"]["shutdownPolicy"] = "Delete".into();
    source["spec"]["service"] = false.into();
    let stored = hub(&source);
    for field in ["podTemplate", "volumeClaimTemplates", "shutdownTime", "shutdownPolicy", "service"] {
        assert_eq!(stored["spec"][field], source["spec"][field], "{field}");
    }
    assert_eq!(spoke(&stored)["spec"], source["spec"]);
    assert_eq!(spoke(&stored)["metadata"], source["metadata"]);
}

#[test]
fn s_015_clients_of_v1alpha1_never_see_the_state() {
    let back = spoke(&hub(&old_sandbox(Some(1))));
    assert_eq!(back["metadata"].get("annotations"), None);
}

#[test]
fn s_016_a_native_sandbox_reads_as_replicas() {
    for (mode, replicas) in [("Running", 1), ("Suspended", 0), ("", 1)] {
        let back = spoke(&sandbox(CORE_V1BETA1, json!({"podTemplate": pod(), "operatingMode": mode})));
        assert_eq!((&back["spec"]["replicas"], &back["status"]["replicas"]), (&json!(replicas), &json!(replicas)));
        assert_eq!(back["spec"].get("operatingMode"), None);
    }
}

#[test]
fn s_017_the_mode_wins_over_the_state() {
    let mut stored = hub(&old_sandbox(Some(0)));
    stored["spec"]["operatingMode"] = "Running".into();
    assert_eq!(spoke(&stored)["spec"]["replicas"], 1);
    let mut stored = hub(&old_sandbox(Some(1)));
    stored["spec"]["operatingMode"] = "Suspended".into();
    assert_eq!(spoke(&stored)["spec"]["replicas"], 0);
}

#[test]
fn s_018_the_node_is_not_part_of_v1alpha1() {
    let mut stored = sandbox(CORE_V1BETA1, json!({"podTemplate": pod(), "operatingMode": "Running"}));
    stored["status"] = json!({
        "nodeName": "node", "podIPs": ["10.0.0.1"], "selector": "a=b", "service": "s", "serviceFQDN": "f",
        "conditions": []
    });
    let back = spoke(&stored);
    assert_eq!(back["status"].get("nodeName"), None);
    let again = hub(&back);
    assert_eq!(again["status"].get("nodeName"), None);
    assert_eq!(again["status"].get("replicas"), None);
    for field in ["podIPs", "selector", "service", "serviceFQDN", "conditions"] {
        assert_eq!(again["status"][field], stored["status"][field], "{field}");
    }
}

/// S-019: objects stored by v0.4.6 can be read in both versions.
#[test]
fn s_019_objects_of_the_old_release_read_in_both_versions() {
    for (replicas, mode_word) in [(0, "Suspended"), (1, "Running")] {
        let stored = hub(&old_sandbox(Some(replicas)));
        assert_eq!(mode(&stored), mode_word);
        let old_view = spoke(&stored);
        assert_eq!(old_view["spec"]["replicas"], replicas);
        assert_eq!(old_view["spec"].get("operatingMode"), None);
    }
}

/// Upstream's full form of the state and Go's escape sequences are read too.
#[test]
fn states_written_by_upstream_are_read() {
    let full = old_sandbox(None).to_string().replace('<', "\\u003c");
    let stored = annotated(
        sandbox(CORE_V1BETA1, json!({"podTemplate": pod(), "operatingMode": "Running"})),
        key::V1ALPHA1_SANDBOX_STATE,
        &full,
    );
    assert_eq!(spoke(&stored)["spec"].get("replicas"), None);
}

#[test]
fn malformed_states_are_ignored() {
    for state in ["", "{", "[]", "null", "7", "{\"spec\":7}", "{\"spec\":{\"replicas\":99}}"] {
        let stored = annotated(
            sandbox(CORE_V1BETA1, json!({"podTemplate": pod(), "operatingMode": "Running"})),
            key::V1ALPHA1_SANDBOX_STATE,
            state,
        );
        assert_eq!(spoke(&stored)["spec"]["replicas"], 1, "{state}");
        let stored = annotated(new_claim("p"), key::V1ALPHA1_CLAIM_STATE, state);
        let back = spoke(&stored);
        assert_eq!(back["metadata"].get("annotations").and_then(|a| a.get(key::V1ALPHA1_CLAIM_STATE)), None);
        assert_eq!(back["spec"]["warmpool"], "p", "{state}");
    }
}

#[test]
fn x_010_a_named_pool_is_kept() {
    for bound in [None, Some("o"), Some("my-pool-abcde"), Some("else-abcde")] {
        assert_eq!(pool_of(&hub(&old_claim(Some("my-pool"), bound))), "my-pool");
    }
}

#[test]
fn x_011_no_pool_means_the_templates_shadow_pool() {
    for warmpool in [None, Some("none"), Some("default"), Some("")] {
        for bound in [None, Some("o")] {
            assert_eq!(pool_of(&hub(&old_claim(warmpool, bound))), "shadow-pool-t");
        }
    }
}

#[test]
fn x_012_a_bound_claim_means_the_pool_it_was_served_from() {
    assert_eq!(pool_of(&hub(&old_claim(Some("default"), Some("my-pool-abcde")))), "my-pool");
}

#[test]
fn x_013_template_and_policy_come_back() {
    for warmpool in [None, Some("none"), Some("default"), Some(""), Some("my-pool")] {
        for bound in [None, Some("o"), Some("my-pool-abcde")] {
            let source = old_claim(warmpool, bound);
            let back = spoke(&hub(&source));
            assert_eq!(back, source, "{warmpool:?} {bound:?}");
        }
    }
}

#[test]
fn x_015_a_native_claim_reads_as_template_and_policy() {
    for (pool, warmpool, template) in [("p", "p", "p"), ("shadow-pool-t", "default", "t"), ("", "", "")] {
        let back = spoke(&new_claim(pool));
        assert_eq!(back["spec"]["warmpool"], warmpool);
        assert_eq!(back["spec"]["sandboxTemplateRef"]["name"], template);
        assert_eq!(back["spec"].get("warmPoolRef"), None);
    }
}

#[test]
fn x_016_an_edited_pool_shows_beside_the_original_template() {
    let mut stored = hub(&old_claim(Some("default"), None));
    stored["spec"]["warmPoolRef"]["name"] = "new-pool".into();
    let back = spoke(&stored);
    assert_eq!(back["spec"]["warmpool"], "new-pool");
    assert_eq!(back["spec"]["sandboxTemplateRef"]["name"], "t");
    assert_eq!(pool_of(&hub(&back)), "new-pool");
}

/// X-016, in the case where upstream's heuristic is wrong: the new pool has the same name as the template.
#[test]
fn x_016_an_edit_to_a_pool_named_like_the_template_is_an_edit() {
    let mut stored = hub(&old_claim(Some("default"), None));
    stored["spec"]["warmPoolRef"]["name"] = "t".into();
    let back = spoke(&stored);
    assert_eq!(back["spec"]["warmpool"], "t");
    assert_eq!(pool_of(&hub(&back)), "t");
}

/// upstream's states do not record the pool; names decide.
#[test]
fn x_021_upstreams_states_are_judged_by_name() {
    let state = old_claim(Some("none"), None).to_string();
    for (pool, bound, unchanged) in [
        ("shadow-pool-t", "", true),
        ("t", "", true),
        ("p", "p-abcde", true),
        ("p-abcde", "p-abcde", true),
        ("q", "p-abcde", false),
    ] {
        let mut stored = annotated(new_claim(pool), key::V1ALPHA1_CLAIM_STATE, &state);
        if !bound.is_empty() {
            stored["status"] = json!({"sandbox": {"name": bound}});
        }
        let warmpool = if unchanged { "none" } else { pool };
        let back = spoke(&stored);
        assert_eq!(back["spec"]["warmpool"], warmpool, "{pool} {bound}");
        assert_eq!(back["spec"]["sandboxTemplateRef"]["name"], "t");
    }
}

#[test]
fn a_claim_served_from_any_pool_keeps_its_shadow_pool_through_edits_of_v1alpha1_clients() {
    let mut stored = hub(&old_claim(Some("default"), None));
    stored["status"] = json!({"sandbox": {"name": "my-pool-abcde"}});
    let mut view = spoke(&stored);
    assert_eq!(
        (&view["spec"]["warmpool"], &view["spec"]["sandboxTemplateRef"]["name"]),
        (&json!("default"), &json!("t"))
    );
    view["metadata"]["labels"] = json!({"edited": "yes"});
    assert_eq!(pool_of(&hub(&view)), "shadow-pool-t");
    view["spec"]["warmpool"] = "other".into();
    assert_eq!(pool_of(&hub(&view)), "other");
}

#[test]
fn volumes_of_a_claim_survive_clients_of_v1alpha1() {
    let mut stored = new_claim("p");
    stored["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"}, "spec": {}}]);
    let view = spoke(&stored);
    assert_eq!(view["spec"].get("volumeClaimTemplates"), None);
    let again = hub(&view);
    assert_eq!(again["spec"]["volumeClaimTemplates"], stored["spec"]["volumeClaimTemplates"]);
    assert_eq!(again["metadata"]["annotations"].get(key::V1BETA1_CLAIM_VOLUMES), None);
}

#[test]
fn x_017_the_volume_policy_travels_in_an_annotation() {
    let stored = extension(
        EXTENSIONS_V1BETA1,
        "SandboxTemplate",
        json!({"podTemplate": pod(), "volumeClaimTemplatesPolicy": "Allowed"}),
    );
    let view = spoke(&stored);
    assert_eq!(view["metadata"]["annotations"][key::V1BETA1_VOLUME_POLICY], "Allowed");
    assert_eq!(view["spec"].get("volumeClaimTemplatesPolicy"), None);
    let again = hub(&view);
    assert_eq!(again["spec"], stored["spec"]);
    assert_eq!(again["metadata"]["annotations"].get(key::V1BETA1_VOLUME_POLICY), None);
}

#[test]
fn x_018_a_cleared_policy_clears_the_annotation() {
    let stored = annotated(
        extension(EXTENSIONS_V1BETA1, "SandboxTemplate", json!({"podTemplate": pod()})),
        key::V1BETA1_VOLUME_POLICY,
        "Allowed",
    );
    let view = spoke(&stored);
    assert_eq!(view["metadata"].get("annotations"), None);
    assert_eq!(hub(&view)["spec"].get("volumeClaimTemplatesPolicy"), None);
}

#[test]
fn x_019_an_invalid_policy_is_refused() {
    let view = annotated(
        extension(EXTENSIONS_V1ALPHA1, "SandboxTemplate", json!({"podTemplate": pod()})),
        key::V1BETA1_VOLUME_POLICY,
        "Sometimes",
    );
    let error = convert(view, EXTENSIONS_V1BETA1).expect_err("refused");
    assert_eq!(error.to_string(), "invalid VolumeClaimTemplatesPolicy annotation value: \"Sometimes\"");
}

#[test]
fn x_020_pools_round_trip() {
    for strategy in [None, Some(json!({})), Some(json!({"type": "Recreate"}))] {
        let mut pool = extension(
            EXTENSIONS_V1ALPHA1,
            "SandboxWarmPool",
            json!({"replicas": 3, "sandboxTemplateRef": {"name": "t"}}),
        );
        if let Some(strategy) = strategy {
            pool["spec"]["updateStrategy"] = strategy;
        }
        pool["status"] = json!({"replicas": 3, "readyReplicas": 2, "selector": "a=b"});
        assert_eq!(spoke(&hub(&pool)), pool);
    }
    let native = extension(EXTENSIONS_V1BETA1, "SandboxWarmPool", json!({"sandboxTemplateRef": {"name": "t"}}));
    assert_eq!(spoke(&native)["spec"]["replicas"], 1);
    let mut observed = native;
    observed["status"] = json!({"observedGeneration": 4, "replicas": 1});
    assert_eq!(spoke(&observed)["status"], json!({"replicas": 1}));
}

#[test]
fn an_object_in_the_wanted_version_is_unchanged() {
    let object = old_claim(Some("default"), None);
    assert_eq!(spoke(&object), object);
}

#[test]
fn foreign_kinds_are_rejected_with_their_name() {
    assert_eq!(convert(json!([]), CORE_V1BETA1), Err(ConversionError::NotAnObject { field: "the converted value" }));
    let pod = json!({"apiVersion": "v1", "kind": "Pod"});
    assert!(convert(pod, CORE_V1BETA1).expect_err("refused").to_string().contains("Pod"));
    let wrong_group = json!({"apiVersion": EXTENSIONS_V1ALPHA1, "kind": "Sandbox"});
    assert!(matches!(convert(wrong_group, CORE_V1BETA1), Err(ConversionError::UnknownKind { .. })));
    let error = convert(old_claim(None, None), "extensions.agents.x-k8s.io/v2").expect_err("refused");
    assert!(matches!(error, ConversionError::UnknownVersion { .. }));
    let malformed = json!({"apiVersion": CORE_V1ALPHA1, "kind": "Sandbox", "spec": []});
    assert_eq!(convert(malformed, CORE_V1BETA1), Err(ConversionError::NotAnObject { field: "spec" }));
    let malformed = json!({"apiVersion": CORE_V1ALPHA1, "kind": "Sandbox", "metadata": {"annotations": 7}});
    assert_eq!(convert(malformed, CORE_V1BETA1), Err(ConversionError::NotAnObject { field: "annotations" }));
}
