//! Pruning, defaulting and validation, with Kubernetes' error messages.

use serde_json::json;

use super::*;

fn compile(raw: Value) -> Schema {
    Schema::compile(&raw, &Path::Root).unwrap_or_else(|e| panic!("{e:?}"))
}

fn sandbox_like() -> Schema {
    compile(json!({"type": "object", "required": ["spec"], "properties": {
        "spec": {"type": "object", "required": ["template"], "properties": {
            "mode": {"type": "string", "enum": ["Running", "Suspended"], "default": "Running"},
            "replicas": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 1},
            "when": {"type": "string", "format": "date-time"},
            "name": {"type": "string", "maxLength": 3, "minLength": 1, "pattern": "^[a-z]+$"},
            "size": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}], "pattern": "^[0-9]+[a-z]*$"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "strategy": {"type": "object", "properties": {"type": {"type": "string", "default": "OnReplenish"}}},
            "template": {"type": "object", "properties": {"ports": {"type": "array", "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["port", "protocol"], "maxItems": 2,
                "items": {"type": "object", "required": ["port"], "properties": {
                    "port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}}}}}},
        }},
        "status": {"type": "object", "properties": {"n": {"type": "integer", "nullable": true}}},
    }}))
}

fn errors(object: Value) -> Vec<String> {
    sandbox_like().validate(&object, None).iter().map(ToString::to_string).collect()
}

#[test]
fn unknown_fields_are_pruned_and_named() {
    let mut object = json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n", "colour": 1}, "extra": 1,
        "spec": {"template": {"ports": [{"port": 1, "x": 2}]}, "labels": {"any": "thing"}, "open": {"a": {"b": 1}}, "what": {}}});
    let mut unknown = sandbox_like().prune(&mut object);
    unknown.sort();
    assert_eq!(unknown, ["extra", "metadata.colour", "spec.template.ports[0].x", "spec.what"]);
    assert_eq!(
        object,
        json!({"apiVersion": "g/v1", "kind": "K", "metadata": {"name": "n"},
        "spec": {"template": {"ports": [{"port": 1}]}, "labels": {"any": "thing"}, "open": {"a": {"b": 1}}}})
    );
}

#[test]
fn defaults_fill_present_objects_only_s_004_x_005() {
    let mut object = json!({"spec": {"mode": null, "template": {"ports": [{"port": 1}]}, "strategy": {}}});
    sandbox_like().apply_defaults(&mut object);
    assert_eq!(
        object,
        json!({"spec": {"mode": "Running", "template": {"ports": [{"port": 1, "protocol": "TCP"}]}, "strategy": {"type": "OnReplenish"}}})
    );
    let mut bare = json!({"spec": {"template": {}}});
    sandbox_like().apply_defaults(&mut bare);
    assert_eq!(bare, json!({"spec": {"mode": "Running", "template": {}}}));
}

#[test]
fn messages_are_those_of_kubernetes_s_005() {
    let with = |field: &str, value: Value| errors(json!({"spec": {"template": {}, field: value}}));
    for (got, wanted) in [
        (errors(json!({})), "spec: Required value"),
        (errors(json!({"spec": {}})), "spec.template: Required value"),
        (
            with("mode", json!("Paused")),
            "spec.mode: Unsupported value: \"Paused\": supported values: \"Running\", \"Suspended\"",
        ),
        (
            with("replicas", json!(2)),
            "spec.replicas: Invalid value: 2: spec.replicas in body should be less than or equal to 1",
        ),
        (
            with("replicas", json!("x")),
            "spec.replicas: Invalid value: \"string\": spec.replicas in body must be of type integer: \"string\"",
        ),
        (
            with("when", json!("soon")),
            "spec.when: Invalid value: \"soon\": spec.when in body must be of type date-time: \"soon\"",
        ),
        (with("name", json!("abcd")), "spec.name: Too long: may not be more than 3 bytes"),
        (with("name", json!("A")), "spec.name: Invalid value: \"A\": spec.name in body should match '^[a-z]+$'"),
        (
            with("labels", json!({"a": 1})),
            "spec.labels.a: Invalid value: \"integer\": spec.labels.a in body must be of type string: \"integer\"",
        ),
        (
            with("template", json!({"ports": [{"port": 1, "protocol": "TCP"}, {"port": 1, "protocol": "TCP"}]})),
            "spec.template.ports[1]: Duplicate value: {\"port\":1,\"protocol\":\"TCP\"}",
        ),
        (
            with("template", json!({"ports": [{"port": 1}, {"port": 2}, {"port": 3}]})),
            "spec.template.ports: Too many: 3: must have at most 2 items",
        ),
        (
            with("mode", Value::Null),
            "spec.mode: Invalid value: \"null\": spec.mode in body must be of type string: \"null\"",
        ),
    ] {
        assert_eq!(got, [wanted]);
    }
    for good in [json!(5), json!("5Gi".to_lowercase())] {
        assert_eq!(with("size", good), [""; 0]);
    }
    assert_eq!(errors(json!({"spec": {"template": {}}, "status": {"n": null}})), [""; 0]);
}

#[test]
fn broken_schemas_are_refused() {
    for (raw, wanted) in [
        (
            json!({"type": "array", "items": {"type": "string"}}),
            "type: Invalid value: \"array\": must be object at the root",
        ),
        (
            json!({"type": "object", "properties": {"a": {}}}),
            "properties[a].type: Required value: must not be empty for specified object fields",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "array"}}}),
            "properties[a].items: Required value: must be specified",
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "text"}}}),
            "properties[a].type: Unsupported value: \"text\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
        ),
    ] {
        let errors = Schema::compile(&raw, &Path::Root).err().expect("must be refused");
        assert_eq!(errors[0].to_string(), wanted);
    }
}
