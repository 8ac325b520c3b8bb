//! The life of sandboxes and engines: create, run, copy, suspend, resume, claim, crash, stop.

use crate::fixture::{Engine, eventually};
use std::fs;

#[test]
fn a_sandbox_runs_commands_keeps_files_and_survives_suspend() {
    let Some(engine) = Engine::start() else { return };
    assert!(engine.ok(&["create", "box"]).starts_with("sandbox box is Ready"));
    let (code, out, err) = engine.fails(&["exec", "box", "--", "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!((code, out.as_str(), err.as_str()), (7, "out\n", "err\n"));
    assert_eq!(engine.ok(&["exec", "box", "--", "hostname"]), "box\n");

    let local = engine.folder.path().join("local");
    fs::create_dir_all(local.join("sub")).unwrap();
    fs::write(local.join("a.txt"), "hello").unwrap();
    fs::write(local.join("sub/b.bin"), [0_u8, 159, 146, 150]).unwrap();
    let local_text = local.to_str().unwrap();
    engine.ok(&["cp", local_text, "box:/home/user/copy"]);
    engine.ok(&["cp", local.join("a.txt").to_str().unwrap(), "box:/home/user/"]);
    let back = engine.folder.path().join("back");
    engine.ok(&["cp", "box:/home/user/copy", back.to_str().unwrap()]);
    assert_eq!(fs::read(back.join("sub/b.bin")).unwrap(), [0_u8, 159, 146, 150]);

    engine.ok(&["suspend", "box"]);
    assert!(engine.fails(&["exec", "box", "--", "true"]).2.contains("`box` is suspended; resume it first"));
    engine.ok(&["resume", "box"]);
    assert_eq!(engine.ok(&["exec", "box", "--", "cat", "a.txt", "copy/a.txt"]), "hellohello");

    let (_, _, said) = engine.fails(&["get", "bxo"]);
    assert!(said.contains("did you mean `box`?"), "{said}");
    let (_, _, said) = engine.fails(&["create", "box"]);
    assert!(said.contains("already exists"), "{said}");
    assert_eq!(engine.ok(&["list", "-o", "name", "-l", "!agents.x-k8s.io/warm-pool-sandbox"]).lines().count(), 1);
    assert_eq!(engine.ok(&["delete", "box"]), "sandbox box deleted\n");
}

#[test]
fn a_crashed_engine_finds_its_sandboxes_running() {
    let Some(engine) = Engine::start() else { return };
    engine.ok(&["create", "box"]);
    engine.ok(&["claim", "python-sandbox-template", "--name", "mine"]);
    engine.ok(&["exec", "box", "--", "sh", "-c", "echo kept > /home/user/f; sleep 1000 >/dev/null 2>&1 &"]);
    let boot = |name: &str| engine.ok(&["exec", name, "--", "stat", "-c", "%Y", "/proc/1"]);
    let (first_box, first_claim) = (boot("box"), boot("mine"));
    rustix::process::kill_process(rustix::process::Pid::from_raw(engine.pid()).unwrap(), rustix::process::Signal::KILL)
        .unwrap();
    // While the killed process ends, commands may still find it and get no response.
    eventually("a killed engine stops", || engine.run(&["status", "-o", "name"]).stdout == b"stopped\n");
    engine.up();
    assert_eq!(engine.ok(&["exec", "box", "--", "cat", "/home/user/f"]), "kept\n");
    assert_eq!((boot("box"), boot("mine")), (first_box, first_claim), "the same processes still run");
    assert!(engine.ok(&["exec", "box", "--", "ps", "ax"]).contains("sleep 1000"));
}

#[test]
fn down_stops_sandboxes_and_up_brings_them_back() {
    let Some(engine) = Engine::start() else { return };
    engine.ok(&["create", "box"]);
    engine.ok(&["exec", "box", "--", "sh", "-c", "echo kept > /home/user/f"]);
    engine.ok(&["down"]);
    assert_eq!(engine.ok(&["status", "-o", "name"]), "stopped\n");
    engine.up();
    // The sandbox is started again in the background.
    eventually("it comes back", || engine.run(&["exec", "box", "--", "true"]).status.success());
    assert_eq!(engine.ok(&["exec", "box", "--", "cat", "/home/user/f"]), "kept\n");
}

#[test]
fn short_manifests_are_written_out_and_applied() {
    let Some(engine) = Engine::start() else { return };
    let file = engine.folder.path().join("short.yaml");
    let manifest = "apiVersion: agents.x-k8s.io/v1alpha1\nkind: SandboxTemplate\nmetadata:\n  name: agent\nspec:\n  template:\n    spec:\n      containers:\n      - name: agent\n        image: host\n---\napiVersion: agents.x-k8s.io/v1alpha1\nkind: SandboxClaim\nmetadata:\n  name: my-claim\nspec:\n  template: agent\n---\napiVersion: agents.x-k8s.io/v1alpha1\nkind: SandboxWarmPool\nspec:\n  size: 1\n  template: agent\n";
    fs::write(&file, manifest).unwrap();
    let said = engine.ok(&["apply", "-f", file.to_str().unwrap()]);
    for expected in [
        "# understood as:",
        "sandboxtemplate/agent created",
        "sandboxclaim/my-claim created",
        "sandboxwarmpool/agent created",
    ] {
        assert!(said.contains(expected), "{expected} in {said}");
    }
    eventually("the claim gets a sandbox", || engine.run(&["exec", "my-claim", "--", "true"]).status.success());
    assert!(engine.ok(&["apply", "-f", file.to_str().unwrap()]).contains("sandboxtemplate/agent unchanged"));
}

#[test]
fn terminating_the_engine_leaves_sandboxes_to_the_next_one() {
    let Some(engine) = Engine::start() else { return };
    engine.ok(&["create", "box"]);
    let started = engine.ok(&["exec", "box", "--", "stat", "-c", "%Y", "/proc/1"]);
    let pid = rustix::process::Pid::from_raw(engine.pid()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    eventually("it ends", || engine.run(&["status", "-o", "name"]).stdout == b"stopped\n");
    engine.up();
    assert_eq!(
        engine.ok(&["exec", "box", "--", "stat", "-c", "%Y", "/proc/1"]),
        started,
        "the same process still runs"
    );
}

#[test]
fn a_kubeconfig_of_the_local_engine_counts_as_local() {
    let Some(engine) = Engine::start() else { return };
    let path = engine.ok(&["kubeconfig", "--path"]);
    assert_eq!(path, format!("{}\n", engine.data().join("kubeconfig").display()));
    let output = engine.command(&["create", "box"]).env("KUBECONFIG", path.trim()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "no cluster is announced");
}

#[test]
fn flags_of_up_reach_the_engine_in_the_background() {
    let Some(engine) =
        Engine::start_with(&["--metrics-listen", "127.0.0.1:0", "--pod-pids-limit", "33", "--warm", "1"])
    else {
        return;
    };
    let log = engine.log();
    let line = log.lines().find(|line| line.contains("metrics:")).unwrap();
    let address = line.split("http://").nth(1).unwrap().trim_end_matches("/metrics");
    let page = get(address, "/metrics");
    for family in ["agent_sandbox_build_info", "agent_sandbox"] {
        assert!(page.contains(family), "{family} in {page}");
    }
    assert!(page.trim_end().ends_with("# EOF"));
    assert!(get(address, "/other").starts_with("HTTP/1.1 404"));
    engine.ok(&["create", "box"]);
    if crate::fixture::is_root() {
        let crowd = "for n in $(seq 60); do sleep 3 & done; wait";
        let (_, _, said) = engine.fails(&["exec", "box", "--", "sh", "-c", crowd]);
        assert!(said.to_lowercase().contains("fork"), "more processes than --pod-pids-limit: {said}");
    }
    assert_eq!(engine.ok(&["status", "-o", "json"]).matches("\"wanted\": 1").count(), 1);
}

/// A whole HTTP response, headers and body.
fn get(address: &str, path: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// An image that does not exist ends the wait at once, with the reason; what was made is deleted unless it is kept.
#[test]
fn a_sandbox_that_cannot_start_fails_at_once() {
    let Some(engine) = Engine::start() else { return };
    let started = std::time::Instant::now();
    let (_, _, said) = engine.fails(&["create", "bad", "--image", "127.0.0.1:9/missing:v1", "--wait", "170s"]);
    assert!(said.contains("sandbox bad cannot start, and was deleted again: ") && said.contains("missing"), "{said}");
    assert!(started.elapsed() < std::time::Duration::from_secs(60), "it waited");
    eventually("it is deleted", || !engine.ok(&["list"]).contains("bad "));
    let (_, _, said) = engine.fails(&["create", "bad", "--image", "127.0.0.1:9/missing:v1", "--keep"]);
    assert!(said.contains("it is kept: agent-sandbox get bad"), "{said}");
    assert!(engine.ok(&["list"]).contains("bad "));
    engine.ok(&["delete", "bad"]);
    engine.ok(&["create", "bad"]);
    assert_eq!(engine.ok(&["exec", "bad", "--", "echo", "works"]), "works\n", "old warnings do not count");
}
