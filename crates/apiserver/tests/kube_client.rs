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

const TIMEOUT: Duration = Duration::from_secs(10);

async fn tls_client(cluster: &Cluster) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(cluster.listener.kubeconfig()).unwrap();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

/// Clients over both transports, which must behave alike.
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
    for (transport, client) in clients(&cluster).await {
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        for n in 0..5 {
            maps.create(&PostParams::default(), &config_map(&format!("{transport}-{n}"), "x")).await.unwrap();
        }
        let first = maps.list(&ListParams::default().labels("suite=kube").limit(2)).await.unwrap();
        assert_eq!(first.items.len(), 2, "{transport}");
        let token = first.metadata.continue_.unwrap();
        let rest =
            maps.list(&ListParams::default().labels("suite=kube").limit(500).continue_token(&token)).await.unwrap();
        assert!(rest.items.len() >= 3, "{transport}");
        let named = maps.list(&ListParams::default().fields(&format!("metadata.name={transport}-3"))).await.unwrap();
        assert_eq!(named.items.len(), 1, "{transport}");
        let bare: Vec<PartialObjectMeta<ConfigMap>> = maps.list_metadata(&ListParams::default()).await.unwrap().items;
        assert!(bare.iter().any(|object| object.name_any() == format!("{transport}-0")), "{transport}");
        let one: PartialObjectMeta<ConfigMap> = maps.get_metadata(&format!("{transport}-0")).await.unwrap();
        assert_eq!(one.labels()["suite"], "kube");
    }
}

#[tokio::test]
async fn watches_see_every_change_after_their_version() {
    let cluster = Cluster::start().await;
    for (transport, client) in clients(&cluster).await {
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        let made = maps.create(&PostParams::default(), &config_map(transport, "1")).await.unwrap();
        // This change happens before the watch starts, and must be seen all the same (D-183).
        maps.patch(transport, &PatchParams::default(), &Patch::Merge(json!({"data": {"key": "2"}}))).await.unwrap();
        let parameters = WatchParams::default().fields(&format!("metadata.name={transport}")).timeout(20);
        let mut events = maps.watch(&parameters, &made.resource_version().unwrap()).await.unwrap().boxed();
        let mut next =
            async || timeout(TIMEOUT, events.try_next()).await.expect("an event in time").unwrap().expect("an event");
        assert!(
            matches!(next().await, WatchEvent::Modified(map) if map.data.as_ref().unwrap()["key"] == "2"),
            "{transport}"
        );
        maps.delete(transport, &DeleteParams::default()).await.unwrap();
        assert!(matches!(next().await, WatchEvent::Deleted(_)), "{transport}");
    }
}

/// D-184: a watch without a version starts with the current objects; the runtime's watcher uses streaming lists and
/// bookmarks.
#[tokio::test]
async fn the_runtime_watcher_is_initialized_and_sees_changes() {
    let cluster = Cluster::start().await;
    for (transport, client) in clients(&cluster).await {
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        maps.create(&PostParams::default(), &config_map(transport, "1")).await.unwrap();
        let config = watcher::Config::default().fields(&format!("metadata.name={transport}")).streaming_lists();
        let mut events = watcher(maps.clone(), config).boxed();
        let mut seen = Vec::new();
        while seen.last() != Some(&"done") {
            let event = timeout(TIMEOUT, events.try_next()).await.expect("an event in time").unwrap().unwrap();
            seen.push(match event {
                watcher::Event::Init => "init",
                watcher::Event::InitApply(_) => "object",
                watcher::Event::InitDone => "done",
                _ => "change",
            });
        }
        assert_eq!(seen, ["init", "object", "done"], "{transport}");
        maps.patch(transport, &PatchParams::default(), &Patch::Merge(json!({"data": {"key": "2"}}))).await.unwrap();
        let event = timeout(TIMEOUT, events.try_next()).await.expect("an event in time").unwrap().unwrap();
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
        match timeout(TIMEOUT, events.try_next()).await.expect("an event in time").unwrap().expect("an event") {
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
    for (transport, client) in clients(&cluster).await {
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        let made = maps.create(&PostParams::default(), &config_map(transport, "1")).await.unwrap();
        let changes = json!([{"op": "replace", "path": "/data/key", "value": "2"}]);
        let changes = Patch::<()>::Json(serde_json::from_value(changes).unwrap());
        let patched = maps.patch(transport, &PatchParams::default(), &changes).await.unwrap();
        assert_eq!(patched.data.unwrap()["key"], "2", "{transport}");
        let patched = maps
            .patch(transport, &PatchParams::default(), &Patch::Merge(json!({"data": {"more": "3"}})))
            .await
            .unwrap();
        assert_eq!(patched.data.unwrap().len(), 2, "{transport}");
        let patched = maps
            .patch(transport, &PatchParams::default(), &Patch::Strategic(json!({"data": {"key": null}})))
            .await
            .unwrap();
        assert_eq!(patched.data.unwrap(), BTreeMap::from([("more".to_owned(), "3".to_owned())]), "{transport}");
        let stale = maps.replace(transport, &PostParams::default(), &made).await.unwrap_err();
        assert!(
            matches!(stale, kube::Error::Api(status) if status.code == 409 && status.reason == "Conflict"),
            "{transport}"
        );
        // D-194: a delete that names another uid leaves the object.
        let preconditions = kube::api::Preconditions { uid: Some("other".into()), resource_version: None };
        let refused = maps
            .delete(transport, &DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() })
            .await
            .unwrap_err();
        assert!(matches!(refused, kube::Error::Api(status) if status.code == 409), "{transport}");
        maps.get(transport).await.unwrap();
    }
}

async fn create_pod(server: &ApiServer) -> Api<Pod> {
    let pods: Api<Pod> = Api::namespaced(server.client(), "default");
    pods.create(&PostParams::default(), &serde_json::from_value(running_pod("p", &["main"])).unwrap()).await.unwrap();
    pods
}

/// D-232: exec with separate stdout and stderr and an exit code, and a terminal that is resized.
#[tokio::test]
async fn exec_and_terminals_work_over_both_transports() {
    let cluster = Cluster::start().await;
    create_pod(&cluster.server).await;
    for (transport, client) in clients(&cluster).await {
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
        let (first, second) = timeout(TIMEOUT, read).await.expect("output in time");
        first.and(second).unwrap();
        let status = timeout(TIMEOUT, status).await.expect("a status in time").unwrap();
        assert_eq!((out.as_str(), err.as_str()), ("typed", "err\n"), "{transport}");
        assert_eq!(status.details.unwrap().causes.unwrap()[0].message.as_deref(), Some("5"), "{transport}");

        let mut terminal = pods.exec("p", ["sh"], &AttachParams::interactive_tty()).await.unwrap();
        let mut screen = terminal.stdout().unwrap();
        terminal.terminal_size().unwrap().try_send(TerminalSize { width: 132, height: 43 }).unwrap();
        let mut shown = [0; 64];
        let length = timeout(TIMEOUT, screen.read(&mut shown)).await.expect("a size in time").unwrap();
        assert_eq!(&shown[..length], b"size 132x43\r\n", "{transport}");
        terminal.abort();
    }
}

/// D-232: the command is killed when its client disconnects.
#[tokio::test]
async fn a_command_ends_when_its_client_disconnects() {
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
    timeout(TIMEOUT, written).await.expect("the command runs");
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
    timeout(TIMEOUT, stopped).await.expect("the command ends");
}

/// D-233: logs as text, and followed as a stream.
#[tokio::test]
async fn logs_are_served_as_text_and_as_a_stream() {
    let cluster = Cluster::start().await;
    create_pod(&cluster.server).await;
    for (transport, client) in clients(&cluster).await {
        let pods: Api<Pod> = Api::default_namespaced(client);
        let last = pods.logs("p", &LogParams { tail_lines: Some(2), ..LogParams::default() }).await.unwrap();
        assert_eq!(last, "third\nfourth\n", "{transport}");
        let parameters = LogParams { follow: true, tail_lines: Some(0), ..LogParams::default() };
        let mut followed = String::new();
        let stream = pods.log_stream("p", &parameters).await.unwrap();
        let mut reader = Box::pin(tokio_util::compat::FuturesAsyncReadCompatExt::compat(stream));
        timeout(TIMEOUT, reader.read_to_string(&mut followed)).await.expect("the end in time").unwrap();
        assert_eq!(followed, "later 0\nlater 1\n", "{transport}");
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
    for (transport, client) in clients(&cluster).await {
        let pods: Api<Pod> = Api::default_namespaced(client);
        let mut forwarder = pods.portforward("p", &[port]).await.unwrap();
        let mut connection = forwarder.take_stream(port).unwrap();
        connection.write_all(b"ping").await.unwrap();
        let mut response = [0; 4];
        timeout(TIMEOUT, connection.read_exact(&mut response)).await.expect("a response in time").unwrap();
        assert_eq!(&response, b"PING", "{transport}");
    }
    serving.await.unwrap();
}

/// Shutdown of the listener ends watches, lets requests finish, and refuses new connections.
#[tokio::test]
async fn shutdown_ends_watches_and_refuses_new_connections() {
    let cluster = Cluster::start().await;
    let maps: Api<ConfigMap> = Api::default_namespaced(tls_client(&cluster).await);
    let mut events = maps.watch(&WatchParams::default().timeout(200), "0").await.unwrap().boxed();
    maps.create(&PostParams::default(), &config_map("one", "1")).await.unwrap();
    timeout(TIMEOUT, events.next()).await.expect("an event in time");
    let address = cluster.listener.address();
    timeout(TIMEOUT, cluster.listener.shutdown(Duration::from_secs(5))).await.expect("closed in time");
    let ended = async { while let Some(Ok(_)) = events.next().await {} };
    timeout(TIMEOUT, ended).await.expect("the watch ends");
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_client_without_managed_fields_gets_the_same_objects_with_empty_entries() {
    let server = ApiServer::open(agent_sandbox_apiserver::Config::default()).await.unwrap();
    let [full, trimmed]: [Api<Pod>; 2] =
        [server.client(), server.client_without_managed_fields()].map(Api::default_namespaced);
    let mut changes = trimmed.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    let pod: Pod = serde_json::from_value(running_pod("p", &["main", "side"])).unwrap();
    let created = trimmed.create(&PostParams::default(), &pod).await.unwrap();
    let watched = loop {
        if let WatchEvent::Added(pod) = timeout(TIMEOUT, changes.try_next()).await.unwrap().unwrap().unwrap() {
            break pod;
        }
    };
    let stored = full.get("p").await.unwrap();
    let records = |pod: &Pod| -> Vec<_> {
        pod.managed_fields().iter().map(|entry| (entry.manager.clone(), entry.fields_v1.clone().unwrap().0)).collect()
    };
    assert!(records(&stored).iter().all(|(_, fields)| fields.get("f:spec").is_some()));
    for seen in [created, watched] {
        assert_eq!(records(&seen), records(&stored).into_iter().map(|(name, _)| (name, json!({}))).collect::<Vec<_>>());
        let [seen, stored] = [seen, stored.clone()].map(|mut pod| {
            pod.metadata.managed_fields = None;
            pod
        });
        assert_eq!(seen, stored);
    }
}
