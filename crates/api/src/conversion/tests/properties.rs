//! Properties of conversion over arbitrary objects.

use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

use super::*;

/// Any JSON, as user-written Pod specs and unknown fields are.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[ -~äß<>&\\\\]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            btree_map("[a-z]{1,6}", inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn name() -> impl Strategy<Value = String> {
    "[a-z]{1,4}(-[a-z0-9]{1,5}){0,2}"
}

fn text_map() -> impl Strategy<Value = Value> {
    btree_map("[a-z]{1,5}(\\.io/[a-z]{1,3})?", "[ -~]{0,8}", 1..4).prop_map(|map| json!(map))
}

/// Puts the fields that are there into an object.
fn object(fields: Vec<(&'static str, Option<Value>)>) -> Value {
    Value::Object(fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect::<Map<_, _>>())
}

prop_compose! {
    fn metadata()(
        name in name(),
        labels in of(text_map()),
        annotations in of(text_map()),
        generation in of(1..9_i64),
    ) -> Value {
        object(vec![
            ("name", Some(name.into())),
            ("namespace", Some("n".into())),
            ("uid", Some("u".into())),
            ("labels", labels),
            ("annotations", annotations),
            ("generation", generation.map(Value::from)),
        ])
    }
}

prop_compose! {
    fn blueprint()(
        spec in any_json(),
        pod in of(text_map()),
        volumes in of(vec(any_json(), 0..3)),
        service in of(any::<bool>()),
    ) -> Vec<(&'static str, Option<Value>)> {
        let metadata = pod.map(|labels| json!({"labels": labels}));
        vec![
            ("podTemplate", Some(object(vec![("spec", Some(spec)), ("metadata", metadata)]))),
            ("volumeClaimTemplates", volumes.map(Value::from)),
            ("service", service.map(Value::from)),
        ]
    }
}

prop_compose! {
    fn sandbox_v1alpha1()(
        metadata in metadata(),
        blueprint in blueprint(),
        replicas in of(0..=1_i32),
        time in of(Just("2030-01-01T00:00:00Z")),
        policy in of(select(vec!["Retain", "Delete"])),
        status in of((of(vec("[0-9.]{7}", 0..2)), of(0..=1_i32))),
    ) -> Value {
        let mut spec = blueprint;
        spec.extend([
            ("replicas", replicas.map(Value::from)),
            ("shutdownTime", time.map(Value::from)),
            ("shutdownPolicy", policy.map(Value::from)),
        ]);
        object(vec![
            ("apiVersion", Some(CORE_V1ALPHA1.into())),
            ("kind", Some("Sandbox".into())),
            ("metadata", Some(metadata)),
            ("spec", Some(object(spec))),
            ("status", status.map(|(ips, replicas)| {
                object(vec![("podIPs", ips.map(Value::from)), ("replicas", replicas.map(Value::from))])
            })),
        ])
    }
}

prop_compose! {
    fn claim_v1alpha1()(
        metadata in metadata(),
        template in name(),
        warmpool in of(prop_oneof![Just("default".to_owned()), Just("none".to_owned()), Just(String::new()), name()]),
        lifecycle in of(any_json()),
        pod in of(text_map()),
        env in of(vec(any_json(), 0..3)),
        bound in of(name()),
    ) -> Value {
        object(vec![
            ("apiVersion", Some(EXTENSIONS_V1ALPHA1.into())),
            ("kind", Some("SandboxClaim".into())),
            ("metadata", Some(metadata)),
            ("spec", Some(object(vec![
                ("sandboxTemplateRef", Some(json!({"name": template}))),
                ("warmpool", warmpool.map(Value::from)),
                ("lifecycle", lifecycle),
                ("additionalPodMetadata", pod.map(|labels| json!({"labels": labels}))),
                ("env", env.map(Value::from)),
            ]))),
            ("status", bound.map(|name| json!({"sandbox": {"name": name}}))),
        ])
    }
}

prop_compose! {
    fn template_v1alpha1()(
        metadata in metadata(),
        blueprint in blueprint(),
        network in of(any_json()),
        env in of(select(vec!["Allowed", "Overrides", "Disallowed"])),
        volumes in of(select(vec!["Allowed", "Overrides", "Disallowed"])),
    ) -> Value {
        let mut spec = blueprint;
        spec.extend([("networkPolicy", network), ("envVarsInjectionPolicy", env.map(Value::from))]);
        let template = object(vec![
            ("apiVersion", Some(EXTENSIONS_V1ALPHA1.into())),
            ("kind", Some("SandboxTemplate".into())),
            ("metadata", Some(metadata)),
            ("spec", Some(object(spec))),
        ]);
        match volumes {
            Some(policy) => annotated(template, crate::keys::annotations::V1BETA1_VOLUME_POLICY, policy),
            None => template,
        }
    }
}

prop_compose! {
    fn pool_v1alpha1()(
        metadata in metadata(),
        replicas in 0..5_i32,
        template in name(),
        strategy in of(any_json()),
        ready in of(0..5_i32),
    ) -> Value {
        object(vec![
            ("apiVersion", Some(EXTENSIONS_V1ALPHA1.into())),
            ("kind", Some("SandboxWarmPool".into())),
            ("metadata", Some(metadata)),
            ("spec", Some(object(vec![
                ("replicas", Some(replicas.into())),
                ("sandboxTemplateRef", Some(json!({"name": template}))),
                ("updateStrategy", strategy),
            ]))),
            ("status", ready.map(|ready| json!({"readyReplicas": ready}))),
        ])
    }
}

fn any_v1alpha1() -> impl Strategy<Value = Value> {
    prop_oneof![sandbox_v1alpha1(), claim_v1alpha1(), template_v1alpha1(), pool_v1alpha1()]
}

/// A claim as a v1beta1 client writes it, bound or not, with or without volumes.
fn claim_v1beta1() -> impl Strategy<Value = Value> {
    let pool = prop_oneof![
        name(),
        Just("default".to_owned()),
        Just("none".to_owned()),
        Just(String::new()),
        name().prop_map(|t| format!("shadow-pool-{t}"))
    ];
    (metadata(), pool, of(vec(any_json(), 0..3)), of(name())).prop_map(|(metadata, pool, volumes, bound)| {
        object(vec![
            ("apiVersion", Some(EXTENSIONS_V1BETA1.into())),
            ("kind", Some("SandboxClaim".into())),
            ("metadata", Some(metadata)),
            (
                "spec",
                Some(object(vec![
                    ("warmPoolRef", Some(json!({"name": pool}))),
                    ("volumeClaimTemplates", volumes.map(Value::from)),
                ])),
            ),
            ("status", bound.map(|name| json!({"sandbox": {"name": name}}))),
        ])
    })
}

fn without_states(mut object: Value) -> Value {
    use crate::keys::annotations as key;
    let Some(metadata) = object["metadata"].as_object_mut() else { return object };
    let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) else { return object };
    for state in
        [key::V1ALPHA1_SANDBOX_STATE, key::V1ALPHA1_CLAIM_STATE, key::V1ALPHA1_TEMPLATE_STATE, key::V1ALPHA1_POOL_STATE]
    {
        annotations.remove(state);
    }
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    object
}

proptest! {
    /// S-010 to S-015, X-013, X-020: v1alpha1 → v1beta1 → v1alpha1 is the identity on metadata and spec, and
    /// `status.replicas` of a Sandbox follows the mode.
    #[test]
    fn round_trip_of_v1alpha1_is_the_identity(object in any_v1alpha1()) {
        let stored = hub(&object);
        let back = spoke(&stored);
        prop_assert_eq!(&back["metadata"], &object["metadata"]);
        prop_assert_eq!(&back["spec"], &object["spec"]);
        if object["kind"] == "Sandbox" {
            let running = i32::from(stored["spec"]["operatingMode"] == "Running");
            prop_assert_eq!(&back["status"]["replicas"], &json!(running));
        } else {
            prop_assert_eq!(back.get("status"), object.get("status"));
        }
    }

    /// A v1alpha1 client that writes back what it read changes nothing in storage.
    #[test]
    fn storing_what_was_read_changes_nothing(object in any_v1alpha1()) {
        let stored = hub(&object);
        prop_assert_eq!(without_states(hub(&spoke(&stored))), without_states(stored));
    }

    /// Edits made through v1beta1 survive a v1alpha1 client's read and write.
    #[test]
    fn edits_of_v1beta1_survive(
        object in any_v1alpha1(),
        label in "[a-z]{1,5}",
        service in any::<bool>(),
        suspend in any::<bool>(),
        pool in name(),
    ) {
        let mut stored = hub(&object);
        stored["metadata"]["labels"]["edited"] = label.into();
        match stored["kind"].as_str().expect("kind") {
            "Sandbox" => {
                stored["spec"]["service"] = service.into();
                stored["spec"]["operatingMode"] = if suspend { "Suspended" } else { "Running" }.into();
            }
            "SandboxClaim" => {
                stored["spec"]["warmPoolRef"]["name"] = pool.into();
                stored["spec"]["volumeClaimTemplates"] = json!([{"spec": {}}]);
            }
            "SandboxTemplate" => stored["spec"]["volumeClaimTemplatesPolicy"] = "Overrides".into(),
            _ => stored["spec"]["replicas"] = 9.into(),
        }
        prop_assert_eq!(without_states(hub(&spoke(&stored))), without_states(stored));
    }

    /// Edits made through v1alpha1 survive storage.
    #[test]
    fn edits_of_v1alpha1_survive(
        object in any_v1alpha1(),
        label in "[a-z]{1,5}",
        replicas in 0..=1_i32,
        pool in name(),
        template in name(),
    ) {
        let mut view = spoke(&hub(&object));
        view["metadata"]["labels"]["edited"] = label.into();
        match view["kind"].as_str().expect("kind") {
            "Sandbox" | "SandboxWarmPool" => view["spec"]["replicas"] = replicas.into(),
            "SandboxClaim" => {
                view["spec"]["warmpool"] = pool.into();
                view["spec"]["sandboxTemplateRef"]["name"] = template.into();
            }
            _ => view["spec"]["envVarsInjectionPolicy"] = "Allowed".into(),
        }
        let back = spoke(&hub(&view));
        prop_assert_eq!(&back["metadata"], &view["metadata"]);
        prop_assert_eq!(&back["spec"], &view["spec"]);
    }

    /// A native claim keeps pool and volumes through a v1alpha1 client, whatever the pool is called.
    #[test]
    fn native_claims_survive_v1alpha1_clients(claim in claim_v1beta1()) {
        let mut view = spoke(&claim);
        view["metadata"]["labels"] = json!({"edited": "yes"});
        let again = hub(&view);
        prop_assert_eq!(&again["spec"], &claim["spec"]);
    }

    /// No annotation, whatever its value, makes a read through v1alpha1 fail or panic.
    #[test]
    fn states_never_break_a_read(
        object in any_v1alpha1(),
        state in prop_oneof![
            any::<String>(),
            any_json().prop_map(|v| v.to_string()),
            any_json().prop_map(|v| json!({"spec": v, "status": v, "hub": v}).to_string()),
        ],
    ) {
        use crate::keys::annotations as key;
        let mut stored = hub(&object);
        for name in [
            key::V1ALPHA1_SANDBOX_STATE,
            key::V1ALPHA1_CLAIM_STATE,
            key::V1ALPHA1_TEMPLATE_STATE,
            key::V1ALPHA1_POOL_STATE,
            key::V1BETA1_CLAIM_VOLUMES,
            key::V1BETA1_CLAIM_POOL,
        ] {
            stored = annotated(stored, name, &state);
        }
        let back = spoke(&stored);
        hub(&back);
    }

    /// Arbitrary JSON is rejected or converted; it never causes a panic.
    #[test]
    fn arbitrary_json_never_panics(
        kind in select(vec!["Sandbox", "SandboxClaim", "SandboxTemplate", "SandboxWarmPool", "Pod"]),
        metadata in any_json(),
        spec in any_json(),
        status in any_json(),
    ) {
        for (from, to) in [
            (CORE_V1ALPHA1, CORE_V1BETA1),
            (CORE_V1BETA1, CORE_V1ALPHA1),
            (EXTENSIONS_V1ALPHA1, EXTENSIONS_V1BETA1),
            (EXTENSIONS_V1BETA1, EXTENSIONS_V1ALPHA1),
        ] {
            let object = json!({
                "apiVersion": from, "kind": kind, "metadata": metadata, "spec": spec, "status": status,
            });
            let _ = convert(object, to);
        }
    }
}
