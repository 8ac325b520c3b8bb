//! The published clients of E2B, unmodified, against an engine, with nothing set but two URLs and a key. Their
//! environments are made once, under the cache directory; without a package index the tests print so and are skipped.

use crate::fixture::Engine;
use serde_json::Value;
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
