//! Sandboxes that sleep while they are not used and wake for requests.

use crate::fixture::{Engine, eventually};
use crate::tenants::{config, connect, execute, tenant};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::SendRequest;
use kube::Client;
use serde_json::Value;
use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::Stdio,
    time::{Duration, Instant},
};

fn sandbox(engine: &Engine, name: &str) -> Value {
    serde_json::from_str(&engine.ok(&["get", name, "-o", "json"])).unwrap()
}

fn condition<'a>(sandbox: &'a Value, kind: &str) -> &'a Value {
    let conditions = sandbox["status"]["conditions"].as_array().unwrap();
    conditions.iter().find(|condition| condition["type"] == kind).unwrap_or(&Value::Null)
}

fn falls_asleep(engine: &Engine, name: &str) {
    eventually("the sandbox falls asleep", || {
        let sandbox = sandbox(engine, name);
        sandbox["spec"]["operatingMode"] == "Suspended" && condition(&sandbox, "Suspended")["status"] == "True"
    });
}

/// A connection to the router's listener, and the administrator's token.
async fn router(engine: &Engine) -> (SendRequest<Full<Bytes>>, String) {
    let address = engine.state()["router"].as_str().unwrap().trim_start_matches("http://").to_owned();
    let kubeconfig = std::fs::read_to_string(engine.data().join("kubeconfig")).unwrap();
    let token = kubeconfig.split_once("token:").unwrap().1.split_whitespace().next().unwrap();
    let connection = connect(tokio::net::TcpStream::connect(address).await.unwrap()).await;
    (connection, token.trim_matches('"').to_owned())
}

#[test]
fn an_idle_sandbox_sleeps_and_requests_and_commands_wake_it() {
    let Some(engine) = Engine::start() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    engine.ok(&["create", "box", "--idle", "2s"]);
    assert!(engine.ok(&["get", "box"]).contains("Sleeps:      after 2s without use"));
    engine.ok(&["exec", "box", "--", "sh", "-c", "echo kept > /home/user/f"]);
    falls_asleep(&engine, "box");
    assert!(engine.ok(&["list"]).contains("Asleep"));
    let page = engine.ok(&["get", "box"]);
    assert!(page.contains("since it was not used for 2s") && page.contains("A request wakes it"), "{page}");

    // A burst of requests wakes it once, and each gets its answer.
    let answers = runtime.block_on(async {
        let burst = (0..20).map(|_| async {
            let (mut connection, token) = router(&engine).await;
            execute(&mut connection, Some(&token), "default", "box", "cat /home/user/f").await
        });
        futures::future::join_all(burst).await
    });
    assert!(answers.iter().all(|answer| *answer == (StatusCode::OK, "kept\n".to_owned())), "{answers:?}");
    let woken = sandbox(&engine, "box");
    assert_eq!(woken["metadata"]["generation"], 3, "suspended once, resumed once");
    assert_eq!(condition(&woken, "IdleSuspend")["reason"], "NotIdle");

    falls_asleep(&engine, "box");
    assert_eq!(engine.ok(&["exec", "box", "--", "cat", "/home/user/f"]), "kept\n");
    let events = engine.ok(&["get", "box"]);
    assert!(events.contains("Ready"), "{events}");

    // What a user suspends stays suspended.
    engine.ok(&["suspend", "box"]);
    let (status, _) = runtime.block_on(async {
        let (mut connection, token) = router(&engine).await;
        execute(&mut connection, Some(&token), "default", "box", "true").await
    });
    assert_eq!(status, StatusCode::BAD_GATEWAY);
    assert!(engine.fails(&["exec", "box", "--", "true"]).2.contains("`box` is suspended; resume it first"));
    assert_eq!(sandbox(&engine, "box")["spec"]["operatingMode"], "Suspended");
}

/// The status that the sandbox's daemon answers with behind a local port.
fn status_behind(port: &str) -> String {
    let url = format!("http://127.0.0.1:{port}/");
    let output = std::process::Command::new("curl")
        .args(["-s", "-m", "60", "-o", "/dev/null", "-w", "%{http_code}", &url])
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The local port in `forwarding 127.0.0.1:40000 -> 8888`.
fn local_port(line: &str) -> String {
    assert!(line.starts_with("forwarding "), "{line}");
    let address = line.split(' ').nth(1).unwrap();
    address.rsplit_once(':').unwrap().1.to_owned()
}

/// Connections that do not pass the router's listener: each one wakes the sandbox anew.
#[test]
fn forwarded_and_published_ports_wake_a_sandbox() {
    let Some(engine) = Engine::start() else { return };
    let created = engine.run(&["create", "box", "--idle", "2s", "--publish", "0:8888"]);
    let said = String::from_utf8(created.stderr).unwrap();
    let published = local_port(said.lines().find(|line| line.starts_with("forwarding ")).unwrap_or(&said));
    falls_asleep(&engine, "box");
    assert_eq!(status_behind(&published), "200");
    assert_eq!(sandbox(&engine, "box")["spec"]["operatingMode"], "Running");

    falls_asleep(&engine, "box");
    let mut forward = engine.command(&["port-forward", "box", "0:8888"]);
    let mut forward = forward.stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(forward.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let port = local_port(line.trim());
    assert_eq!(status_behind(&port), "200");
    falls_asleep(&engine, "box");
    assert_eq!(status_behind(&port), "200", "the port stays open and wakes it again");
    forward.kill().unwrap();
    forward.wait().unwrap();
}

/// `agent-sandbox mcp` on standard input and output.
struct Tools {
    server: std::process::Child,
    answers: BufReader<std::process::ChildStdout>,
    sent: u64,
}

impl Tools {
    fn start(engine: &Engine) -> Self {
        let mut server = engine.command(&["mcp"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(server.stdout.take().unwrap());
        let mut tools = Self { server, answers, sent: 0 };
        let client = serde_json::json!({ "name": "test", "version": "1" });
        let hello = serde_json::json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client });
        tools.ask("initialize", hello);
        tools.send(&serde_json::json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        tools
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.server.stdin.as_mut().unwrap(), "{message}").unwrap();
    }

    fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.sent += 1;
        let id = self.sent;
        self.send(&serde_json::json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": parameters }));
        loop {
            let mut line = String::new();
            assert!(self.answers.read_line(&mut line).unwrap() > 0, "the server ended");
            let answer: Value = serde_json::from_str(&line).unwrap();
            if answer["id"] == id {
                return answer["result"].clone();
            }
        }
    }

    fn call(&mut self, name: &str, arguments: Value) -> Value {
        let result = self.ask("tools/call", serde_json::json!({ "name": name, "arguments": arguments }));
        assert_ne!(result["isError"], true, "{name}: {result}");
        result["structuredContent"].clone()
    }
}

impl Drop for Tools {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A tool that sends a request to the sandbox, and one that opens a port beside the router.
#[test]
fn tools_wake_a_sandbox() {
    let Some(engine) = Engine::start() else { return };
    let mut tools = Tools::start(&engine);
    let created = tools.call("create_sandbox", serde_json::json!({ "shutdown_after_seconds": null }));
    let claim = created["sandbox_claim_name"].as_str().unwrap().to_owned();
    tools.call("execute_command", serde_json::json!({ "command": "echo kept > f" }));
    let kubeconfig = engine.data().join("kubeconfig");
    let annotate = ["annotate", "sandboxclaim", &claim, "agent-sandbox.github.io/idle-timeout=2s"];
    let mut kubectl = std::process::Command::new("kubectl");
    assert!(kubectl.arg("--kubeconfig").arg(kubeconfig).args(annotate).output().unwrap().status.success());
    falls_asleep(&engine, &claim);
    let done = tools.call("execute_command", serde_json::json!({ "command": "cat f" }));
    assert_eq!(done["stdout"], "kept\n", "{done}");
    falls_asleep(&engine, &claim);
    let opened = tools.call("open_port", serde_json::json!({ "port": 8888 }));
    let port = opened["url"].as_str().unwrap().rsplit_once(':').unwrap().1.to_owned();
    assert_eq!(status_behind(&port), "200");
    assert_eq!(sandbox(&engine, &claim)["spec"]["operatingMode"], "Running");
}

/// Variables stay between calls and are forgotten on request; a call that is too slow is interrupted.
#[test]
fn code_of_a_tool_keeps_its_variables() {
    let Some(engine) = Engine::start() else { return };
    let mut tools = Tools::start(&engine);
    let mut run = |arguments: Value| tools.call("run_code", arguments);
    let first = run(serde_json::json!({ "code": "x = 20\nprint('out')\nx + 1" }));
    assert_eq!((first["text"].as_str(), first["stdout"].as_str()), (Some("21"), Some("out\n")), "{first}");
    assert!(first["sandbox_claim_name"].is_string() && first["displayed"] == serde_json::json!([]), "{first}");
    let html = "class A:\n    def _repr_html_(self): return '<b>' + 'x' * 40_000\ndisplay(A())\nx * 2";
    let second = run(serde_json::json!({ "code": html }));
    assert_eq!(second["text"], "40");
    assert!(second["displayed"][0]["html"].as_str().unwrap().contains("bytes left out"), "{second}");
    assert_eq!(run(serde_json::json!({ "code": "1/0" }))["error"]["name"], "ZeroDivisionError");
    let again = run(serde_json::json!({ "code": "x", "restart": true }));
    assert_eq!(again["error"]["name"], "NameError", "{again}");
    run(serde_json::json!({ "code": "kept = 1" }));
    let slow = serde_json::json!({ "code": "import time; time.sleep(300)", "timeout": 1 });
    let slow = tools.ask("tools/call", serde_json::json!({ "name": "run_code", "arguments": slow }));
    assert_eq!(slow["isError"], true, "{slow}");
    let after = tools.call("run_code", serde_json::json!({ "code": "kept" }));
    assert_eq!(after["text"], "1", "{after}");
}

#[test]
fn a_sandbox_in_use_stays_awake() {
    let Some(engine) = Engine::start() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    engine.ok(&["create", "box", "--idle", "2s"]);
    // A session that is open for several idle times.
    let mut session = engine.command(&["exec", "-i", "box", "--", "cat"]);
    let mut session = session.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    eventually("several idle times pass", || started.elapsed() > Duration::from_secs(7));
    let mut stdin = session.stdin.take().unwrap();
    stdin.write_all(b"still here\n").unwrap();
    let mut line = String::new();
    BufReader::new(session.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "still here\n");
    assert_eq!(sandbox(&engine, "box")["metadata"]["generation"], 1, "it was never suspended");
    drop(stdin);
    session.wait().unwrap();

    // A command in the background that the daemon started.
    runtime.block_on(async {
        let (mut connection, token) = router(&engine).await;
        let request = Request::post("/sandbox/v1/processes")
            .header("host", "localhost")
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {token}"))
            .header("x-sandbox-id", "box")
            .body(Full::from(r#"{"argv": ["sleep", "7"]}"#))
            .unwrap();
        let response = connection.send_request(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert!(status.is_success(), "{status} {body:?}");
    });
    let started = Instant::now();
    eventually("several idle times pass", || started.elapsed() > Duration::from_secs(5));
    assert_eq!(sandbox(&engine, "box")["metadata"]["generation"], 1, "the command still runs");
    falls_asleep(&engine, "box");

    let (_, _, said) = engine.fails(&["keep-alive", "box"]);
    assert!(said.contains("suspended"), "{said}");
    engine.ok(&["resume", "box"]);
    assert!(engine.ok(&["keep-alive", "box", "--for", "1h"]).contains("stays awake until"));
    let before = sandbox(&engine, "box")["metadata"]["generation"].clone();
    let started = Instant::now();
    eventually("several idle times pass", || started.elapsed() > Duration::from_secs(5));
    assert_eq!(sandbox(&engine, "box")["metadata"]["generation"], before);
    engine.ok(&["create", "other"]);
    assert!(engine.fails(&["keep-alive", "other"]).2.contains("has no idle time"));
}

#[test]
fn a_claimed_sandbox_sleeps_and_wakes_across_a_crash() {
    let Some(engine) = Engine::start_with(&["--warm", "1"]) else { return };
    engine.ok(&["claim", "python-sandbox-template", "--name", "mine", "--idle", "2s"]);
    engine.ok(&["exec", "mine", "--", "sh", "-c", "echo kept > /home/user/f"]);
    falls_asleep(&engine, "mine");
    let pid = rustix::process::Pid::from_raw(engine.pid()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    eventually("a killed engine stops", || engine.run(&["status", "-o", "name"]).stdout == b"stopped\n");
    engine.up();
    assert_eq!(sandbox(&engine, "mine")["spec"]["operatingMode"], "Suspended");
    assert_eq!(engine.ok(&["exec", "mine", "--", "cat", "/home/user/f"]), "kept\n");
    falls_asleep(&engine, "mine");
}

#[test]
fn another_tenant_cannot_wake_a_sandbox() {
    let Some(engine) = Engine::start() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (admin, token) = runtime.block_on(async {
        let admin = Client::try_from(config(&engine, None).await).unwrap();
        let token = tenant(&admin, "team-a").await;
        tenant(&admin, "team-b").await;
        (admin, token)
    });
    let own = |words: &[&str]| engine.ok(&[&["-n", "team-b"], words].concat());
    own(&["create", "box", "--idle", "1s", "--wake", "always"]);
    eventually("it sleeps", || own(&["list"]).contains("Asleep"));
    let version = || own(&["get", "box", "-o", "json"]);
    eventually("nothing is left to write", || {
        let before = version();
        std::thread::sleep(Duration::from_millis(300));
        before == version()
    });
    let before = version();
    runtime.block_on(async {
        let (mut listener, _) = router(&engine).await;
        for token in [Some(token.as_str()), None, Some("nonsense")] {
            let (status, _) = execute(&mut listener, token, "team-b", "box", "true").await;
            assert!([StatusCode::FORBIDDEN, StatusCode::UNAUTHORIZED].contains(&status), "{status}");
        }
        let user = Client::try_from(config(&engine, Some(&token)).await).unwrap();
        let pods: kube::Api<k8s_openapi::api::core::v1::Pod> = kube::Api::namespaced(user, "team-a");
        let mut forward = pods.portforward("sandbox-router", &[8080]).await.unwrap();
        let mut tunnel = connect(forward.take_stream(8080).unwrap()).await;
        let (status, _) = execute(&mut tunnel, None, "team-b", "box", "true").await;
        assert_eq!(status, StatusCode::FORBIDDEN);
        drop(admin);
    });
    assert_eq!(version(), before, "the other tenant's sandbox is unchanged");
}
