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
            assert_eq!(errors[0].to_string(), "spec: Invalid value: list is immutable");
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
    assert_eq!(errors(json!({"memory": "3Gi"})), ["spec: Invalid value: too much memory: 3Gi"]);
    assert_eq!(
        errors(json!({"names": ["y"]})),
        ["spec: Invalid value: failed rule: !has(self.names) || self.names.all(n, n.startsWith('x'))"]
    );
    assert_eq!(errors(json!({"namespace": "kube-system"})), ["spec.namespace: Forbidden: no"]);
    assert_eq!(errors(json!({"at": "2019-01-01T00:00:00Z"})), ["spec: Invalid value: too early"]);
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
    assert_eq!(errors[0].to_string(), "ports[0]: Invalid value: only up");
}

/// What kube-apiserver 1.36.3 answers to the same objects.
#[test]
fn messages_are_those_of_kubernetes() {
    let rule = |rule: &str| json!([{ "rule": rule, "message": "no" }]);
    let with_reason = |reason: &str| json!([{ "rule": "self == 'ok'", "message": "no", "reason": reason }]);
    let schema = schema(spec(
        json!({
            "text": {"type": "string", "x-kubernetes-validations": rule("self == 'ok'")},
            "whole": {"type": "integer", "x-kubernetes-validations": rule("self == 1")},
            "number": {"type": "number", "x-kubernetes-validations": rule("self == 1.0")},
            "flag": {"type": "boolean", "x-kubernetes-validations": rule("self")},
            "list": {"type": "array", "maxItems": 5, "items": {"type": "integer"}, "x-kubernetes-validations": rule("self.size() == 0")},
            "out": {"type": "array", "maxItems": 5, "items": {"type": "integer"}, "x-kubernetes-validations": rule("self[2] == 1")},
            "divisor": {"type": "integer", "x-kubernetes-validations": [{"rule": "1 / self == 1"}]},
            "duplicate": {"type": "string", "x-kubernetes-validations": with_reason("FieldValueDuplicate")},
            "required": {"type": "string", "x-kubernetes-validations": with_reason("FieldValueRequired")},
            "other": {"type": "string"},
        }),
        json!([{ "rule": "!has(self.other)", "message": "no", "reason": "FieldValueDuplicate" }]),
    ))
    .unwrap_or_else(|e| panic!("{e:?}"));
    for (spec, message) in [
        (json!({"text": "a<&>\n"}), r#"spec.text: Invalid value: "a<&>\n": no"#),
        (json!({"whole": 5}), "spec.whole: Invalid value: 5: no"),
        (json!({"number": 2.5}), "spec.number: Invalid value: 2.5: no"),
        (json!({"number": 2.0}), "spec.number: Invalid value: 2: no"),
        (json!({"number": 1e21}), "spec.number: Invalid value: 1e+21: no"),
        (json!({"number": -0.000001234}), "spec.number: Invalid value: -1.234e-06: no"),
        (json!({"flag": false}), "spec.flag: Invalid value: false: no"),
        (json!({"list": [1]}), "spec.list: Invalid value: no"),
        (json!({"out": [1]}), r#"spec.out: Invalid value: "array": index out of bounds: 2 evaluating rule: no"#),
        (
            json!({"divisor": 0}),
            r#"spec.divisor: Invalid value: "integer": division by zero evaluating rule: 1 / self == 1"#,
        ),
        (json!({"duplicate": "z"}), r#"spec.duplicate: Duplicate value: "z""#),
        (json!({"required": "z"}), "spec.required: Required value: no"),
        (json!({"other": "z"}), "spec: Duplicate value"),
    ] {
        let errors = schema.validate(&json!({ "spec": spec }), None);
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), [message]);
    }
}
