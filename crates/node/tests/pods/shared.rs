//! Tests of what the containers of one Pod share.

use serde_json::json;

use crate::fixture::{Fixture, is_root, plain, shell};

#[tokio::test(flavor = "multi_thread")]
async fn containers_see_each_other_only_when_they_share_processes() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::open().await;
    let containers = || {
        let mut other = shell("exec sleep 4321");
        other["name"] = "other".into();
        json!([shell("sleep 1000"), other])
    };
    let spec = |shared: bool| json!({"shareProcessNamespace": shared, "containers": containers(), "terminationGracePeriodSeconds": 0});
    fixture.create("together", plain(), spec(true)).await;
    fixture.create("apart", plain(), spec(false)).await;
    fixture.until_ready("together").await;
    fixture.until_ready("apart").await;
    let seen = ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"];
    let all = fixture.output("together", "main", &seen).await;
    assert!(all.contains("sleep 4321"), "{all}");
    let own = fixture.output("apart", "main", &seen).await;
    assert!(!own.contains("sleep 4321"), "control: {own}");
    // The first process belongs to no container: its root cannot be read, and a signal does not end it.
    let first = fixture.exec("together", "main", &["sh", "-c", "ls /proc/1/root/ && kill -9 1"]).await;
    assert_ne!(first.code, 0, "{first:?}");
    let killed = fixture.output("together", "main", &["pkill", "-f", "sleep 4321"]).await;
    assert_eq!(killed, "");
    fixture
        .until("together", "restarted by the other container", |p| {
            let mut statuses = p.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
            statuses.any(|c| c.name == "other" && c.restart_count == 1)
        })
        .await;
    fixture.delete("together").await;
    fixture.delete("apart").await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_taken_by_another_container_is_reported() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::open().await;
    let server = "import socket,time\ns=socket.create_server(('0.0.0.0', 8080))\ntime.sleep(1000)";
    let first = json!({"name": "first", "image": "host", "restartPolicy": "Always", "command": ["python3", "-c", server],
        "startupProbe": {"tcpSocket": {"port": 8080}}});
    let main = json!({"name": "main", "image": "host", "ports": [{"containerPort": 8080}]});
    let spec = json!({"initContainers": [first], "containers": [main], "terminationGracePeriodSeconds": 0});
    fixture.create("p", json!({}), spec).await;
    fixture.until_ready("p").await;
    assert!(fixture.until_event("PortTaken").await.contains("8080"));
    fixture.delete("p").await;
    fixture.close().await;
}
