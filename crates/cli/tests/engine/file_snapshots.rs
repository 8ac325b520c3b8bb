//! `snapshot`, `fork`, `rollback`, `create --snapshot`: what users see, what survives a crash, and consistency.

use crate::fixture::{Engine, eventually, is_root};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

fn start() -> Option<Engine> {
    if !is_root() {
        return None;
    }
    Engine::start_with(&["--warm", "0"])
}

fn write(engine: &Engine, sandbox: &str, text: &str) {
    engine.ok(&["exec", sandbox, "--", "sh", "-c", &format!("echo {text} > file")]);
}

fn read(engine: &Engine, sandbox: &str) -> String {
    engine.ok(&["exec", sandbox, "--", "cat", "file"]).trim().to_owned()
}

/// Waits until a sandbox runs commands.
fn runs(engine: &Engine, sandbox: &str) {
    eventually("the sandbox runs", || engine.run(&["exec", sandbox, "--", "true"]).status.success());
}

fn snapshots(engine: &Engine) -> Vec<Value> {
    serde_json::from_str(&engine.ok(&["snapshot", "list", "-o", "json"])).unwrap()
}

fn sealed_layers(engine: &Engine) -> usize {
    std::fs::read_dir(engine.data().join("node/kernel/sealed")).unwrap().count()
}

#[test]
fn files_are_kept_forked_and_set_back() {
    let Some(engine) = start() else { return };
    let (_, _, said) = engine.fails(&["snapshot", "create", "box"]);
    assert!(said.contains("`box` not found in namespace `default`"), "{said}");
    assert!(engine.ok(&["snapshot", "list"]).starts_with("no snapshots; take one with"));
    engine.ok(&["create", "box", "--env", "WHO=parent"]);
    write(&engine, "box", "one");
    let said = engine.ok(&["snapshot", "create", "box", "first", "--label", "step=1"]);
    assert!(said.starts_with("snapshot first of sandbox box: ") && said.contains("frozen for"), "{said}");
    let found = snapshots(&engine).remove(0);
    assert_eq!(found["metadata"]["labels"]["step"], "1");
    let (_, _, said) = engine.fails(&["snapshot", "create", "box", "first"]);
    assert!(said.contains("`first` already exists"), "{said}");
    write(&engine, "box", "two");

    // Forks of the running sandbox, and a sandbox from the snapshot.
    assert_eq!(engine.ok(&["fork", "box", "a", "b"]).lines().count(), 2);
    write(&engine, "a", "three");
    assert_eq!([read(&engine, "a"), read(&engine, "b"), read(&engine, "box")], ["three", "two", "two"]);
    engine.ok(&["create", "c", "--snapshot", "first"]);
    assert_eq!(read(&engine, "c"), "one");
    assert_eq!(engine.ok(&["exec", "c", "--", "sh", "-c", "echo $WHO $HOSTNAME"]), "parent c\n", "a name of its own");
    let (_, _, said) = engine.fails(&["create", "d", "--snapshot", "first", "--image", "other"]);
    assert!(said.contains("--snapshot"), "{said}");
    let (_, _, said) = engine.fails(&["create", "d", "--snapshot", "fisrt"]);
    assert!(said.contains("snapshot `fisrt` not found"), "{said}");

    // Going back keeps name and identity; a suspended sandbox stays suspended.
    let uid = |engine: &Engine| {
        let found: Value = serde_json::from_str(&engine.ok(&["get", "box", "-o", "json"])).unwrap();
        found["metadata"]["uid"].clone()
    };
    let before = uid(&engine);
    engine.ok(&["rollback", "box", "first"]);
    assert_eq!((read(&engine, "box"), uid(&engine)), ("one".to_owned(), before));
    engine.ok(&["suspend", "box"]);
    let said = engine.ok(&["snapshot", "create", "box", "second"]);
    assert!(!said.contains("frozen"), "nothing ran: {said}");
    assert!(engine.ok(&["rollback", "box", "second"]).contains("when it is resumed"));
    engine.ok(&["resume", "box"]);
    assert_eq!(read(&engine, "box"), "one");
    let tree = engine.ok(&["snapshot", "list", "box"]);
    let names: Vec<&str> = tree.lines().skip(1).filter_map(|line| line.split("box").next()).collect();
    assert_eq!(names.iter().map(|name| name.trim_end()).collect::<Vec<_>>(), ["first", "  second"], "{tree}");

    // Sandboxes live on without their snapshots; layers go with the last of both.
    engine.ok(&["snapshot", "delete", "first", "second"]);
    let (_, _, said) = engine.fails(&["snapshot", "delete", "first"]);
    assert!(said.contains("snapshot `first` not found"), "{said}");
    engine.ok(&["suspend", "c"]);
    engine.ok(&["resume", "c"]);
    assert_eq!(read(&engine, "c"), "one");
    engine.ok(&["delete", "box", "a", "b", "c", "--wait", "60s"]);
    eventually("all layers are removed", || sealed_layers(&engine) == 0);
}

#[test]
fn a_pool_of_a_snapshot_is_warm_with_its_files_and_a_snapshot_expires() {
    let Some(engine) = start() else { return };
    engine.ok(&["create", "box"]);
    write(&engine, "box", "installed");
    engine.ok(&["snapshot", "create", "box", "ready"]);
    engine.ok(&["snapshot", "create", "box", "short", "--expires-in", "2s"]);
    let template: Value = snapshots(&engine)
        .into_iter()
        .find(|snapshot| snapshot["metadata"]["name"] == "ready")
        .map(|snapshot| snapshot["status"]["sandbox"]["podTemplate"].clone())
        .unwrap();
    let mut template = template;
    template["metadata"]["annotations"]["agent-sandbox.github.io/snapshot"] = "ready".into();
    let kind = |kind: &str, name: &str, spec: Value| {
        serde_json::json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": kind, "metadata": {"name": name}, "spec": spec,
        })
    };
    let objects = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": [
        kind("SandboxTemplate", "t", serde_json::json!({"podTemplate": template})),
        kind("SandboxWarmPool", "p", serde_json::json!({"replicas": 2, "sandboxTemplateRef": {"name": "t"}})),
    ]});
    let file = engine.folder.path().join("objects.yaml");
    let items = objects["items"].as_array().unwrap().iter().map(Value::to_string);
    std::fs::write(&file, items.collect::<Vec<_>>().join("\n---\n")).unwrap();
    engine.ok(&["apply", "-f", file.to_str().unwrap()]);
    engine.ok(&["claim", "p", "--name", "mine"]);
    assert_eq!(read(&engine, "mine"), "installed");
    eventually("the snapshot has expired", || snapshots(&engine).len() == 1);
}

#[test]
fn a_fork_that_is_not_waited_for_finds_its_files_and_its_snapshot_expires() {
    let Some(engine) = start() else { return };
    engine.ok(&["create", "box"]);
    write(&engine, "box", "one");
    assert_eq!(engine.ok(&["fork", "box", "a", "--wait", "0s"]), "sandbox a starts with the files of box\n");
    let left = snapshots(&engine);
    let [left] = left.as_slice() else { panic!("{left:?}") };
    assert!(left["spec"]["expiresAt"].is_string(), "nothing deletes it otherwise: {left}");
    runs(&engine, "a");
    assert_eq!(read(&engine, "a"), "one");
    let taking = engine.ok(&["snapshot", "create", "box", "later", "--wait", "0s"]);
    assert_eq!(taking, "snapshot later of sandbox box is being taken\n");
    let is_ready = |found: &Value| found["status"]["conditions"][0]["status"] == "True";
    eventually("it is taken", || snapshots(&engine).iter().all(is_ready));
    write(&engine, "box", "two");
    engine.ok(&["rollback", "box", "later", "--wait", "0s"]);
    runs(&engine, "box");
    assert_eq!(read(&engine, "box"), "one");
    // With a name of its own there is nothing to make, so that nothing needs the snapshot.
    let (_, _, said) = engine.fails(&["fork", "box", "a"]);
    assert!(said.contains("`a` already exists"), "{said}");
    eventually("the snapshot of the refused fork is deleted", || snapshots(&engine).len() == 2);
}

#[test]
fn a_sandbox_whose_snapshot_is_gone_says_how_to_start_it_and_keeps_its_files() {
    let Some(engine) = start() else { return };
    engine.ok(&["create", "box"]);
    write(&engine, "box", "one");
    engine.ok(&["snapshot", "create", "box", "first"]);
    write(&engine, "box", "two");
    engine.ok(&["suspend", "box"]);
    engine.ok(&["rollback", "box", "first"]);
    engine.ok(&["snapshot", "delete", "first"]);
    let (_, _, said) = engine.fails(&["resume", "box"]);
    assert!(said.contains("no snapshot \"first\" in namespace default"), "{said}");
    assert!(said.contains("agent-sandbox.github.io/snapshot") && said.contains("agent-sandbox rollback"), "{said}");
    engine.ok(&["suspend", "box"]);
    let kubeconfig = engine.data().join("kubeconfig");
    let kubectl = Command::new("kubectl")
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(["annotate", "sandbox", "box"])
        .arg("agent-sandbox.github.io/snapshot-")
        .output()
        .unwrap();
    assert!(kubectl.status.success(), "{}", String::from_utf8_lossy(&kubectl.stderr));
    engine.ok(&["resume", "box"]);
    assert_eq!(read(&engine, "box"), "two");
}

/// Files do not outlive the object that stands for them: a user who may change snapshots can remove the finalizer.
#[test]
fn a_snapshot_without_its_finalizer_leaves_no_files() {
    let Some(engine) = start() else { return };
    engine.ok(&["create", "box"]);
    write(&engine, "box", "one");
    let kubectl = |words: &[&str]| {
        let kubeconfig = engine.data().join("kubeconfig");
        let done = Command::new("kubectl").arg("--kubeconfig").arg(kubeconfig).args(words).output().unwrap();
        (done.status.success(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let unprotected = r#"{"metadata":{"finalizers":null}}"#;
    engine.ok(&["snapshot", "create", "box", "first"]);
    assert_eq!(sealed_layers(&engine), 1);
    for words in [
        &["patch", "sandboxsnapshot", "first", "--type=merge", "-p", unprotected][..],
        &["delete", "sandboxsnapshot", "first"],
    ] {
        let (done, said) = kubectl(words);
        assert!(done, "{words:?}: {said}");
    }
    eventually("the layer is removed", || sealed_layers(&engine) == 0);
    let file = engine.folder.path().join("snapshot.json");
    let object = serde_json::json!({
        "apiVersion": "agent-sandbox.github.io/v1alpha1", "kind": "SandboxSnapshot",
        "metadata": {"name": "second"}, "spec": {"sandboxName": "a\u{1b}[2J"},
    });
    std::fs::write(&file, object.to_string()).unwrap();
    let (done, said) = kubectl(&["create", "-f", file.to_str().unwrap()]);
    assert!(!done && said.contains("spec.sandboxName"), "{said}");
}

/// A Secret's value belongs to the Secret alone.
#[test]
fn a_snapshot_names_secrets_and_holds_none_of_their_values() {
    let Some(engine) = start() else { return };
    let value = "the-value-of-the-secret";
    let file = engine.folder.path().join("objects.yaml");
    let objects = [
        serde_json::json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"token": value},
        }),
        serde_json::json!({
            "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "box"},
            "spec": {"podTemplate": {"spec": {"containers": [{
                "name": "sandbox", "image": "host", "command": ["sleep", "infinity"],
                "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "key", "key": "token"}}}],
            }]}}},
        }),
    ];
    std::fs::write(&file, objects.map(|object| object.to_string()).join("\n---\n")).unwrap();
    engine.ok(&["apply", "-f", file.to_str().unwrap()]);
    runs(&engine, "box");
    engine.ok(&["snapshot", "create", "box", "first"]);
    engine.ok(&["create", "fork", "--snapshot", "first"]);
    assert_eq!(engine.ok(&["exec", "fork", "--", "sh", "-c", "echo $TOKEN"]).trim(), value);
    let found = snapshots(&engine).remove(0).to_string();
    assert!(found.contains("secretKeyRef") && !found.contains(value), "{found}");
    let record = engine.data().join("node/kernel/snapshots/default/first.json");
    assert!(!std::fs::read_to_string(record).unwrap().contains(value));
    let grep =
        Command::new("grep").args(["-rl", value]).arg(engine.data().join("node/kernel/sealed")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&grep.stdout), "", "files of the snapshot");
}

/// Rows that a program outside has seen committed are in every snapshot that begins afterwards.
#[test]
fn a_database_that_is_written_meanwhile_is_whole_in_every_fork() {
    const WRITER: &str = "
import sqlite3
db = sqlite3.connect('data.db', isolation_level=None)
db.execute('pragma journal_mode=wal')
db.execute('create table t (n integer primary key, text text)')
n = 0
while True:
    n += 1
    db.execute('insert into t values (?, ?)', (n, 'x' * (n % 3000)))
    print(n, flush=True)
";
    const READER: &str = "
import sqlite3
db = sqlite3.connect('data.db')
print(db.execute('pragma integrity_check').fetchone()[0], *db.execute('select count(*), max(n) from t').fetchone())
";
    let Some(engine) = start() else { return };
    if !engine.run(&["run", "--", "python3", "-c", "import sqlite3"]).status.success() {
        eprintln!("skipped: the machine's python3 has no sqlite3");
        return;
    }
    engine.ok(&["create", "box"]);
    let mut writer =
        engine.command(&["exec", "box", "--", "python3", "-c", WRITER]).stdout(Stdio::piped()).spawn().unwrap();
    let committed = Arc::new(AtomicU64::new(0));
    let (output, seen) = (writer.stdout.take().unwrap(), Arc::clone(&committed));
    let follower = std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            seen.store(line.parse().unwrap(), Ordering::Release);
        }
    });
    eventually("the database is written", || committed.load(Ordering::Acquire) > 50);
    for number in 0..3 {
        let before = committed.load(Ordering::Acquire);
        let name = format!("s{number}");
        engine.ok(&["snapshot", "create", "box", &name]);
        engine.ok(&["create", &format!("fork{number}"), "--snapshot", &name]);
        let found = engine.ok(&["exec", &format!("fork{number}"), "--", "python3", "-c", READER]);
        let words: Vec<&str> = found.split_whitespace().collect();
        let (count, last): (u64, u64) = (words[1].parse().unwrap(), words[2].parse().unwrap());
        assert!(words[0] == "ok" && count == last && last >= before, "{before} were committed: {found}");
        eventually("the sandbox goes on", || committed.load(Ordering::Acquire) > last);
    }
    engine.ok(&["delete", "box"]);
    writer.wait().unwrap();
    follower.join().unwrap();
}

/// The engine dies while snapshots are taken, of a running and of a suspended sandbox.
#[test]
fn a_killed_engine_loses_neither_files_nor_completed_snapshots() {
    let Some(engine) = start() else { return };
    for name in ["runs", "rests"] {
        engine.ok(&["create", name]);
        let fill = "i=0; while [ $i -lt 300 ]; do mkdir -p d$i; echo $i > d$i/f; i=$((i+1)); done; echo kept > file";
        engine.ok(&["exec", name, "--", "sh", "-c", fill]);
    }
    engine.ok(&["suspend", "rests"]);
    engine.ok(&["snapshot", "create", "rests", "before"]);
    for round in 0..4u64 {
        let mut taking: Vec<_> = ["runs", "rests"]
            .iter()
            .map(|name| {
                let words = ["snapshot", "create", name, &format!("{name}-{round}")].map(str::to_owned);
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                engine.command(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
            })
            .collect();
        std::thread::sleep(std::time::Duration::from_millis(round * 15));
        let killed = engine.pid();
        assert!(Command::new("kill").args(["-9", &killed.to_string()]).status().unwrap().success());
        for command in &mut taking {
            command.kill().unwrap();
            command.wait().unwrap();
        }
        // A command that had not connected yet may have started the next engine, which then is the one that stays.
        let up = ["up", "--detach", "--api-listen", "127.0.0.1:0", "--router-listen", "127.0.0.1:0"];
        eventually("another engine runs", || engine.run(&up).status.success() && engine.pid() != killed);
        eventually("every snapshot is complete", || {
            snapshots(&engine).iter().all(|snapshot| snapshot["status"]["conditions"][0]["status"] == "True")
        });
        assert_eq!(read(&engine, "runs"), "kept", "round {round}");
    }
    engine.ok(&["resume", "rests"]);
    assert_eq!(read(&engine, "rests"), "kept");
    for snapshot in snapshots(&engine) {
        let name = snapshot["metadata"]["name"].as_str().unwrap().to_owned();
        engine.ok(&["create", &format!("from-{name}"), "--snapshot", &name]);
        let count = engine.ok(&["exec", &format!("from-{name}"), "--", "sh", "-c", "cat file; ls -d d* | wc -l"]);
        assert_eq!(count.split_whitespace().collect::<Vec<_>>(), ["kept", "300"], "{name}");
    }
    engine.ok(&["delete", "--all", "--wait", "60s"]);
    for snapshot in snapshots(&engine) {
        engine.ok(&["snapshot", "delete", snapshot["metadata"]["name"].as_str().unwrap()]);
    }
    eventually("no layer is left over", || sealed_layers(&engine) == 0);
}
