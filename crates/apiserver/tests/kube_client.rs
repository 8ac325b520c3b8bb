//! The `kube` crate's own client over TLS, and in process: list, watch, patch, logs, exec, attach, port-forward.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests fail the test")]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use agent_sandbox_apiserver::ApiServer;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{
    AttachParams, DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams, TerminalSize, WatchEvent,
    WatchParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use support::{Cluster, running_pod};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;

const SOON: Duration = Duration::from_secs(10);

async fn tls_client(cluster: &Cluster) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(cluster.listener.kubeconfig()).unwrap();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

/// Both front doors, which must not differ.
async fn clients(cluster: &Cluster) -> [(&'static str, Client); 2] {
    [("tls", tls_client(cluster).await), ("in-process", cluster.server.client())]
}

fn config_map(name: &str, value: &str) -> ConfigMap {
    let labels = BTreeMap::from([("suite".to_owned(), "kube".to_owned())]);
    let mut map =
        ConfigMap { data: Some(BTreeMap::from([("key".to_owned(), value.to_owned())])), ..ConfigMap::default() };
    map.metadata.name = Some(name.into());
    map.metadata.labels = Some(labels);
    map
}

#[tokio::test]
async fn lists_page_filter_and_show_metadata_only() {
    let cluster = Cluster::start().await;
    for (door, client) in clients(&cluster).await {
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        for n in 0..5 {
            maps.create(&PostParams::default(), &config_map(&format!("{door}-{n}"), "x")).await.unwrap();
        }
        let first = maps.list(&ListParams::default().labels("suite=kube").limit(2)).await.unwrap();
        assert_eq!(first.items.len(), 2, "{door}");
        let token = first.metadata.continue_.unwrap();
        let rest =
            maps.list(&ListParams::default().labels("suite=kube").limit(500).continue_token(&token)).await.unwrap();
        assert!(rest.items.len() >= 3, "{door}");
        let named = maps.list(&ListParams::default().fields(&format!("metadata.name={door}-3"))).await.unwrap();
        assert_eq!(named.items.len(), 1, "{door}");
        let bare: Vec<PartialObjectMeta<ConfigMap>> = maps.list_metadata(&ListParams::default()).await.unwrap().items;
        assert!(bare.iter().any(|object| object.name_any() == format!("{door}-0")), "{door}");
        let one: PartialObjectMeta<ConfigMap> = maps.get_metadata(&format!("{door}-0")).await.unwrap();
        assert_eq!(one.labels()["suite"], "kube");
    }
}

#[tokio::test]
async fn watches_see_every_change_after_their_version() {
    let cluster = Cluster::start().await;
    for (door, client) in clients(&cluster).await {
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        let made = maps.create(&PostParams::default(), &config_map(door, "1")).await.unwrap();
        // This change happens before the watch starts, and must be seen all the same (D-183).
        maps.patch(door, &PatchParams::default(), &Patch::Merge(json!({"data": {"key": "2"}}))).await.unwrap();
        let parameters = WatchParams::default().fields(&format!("metadata.name={door}")).timeout(20);
        let mut events = maps.watch(&parameters, &made.resource_version().unwrap()).await.unwrap().boxed();
        let mut next =
            async || timeout(SOON, events.try_next()).await.expect("an event in time").unwrap().expect("an event");
        assert!(
            matches!(next().await, WatchEvent::Modified(map) if map.data.as_ref().unwrap()["key"] == "2"),
            "{door}"
        );
        maps.delete(door, &DeleteParams::default()).await.unwrap();
        assert!(matches!(next().await, WatchEvent::Deleted(_)), "{door}");
    }
}

/// D-184: a watch from nowhere starts with what there is; the runtime's watcher uses streaming lists and bookmarks.
#[tokio::test]
async fn the_runtime_watcher_is_initialised_and_follows() {
    let cluster = Cluster::start().await;
    for (door, client) in clients(&cluster).await {
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        maps.create(&PostParams::default(), &config_map(door, "1")).await.unwrap();
        let config = watcher::Config::default().fields(&format!("metadata.name={door}")).streaming_lists();
        let mut events = watcher(maps.clone(), config).boxed();
        let mut seen = Vec::new();
        while seen.last() != Some(&"done") {
            let event = timeout(SOON, events.try_next()).await.expect("an event in time").unwrap().unwrap();
            seen.push(match event {
                watcher::Event::Init => "init",
                watcher::Event::InitApply(_) => "object",
                watcher::Event::InitDone => "done",
                _ => "change",
            });
        }
        assert_eq!(seen, ["init", "object", "done"], "{door}");
        maps.patch(door, &PatchParams::default(), &Patch::Merge(json!({"data": {"key": "2"}}))).await.unwrap();
        let event = timeout(SOON, events.try_next()).await.expect("an event in time").unwrap().unwrap();
        assert!(matches!(event, watcher::Event::Apply(map) if map.data.as_ref().unwrap()["key"] == "2"));
    }
}

#[tokio::test]
async fn metadata_watches_carry_no_data() {
    let cluster = Cluster::start().await;
    let client = tls_client(&cluster).await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let mut events = maps.watch_metadata(&WatchParams::default().timeout(20), "0").await.unwrap().boxed();
    maps.create(&PostParams::default(), &config_map("bare", "1")).await.unwrap();
    loop {
        match timeout(SOON, events.try_next()).await.expect("an event in time").unwrap().expect("an event") {
            WatchEvent::Added(object) if object.name_any() == "bare" => {
                assert_eq!(object.types.unwrap().kind, "PartialObjectMetadata");
                break;
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn patches_of_three_kinds_apply_and_conflicts_are_reported() {
    let cluster = Cluster::start().await;
    for (door, client) in clients(&cluster).await {
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        let made = maps.create(&PostParams::default(), &config_map(door, "1")).await.unwrap();
        let changes = json!([{"op": "replace", "path": "/data/key", "value": "2"}]);
        let changes = Patch::<()>::Json(serde_json::from_value(changes).unwrap());
        let patched = maps.patch(door, &PatchParams::default(), &changes).await.unwrap();
        assert_eq!(patched.data.unwrap()["key"], "2", "{door}");
        let patched =
            maps.patch(door, &PatchParams::default(), &Patch::Merge(json!({"data": {"more": "3"}}))).await.unwrap();
        assert_eq!(patched.data.unwrap().len(), 2, "{door}");
        let patched =
            maps.patch(door, &PatchParams::default(), &Patch::Strategic(json!({"data": {"key": null}}))).await.unwrap();
        assert_eq!(patched.data.unwrap(), BTreeMap::from([("more".to_owned(), "3".to_owned())]), "{door}");
        let stale = maps.replace(door, &PostParams::default(), &made).await.unwrap_err();
        assert!(
            matches!(stale, kube::Error::Api(status) if status.code == 409 && status.reason == "Conflict"),
            "{door}"
        );
        // D-194: a delete that names another uid leaves the object.
        let preconditions = kube::api::Preconditions { uid: Some("other".into()), resource_version: None };
        let refused = maps
            .delete(door, &DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() })
            .await
            .unwrap_err();
        assert!(matches!(refused, kube::Error::Api(status) if status.code == 409), "{door}");
        maps.get(door).await.unwrap();
    }
}

async fn create_pod(server: &ApiServer) -> Api<Pod> {
    let pods: Api<Pod> = Api::namespaced(server.client(), "default");
    pods.create(&PostParams::default(), &serde_json::from_value(running_pod("p", &["main"])).unwrap()).await.unwrap();
    pods
}

/// D-232: exec with separate outputs and an exit code, and a terminal whose size changes arrive.
#[tokio::test]
async fn exec_and_terminals_work_through_both_doors() {
    let cluster = Cluster::start().await;
    create_pod(&cluster.server).await;
    for (door, client) in clients(&cluster).await {
        let pods: Api<Pod> = Api::default_namespaced(client);
        let mut process = pods
            .exec("p", ["sh", "-c", "cat; echo err >&2; exit 5"], &AttachParams::default().stdin(true).stderr(true))
            .await
            .unwrap();
        let status = process.take_status().unwrap();
        let mut stdin = process.stdin().unwrap();
        stdin.write_all(b"typed").await.unwrap();
        stdin.shutdown().await.unwrap();
        drop(stdin);
        let (mut out, mut err) = (String::new(), String::new());
        let (mut stdout, mut stderr) = (process.stdout().unwrap(), process.stderr().unwrap());
        let read = async { tokio::join!(stdout.read_to_string(&mut out), stderr.read_to_string(&mut err)) };
        let (first, second) = timeout(SOON, read).await.expect("output in time");
        first.and(second).unwrap();
        let status = timeout(SOON, status).await.expect("a status in time").unwrap();
        assert_eq!((out.as_str(), err.as_str()), ("typed", "err\n"), "{door}");
        assert_eq!(status.details.unwrap().causes.unwrap()[0].message.as_deref(), Some("5"), "{door}");

        let mut terminal = pods.exec("p", ["sh"], &AttachParams::interactive_tty()).await.unwrap();
        let mut screen = terminal.stdout().unwrap();
        terminal.terminal_size().unwrap().try_send(TerminalSize { width: 132, height: 43 }).unwrap();
        let mut shown = [0; 64];
        let length = timeout(SOON, screen.read(&mut shown)).await.expect("a size in time").unwrap();
        assert_eq!(&shown[..length], b"size 132x43\r\n", "{door}");
        terminal.abort();
    }
}

/// D-232: a client that goes away takes its command with it.
#[tokio::test]
async fn a_command_ends_when_its_client_leaves() {
    let cluster = Cluster::start().await;
    create_pod(&cluster.server).await;
    let pods: Api<Pod> = Api::default_namespaced(tls_client(&cluster).await);
    let marker = cluster.folder.path().join("alive");
    let script = format!("while :; do date +%s%N > {}; sleep 0.05; done", marker.display());
    let process = pods.exec("p", ["sh", "-c", &script], &AttachParams::default()).await.unwrap();
    let written = async {
        while !marker.exists() {
            tokio::time::sleep(Duration::from_millis(20)).await
        }
    };
    timeout(SOON, written).await.expect("the command runs");
    process.abort();
    drop(process);
    let stopped = async {
        loop {
            let before = std::fs::read(&marker).unwrap();
            tokio::time::sleep(Duration::from_millis(400)).await;
            if std::fs::read(&marker).unwrap() == before {
                return;
            }
        }
    };
    timeout(SOON, stopped).await.expect("the command ends");
}

/// D-233: logs, once and followed.
#[tokio::test]
async fn logs_come_as_text_and_as_a_stream() {
    let cluster = Cluster::start().await;
    create_pod(&cluster.server).await;
    for (door, client) in clients(&cluster).await {
        let pods: Api<Pod> = Api::default_namespaced(client);
        let last = pods.logs("p", &LogParams { tail_lines: Some(2), ..LogParams::default() }).await.unwrap();
        assert_eq!(last, "third\nfourth\n", "{door}");
        let parameters = LogParams { follow: true, tail_lines: Some(0), ..LogParams::default() };
        let mut followed = String::new();
        let stream = pods.log_stream("p", &parameters).await.unwrap();
        let mut reader = Box::pin(tokio_util::compat::FuturesAsyncReadCompatExt::compat(stream));
        timeout(SOON, reader.read_to_string(&mut followed)).await.expect("the end in time").unwrap();
        assert_eq!(followed, "later 0\nlater 1\n", "{door}");
    }
}

/// Port-forward over plain WebSocket channels, as the `kube` crate and the Python client do it.
#[tokio::test]
async fn ports_are_forwarded_over_channels() {
    let cluster = Cluster::start().await;
    create_pod(&cluster.server).await;
    let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = target.local_addr().unwrap().port();
    let serving = tokio::spawn(async move {
        for _ in 0..2 {
            let (mut connection, _) = target.accept().await.unwrap();
            let mut bytes = [0; 4];
            connection.read_exact(&mut bytes).await.unwrap();
            bytes.make_ascii_uppercase();
            connection.write_all(&bytes).await.unwrap();
        }
    });
    for (door, client) in clients(&cluster).await {
        let pods: Api<Pod> = Api::default_namespaced(client);
        let mut forwarder = pods.portforward("p", &[port]).await.unwrap();
        let mut connection = forwarder.take_stream(port).unwrap();
        connection.write_all(b"ping").await.unwrap();
        let mut answer = [0; 4];
        timeout(SOON, connection.read_exact(&mut answer)).await.expect("an answer in time").unwrap();
        assert_eq!(&answer, b"PING", "{door}");
    }
    serving.await.unwrap();
}

/// A listener that closes ends watches, lets requests finish, and takes no new ones.
#[tokio::test]
async fn shutdown_ends_watches_and_refuses_new_connections() {
    let cluster = Cluster::start().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(tls_client(&cluster).await);
    let mut events = maps.watch(&WatchParams::default().timeout(200), "0").await.unwrap().boxed();
    maps.create(&PostParams::default(), &config_map("one", "1")).await.unwrap();
    timeout(SOON, events.next()).await.expect("an event in time");
    let address = cluster.listener.address();
    timeout(SOON, cluster.listener.shutdown(Duration::from_secs(5))).await.expect("closed in time");
    let ended = async { while let Some(Ok(_)) = events.next().await {} };
    timeout(SOON, ended).await.expect("the watch ends");
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_lean_client_sees_the_same_objects_with_empty_records() {
    let server = ApiServer::open(agent_sandbox_apiserver::Config::default()).await.unwrap();
    let [full, lean]: [Api<Pod>; 2] = [server.client(), server.lean_client()].map(Api::default_namespaced);
    let mut changes = lean.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    let pod: Pod = serde_json::from_value(running_pod("p", &["main", "side"])).unwrap();
    let answered = lean.create(&PostParams::default(), &pod).await.unwrap();
    let watched = loop {
        if let WatchEvent::Added(pod) = timeout(SOON, changes.try_next()).await.unwrap().unwrap().unwrap() {
            break pod;
        }
    };
    let stored = full.get("p").await.unwrap();
    let records = |pod: &Pod| -> Vec<_> {
        pod.managed_fields().iter().map(|entry| (entry.manager.clone(), entry.fields_v1.clone().unwrap().0)).collect()
    };
    assert!(records(&stored).iter().all(|(_, fields)| fields.get("f:spec").is_some()));
    for seen in [answered, watched] {
        assert_eq!(records(&seen), records(&stored).into_iter().map(|(name, _)| (name, json!({}))).collect::<Vec<_>>());
        let [seen, stored] = [seen, stored.clone()].map(|mut pod| {
            pod.metadata.managed_fields = None;
            pod
        });
        assert_eq!(seen, stored);
    }
}
