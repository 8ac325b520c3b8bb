//! An ordinary user of the machine, without a token, against everything that an engine of root opens: the data folder,
//! the control socket, the API, the router, the MCP server, the metrics page and Pods' addresses. The metrics page is
//! for collectors and needs no credential; it names no sandbox.

use crate::fixture::{Engine, PROGRAM, eventually, is_root};
use crate::tenants::config;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The user `nobody`, who owns nothing.
const NOBODY: u32 = 65534;

/// Runs a program outside the engine's cgroup, as a user who owns no file here, or as root.
fn as_user(uid: u32, program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).uid(uid).gid(uid).current_dir("/").env_clear().env("PATH", "/usr/bin:/bin");
    command.stdin(Stdio::null()).output().unwrap()
}

fn as_nobody(program: &str, arguments: &[&str]) -> Output {
    as_user(NOBODY, program, arguments)
}

/// The status of an HTTP request by this user; 0 if there is no response.
fn status_as(uid: u32, url: &str, more: &[&str]) -> u16 {
    let usual = ["-sk", "--max-time", "5", "-o", "/dev/null", "-w", "%{http_code}"];
    let output = as_user(uid, "curl", &[&usual, more, &[url]].concat());
    String::from_utf8_lossy(&output.stdout).parse().unwrap()
}

/// The status of an HTTP request by `nobody`; 0 if there is no response.
fn status(url: &str, more: &[&str]) -> u16 {
    status_as(NOBODY, url, more)
}

/// Ends when the test does.
struct Server(std::process::Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_ordinary_user_of_the_machine_gets_nothing_from_an_engine_of_root() {
    if !is_root() {
        eprintln!("SKIPPED: another user's programs are started by root");
        return;
    }
    let Some(engine) = Engine::start_with(&["--metrics-listen", "127.0.0.1:0"]) else { return };
    // What protects the data folder must be its own mode, not that of the test's folder.
    std::fs::set_permissions(engine.folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(as_nobody("ls", &[engine.folder.path().to_str().unwrap()]).status.success());
    engine.ok(&["create", "box"]);

    let data = engine.data();
    let inside: Vec<_> = std::fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(inside.len() > 5, "{inside:?}");
    for path in inside.iter().chain([&data]) {
        let text = path.to_str().unwrap();
        for arguments in [["ls", text], ["cat", text], ["touch", &format!("{text}/new")]] {
            let tried = as_nobody(arguments[0], &arguments[1..]);
            let said = String::from_utf8_lossy(&tried.stderr);
            assert!(!tried.status.success() && said.contains("Permission denied"), "{arguments:?}: {said}");
        }
    }
    let control = data.join("control.sock");
    assert!(control.exists(), "{}", control.display());
    let tried = as_nobody("curl", &["-sv", "--max-time", "5", "--unix-socket", control.to_str().unwrap(), "http://x/"]);
    assert!(String::from_utf8_lossy(&tried.stderr).contains("Permission denied"), "{tried:?}");
    let command = |words: &[&str]| as_nobody(PROGRAM, &[&["--data-dir", data.to_str().unwrap()], words].concat());
    for words in [&["token", "list"][..], &["token", "rotate"], &["exec", "box", "--", "id"]] {
        assert!(!command(words).status.success(), "{words:?}");
    }
    // Whatever it says to a user who sees no engine, the engine goes on: the last command of this test shows it.
    command(&["down", "--purge", "--yes"]);

    let state = engine.state();
    let address = |name: &str| state[name].as_str().unwrap().trim_end_matches('/').to_owned();
    let (api, router) = (address("api"), address("router"));
    for path in ["/api", "/api/v1/namespaces/default/pods", "/apis/agents.x-k8s.io/v1beta1/sandboxes"] {
        assert_eq!(status(&format!("{api}{path}"), &[]), 403, "{path}");
        assert_eq!(status(&format!("{api}{path}"), &["-H", "Authorization: Bearer guessed"]), 401, "{path}");
    }
    let execute = ["-H", "X-Sandbox-ID: box", "-H", "Content-Type: application/json", "-d", r#"{"command":"id"}"#];
    assert_eq!(status(&format!("{router}/execute"), &execute), 401);
    let guessed = [&execute[..], &["-H", "Authorization: Bearer guessed"]].concat();
    assert_eq!(status(&format!("{router}/execute"), &guessed), 401);
    assert_eq!(status(&format!("{router}/e2b/sandboxes"), &["-H", "X-API-KEY: e2b_0000"]), 401);

    // Collectors of metrics send no credential: the page must not tell what the sandboxes are.
    let log = engine.log();
    let metrics = log.lines().find_map(|line| line.split_once("metrics: ")).expect("`up` prints the address").1.trim();
    let page = as_nobody("curl", &["-sf", "--max-time", "5", metrics]);
    let page = String::from_utf8_lossy(&page.stdout);
    assert!(page.contains("agent_sandbox_build_info"), "{page}");
    assert!(!page.contains("\"box\"") && !page.contains(data.to_str().unwrap()), "{page}");

    let mut mcp =
        engine.command(&["mcp", "--listen", "127.0.0.1:0"]).stderr(Stdio::piped()).spawn().map(Server).unwrap();
    let mut line = String::new();
    BufReader::new(mcp.0.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let url = line.split_whitespace().find(|word| word.starts_with("http://")).unwrap();
    let call = ["-H", "Content-Type: application/json", "-d", r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#];
    assert_eq!(status(url, &call), 401, "{line}");
    let file = line.split_once("token in ").unwrap().1.trim().trim_end_matches(')');
    assert!(Path::new(file).exists() && !as_nobody("cat", &[file]).status.success(), "{file}");
    drop(mcp);

    let runtime = tokio::runtime::Runtime::new().unwrap();
    let pod = runtime.block_on(async {
        let client = Client::try_from(config(&engine, None).await).unwrap();
        Api::<Pod>::namespaced(client, "default").get("box").await.unwrap()
    });
    let ip = pod.status.and_then(|status| status.pod_ip).expect("as root a Pod has an address");
    // Without the unified hierarchy the engine has no cgroup of its own, and root's other programs are let through.
    let group = engine_group(engine.pid());
    let kept_out = if group.is_some() { &[NOBODY, 0][..] } else { &[NOBODY] };
    let refused = |when: &str| {
        if let Some(group) = &group {
            // Control: the daemon serves the same request to a program in the engine's cgroup.
            let execute_url = format!("http://{ip}:8888/execute");
            let procs = group.join("cgroup.procs");
            let script = r#"echo 0 > "$1" && shift && exec "$@""#;
            let head = ["-c", script, "sh", procs.to_str().unwrap(), "curl", "-s", "-o", "/dev/null"];
            let tail = ["-w", "%{http_code}", "--max-time", "30", &execute_url];
            let control = as_user(0, "sh", &[&head[..], &execute, &tail].concat());
            assert_eq!(String::from_utf8_lossy(&control.stdout), "200", "{when}: {control:?}");
        }
        for (uid, port) in kept_out.iter().flat_map(|uid| [8888, 8080, 9090, 49983].map(|port| (*uid, port))) {
            let url = format!("http://{ip}:{port}/execute");
            assert_eq!(status_as(uid, &url, &execute), 0, "{when}: user {uid}, port {port}");
        }
    };
    refused("while the engine runs");
    assert_eq!(engine.ok(&["exec", "box", "--", "echo", "unharmed"]), "unharmed\n");
    let pid = rustix::process::Pid::from_raw(engine.pid()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    eventually("a killed engine stops", || engine.run(&["status", "-o", "name"]).stdout == b"stopped\n");
    refused("after the engine was killed");
    engine.up();
    assert_eq!(engine.ok(&["exec", "box", "--", "echo", "unharmed"]), "unharmed\n");
}

/// The folder of the cgroup of its own that an engine is in; `None` where it could not make one.
fn engine_group(pid: i32) -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let unified = mounts.lines().find(|line| line.contains(" - cgroup2 "))?.split(' ').nth(4)?.to_owned();
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    own.ends_with("agent-sandbox-engine").then(|| Path::new(&unified).join(own))
}
