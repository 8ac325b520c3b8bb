//! The node as a member of a real Kubernetes control plane, with a kubelet's rights and no more, driven by kubectl.
//!
//! Needs root and the control plane's programs; says so and passes without doing anything where they are missing.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod bench;
mod door;

use bench::{Bench, LIMIT};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_runs_reads_enters_forwards_and_deletes_a_pod() {
    let Some(bench) = Bench::open("kubectl-node").await else { return };
    let script = "echo hello from the node; sleep 1000";
    bench
        .ok(&["run", "p", "--image=host", "--overrides", &bench.pinned(), "--command", "--", "sh", "-c", script])
        .await;
    bench.ok(&["wait", "--for=condition=Ready", "pod/p", "--timeout=60s"]).await;
    // Ready is said as soon as the program runs; what it says first may come a moment later.
    let said = async { while !bench.ok(&["logs", "p"]).await.contains("hello") {} };
    tokio::time::timeout(LIMIT, said).await.expect("the Pod's first words are logged");
    assert_eq!(bench.ok(&["logs", "p"]).await.lines().last(), Some("hello from the node"));
    assert_eq!(bench.ok(&["logs", "p", "--tail=1", "--follow=false"]).await, "hello from the node\n");
    let ran = bench.kubectl(&["exec", "p", "--", "sh", "-c", "echo out; echo err >&2; exit 3"], None).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (3, "out\n"));
    assert!(ran.stderr.starts_with("err\n"), "{}", ran.stderr);
    let echoed = bench.kubectl(&["exec", "-i", "p", "--", "cat"], Some("typed")).await;
    assert_eq!((echoed.code, echoed.stdout.as_str()), (0, "typed"));
    let account = bench.ok(&["exec", "p", "--", "ls", "/var/run/secrets/kubernetes.io/serviceaccount"]).await;
    assert!(account.contains("token") && account.contains("ca.crt"), "{account}");
    let wide = bench.ok(&["get", "pod", "p", "-o", "wide"]).await;
    assert!(wide.contains("kubectl-node") && wide.contains("Running"), "{wide}");
    let attached = bench
        .kubectl(
            &[
                "run",
                "a",
                "--image=host",
                "--restart=Never",
                "-i",
                "--rm",
                "--quiet",
                "--overrides",
                &bench.plain(),
                "--command",
                "--",
                "cat",
            ],
            Some("through attach\n"),
        )
        .await;
    assert_eq!((attached.code, attached.stdout.as_str()), (0, "through attach\n"), "{}", attached.stderr);
    let mut forward = bench.forward("p", 8888).await;
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", forward.port)).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    // kubectl may end the connection with a reset once both sides have said everything.
    let _ = tokio::time::timeout(LIMIT, stream.read_to_end(&mut answer)).await.unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    forward.end();
    bench.ok(&["delete", "pod", "p", "--grace-period=1", "--timeout=60s"]).await;
    let left = bench.kubectl(&["get", "pod", "p"], None).await;
    assert!(left.stderr.contains("not found"), "{}", left.stderr);
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_wrong_tokens_and_users_without_the_right_are_refused() {
    let Some(bench) = Bench::open("door-node").await else { return };
    bench.ok(&["run", "q", "--image=host", "--overrides", &bench.pinned(), "--command", "--", "sleep", "1000"]).await;
    bench.ok(&["wait", "--for=condition=Ready", "pod/q", "--timeout=60s"]).await;
    bench.ok(&["create", "serviceaccount", "guest"]).await;
    bench.ok(&["create", "serviceaccount", "keeper"]).await;
    let subject = format!("--serviceaccount={}:keeper", bench.namespace);
    let binding = format!("keeper-{}", bench.namespace);
    bench.ok(&["create", "clusterrolebinding", &binding, "--clusterrole=system:kubelet-api-admin", &subject]).await;
    let token = |text: String| text.trim().to_owned();
    let guest = token(bench.ok(&["create", "token", "guest"]).await);
    let keeper = token(bench.ok(&["create", "token", "keeper"]).await);
    let exec = format!("/exec/{}/q/q?command=id&output=1", bench.namespace);
    let log = format!("/containerLogs/{}/q/q", bench.namespace);
    for path in [exec.as_str(), log.as_str(), "/pods"] {
        assert_eq!(bench.ask(path, None).await, 401, "{path} by nobody");
        assert_eq!(bench.ask(path, Some("wrong")).await, 401, "{path} with a wrong token");
        assert_eq!(bench.ask(path, Some(&guest)).await, 403, "{path} by a user without the right");
    }
    assert_eq!(bench.ask(&log, Some(&keeper)).await, 200, "control: the right opens the door");
    assert_eq!(bench.ask(&exec, Some(&keeper)).await, 400, "control: past the door, exec asks for an upgrade");
    bench.ok(&["delete", "clusterrolebinding", &binding]).await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_deleted_registers_again_and_files_follow_their_objects() {
    let Some(bench) = Bench::open("again-node").await else { return };
    bench.ok(&["create", "configmap", "c", "--from-literal=key=one"]).await;
    let pod = serde_json::json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "r"}, "spec": {
        "nodeName": "again-node", "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "r", "image": "host", "command": ["sleep", "1000"],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "volumes": [{"name": "v", "configMap": {"name": "c"}}]}});
    let made = bench.kubectl(&["create", "-f", "-"], Some(&pod.to_string())).await;
    assert_eq!(made.code, 0, "{}", made.stderr);
    bench.ok(&["wait", "--for=condition=Ready", "pod/r", "--timeout=60s"]).await;
    assert_eq!(bench.ok(&["exec", "r", "--", "cat", "/v/key"]).await, "one");
    bench.ok(&["patch", "configmap", "c", "-p", "{\"data\":{\"key\":\"two\"}}"]).await;
    bench.until("the file follows", async || bench.ok(&["exec", "r", "--", "cat", "/v/key"]).await == "two").await;
    bench.ok(&["delete", "pod", "r", "--timeout=60s"]).await;
    bench.ok(&["delete", "node", "again-node"]).await;
    bench.ok(&["wait", "--for=create", "node/again-node", "--timeout=60s"]).await;
    bench.ok(&["wait", "--for=condition=Ready", "node/again-node", "--timeout=60s"]).await;
    bench.close().await;
}
