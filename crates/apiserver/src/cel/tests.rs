//! Compilation and evaluation of rules, and their error messages.

use serde_json::json;

use super::*;

fn schema(raw: Value) -> Result<Schema, Vec<FieldError>> {
    Schema::compile(&raw, &Path::Root)
}

fn spec(properties: Value, rules: Value) -> Value {
    json!({"type": "object", "properties": {"spec": {"type": "object", "properties": properties, "x-kubernetes-validations": rules}}})
}

const IMMUTABLE: &str = "has(self.list) == has(oldSelf.list) && (!has(self.list) || self.list == oldSelf.list)";

#[test]
fn immutability_of_presence_and_content_s_001_s_002_s_003() {
    let schema = schema(spec(
        json!({"list": {"type": "array", "items": {"type": "string"}}, "other": {"type": "integer"}}),
        json!([{"rule": IMMUTABLE, "message": "list is immutable"}]),
    ))
    .unwrap_or_else(|e| panic!("{e:?}"));
    let with = |list: Option<Value>| match list {
        Some(list) => json!({"spec": {"list": list}}),
        None => json!({"spec": {"other": 1}}),
    };
    let some = || Some(json!(["a"]));
    for (old, new, allowed) in [
        (some(), some(), true),
        (None, None, true),
        (some(), Some(json!(["a", "b"])), false),
        (None, some(), false),
        (some(), None, false),
        (None, Some(json!([])), false),
    ] {
        let errors = schema.validate(&with(new.clone()), Some(&with(old.clone())));
        assert_eq!(errors.is_empty(), allowed, "{old:?} → {new:?}: {errors:?}");
        if !allowed {
            assert_eq!(errors[0].to_string(), "spec: Invalid value: \"object\": list is immutable");
        }
    }
    assert!(schema.validate(&with(some()), None).is_empty(), "transition rules are not evaluated on creation");
}

#[test]
fn kubernetes_functions_and_computed_messages() {
    let schema = schema(spec(
        json!({"memory": {"type": "string"}, "names": {"type": "array", "maxItems": 5, "items": {"type": "string"}},
               "namespace": {"type": "string"}, "at": {"type": "string", "format": "date-time"}}),
        json!([
            {"rule": "!has(self.memory) || quantity(self.memory).isLessThan(quantity('2Gi'))",
             "messageExpression": "'too much memory: ' + self.memory"},
            {"rule": "!has(self.names) || self.names.all(n, n.startsWith('x'))"},
            {"rule": "!has(self.__namespace__) || self.__namespace__ != 'kube-system'", "reason": "FieldValueForbidden", "message": "no", "fieldPath": ".namespace"},
            {"rule": "!has(self.at) || self.at > timestamp('2020-01-01T00:00:00Z')", "message": "too early"},
        ]),
    ))
    .unwrap_or_else(|e| panic!("{e:?}"));
    let errors = |spec: Value| {
        schema.validate(&json!({ "spec": spec }), None).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        errors(json!({"memory": "1Gi", "names": ["x1"], "namespace": "a", "at": "2021-01-01T00:00:00Z"})),
        [""; 0]
    );
    assert_eq!(errors(json!({"memory": "3Gi"})), ["spec: Invalid value: \"object\": too much memory: 3Gi"]);
    assert_eq!(
        errors(json!({"names": ["y"]})),
        ["spec: Invalid value: \"object\": failed rule: !has(self.names) || self.names.all(n, n.startsWith('x'))"]
    );
    assert_eq!(errors(json!({"namespace": "kube-system"})), ["spec.namespace: Forbidden: no"]);
    assert_eq!(errors(json!({"at": "2019-01-01T00:00:00Z"})), ["spec: Invalid value: \"object\": too early"]);
}

#[test]
fn rules_that_do_not_compile_are_refused() {
    for (rule, why) in [
        ("self.replicas >", "compilation failed"),
        ("self.nothere > 1", "undefined field 'nothere'"),
        ("request.name == 'x'", "undeclared reference to 'request'"),
        ("frobnicate(self)", "undeclared reference to 'frobnicate'"),
        ("self.list.all(a, self.list.all(b, self.list.all(c, a != b)))", "exceeds budget"),
        ("", "Required value"),
    ] {
        let raw = spec(
            json!({"replicas": {"type": "integer"}, "list": {"type": "array", "items": {"type": "string"}}}),
            json!([{ "rule": rule }]),
        );
        let errors = schema(raw).err().unwrap_or_else(|| panic!("{rule} was accepted"));
        let text = errors[0].to_string();
        assert!(text.contains(why), "{rule}: {text}");
        assert!(text.starts_with("properties[spec].x-kubernetes-validations[0].rule: "), "{text}");
    }
}

#[test]
fn items_of_map_lists_are_compared_by_key() {
    let schema = schema(json!({"type": "object", "properties": {"ports": {
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        "items": {"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}},
            "x-kubernetes-validations": [{"rule": "self.n >= oldSelf.n", "message": "only up"}]}}}}))
    .unwrap_or_else(|e| panic!("{e:?}"));
    let old = json!({"ports": [{"name": "a", "n": 1}, {"name": "b", "n": 5}]});
    assert!(
        schema.validate(&json!({"ports": [{"name": "b", "n": 6}, {"name": "new", "n": 0}]}), Some(&old)).is_empty()
    );
    let errors = schema.validate(&json!({"ports": [{"name": "b", "n": 4}]}), Some(&old));
    assert_eq!(errors[0].to_string(), "ports[0]: Invalid value: \"object\": only up");
}
