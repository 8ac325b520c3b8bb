//! The audit log of a server: what components of the process do is recorded only where a policy wants it, what they do
//! for a user of the network always, and changes of tokens too.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use agent_sandbox_apiserver::{ApiServer, Config, ListenerConfig, UserInfo};
use agent_sandbox_telemetry::audit::{self, Action, AuditConfig, Decision, Record};
use http::HeaderName;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Runs `work` with a server whose audit log is in a file, and returns the records.
async fn recorded(work: impl AsyncFnOnce(&ApiServer)) -> Vec<Record> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    let config = AuditConfig { target: path.display().to_string(), redaction_file: None };
    let log = config.open().unwrap();
    let data_dir = Some(folder.path().join("api"));
    let server = ApiServer::open(Config { data_dir, audit: Some(log.clone()), ..Config::default() }).await.unwrap();
    work(&server).await;
    server.close();
    // A record of the test's own comes after all others.
    log.write(Record::new(audit::Source::Api, Action::Other, Decision::Deny, 599));
    loop {
        let mut records: Vec<Record> = audit::read(&path).unwrap().map(Result::unwrap).collect();
        if records.last().is_some_and(|last| last.status == 599) {
            records.pop();
            return records;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

fn user(name: &str) -> UserInfo {
    UserInfo { username: name.to_owned(), groups: vec!["system:authenticated".to_owned()], ..UserInfo::default() }
}

#[tokio::test]
async fn what_is_done_for_a_user_is_recorded_and_a_components_own_work_is_not() {
    let records = recorded(async |server| {
        let own: Api<ConfigMap> = Api::namespaced(server.client(), "default");
        own.create(&PostParams::default(), &object(json!({"metadata": {"name": "internal"}}))).await.unwrap();
        let bindings: Api<RoleBinding> = Api::namespaced(server.client(), "default");
        let binding = json!({
            "metadata": {"name": "alice"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}],
        });
        bindings.create(&PostParams::default(), &object(binding)).await.unwrap();
        let configs: Api<ConfigMap> = Api::namespaced(server.client_as(user("alice")), "default");
        let made = configs.create(&PostParams::default(), &object(json!({"metadata": {"generateName": "a-"}}))).await;
        let name = made.unwrap().metadata.name.unwrap();
        configs.get(&name).await.unwrap();
        configs.delete(&name, &DeleteParams::default()).await.unwrap();
        let foreign: Api<ConfigMap> = Api::namespaced(server.client_as(user("alice")), "kube-system");
        foreign.get("any").await.unwrap_err();
    })
    .await;
    let seen: Vec<_> = records.iter().map(|one| (one.user.as_str(), one.action, one.decision, one.status)).collect();
    assert_eq!(
        seen,
        [
            ("alice", Action::Create, Decision::Allow, 201),
            ("alice", Action::Delete, Decision::Allow, 200),
            ("alice", Action::Other, Decision::Deny, 403),
        ]
    );
    assert!(records[0].name.starts_with("a-") && records[0].name == records[1].name, "{records:?}");
}

/// An impersonated request is recorded with both users, a refused impersonation with the one who asked for it.
#[tokio::test]
async fn impersonation_does_not_hide_who_sent_a_request() {
    let records = recorded(async |server| {
        let listener = server.listen(ListenerConfig::default()).await.unwrap();
        let kubeconfig = Kubeconfig::from_yaml(listener.kubeconfig()).unwrap();
        let configs = async |token: Option<String>, user: &str| -> Api<ConfigMap> {
            let options = KubeConfigOptions::default();
            let mut config = kube::Config::from_custom_kubeconfig(kubeconfig.clone(), &options).await.unwrap();
            if let Some(token) = token {
                config.auth_info.token = Some(token.into());
            }
            config.headers.push((HeaderName::from_static("impersonate-user"), user.parse().unwrap()));
            Api::namespaced(Client::try_from(config).unwrap(), "default")
        };
        let new = |name: &str| object(json!({"metadata": {"name": name}}));
        let as_bob = configs(None, "bob").await;
        as_bob.create(&PostParams::default(), &new("a")).await.unwrap_err();
        let accounts: Api<ServiceAccount> = Api::namespaced(server.client(), "default");
        accounts.create(&PostParams::default(), &object(json!({"metadata": {"name": "bot"}}))).await.unwrap();
        let wanted = object(json!({"spec": {"audiences": []}, "metadata": {}}));
        let made = accounts.create_token_request("bot", &PostParams::default(), &wanted).await.unwrap();
        let as_admin = configs(made.status.map(|status| status.token.unwrap()), "kubernetes-admin").await;
        as_admin.create(&PostParams::default(), &new("b")).await.unwrap_err();
        listener.shutdown(std::time::Duration::from_secs(1)).await;
    })
    .await;
    let users: Vec<_> = records.iter().map(|one| (one.user.as_str(), one.impersonator.as_str(), one.status)).collect();
    assert_eq!(users, [("bob", "kubernetes-admin", 403), ("system:serviceaccount:default:bot", "", 403)]);
}

#[tokio::test]
async fn the_label_audit_of_a_namespace_puts_violations_into_the_log() {
    const REASON: &str = r#"would violate PodSecurity "baseline:latest": host namespaces (hostNetwork=true)"#;
    let records = recorded(async |server| {
        let namespaces: Api<Namespace> = Api::all(server.client());
        let label = json!({"metadata": {"labels": {"pod-security.kubernetes.io/audit": "baseline"}}});
        namespaces.patch("default", &PatchParams::default(), &Patch::Merge(label)).await.unwrap();
        let pods: Api<Pod> = Api::namespaced(server.client(), "default");
        let pod = |name: &str, host: bool| {
            let containers = json!([{"name": "c", "image": "host"}]);
            object(json!({"metadata": {"name": name}, "spec": {"hostNetwork": host, "containers": containers}}))
        };
        pods.create(&PostParams::default(), &pod("harmless", false)).await.unwrap();
        pods.create(&PostParams::default(), &pod("wide", true)).await.unwrap();
        let by_user: Api<Pod> = Api::namespaced(server.client_as(UserInfo::administrator()), "default");
        by_user.create(&PostParams::default(), &pod("asked", true)).await.unwrap();
        by_user.create(&PostParams::default(), &pod("plain", false)).await.unwrap();
    })
    .await;
    let seen: Vec<_> = records.iter().map(|one| (one.name.as_str(), one.action, one.reason.as_str())).collect();
    let create = Action::Create;
    assert_eq!(seen, [("wide", create, REASON), ("asked", create, REASON), ("plain", create, "")]);
    assert!(records.iter().all(|one| (one.decision, one.status) == (Decision::Allow, 201)));
}

#[tokio::test]
async fn changes_of_tokens_are_recorded() {
    let records = recorded(async |server| {
        server.rotate_admin_token().unwrap();
        server.revoke_token("no-such-token").unwrap_err();
    })
    .await;
    let seen: Vec<_> = records.iter().map(|one| (one.action, one.status)).collect();
    assert_eq!(seen, [(Action::RotateToken, 200), (Action::RevokeToken, 500)]);
    assert!(records.iter().all(|one| one.user == "kubernetes-admin" && one.resource == "tokens"));
    assert!(records[1].reason.contains("no-such-token"), "{}", records[1].reason);
}
