//! Tests of a Pod's lifecycle, from the API object to its processes and back.

use std::time::{Duration, Instant};

use agent_sandbox_node::kubelet::eviction::StoragePolicy;
use agent_sandbox_node::kubelet::logs::LogOptions;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fixture::{CommandOutput, Fixture, LIMIT, Tuning, is_root, key, plain, shell, terminated};

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_the_image_host_runs_sandboxd() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::open().await;
    let asked = Instant::now();
    fixture.create("p", json!({}), json!({"containers": [{"name": "main", "image": "host"}]})).await;
    fixture.until_ready("p").await;
    eprintln!("created to ready: {:?}", asked.elapsed());
    assert_eq!(fixture.output("p", "main", &["echo", "hello"]).await, "hello\n");
    let failed = fixture.exec("p", "main", &["sh", "-c", "echo out; echo err >&2; exit 3"]).await;
    assert_eq!(failed, CommandOutput { code: 3, stdout: "out\n".into(), stderr: "err\n".into() });
    let mut stream = fixture.node.dial(&key("p"), 8888).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    tokio::time::timeout(LIMIT, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(fixture.output("p", "main", &["hostname"]).await, "p\n");
    let asked = Instant::now();
    fixture.delete("p").await;
    eprintln!("deleted: {:?}", asked.elapsed());
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exits_logs_and_termination_messages_are_reported() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::open().await;
    let mut container = shell("echo one; echo two >&2; printf bye > /dev/termination-log; exit 7");
    container["terminationMessagePolicy"] = "File".into();
    fixture.create("p", plain(), json!({"restartPolicy": "Never", "containers": [container]})).await;
    let ended = terminated(&fixture.until_phase("p", "Failed").await);
    assert_eq!((ended.exit_code, ended.reason.as_deref()), (7, Some("Error")));
    assert_eq!(ended.message.as_deref(), Some("bye"));
    let mut lines: Vec<String> =
        fixture.logs("p", "main", false, LogOptions::default()).await.lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["one", "two"]);
    fixture.delete("p").await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn d_233_logs_are_followed_until_the_container_ends() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::open().await;
    let spec = json!({"restartPolicy": "Never", "containers": [shell("for i in 1 2 3; do echo $i; sleep 0.1; done")]});
    fixture.create("p", plain(), spec).await;
    fixture
        .until("p", "started", |p| {
            let statuses = p.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
            statuses.into_iter().any(|c| c.state.as_ref().is_some_and(|s| s.waiting.is_none()))
        })
        .await;
    let options = LogOptions { follow: true, ..LogOptions::default() };
    assert_eq!(fixture.logs("p", "main", false, options).await, "1\n2\n3\n");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crashing_container_restarts_and_keeps_its_previous_log() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::open().await;
    // The counter is in the writable layer, which is kept across restarts.
    let script = "n=$(cat /home/user/n 2>/dev/null || echo 0); echo $((n+1)) > /home/user/n; echo attempt $n; [ $n -ge 1 ] && sleep 1000; exit 5";
    fixture.create("p", plain(), json!({"containers": [shell(script)]})).await;
    let pod = fixture
        .until("p", "restarted", |p| {
            let mut statuses = p.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
            statuses.any(|c| c.restart_count == 1 && c.ready)
        })
        .await;
    let last = pod.status.unwrap().container_statuses.unwrap()[0].last_state.clone().unwrap().terminated.unwrap();
    assert_eq!(last.exit_code, 5);
    assert_eq!(fixture.logs("p", "main", true, LogOptions::default()).await, "attempt 0\n");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn init_containers_prepare_what_main_containers_share() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::open().await;
    let mount = json!([{"name": "shared", "mountPath": "/shared"}]);
    let mut init = shell("echo prepared > /shared/file");
    init["name"] = "init".into();
    init["volumeMounts"] = mount.clone();
    let mut side = shell("while true; do cat /shared/file > /shared/copy; sleep 0.05; done");
    side["name"] = "side".into();
    side["restartPolicy"] = "Always".into();
    side["volumeMounts"] = mount.clone();
    let mut main = shell("sleep 1000");
    main["volumeMounts"] = mount;
    main["readinessProbe"] = json!({"exec": {"command": ["grep", "prepared", "/shared/copy"]}});
    let spec = json!({"initContainers": [init, side], "containers": [main],
        "terminationGracePeriodSeconds": 1, "volumes": [{"name": "shared", "emptyDir": {}}]});
    fixture.create("p", plain(), spec).await;
    fixture.until_ready("p").await;
    assert_eq!(fixture.output("p", "main", &["cat", "/shared/copy"]).await, "prepared\n");
    fixture.delete("p").await;
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_does_not_exist_fails_with_its_name() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::open().await;
    let spec = json!({"restartPolicy": "Never",
        "containers": [{"name": "main", "image": "host", "command": ["/no/such/program"]}]});
    fixture.create("p", plain(), spec).await;
    let ended = terminated(&fixture.until_phase("p", "Failed").await);
    assert_eq!(ended.reason.as_deref(), Some("StartError"));
    assert!(ended.message.unwrap().contains("/no/such/program"));
    fixture.close().await;
}

/// The files that a Pod really has count, wherever it makes them; below the limit it is left alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_makes_too_many_files_is_evicted() {
    if !is_root() {
        return;
    }
    let often = Duration::from_millis(200);
    let storage =
        StoragePolicy { default_inodes: 2_000, check_every: often, sweep_every: often, ..StoragePolicy::default() };
    let fixture = Fixture::open_tuned(Tuning { storage, ..Tuning::default() }, |_| {}).await;
    let volumes = json!([{"name": "data", "emptyDir": {}}]);
    for (name, folder, files) in
        [("few", "/home/user", 1_000), ("layer", "/home/user", 5_000), ("volume", "/data", 5_000)]
    {
        let make = format!("for n in range({files}): open('{folder}/%d' % n, 'w')");
        let mut container = shell(&format!("python3 -c \"{make}\" && touch /tmp/made && sleep 1000"));
        container["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
        container["readinessProbe"] = json!({"exec": {"command": ["test", "-e", "/tmp/made"]}, "periodSeconds": 1});
        let spec = json!({"restartPolicy": "Never", "containers": [container], "volumes": volumes,
            "terminationGracePeriodSeconds": 0});
        fixture.create(name, plain(), spec).await;
    }
    for name in ["layer", "volume"] {
        let status = fixture.until_phase(name, "Failed").await.status.unwrap();
        assert_eq!(status.reason.as_deref(), Some("Evicted"));
        let message = status.message.unwrap();
        assert!(message.contains(" files and folders of 2000 allowed"), "{message}");
    }
    // It has made all of its files, and was measured with them as the others were.
    fixture.until_ready("few").await;
    fixture.close().await;
}
