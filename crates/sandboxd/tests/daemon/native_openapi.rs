//! The OpenAPI document describes what is really answered.

use serde_json::{Value, json};

use crate::fixture::daemon;

/// Checks a value against the subset of JSON Schema that the document uses.
fn check(document: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().expect("a name");
        return check(document, &document["components"]["schemas"][name], value, &format!("{at}<{name}>"));
    }
    match schema["type"].as_str() {
        Some("object") => {
            let members = value.as_object().unwrap_or_else(|| panic!("{at}: {value} is not an object"));
            for required in schema["required"].as_array().into_iter().flatten() {
                let required = required.as_str().expect("a name");
                assert!(members.contains_key(required), "{at}: {required} is missing from {value}");
            }
            for (name, member) in members {
                let known = &schema["properties"][name];
                assert!(!known.is_null(), "{at}: {name} is not documented");
                check(document, known, member, &format!("{at}.{name}"));
            }
        }
        Some("array") => {
            for item in value.as_array().unwrap_or_else(|| panic!("{at}: {value} is not an array")) {
                check(document, &schema["items"], item, &format!("{at}[]"));
            }
        }
        Some("string") => assert!(value.is_string(), "{at}: {value}"),
        Some("integer") => assert!(value.is_i64() || value.is_u64(), "{at}: {value}"),
        Some("boolean") => assert!(value.is_boolean(), "{at}: {value}"),
        _ => {
            if let Some(allowed) = schema["enum"].as_array() {
                assert!(allowed.contains(value), "{at}: {value} is not one of {allowed:?}");
            }
        }
    }
}

#[test]
fn answers_match_the_served_document() {
    let daemon = daemon().start();
    let document = daemon.get("/sandbox/v1/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    daemon.upload("dir/file.txt", b"needle");
    daemon.post("/sandbox/v1/processes", &json!({"argv": ["sleep", "20"]}));
    for path in [
        "/sandbox/v1",
        "/sandbox/v1/processes",
        "/sandbox/v1/files/stat?path=dir",
        "/sandbox/v1/files/list",
        "/sandbox/v1/files/glob?pattern=**",
        "/sandbox/v1/files/search?pattern=needle",
        "/sandbox/v1/ports",
        "/sandbox/v1/usage",
    ] {
        let answer = daemon.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        let documented = &document["paths"][path.split('?').next().expect("a path")]["get"]["responses"]["200"];
        check(&document, &documented["content"]["application/json"]["schema"], &answer.json(), path);
    }
    let exec = daemon.post("/sandbox/v1/exec", &json!({"command": "kill -9 $$"})).json();
    check(&document, &json!({"$ref": "#/components/schemas/ExecResult"}), &exec, "exec");
    let error = daemon.get("/sandbox/v1/files?path=missing").json();
    check(&document, &json!({"$ref": "#/components/schemas/ErrorBody"}), &error, "error");
}
