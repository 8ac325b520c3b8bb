//! What containers of one Pod share.

use serde_json::json;

use crate::bench::{Bench, is_root, plain, shell};

#[tokio::test(flavor = "multi_thread")]
async fn containers_see_each_other_only_when_they_share_processes() {
    if !is_root() {
        return;
    }
    let bench = Bench::open().await;
    let containers = || {
        let mut other = shell("exec sleep 4321");
        other["name"] = "other".into();
        json!([shell("sleep 1000"), other])
    };
    let spec = |shared: bool| json!({"shareProcessNamespace": shared, "containers": containers(), "terminationGracePeriodSeconds": 0});
    bench.create("together", plain(), spec(true)).await;
    bench.create("apart", plain(), spec(false)).await;
    bench.until_ready("together").await;
    bench.until_ready("apart").await;
    let seen = ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"];
    let all = bench.output("together", "main", &seen).await;
    assert!(all.contains("sleep 4321"), "{all}");
    let own = bench.output("apart", "main", &seen).await;
    assert!(!own.contains("sleep 4321"), "control: {own}");
    // The first process is nobody's: it cannot be looked into, and a signal does not end it.
    let first = bench.exec("together", "main", &["sh", "-c", "ls /proc/1/root/ && kill -9 1"]).await;
    assert_ne!(first.code, 0, "{first:?}");
    let killed = bench.output("together", "main", &["pkill", "-f", "sleep 4321"]).await;
    assert_eq!(killed, "");
    bench
        .until("together", "restarted by the other container", |p| {
            let mut statuses = p.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
            statuses.any(|c| c.name == "other" && c.restart_count == 1)
        })
        .await;
    bench.delete("together").await;
    bench.delete("apart").await;
    bench.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_another_container_has_is_an_event() {
    if !is_root() {
        return;
    }
    let bench = Bench::open().await;
    let server = "import socket,time\ns=socket.create_server(('0.0.0.0', 8080))\ntime.sleep(1000)";
    let first = json!({"name": "first", "image": "host", "restartPolicy": "Always", "command": ["python3", "-c", server],
        "startupProbe": {"tcpSocket": {"port": 8080}}});
    let main = json!({"name": "main", "image": "host", "ports": [{"containerPort": 8080}]});
    let spec = json!({"initContainers": [first], "containers": [main], "terminationGracePeriodSeconds": 0});
    bench.create("p", json!({}), spec).await;
    bench.until_ready("p").await;
    assert!(bench.until_event("PortTaken").await.contains("8080"));
    bench.delete("p").await;
    bench.close().await;
}
