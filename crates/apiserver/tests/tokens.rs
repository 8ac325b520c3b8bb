//! The life of tokens: expiry, revocation, replacement of the administrator's, and the end of sessions that depend on
//! one.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, reason = "helpers of tests fail the test")]

mod support;

use std::time::{Duration, Instant};

use agent_sandbox_apiserver::{ApiServer, Config, ListenerConfig, UserInfo};
use futures::StreamExt as _;
use futures::io::AsyncBufReadExt as _;
use http::Request;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{Api, DeleteParams, LogParams, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config as ClientConfig};
use serde_json::json;
use support::node::ENDLESS;
use support::{Cluster, running_pod};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

async fn client_with(kubeconfig: &str, token: Option<&str>) -> Client {
    let mut file = Kubeconfig::from_yaml(kubeconfig).unwrap();
    if let Some(token) = token {
        let user = json!({"token": token});
        file.auth_infos[0].auth_info = Some(serde_json::from_value(user).unwrap());
    }
    let config = ClientConfig::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

/// The code of a request for the namespace `default`.
async fn code(client: &Client) -> u16 {
    match Api::<Namespace>::all(client.clone()).get("default").await {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("{error}"),
    }
}

/// A ServiceAccount that may do everything in `default`, and a token of it.
async fn account(server: &ApiServer) -> String {
    let accounts: Api<ServiceAccount> = Api::namespaced(server.client(), "default");
    let named = serde_json::from_value(json!({"metadata": {"name": "bot"}})).unwrap();
    accounts.create(&PostParams::default(), &named).await.unwrap();
    let bindings: Api<RoleBinding> = Api::namespaced(server.client(), "default");
    let binding = json!({
        "metadata": {"name": "bot"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "bot", "namespace": "default"}],
    });
    bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
    let wanted = serde_json::from_value::<TokenRequest>(json!({"spec": {"audiences": []}, "metadata": {}})).unwrap();
    let made = accounts.create_token_request("bot", &PostParams::default(), &wanted).await.unwrap();
    made.status.unwrap().token.unwrap()
}

#[tokio::test]
async fn the_administrators_token_is_replaced_at_once_and_across_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("api");
    let kubeconfig = folder.path().join("kubeconfig");
    let open = || async {
        let server = ApiServer::open(Config { data_dir: Some(data.clone()), ..Config::default() }).await.unwrap();
        let config = ListenerConfig { kubeconfig: Some(kubeconfig.clone()), ..ListenerConfig::default() };
        let listener = server.listen(config).await.unwrap();
        (server, listener)
    };
    let read = || std::fs::read_to_string(&kubeconfig).unwrap();
    let (server, listener) = open().await;
    let old = client_with(&read(), None).await;
    assert_eq!(code(&old).await, 200);
    server.rotate_admin_token().unwrap();
    assert_eq!(code(&old).await, 401, "the old token ends at once, on its open connection too");
    let new = client_with(&read(), None).await;
    assert_eq!(code(&new).await, 200);
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&kubeconfig).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let rotated = read();
    listener.shutdown(Duration::from_secs(1)).await;
    server.close();
    let (_server, _listener) = open().await;
    let token = |text: &str| text.lines().find(|line| line.contains("token:")).map(str::to_owned);
    assert_eq!(token(&read()), token(&rotated), "the new token is the one that was saved");
}

#[tokio::test]
async fn a_revoked_token_and_one_of_a_deleted_account_are_refused() {
    let cluster = Cluster::start().await;
    let token = account(&cluster.server).await;
    let bot = client_with(cluster.listener.kubeconfig(), Some(&token)).await;
    assert_eq!(code(&bot).await, 200);
    let listed = cluster.server.issued_tokens();
    assert_eq!((listed.len(), listed[0].account.as_str(), listed[0].namespace.as_str()), (1, "bot", "default"));
    assert_eq!(listed[0].expires - listed[0].issued, 3600);
    assert_eq!(cluster.server.revoke_token(&listed[0].id).unwrap(), listed[0].id);
    assert_eq!(code(&bot).await, 401);
    assert!(cluster.server.issued_tokens().is_empty());
    let unknown = cluster.server.revoke_token("no-such-id").unwrap_err().to_string();
    assert!(unknown.contains("no-such-id"), "{unknown}");
    let hidden = cluster.server.revoke_token("a.secret.token").unwrap_err().to_string();
    assert!(!hidden.contains("secret"), "{hidden}");
    assert!(cluster.server.revoke_token(&token).is_ok(), "a token can be given itself");
}

/// A port-forward of a user who loses access ends, also if the role binding stays.
#[tokio::test]
async fn an_open_port_forward_ends_with_its_service_account() {
    let cluster = Cluster::start().await;
    let token = account(&cluster.server).await;
    let pods: Api<Pod> = Api::namespaced(cluster.server.client(), "default");
    let pod = serde_json::from_value(running_pod("p", &["a"])).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        let (mut reader, mut writer) = connection.split();
        let _ = tokio::io::copy(&mut reader, &mut writer).await;
    });
    let bot = client_with(cluster.listener.kubeconfig(), Some(&token)).await;
    let mut forward = Api::<Pod>::namespaced(bot, "default").portforward("p", &[port]).await.unwrap();
    let mut stream = forward.take_stream(port).unwrap();
    stream.write_all(b"hello").await.unwrap();
    let mut echo = [0; 5];
    stream.read_exact(&mut echo).await.unwrap();
    assert_eq!(&echo, b"hello");
    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.server.client(), "default");
    accounts.delete("bot", &DeleteParams::default()).await.unwrap();
    let started = Instant::now();
    let ended = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut echo)).await.expect("the session ends");
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    assert!(started.elapsed() < Duration::from_secs(5));
}

/// A watch and a followed log end with the token that they were opened with, as sessions do.
#[tokio::test]
async fn an_open_watch_and_a_followed_log_end_with_their_token() {
    let cluster = Cluster::start().await;
    let token = account(&cluster.server).await;
    let pods: Api<Pod> = Api::namespaced(cluster.server.client(), "default");
    let pod = serde_json::from_value(running_pod(ENDLESS, &["a"])).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let bot = client_with(cluster.listener.kubeconfig(), Some(&token)).await;
    let own: Api<Pod> = Api::namespaced(bot, "default");
    let mut watch = own.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    assert!(matches!(watch.next().await, Some(Ok(WatchEvent::Added(_)))));
    let follow = LogParams { follow: true, ..LogParams::default() };
    let mut lines = own.log_stream(ENDLESS, &follow).await.unwrap().lines();
    assert_eq!(lines.next().await.unwrap().unwrap(), "first");

    cluster.server.revoke_token(&token).unwrap();
    let started = Instant::now();
    let watch_ends = async { while watch.next().await.is_some() {} };
    let log_ends = async { while lines.next().await.is_some() {} };
    let both = async { tokio::join!(watch_ends, log_ends) };
    tokio::time::timeout(Duration::from_secs(10), both).await.expect("the watch and the log end");
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn in_process_users_have_no_token_that_could_end() {
    let cluster = Cluster::start().await;
    cluster.server.rotate_admin_token().unwrap();
    let request = Request::builder().uri("/api/v1/namespaces/default").body(http_body_util::Empty::new()).unwrap();
    let response = cluster.server.handle(&UserInfo::administrator(), request).await;
    assert_eq!(response.status(), 200);
}
