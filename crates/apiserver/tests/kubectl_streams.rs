//! exec, attach, logs and port-forward with the real kubectl, against a test node.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests fail the test")]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use support::{Cluster, kubectl, running_pod};

fn cluster_with_pod(containers: &[&str]) -> Cluster {
    let cluster = Cluster::start_blocking();
    let pod: Pod = serde_json::from_value(running_pod("p", containers)).unwrap();
    cluster.block_on(async {
        let pods: Api<Pod> = Api::namespaced(cluster.server.client(), "default");
        pods.create(&PostParams::default(), &pod).await.unwrap();
        let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        pods.patch_status("p", &kube::api::PatchParams::default(), &kube::api::Patch::Merge(status)).await.unwrap();
    });
    cluster
}

/// D-232: exit codes, separate outputs, end of input.
#[test]
fn exec_carries_codes_outputs_and_input() {
    if kubectl::missing() {
        return;
    }
    let cluster = cluster_with_pod(&["main"]);
    let output = cluster.kubectl(&["exec", "p", "--", "sh", "-c", "echo out; echo err >&2; exit 3"]);
    assert_eq!((output.code, output.stdout.as_str()), (3, "out\n"), "{}", output.transcript());
    assert!(output.stderr.contains("err\n") && output.stderr.contains("exit code 3"), "{}", output.stderr);
    let output = cluster.kubectl_with_input(&["exec", "-i", "p", "--", "cat"], "all of this\ncomes back\n");
    assert_eq!((output.code, output.stdout.as_str()), (0, "all of this\ncomes back\n"), "{}", output.transcript());
    // A command ends even if it does not read its input.
    let output = cluster.kubectl_with_input(&["exec", "-i", "p", "--", "true"], &"x".repeat(1 << 20));
    assert_eq!(output.code, 0, "{}", output.transcript());
    let output = cluster.kubectl(&["exec", "p", "--", "/no/such/program"]);
    assert_ne!(output.code, 0);
    assert!(output.stderr.contains("/no/such/program"), "{}", output.stderr);
}

/// D-222, D-232: the same over SPDY, for clients without WebSocket support.
#[test]
fn exec_works_over_spdy_too() {
    if kubectl::missing() {
        return;
    }
    let cluster = cluster_with_pod(&["main"]);
    let run = |arguments: &[&str], input: &str| {
        let mut child = cluster
            .kubectl_command(arguments)
            .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let output = run(&["exec", "p", "--", "sh", "-c", "echo out; echo err >&2; exit 3"], "");
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(3), b"out\n".as_slice()));
    let large = "0123456789abcdef".repeat(40_000);
    let output = run(&["exec", "-i", "p", "--", "cat"], &large);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout == large.as_bytes(), "640 KB come back unchanged");
}

/// Large outputs arrive completely, and stdout and stderr stay separate.
#[test]
fn exec_transfers_megabytes() {
    if kubectl::missing() {
        return;
    }
    let cluster = cluster_with_pod(&["main"]);
    let output = cluster.kubectl(&[
        "exec",
        "p",
        "--",
        "sh",
        "-c",
        "head -c 5000000 /dev/zero | tr '\\0' a; head -c 100000 /dev/zero | tr '\\0' b >&2",
    ]);
    assert_eq!((output.code, output.stdout.len()), (0, 5_000_000));
    assert!(output.stdout.bytes().all(|byte| byte == b'a'));
    assert_eq!(output.stderr.bytes().filter(|byte| *byte == b'b').count(), 100_000);
}

#[test]
fn attach_connects_to_the_container() {
    if kubectl::missing() {
        return;
    }
    let cluster = cluster_with_pod(&["one", "two"]);
    let output = cluster.kubectl_with_input(&["attach", "-i", "p", "-c", "two"], "hello\n");
    assert_eq!(output.code, 0, "{}", output.transcript());
    assert!(output.stdout.contains("attached to two") && output.stdout.contains("heard hello"), "{}", output.stdout);
}

/// D-233: logs as text, followed, limited and with timestamps.
#[test]
fn logs_stream_as_text() {
    if kubectl::missing() {
        return;
    }
    let cluster = cluster_with_pod(&["main"]);
    assert_eq!(cluster.kubectl_ok(&["logs", "p"]), "first\nsecond\nthird\nfourth\n");
    assert_eq!(cluster.kubectl_ok(&["logs", "p", "--tail=1"]), "fourth\n");
    assert_eq!(cluster.kubectl_ok(&["logs", "-f", "p", "--tail=0"]), "later 0\nlater 1\n");
    assert_eq!(cluster.kubectl_ok(&["logs", "p", "--limit-bytes=8"]), "first\nse");
    assert_eq!(
        cluster.kubectl_ok(&["logs", "p", "--timestamps", "--since-time=2024-01-01T00:00:03Z"]),
        "2024-01-01T00:00:03Z fourth\n"
    );
    let output = cluster.kubectl(&["logs", "p", "-c", "other"]);
    assert_eq!(output.code, 1);
    assert!(output.stderr.contains("container other is not valid for pod p"), "{}", output.stderr);
    assert!(cluster.kubectl(&["logs", "p", "--previous"]).stderr.contains("previous terminated container"));
}

/// A TCP server that echoes in upper case, and closes a connection when the client half-closes it.
fn upper_case_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            std::thread::spawn(move || echo_upper_case(connection));
        }
    });
    port
}

fn echo_upper_case(mut connection: TcpStream) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = connection.read(&mut buffer) {
        buffer[..length].make_ascii_uppercase();
        if connection.write_all(&buffer[..length]).is_err() {
            return;
        }
    }
}

/// A running `kubectl port-forward`; dropping it kills kubectl.
struct Forward {
    child: Child,
    port: u16,
}

impl Forward {
    fn start(cluster: &Cluster, target: &str, port: u16, websockets: bool) -> Self {
        let mapping = format!(":{port}");
        let mut child = cluster
            .kubectl_command(&["port-forward", target, &mapping])
            .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        // kubectl prints a line for each connection and exits if its stdout is closed.
        std::thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
        let local = line
            .split("127.0.0.1:")
            .nth(1)
            .and_then(|rest| rest.split(' ').next())
            .unwrap_or_else(|| panic!("{line:?}"));
        Self { child, port: local.parse().unwrap() }
    }

    fn ask(&self, text: &str) -> String {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        connection.write_all(text.as_bytes()).unwrap();
        connection.shutdown(Shutdown::Write).unwrap();
        let mut response = String::new();
        connection.read_to_string(&mut response).unwrap();
        response
    }

    fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn forwarding_survives_everything(websockets: bool) {
    let cluster = cluster_with_pod(&["main"]);
    let target = upper_case_server();
    let mut forward = Forward::start(&cluster, "pod/p", target, websockets);
    assert_eq!(forward.ask("hello"), "HELLO");
    // Connections without data, as clients open them to check whether the tunnel is ready.
    for _ in 0..5 {
        drop(TcpStream::connect(("127.0.0.1", forward.port)).unwrap());
    }
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..8)
            .map(|n| {
                (
                    n,
                    scope.spawn({
                        let forward = &forward;
                        move || forward.ask(&format!("line {n} ").repeat(5000))
                    }),
                )
            })
            .collect();
        for (n, response) in asked {
            assert_eq!(response.join().unwrap(), format!("LINE {n} ").repeat(5000));
        }
    });
    // Longer than the ten seconds after which kubectl ends a session whose ping got no response.
    std::thread::sleep(Duration::from_secs(12));
    assert!(forward.is_running());
    assert_eq!(forward.ask("still here"), "STILL HERE");
}

/// D-221, D-223, D-224: the tunnel over WebSockets.
#[test]
fn port_forward_over_websockets_survives_everything() {
    if !kubectl::missing() {
        forwarding_survives_everything(true);
    }
}

/// D-221, D-222, D-224: the same over SPDY alone.
#[test]
fn port_forward_over_spdy_survives_everything() {
    if !kubectl::missing() {
        forwarding_survives_everything(false);
    }
}

/// D-225: a connection to a port without a listener fails alone; the session continues.
#[test]
fn a_refusing_port_does_not_end_the_session() {
    if kubectl::missing() {
        return;
    }
    let cluster = cluster_with_pod(&["main"]);
    let reserved = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = reserved.local_addr().unwrap().port();
    drop(reserved);
    let mut forward = Forward::start(&cluster, "pod/p", port, true);
    let started = Instant::now();
    assert_eq!(forward.ask("no listener"), "");
    assert!(started.elapsed() < Duration::from_secs(15), "the connection is closed in time");
    assert!(forward.is_running());
    // A listener starts while a connection is being retried.
    let waiting = std::thread::spawn({
        let local = forward.port;
        move || {
            let mut connection = TcpStream::connect(("127.0.0.1", local)).unwrap();
            connection.write_all(b"late").unwrap();
            connection.shutdown(Shutdown::Write).unwrap();
            let mut response = String::new();
            connection.read_to_string(&mut response).unwrap();
            response
        }
    });
    std::thread::sleep(Duration::from_millis(500));
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let served = std::thread::spawn(move || echo_upper_case(listener.accept().unwrap().0));
    assert_eq!(waiting.join().unwrap(), "LATE");
    served.join().unwrap();
    assert!(forward.is_running());
}

/// D-220, D-221: through a Service with a named target port, as the SDKs' tunnel does.
#[test]
fn a_service_is_forwarded_through_its_pod() {
    if kubectl::missing() {
        return;
    }
    let cluster = cluster_with_pod(&["main"]);
    let target = upper_case_server();
    let service: Value = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "router"},
        "spec": {"selector": {"app": "p"}, "ports": [{"port": 8080, "targetPort": target}]}});
    let path = cluster.write("service.json", &service.to_string());
    cluster.kubectl_ok(&["create", "-f", path.to_str().unwrap()]);
    cluster.kubectl_ok(&["get", "svc/router"]);
    let missing = cluster.kubectl(&["get", "svc/other"]);
    assert_eq!(missing.code, 1);
    assert!(missing.stderr.contains("not found"), "{}", missing.stderr);
    let forward = Forward::start(&cluster, "svc/router", 8080, true);
    assert_eq!(forward.ask("through the service"), "THROUGH THE SERVICE");
}
