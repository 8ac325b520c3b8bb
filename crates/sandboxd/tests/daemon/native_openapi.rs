//! The OpenAPI document matches the actual responses.

use std::collections::BTreeSet;

use agent_sandbox_protocol::native::{ExecRequest, FileOperation, Input, Limits, SignalRequest, TerminalSize};
use agent_sandbox_sandboxd::dialects::native::OPENAPI;
use serde_json::{Value, json};

use crate::client::send;
use crate::fixture::daemon;

/// Checks a value against the subset of JSON Schema that the document uses.
fn check(document: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().expect("a name");
        return check(document, &document["components"]["schemas"][name], value, &format!("{at}<{name}>"));
    }
    if let Some(kinds) = schema["oneOf"].as_array() {
        let kind = |schema: &&Value| {
            let kind = &schema["properties"]["type"];
            kind["const"] == value["type"] || kind["enum"].as_array().is_some_and(|all| all.contains(&value["type"]))
        };
        let kind = kinds.iter().find(kind).unwrap_or_else(|| panic!("{at}: {value} is of no documented kind"));
        return check(document, kind, value, at);
    }
    match schema["type"].as_str() {
        Some("object") if schema["additionalProperties"].is_object() => {
            for (name, member) in value.as_object().unwrap_or_else(|| panic!("{at}: {value} is not an object")) {
                check(document, &schema["additionalProperties"], member, &format!("{at}.{name}"));
            }
        }
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
        Some("number") => assert!(value.is_number(), "{at}: {value}"),
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
    daemon.execute("echo recorded");
    for path in [
        "/sandbox/v1",
        "/sandbox/v1/processes",
        "/sandbox/v1/history",
        "/sandbox/v1/files/stat?path=dir",
        "/sandbox/v1/files/list",
        "/sandbox/v1/files/glob?pattern=**",
        "/sandbox/v1/files/search?pattern=needle",
        "/sandbox/v1/ports",
        "/sandbox/v1/usage",
    ] {
        let response = daemon.get(path);
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        let documented = &document["paths"][path.split('?').next().expect("a path")]["get"]["responses"]["200"];
        check(&document, &documented["content"]["application/json"]["schema"], &response.json(), path);
    }
    let entry = daemon.get("/sandbox/v1/history/1").json();
    check(&document, &json!({"$ref": "#/components/schemas/HistoryEntry"}), &entry, "history entry");
    let exec = daemon.post("/sandbox/v1/exec", &json!({"command": "kill -9 $$"})).json();
    check(&document, &json!({"$ref": "#/components/schemas/ExecResult"}), &exec, "exec");
    let headers = [("content-type", "application/json"), ("accept", "application/x-ndjson")];
    let text = br#"{"command":"echo out; echo err >&2; printf '\\377'"}"#;
    let events = send(daemon.address, "POST", "/sandbox/v1/exec", &headers, text).text();
    assert!(events.lines().count() >= 4, "{events}");
    for event in events.lines() {
        let event: Value = serde_json::from_str(event).expect("an event");
        check(&document, &json!({"$ref": "#/components/schemas/Event"}), &event, "event");
    }
    let archive = daemon.get("/sandbox/v1/files/tar?path=dir").body;
    let unpacked = daemon.send("PUT", "/sandbox/v1/files/tar?path=copy", &archive).json();
    check(&document, &json!({"$ref": "#/components/schemas/Unpacked"}), &unpacked, "unpacked");
    let error = daemon.get("/sandbox/v1/files?path=missing").json();
    check(&document, &json!({"$ref": "#/components/schemas/ErrorBody"}), &error, "error");
}

fn members(value: &Value) -> BTreeSet<&str> {
    value.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect()
}

/// Every member of every request is documented and understood by the daemon.
#[test]
fn requests_in_full_match_the_document() {
    let document: Value = serde_json::from_str(OPENAPI).expect("JSON");
    let terminal = TerminalSize { columns: 80, rows: 24 };
    let one = Some(1);
    let limits = Limits { cpu_seconds: one, memory_bytes: one, file_size_bytes: one, open_files: one, processes: one };
    let text = || Some("x".to_owned());
    let exec = ExecRequest {
        command: text(),
        argv: vec!["x".into()],
        env: [("A".into(), "b".into())].into(),
        cwd: text(),
        user: text(),
        timeout_seconds: Some(1.5),
        stdin: text(),
        terminal: Some(terminal),
        limits,
        output_limit: Some(1),
        base64: true,
        detach: true,
    };
    let operation = FileOperation { path: text(), from: text(), to: text(), mode: text(), overwrite: true };
    for (name, value) in [
        ("ExecRequest", json!(exec)),
        ("TerminalSize", json!(terminal)),
        ("Limits", json!(limits)),
        ("FileOperation", json!(operation)),
        ("SignalRequest", json!(SignalRequest { signal: "TERM".into() })),
    ] {
        let schema = &document["components"]["schemas"][name];
        check(&document, schema, &value, name);
        assert_eq!(members(&schema["properties"]), members(&value), "{name}");
    }
    for input in [
        Input::Stdin { text: "x".into() },
        Input::EndOfInput,
        Input::Resize { columns: 1, rows: 1 },
        Input::Signal { signal: "TERM".into() },
    ] {
        check(&document, &document["components"]["schemas"]["Input"], &json!(input), "Input");
    }
}

/// Every query parameter that the code reads is documented, and the other way round.
#[test]
fn query_parameters_match_the_document() {
    let document: Value = serde_json::from_str(OPENAPI).expect("JSON");
    let operations = document["paths"].as_object().expect("paths").values().filter_map(Value::as_object);
    let documented: BTreeSet<&str> = operations
        .flat_map(|methods| methods.values())
        .flat_map(|operation| operation["parameters"].as_array().into_iter().flatten())
        .filter(|parameter| parameter["in"] == "query")
        .map(|parameter| parameter["name"].as_str().expect("a name"))
        .collect();
    let sources = [
        include_str!("../../src/dialects/native/code.rs"),
        include_str!("../../src/dialects/native/files.rs"),
        include_str!("../../src/dialects/native/files/inspect.rs"),
        include_str!("../../src/dialects/native/files/tar.rs"),
        include_str!("../../src/dialects/native/files/transfer.rs"),
        include_str!("../../src/dialects/native/history.rs"),
        include_str!("../../src/dialects/native/processes.rs"),
        include_str!("../../src/dialects/native/websocket.rs"),
    ];
    let reads = ["query.get(\"", "query.required(\"", "query.flag(\"", "query.number(\""];
    let read: BTreeSet<&str> = sources
        .iter()
        .flat_map(|source| reads.iter().flat_map(|read| source.split(*read).skip(1)))
        .map(|rest| rest.split('"').next().expect("a name"))
        .collect();
    assert_eq!(documented, read);
}
