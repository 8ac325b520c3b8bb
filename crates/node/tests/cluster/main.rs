//! Tests of the node in a real Kubernetes control plane, with only the rights of a kubelet, driven by kubectl.
//!
//! Root and the programs of the control plane are needed; without them the tests print that they are skipped and pass.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod fixture;
mod https_client;

use fixture::{Fixture, LIMIT};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_runs_reads_enters_forwards_and_deletes_a_pod() {
    let Some(fixture) = Fixture::open("kubectl-node").await else { return };
    let script = "echo hello from the node; sleep 1000";
    fixture
        .ok(&["run", "p", "--image=host", "--overrides", &fixture.pinned(), "--command", "--", "sh", "-c", script])
        .await;
    fixture.ok(&["wait", "--for=condition=Ready", "pod/p", "--timeout=60s"]).await;
    // The Pod is ready as soon as its program runs; the first line of its log may be written later.
    let logged = async { while !fixture.ok(&["logs", "p"]).await.contains("hello") {} };
    tokio::time::timeout(LIMIT, logged).await.expect("the first line of the Pod is logged");
    assert_eq!(fixture.ok(&["logs", "p"]).await.lines().last(), Some("hello from the node"));
    assert_eq!(fixture.ok(&["logs", "p", "--tail=1", "--follow=false"]).await, "hello from the node\n");
    let ran = fixture.kubectl(&["exec", "p", "--", "sh", "-c", "echo out; echo err >&2; exit 3"], None).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (3, "out\n"));
    assert!(ran.stderr.starts_with("err\n"), "{}", ran.stderr);
    let echoed = fixture.kubectl(&["exec", "-i", "p", "--", "cat"], Some("typed")).await;
    assert_eq!((echoed.code, echoed.stdout.as_str()), (0, "typed"));
    let account = fixture.ok(&["exec", "p", "--", "ls", "/var/run/secrets/kubernetes.io/serviceaccount"]).await;
    assert!(account.contains("token") && account.contains("ca.crt"), "{account}");
    let wide = fixture.ok(&["get", "pod", "p", "-o", "wide"]).await;
    assert!(wide.contains("kubectl-node") && wide.contains("Running"), "{wide}");
    let attached = fixture
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
                &fixture.plain(),
                "--command",
                "--",
                "cat",
            ],
            Some("through attach\n"),
        )
        .await;
    assert_eq!((attached.code, attached.stdout.as_str()), (0, "through attach\n"), "{}", attached.stderr);
    let mut forward = fixture.forward("p", 8888).await;
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", forward.port)).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    // kubectl may reset the connection after both sides have sent everything.
    let _ = tokio::time::timeout(LIMIT, stream.read_to_end(&mut answer)).await.unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    forward.end();
    fixture.ok(&["delete", "pod", "p", "--grace-period=1", "--timeout=60s"]).await;
    let left = fixture.kubectl(&["get", "pod", "p"], None).await;
    assert!(left.stderr.contains("not found"), "{}", left.stderr);
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_and_wrong_tokens_and_unauthorised_users_are_refused() {
    let Some(fixture) = Fixture::open("auth-node").await else { return };
    fixture
        .ok(&["run", "q", "--image=host", "--overrides", &fixture.pinned(), "--command", "--", "sleep", "1000"])
        .await;
    fixture.ok(&["wait", "--for=condition=Ready", "pod/q", "--timeout=60s"]).await;
    fixture.ok(&["create", "serviceaccount", "guest"]).await;
    fixture.ok(&["create", "serviceaccount", "admin"]).await;
    let subject = format!("--serviceaccount={}:admin", fixture.namespace);
    let binding = format!("admin-{}", fixture.namespace);
    fixture.ok(&["create", "clusterrolebinding", &binding, "--clusterrole=system:kubelet-api-admin", &subject]).await;
    let token = |text: String| text.trim().to_owned();
    let guest = token(fixture.ok(&["create", "token", "guest"]).await);
    let admin = token(fixture.ok(&["create", "token", "admin"]).await);
    let exec = format!("/exec/{}/q/q?command=id&output=1", fixture.namespace);
    let log = format!("/containerLogs/{}/q/q", fixture.namespace);
    for path in [exec.as_str(), log.as_str(), "/pods"] {
        assert_eq!(fixture.get(path, None).await, 401, "{path} without a token");
        assert_eq!(fixture.get(path, Some("wrong")).await, 401, "{path} with a wrong token");
        assert_eq!(fixture.get(path, Some(&guest)).await, 403, "{path} by a user without the right");
    }
    assert_eq!(fixture.get(&log, Some(&admin)).await, 200, "control: with the right, logs are served");
    assert_eq!(fixture.get(&exec, Some(&admin)).await, 400, "control: with the right, exec asks for an upgrade");
    fixture.ok(&["delete", "clusterrolebinding", &binding]).await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_deleted_registers_again_and_files_follow_their_objects() {
    let Some(fixture) = Fixture::open("again-node").await else { return };
    fixture.ok(&["create", "configmap", "c", "--from-literal=key=one"]).await;
    let pod = serde_json::json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "r"}, "spec": {
        "nodeName": "again-node", "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "r", "image": "host", "command": ["sleep", "1000"],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
        "volumes": [{"name": "v", "configMap": {"name": "c"}}]}});
    let made = fixture.kubectl(&["create", "-f", "-"], Some(&pod.to_string())).await;
    assert_eq!(made.code, 0, "{}", made.stderr);
    fixture.ok(&["wait", "--for=condition=Ready", "pod/r", "--timeout=60s"]).await;
    assert_eq!(fixture.ok(&["exec", "r", "--", "cat", "/v/key"]).await, "one");
    fixture.ok(&["patch", "configmap", "c", "-p", "{\"data\":{\"key\":\"two\"}}"]).await;
    fixture.until("the file follows", async || fixture.ok(&["exec", "r", "--", "cat", "/v/key"]).await == "two").await;
    fixture.ok(&["delete", "pod", "r", "--timeout=60s"]).await;
    fixture.ok(&["delete", "node", "again-node"]).await;
    fixture.ok(&["wait", "--for=create", "node/again-node", "--timeout=60s"]).await;
    fixture.ok(&["wait", "--for=condition=Ready", "node/again-node", "--timeout=60s"]).await;
    fixture.close().await;
}
