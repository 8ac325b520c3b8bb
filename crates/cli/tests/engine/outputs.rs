//! Snapshots of what commands print while an engine runs: tables, JSON, names, next steps and errors.

use crate::fixture::{Engine, eventually};
use serde_json::Value;

/// Runs a command and returns everything that it prints. Fields that vary are removed from JSON and YAML.
fn shown(engine: &Engine, words: &[&str]) -> String {
    let output = engine.run(words);
    let mut out = String::from_utf8(output.stdout).unwrap();
    if let Ok(mut value) = serde_json::from_str::<Value>(&out) {
        prune(&mut value);
        out = serde_json::to_string_pretty(&value).unwrap() + "\n";
    } else if words.contains(&"yaml") {
        let mut value: Value = serde_saphyr::from_str(&out).unwrap();
        prune(&mut value);
        out = serde_saphyr::to_string(&value).unwrap();
    }
    let err = String::from_utf8(output.stderr).unwrap();
    let code = output.status.code().unwrap();
    let code = if code == 0 { String::new() } else { format!("exit {code}\n") };
    format!("$ agent-sandbox {}\n{out}{err}{code}", words.join(" "))
}

/// Removes metadata that varies from run to run.
fn prune(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for key in
                ["managedFields", "resourceVersion", "uid", "creationTimestamp", "lastTransitionTime", "generation"]
            {
                map.remove(key);
            }
            map.values_mut().for_each(prune);
        }
        Value::Array(list) => list.iter_mut().for_each(prune),
        _ => {}
    }
}

fn check(engine: &Engine, name: &str, commands: &[&[&str]]) {
    let text: Vec<String> = commands.iter().map(|words| shown(engine, words)).collect();
    assert_snapshot(engine, name, &text.join("\n"));
}

/// Compares what commands printed with a snapshot, without what varies from run to run.
pub(crate) fn assert_snapshot(engine: &Engine, name: &str, text: &str) {
    let data = regex_escape(&engine.data().display().to_string());
    let folder = regex_escape(&engine.folder.path().display().to_string());
    let filters = [
        (data.as_str(), "DATA"),
        (folder.as_str(), "FOLDER"),
        (r"127\.0\.0\.1:\d+", "127.0.0.1:PORT"),
        (r#"(process |"pid": )\d+"#, "${1}PID"),
        (r"\b10\.\d+\.\d+\.\d+\b", "ADDRESS"),
        (r"python-sandbox-template-[a-z0-9]{5}\b", "python-sandbox-template-XXXXX"),
        (r"\b(extra|warm)-[a-z0-9]{5}\b", "${1}-XXXXX"),
        (r"version \d+\.\d+\.\d+", "version VERSION"),
        (r#""version": "[^"]+""#, r#""version": "VERSION""#),
        // The width of a column depends on addresses and ages.
        (r"(\S)   +", "${1}   "),
        (r"   \d+s\b", "   AGE"),
        (r"   (?:\d+ms|\d+\.\d+s)   ", "   TIME   "),
        (r"   \d+\.\d%   \d+Mi   \d+\b", "   CPU   MEMORY   PROCESSES"),
        (r#"("?(?:cpuMillis|memoryBytes|processes)"?: )\d+"#, "${1}NUMBER"),
        (r"(pid: )\d+", "${1}PID"),
        (r#"version: "[^"]+""#, "version: VERSION"),
    ];
    insta::with_settings!({filters => filters, omit_expression => true}, {
        insta::assert_snapshot!(name, text);
    });
}

fn regex_escape(text: &str) -> String {
    text.chars().flat_map(|letter| if letter.is_alphanumeric() { vec![letter] } else { vec!['\\', letter] }).collect()
}

#[test]
fn outputs_match_their_snapshots() {
    let Some(engine) = Engine::start() else { return };
    eventually("the ready-made pool is warm", || engine.ok(&["pool", "list"]).contains("2"));
    eventually("it says so", || engine.ok(&["status"]).contains("2 of 2 warm"));
    check(
        &engine,
        "status",
        &[&["status"], &["status", "-o", "json"], &["status", "-o", "name"], &["kubeconfig", "--path"]],
    );
    check(
        &engine,
        "create",
        &[
            &["create", "box"],
            &["create", "box"],
            &["create", "other", "-o", "name"],
            &["create", "third", "--wait", "0s", "-o", "name"],
        ],
    );
    eventually("the third is ready too", || engine.ok(&["get", "third"]).contains("State:       Ready"));
    check(
        &engine,
        "list",
        &[
            &["list", "-l", "!agents.x-k8s.io/warm-pool-sandbox"],
            &["list", "-A", "-l", "!agents.x-k8s.io/warm-pool-sandbox"],
            &["list", "-o", "name", "-l", "!agents.x-k8s.io/warm-pool-sandbox"],
            &["list", "-n", "kube-system"],
            &["list", "-l", "not a selector!"],
        ],
    );
    check(
        &engine,
        "get",
        &[
            &["get", "box"],
            &["get", "box", "-o", "json"],
            &["get", "box", "-o", "name"],
            &["get", "bxo"],
            &["get", "nothing-like-it"],
        ],
    );
    check(
        &engine,
        "usage",
        &[
            &["top", "--interval", "100ms"],
            &["top", "--interval", "100ms", "-o", "json"],
            &["top", "--interval", "100ms", "-o", "yaml"],
        ],
    );
    check(
        &engine,
        "yaml",
        &[
            &["status", "-o", "yaml"],
            &["get", "box", "-o", "yaml"],
            &["pool", "list", "-o", "yaml"],
            &["template", "list", "-o", "yaml"],
            &["version", "-o", "yaml"],
        ],
    );
    check(
        &engine,
        "exec",
        &[
            &["exec", "box", "--", "echo", "hello"],
            &["exec", "box", "--", "false"],
            &["exec", "box", "--", "no-such-program"],
            &["exec", "box", "--", "/etc/passwd"],
            &["exec", "bxo", "--", "true"],
            &["exec", "box", "-c", "none", "--", "true"],
            &["shell", "bxo"],
        ],
    );
    check(
        &engine,
        "copy",
        &[
            &["cp", "box:/no/such/file", "."],
            &["cp", "bxo:/etc/hostname", "."],
            &["cp", "/etc/hostname", "box:/no/such/folder/file"],
        ],
    );
    check(
        &engine,
        "suspend",
        &[
            &["suspend", "box"],
            &["exec", "box", "--", "true"],
            &["logs", "box"],
            &["port-forward", "box", "8888"],
            &["resume", "box"],
            &["resume", "bxo"],
            &["suspend", "bxo"],
        ],
    );
    check(&engine, "logs", &[&["logs", "bxo"], &["logs", "box", "--tail", "0"], &["logs", "box", "--tail", "-1"]]);
    check(
        &engine,
        "template",
        &[
            &["template", "create", "extra"],
            &["template", "list"],
            &["template", "list", "-o", "name"],
            &["template", "create", "extra"],
            &["template", "delete", "no-such"],
        ],
    );
    check(
        &engine,
        "pool",
        &[
            &["pool", "create", "warm", "--template", "extra", "--replicas", "0"],
            &["pool", "list"],
            &["pool", "list", "-o", "name"],
            &["pool", "scale", "warm", "1"],
            &["pool", "scale", "no-such", "1"],
            &["pool", "delete", "warm"],
            &["pool", "delete", "warm"],
            &["template", "delete", "extra"],
        ],
    );
    check(
        &engine,
        "claim",
        &[
            &["claim", "python-sandbox-template", "--name", "mine"],
            &["claim", "python-sandbox-template", "--name", "mine"],
            &["get", "mine", "-o", "name"],
            &["claim", "no-such-pool", "--name", "never", "--wait", "2s"],
            &["claim", "python-sandbox-template", "--name", "quick", "-o", "name"],
        ],
    );
    check(
        &engine,
        "image",
        &[
            &["image", "list"],
            &["image", "alias"],
            &["image", "remove", "none"],
            &["image", "pull", "host"],
            &["image", "pull", "NOT A NAME"],
            &["image", "import", "/etc/hostname"],
        ],
    );
    check(
        &engine,
        "delete",
        &[&["delete", "box", "mine"], &["delete", "box"], &["delete", "--all"], &["delete", "--all"]],
    );
    check(
        &engine,
        "down",
        &[&["up"], &["down"], &["status"], &["status", "-o", "json"], &["list"], &["down", "--purge", "--yes"]],
    );
}
