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
    let (code, out, _) = engine.fails(&["status", "-o", "name"]);
    assert_eq!((code, out.as_str()), (3, "stopped\n"));
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
    engine.ok(&["down"]);
    let output = engine.command(&["create", "next"]).env("KUBECONFIG", path.trim()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("note: started the engine on this machine") && !said.contains("target:"), "{said}");
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
    let shown = engine.ok(&["get", "bad"]);
    let reason = shown.lines().find(|line| line.starts_with("Reason:")).unwrap_or_else(|| panic!("{shown}"));
    assert!(reason.contains("127.0.0.1:9/missing:v1"), "{reason}");
    let (_, _, said) = engine.fails(&["exec", "bad", "--", "true"]);
    assert!(said.contains("127.0.0.1:9/missing:v1"), "a command says why nothing runs: {said}");
    engine.ok(&["delete", "bad"]);
    let (_, _, said) = engine.fails(&["create", "odd", "--isolation", "no-such-runtime", "--wait", "170s"]);
    assert!(said.contains("sandbox odd cannot start") && said.contains("no-such-runtime"), "{said}");
    assert!(started.elapsed() < std::time::Duration::from_secs(120), "it waited");
    engine.ok(&["create", "bad"]);
    assert_eq!(engine.ok(&["exec", "bad", "--", "echo", "works"]), "works\n", "old warnings do not count");
}

/// A command that ends with an error is not ready, not even between its restarts.
#[test]
fn a_crashing_command_fails_at_once() {
    let Some(engine) = Engine::start() else { return };
    let (_, out, said) = engine.fails(&["create", "crash", "--", "sh", "-c", "exit 3"]);
    assert!(!out.contains("Ready"), "{out}");
    assert!(said.contains("sandbox crash cannot start, and was deleted again: "), "{said}");
    assert!(said.contains("its command ended with exit code 3"), "{said}");
    let (_, _, said) = engine.fails(&["create", "crash", "--keep", "--", "sh", "-c", "exit 3"]);
    assert!(said.contains("it is kept: agent-sandbox get crash"), "{said}");
    let (_, _, said) = engine.fails(&["create", "over", "--", "true"]);
    // Either the Sandbox's condition or the container's end is seen first.
    assert!(said.contains("sandbox over cannot start, and was deleted again: "), "{said}");
    assert!(said.contains("PodSucceeded") || said.contains("its command ended with exit code 0"), "{said}");
    eventually("only the kept one is left", || !engine.ok(&["list"]).contains("over "));
    assert!(engine.ok(&["list"]).contains("crash "));
}

/// A sandbox that worked is resumed with an image that is gone: the wait ends with the reason, and nothing is deleted.
#[test]
fn a_resume_that_cannot_succeed_fails_at_once_and_keeps_the_sandbox() {
    let Some(engine) = Engine::start() else { return };
    engine.ok(&["create", "box"]);
    engine.ok(&["suspend", "box"]);
    let config = engine.ok(&["kubeconfig", "--path"]);
    let patch =
        r#"{"spec":{"podTemplate":{"spec":{"containers":[{"name":"sandbox","image":"127.0.0.1:9/missing:v1"}]}}}}"#;
    patch_sandbox(config.trim(), "box", patch);
    let started = std::time::Instant::now();
    let (_, _, said) = engine.fails(&["resume", "box", "--wait", "170s"]);
    assert!(said.contains("sandbox box cannot start: ") && said.contains("its files are kept"), "{said}");
    assert!(started.elapsed() < std::time::Duration::from_secs(60), "it waited");
    engine.ok(&["get", "box"]);
}

/// Changes a Sandbox with a merge patch.
fn patch_sandbox(kubeconfig: &str, name: &str, patch: &str) {
    use agent_sandbox_api::v1beta1::Sandbox;
    use kube::{
        Api, Client, Config,
        api::{Patch, PatchParams},
        config::{KubeConfigOptions, Kubeconfig},
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let file = Kubeconfig::read_from(kubeconfig).unwrap();
        let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
        let sandboxes: Api<Sandbox> = Api::namespaced(Client::try_from(config).unwrap(), "default");
        let patch: serde_json::Value = serde_json::from_str(patch).unwrap();
        sandboxes.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    });
}

#[test]
fn a_claim_on_a_template_gets_a_sandbox_and_a_failed_claim_is_deleted() {
    let Some(engine) = Engine::start() else { return };
    engine.ok(&["template", "create", "t1"]);
    let said = engine.ok(&["claim", "t1", "--name", "mine"]);
    assert!(said.starts_with("claim mine has sandbox "), "{said}");
    assert_eq!(engine.ok(&["exec", "mine", "--", "echo", "works"]), "works\n");
    let (_, _, said) = engine.fails(&["claim", "nowhere", "--name", "lost"]);
    assert!(said.contains("names neither a warm pool nor a template"), "{said}");
    engine.ok(&["template", "create", "broken", "--image", "127.0.0.1:9/missing:v1"]);
    let started = std::time::Instant::now();
    let (_, _, said) = engine.fails(&["claim", "broken", "--name", "bad", "--wait", "170s"]);
    assert!(said.contains("claim bad cannot start, and was deleted again: ") && said.contains("missing"), "{said}");
    assert!(started.elapsed() < std::time::Duration::from_secs(60), "it waited");
    eventually("the claim is gone", || !engine.ok(&["list"]).contains("bad "));
    let (_, _, said) = engine.fails(&["claim", "broken", "--name", "bad", "--keep"]);
    assert!(said.contains("it is kept: agent-sandbox get bad"), "{said}");
    let listed = engine.ok(&["list"]);
    assert!(listed.lines().any(|line| line.starts_with("bad ")), "a claim without a ready sandbox is shown: {listed}");
    assert!(listed.lines().any(|line| line.starts_with("mine ") && line.contains("Ready")), "{listed}");
    // A claim whose sandbox does not exist yet has a row of its own.
    engine.ok(&["delete", "bad"]);
}

/// The usual port may belong to another Kubernetes: the next free one is taken, kept over a restart, and written into a
/// kubeconfig that the engine was merged into.
#[test]
fn a_port_in_use_is_replaced_and_remembered() {
    let Some(engine) = Engine::stopped() else { return };
    let home = engine.folder.path().join("home");
    fs::create_dir(&home).unwrap();
    let run = |words: &[&str]| {
        let output = engine.command(words).env("HOME", &home).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let port = || engine.state()["api"].as_str().unwrap().rsplit(':').next().unwrap().parse::<u16>().unwrap();
    // Whether this test or another program of this machine has the usual port, it is in use.
    let _usual = std::net::TcpListener::bind("127.0.0.1:6443");
    let said = run(&["up", "--detach", "--router-listen", "127.0.0.1:0", "--warm", "0"]);
    let first = port();
    assert!(first > 6443, "{first}");
    assert!(said.contains(&format!("the API is at port {first}")), "{said}");
    run(&["kubeconfig", "--merge"]);
    let merged = || fs::read_to_string(home.join(".kube/config")).unwrap();
    assert!(merged().contains(&format!("127.0.0.1:{first}")), "{}", merged());
    run(&["down"]);
    run(&["up", "--detach", "--router-listen", "127.0.0.1:0"]);
    assert_eq!(port(), first, "the port is kept");
    run(&["down"]);
    let _taken = std::net::TcpListener::bind(("127.0.0.1", first)).unwrap();
    let said = run(&["up", "--detach", "--router-listen", "127.0.0.1:0"]);
    let second = port();
    assert!(second > first && said.contains("now has the new address"), "{second}: {said}");
    assert!(merged().contains(&format!("127.0.0.1:{second}")), "{}", merged());
    run(&["down"]);
    let listen = format!("127.0.0.1:{first}");
    let (_, _, said) = engine.fails(&["up", "--detach", "--api-listen", &listen, "--router-listen", "127.0.0.1:0"]);
    assert!(said.contains("choose another one with --api-listen"), "{said}");
}

/// A server that does not answer is named, with what chose it.
#[test]
fn an_unreachable_server_is_named() {
    let Some(engine) = Engine::stopped() else { return };
    let file = engine.folder.path().join("elsewhere");
    let config = "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: c\n  cluster: {server: \"http://127.0.0.1:9\"}\ncontexts:\n- name: c\n  context: {cluster: c, user: u}\nusers:\n- name: u\n  user: {}\n";
    fs::write(&file, config).unwrap();
    let manifest = engine.folder.path().join("manifest");
    fs::write(&manifest, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n").unwrap();
    let (file, manifest) = (file.to_str().unwrap(), manifest.to_str().unwrap());
    let commands: [&[&str]; 10] = [
        &["list"],
        &["get", "a"],
        &["exec", "a", "true"],
        &["cp", "a:b", "."],
        &["cp", manifest, "a:b"],
        &["apply", "-f", manifest],
        &["create", "a"],
        &["claim", "a"],
        &["delete", "a"],
        &["pool", "list"],
    ];
    let expected = format!("no answer from the Kubernetes API at http://127.0.0.1:9/ (chosen by KUBECONFIG: {file})");
    for words in commands {
        let output = engine.command(words).env("KUBECONFIG", file).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(&expected) && said.contains("Connection refused"), "{words:?}: {said}");
    }
}
