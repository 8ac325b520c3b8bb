//! Isolation of the engine from sandboxes: no token, kubeconfig, data folder, API port or router port can be reached
//! from inside one.

use crate::fixture::Engine;
use std::{fs, io::Write as _, process::Stdio};

/// Tries to connect to every address and port, to read every path, and to find the token; prints every success.
const PROBE: &str = r#"
import os, socket, sys
ports = [int(p) for p in sys.argv[1].split(",")]
addresses = sys.argv[2].split(",")
needle = sys.stdin.readline().strip().encode()
for address in addresses:
    for port in ports:
        try:
            socket.create_connection((address, port), 0.4).close()
            print("reached", address, port)
        except OSError:
            pass
for path in sys.argv[3].split(","):
    try:
        os.listdir(path) if os.path.isdir(path) else open(path).read(1)
        print("read", path)
    except OSError:
        pass
for folder, _, files in os.walk("/"):
    if folder.startswith(("/proc", "/sys", "/dev", "/usr", "/lib", "/bin", "/sbin")):
        continue
    for name in files:
        try:
            with open(os.path.join(folder, name), "rb") as file:
                if needle in file.read(1 << 20):
                    print("token in", os.path.join(folder, name))
        except OSError:
            pass
if needle.decode() in str(dict(os.environ)):
    print("token in the environment")
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        text = open(f"/proc/{pid}/environ", "rb").read() + open(f"/proc/{pid}/cmdline", "rb").read()
        if needle in text:
            print("token in process", pid)
    except OSError:
        pass
print("looked")
"#;

#[test]
fn nothing_of_the_engine_can_be_reached_from_inside_a_sandbox() {
    let Some(engine) = Engine::start() else { return };
    engine.ok(&["create", "box"]);
    let state = engine.state();
    let port = |key: &str| state[key].as_str().unwrap().rsplit(':').next().unwrap().to_owned();
    let ports = format!("{},{}", port("api"), port("router"));
    let kubeconfig = fs::read_to_string(engine.data().join("kubeconfig")).unwrap();
    let token = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("token: ")).unwrap().trim_matches('"');
    // Control: from outside, both listeners accept connections and every path can be read.
    for address in [&state["api"], &state["router"]] {
        let host = address.as_str().unwrap().rsplit('/').next().unwrap();
        std::net::TcpStream::connect(host).unwrap();
    }
    let data = engine.data();
    let paths = ["", "kubeconfig", "up.json", "control.sock", "api", "node", "images"].map(|name| data.join(name));
    assert!(paths.iter().all(|path| path.exists()), "{paths:?}");
    let paths = paths.map(|path| path.display().to_string()).join(",");
    // Addresses at which the host might be reached: loopback, the sandbox's gateway, and every address of this machine.
    let gateway =
        engine.ok(&["exec", "box", "--", "sh", "-c", "ip route 2>/dev/null | awk '/default/{print $3}'; true"]);
    let own = std::process::Command::new("hostname").arg("-I").output().map(|out| out.stdout).unwrap_or_default();
    let mut addresses = vec!["127.0.0.1".to_owned(), "localhost".to_owned(), "192.0.2.1".to_owned()];
    addresses.extend(gateway.split_whitespace().map(str::to_owned));
    addresses.extend(String::from_utf8_lossy(&own).split_whitespace().take(4).map(str::to_owned));
    let words = ["exec", "-i", "box", "--", "python3", "-c", PROBE, &ports, &addresses.join(","), &paths];
    // The token is passed by a pipe: as an argument, the probe would find it in its own command line.
    let mut child = engine.command(&words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    writeln!(child.stdin.take().unwrap(), "{token}").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "looked\n");
}

/// `doctor` opens a runtime to list its weaknesses, and removes everything that it created.
#[test]
fn doctor_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let doctor = std::process::Command::new(env!("CARGO_BIN_EXE_agent-sandbox"))
        .args(["doctor", "-o", "name"])
        .env("TMPDIR", folder.path())
        .output()
        .unwrap();
    assert!(!doctor.stdout.is_empty(), "{}", String::from_utf8_lossy(&doctor.stderr));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "its folder is gone");
    // Without nft or the permission to use it, there are no tables that could be left.
    let Ok(rules) = std::process::Command::new("nft").args(["list", "ruleset"]).output() else { return };
    let rules = String::from_utf8_lossy(&rules.stdout);
    // A table's comment names the data folder that it belongs to.
    assert!(!rules.contains(&*folder.path().to_string_lossy()), "{rules}");
}

/// `doctor` names the default of every resource that docs/isolation.md lists.
#[test]
fn doctor_states_the_limits_of_sandboxes_that_set_none() {
    let doctor = std::process::Command::new(env!("CARGO_BIN_EXE_agent-sandbox"))
        .args(["doctor", "-o", "json"])
        .output()
        .unwrap();
    let checks: Vec<serde_json::Value> = serde_json::from_slice(&doctor.stdout).unwrap();
    let said = checks.iter().filter_map(|check| check["what"].as_str());
    let said = said.into_iter().find(|text| text.starts_with("a sandbox that sets no limits gets ")).unwrap();
    let machine = agent_sandbox_node::kernel::NodeDefaults::of_machine();
    let memory = machine.memory_bytes.expect("/proc/meminfo states the memory") >> 20;
    let cpus = machine.cpu_millis.unwrap() as f64 / 1_000.0;
    let expected = [
        format!(" {memory} MiB of memory, "),
        format!(" {cpus} CPUs, "),
        " 1024 processes, ".to_owned(),
        " 10 GiB of disk ".to_owned(),
        " 1000000 files".to_owned(),
    ];
    for part in expected {
        assert!(said.contains(&part), "{part:?} in {said:?}");
    }
}
