//! The published clients of E2B, unmodified, against an engine, with nothing set but two URLs and a key. Their
//! environments are made once, under the cache directory; without a package index the tests print so and are skipped.

use crate::fixture::Engine;
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const PYTHON_PACKAGES: [&str; 2] = ["e2b==2.63.0", "e2b-code-interpreter==2.11.5"];
const NODE_PACKAGES: [&str; 2] = ["e2b@2.51.0", "@e2b/code-interpreter@2.8.0"];
/// The page with the table of methods, between two comments.
const PAGE: &str = "docs/reference/e2b.md";

fn cache(name: &str) -> PathBuf {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    base.unwrap_or_else(std::env::temp_dir).join("agent-sandbox/sdk").join(name)
}

/// Runs the steps that fill a cache folder, unless it is filled; `false`, with a message, if one of them fails.
fn fill(folder: &Path, what: &str, steps: &mut [Command]) -> bool {
    let done = folder.join("installed");
    if done.exists() {
        return true;
    }
    fs::create_dir_all(folder).unwrap();
    if steps.iter_mut().any(|step| !step.status().is_ok_and(|status| status.success())) {
        eprintln!("SKIPPED: cannot install {what}");
        return false;
    }
    fs::write(done, "").unwrap();
    true
}

fn python() -> Option<PathBuf> {
    let folder = cache("e2b-2.63.0");
    let program = folder.join("bin/python");
    let mut make = Command::new("python3");
    make.args(["-m", "venv"]).arg(&folder);
    let mut install = Command::new(&program);
    install.args(["-m", "pip", "install", "-q", "--disable-pip-version-check"]).args(PYTHON_PACKAGES);
    fill(&folder, "e2b", &mut [make, install]).then_some(program)
}

fn node_modules() -> Option<PathBuf> {
    let folder = cache("e2b-node-2.51.0");
    let mut install = Command::new("npm");
    install.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"]).arg(&folder).args(NODE_PACKAGES);
    fill(&folder, "e2b for Node", &mut [install]).then(|| folder.join("node_modules"))
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk").join(name)
}

/// Runs a program of a client with what a user sets; returns what it printed.
fn run(engine: &Engine, mut command: Command) -> String {
    let router = engine.state()["router"].as_str().unwrap().to_owned();
    let key = engine.ok(&["token", "e2b"]);
    command.env("E2B_API_URL", format!("{router}/e2b")).env("E2B_SANDBOX_URL", router).env("E2B_API_KEY", key.trim());
    let output = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}\n{}", engine.log());
    stdout.into_owned()
}

/// The rows of the table, sorted by method.
fn table(rows: &Value) -> String {
    let mut rows: Vec<_> = rows.as_object().unwrap().iter().collect();
    rows.sort_by_key(|(method, _)| method.to_lowercase());
    let rows = rows.iter().map(|(method, result)| format!("| `{method}` | {} |\n", result.as_str().unwrap()));
    format!("| method | result |\n|---|---|\n{}", rows.collect::<String>())
}

/// E-001, E-002, E-003, E-004, E-006, E-008, E-012, E-014, E-020, E-022, E-023, E-024, E-034, E-035, E-037, E-038, E-039,
/// E-040, E-041, E-105, E-106, E-120, E-121, E-123, E-124, E-127, E-128, E-129
#[test]
fn published_python_clients_use_every_method() {
    let (Some(engine), Some(python)) = (Engine::start(), python()) else { return };
    let mut command = Command::new(python);
    command.arg(script("e2b_api.py")).arg(env!("CARGO_BIN_EXE_agent-sandbox")).arg(engine.data());
    let printed = run(&engine, command);
    let rows: Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE);
    let text = fs::read_to_string(&page).unwrap();
    let (before, rest) = text.split_once("<!-- methods -->\n").unwrap();
    let (_, after) = rest.split_once("<!-- end of methods -->\n").unwrap();
    let new = format!("{before}<!-- methods -->\n{}<!-- end of methods -->\n{after}", table(&rows));
    if std::env::var_os("AGENT_SANDBOX_WRITE_DOCS").is_some() {
        fs::write(&page, &new).unwrap();
    }
    assert_eq!(
        fs::read_to_string(&page).unwrap(),
        new,
        "{PAGE} differs: run this test with AGENT_SANDBOX_WRITE_DOCS=1"
    );
}

/// E-002, E-012, E-020, E-071, E-082, E-093, E-111, E-112
#[test]
fn published_node_clients_work() {
    let (Some(engine), Some(modules)) = (Engine::start(), node_modules()) else { return };
    // Node finds packages beside the program that imports them.
    let folder = engine.folder.path().join("node");
    fs::create_dir_all(&folder).unwrap();
    std::os::unix::fs::symlink(&modules, folder.join("node_modules")).unwrap();
    fs::copy(script("e2b_api.mjs"), folder.join("e2b_api.mjs")).unwrap();
    let mut command = Command::new("node");
    command.arg(folder.join("e2b_api.mjs"));
    assert!(run(&engine, command).ends_with("passed\n"));
}

/// A key can be listed, replaced and revoked; it ends with its account and at its time.
#[test]
fn keys_are_listed_replaced_and_revoked() {
    let Some(engine) = Engine::start() else { return };
    let router = engine.state()["router"].as_str().unwrap().to_owned();
    let works = |key: &str| {
        let output = Command::new("curl")
            .args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "-H"])
            .arg(format!("X-API-KEY: {}", key.trim()))
            .arg(format!("{router}/e2b/v2/sandboxes"))
            .output()
            .unwrap();
        match String::from_utf8(output.stdout).unwrap().as_str() {
            "200" => true,
            "401" => false,
            other => unreachable!("{other}"),
        }
    };
    let key = engine.ok(&["token", "e2b"]);
    assert!(key.starts_with("e2b_") && works(&key));
    assert!(!works("e2b_0000"));
    let listed = engine.ok(&["token", "list"]);
    let row = listed.lines().find(|line| line.starts_with("e2b-")).unwrap().to_owned();
    assert!(row.contains("default") && row.ends_with("never") && !listed.contains(key.trim()), "{listed}");
    let id = row.split_whitespace().next().unwrap();

    let new = engine.ok(&["token", "rotate", id]);
    assert!(works(&new) && !works(&key), "the old key ends with the new one");
    assert!(engine.ok(&["token", "revoke", new.trim()]).starts_with("key e2b-"));
    assert!(!works(&new));
    let (_, _, unknown) = engine.fails(&["token", "revoke", id]);
    assert!(unknown.contains("there is no key"), "{unknown}");
    let (_, _, missing) = engine.fails(&["token", "e2b", "--account", "nobody"]);
    assert!(missing.contains("no ServiceAccount \"nobody\""), "{missing}");

    let short = engine.ok(&["token", "e2b", "--expires-in", "2s"]);
    crate::fixture::eventually("the key ends at its time", || !works(&short));
    assert!(!engine.ok(&["token", "list"]).contains("e2b-"), "expired keys are not listed");
}

/// What clients do through E2B's API and ports is in the audit log with the account, the command, the code and the
/// file; so are a wrong key, and a wrong token with the sandbox that it was tried on.
#[test]
fn what_clients_do_is_recorded() {
    let Some(engine) = Engine::start() else { return };
    let router = engine.state()["router"].as_str().unwrap().to_owned();
    let key = engine.ok(&["token", "e2b"]).trim().to_owned();
    let post = |path: &str, headers: &[&str], body: &[u8]| -> (String, Vec<u8>) {
        let file = tempfile::NamedTempFile::new_in(engine.folder.path()).unwrap();
        fs::write(file.path(), body).unwrap();
        let mut command = Command::new("curl");
        command.args(["-s", "-X", "POST", "-w", "%{stderr}%{http_code}", "--data-binary"]);
        command.arg(format!("@{}", file.path().display()));
        headers.iter().for_each(|header| {
            command.args(["-H", header]);
        });
        let output = command.arg(format!("{router}{path}")).output().unwrap();
        (String::from_utf8(output.stderr).unwrap(), output.stdout)
    };
    let plain = "Content-Type: application/json";
    let create = |key: &str| {
        let key = format!("X-API-KEY: {key}");
        post("/e2b/sandboxes", &[plain, &key], br#"{"templateID":"base","timeout":300,"secure":true}"#)
    };
    assert_eq!(create("e2b_0000").0, "401");
    let (status, body) = create(&key);
    assert_eq!(status, "201", "{}", String::from_utf8_lossy(&body));
    let made: Value = serde_json::from_slice(&body).unwrap();
    let id = made["sandboxID"].as_str().unwrap();
    let name = id.split_once("--").unwrap().0;
    let sandbox = format!("E2b-Sandbox-Id: {id}");
    let token = format!("X-Access-Token: {}", made["envdAccessToken"].as_str().unwrap());
    let (envd, interpreter) = ("E2b-Sandbox-Port: 49983", "E2b-Sandbox-Port: 49999");

    let start = br#"{"process":{"cmd":"/bin/bash","args":["-l","-c","echo hello"]},"stdin":false}"#;
    let framed = [&[0, 0, 0, 0, u8::try_from(start.len()).unwrap()], start.as_slice()].concat();
    let connect = "Content-Type: application/connect+json";
    let process = "/process.Process/Start";
    assert_eq!(post(process, &[&sandbox, envd, &token, connect], &framed).0, "200");
    assert_eq!(post(process, &[&sandbox, envd, "X-Access-Token: wrong", connect], &framed).0, "401");
    let bytes = "Content-Type: application/octet-stream";
    let (status, body) = post("/files?path=/home/user/note", &[&sandbox, envd, &token, bytes], b"text");
    assert_eq!(status, "200", "{}", String::from_utf8_lossy(&body));
    let remove = "/filesystem.Filesystem/Remove";
    assert_eq!(post(remove, &[&sandbox, envd, &token, plain], br#"{"path":"/home/user/note"}"#).0, "200");
    let code = br#"{"code":"print(6 * 7)"}"#;
    assert_eq!(post("/execute", &[&sandbox, interpreter, &token, plain], code).0, "200");

    let records = || -> Vec<Value> {
        let output = engine.ok(&["audit", "-o", "json"]);
        output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    // Records are written in batches.
    crate::fixture::eventually("the last call is recorded", || {
        records().iter().any(|record| record["argv"][0] == "print(6 * 7)")
    });
    let all = records();
    let of = |action: &str, decision: &str| -> Vec<&Value> {
        let wanted = |one: &&Value| one["action"] == action && one["decision"] == decision;
        all.iter().filter(wanted).collect()
    };
    let created: Vec<_> = of("create", "allow").into_iter().filter(|one| one["name"] == name).collect();
    assert!(
        created.iter().any(|one| one["source"] == "api"
            && one["resource"] == "sandboxes.agents.x-k8s.io"
            && one["user"].as_str().is_some_and(|user| user.starts_with("system:serviceaccount:default:"))),
        "{all:#?}"
    );
    let ran: Vec<_> = of("exec", "allow").into_iter().map(|one| (&one["name"], &one["port"], &one["argv"])).collect();
    let (name, shell, code) =
        (Value::from(name), json!(["/bin/bash", "-l", "-c", "echo hello"]), json!(["print(6 * 7)"]));
    assert_eq!(ran, [(&name, &json!(49983), &shell), (&name, &json!(49999), &code)]);
    let written: Vec<_> = of("write-file", "allow").into_iter().map(|one| (&one["name"], &one["path"])).collect();
    let path = Value::from("/home/user/note");
    assert_eq!(written, [(&name, &path), (&name, &path)], "written, then removed");
    let refused = of("exec", "deny");
    assert_eq!(refused.len(), 1, "{all:#?}");
    assert_eq!((&refused[0]["name"], &refused[0]["status"]), (&name, &json!(401)));
    let keys = of("other", "deny");
    assert!(keys.iter().any(|one| one["request"] == "POST /e2b/sandboxes" && one["status"] == 401), "{all:#?}");
}
