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
