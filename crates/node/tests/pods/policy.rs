//! Tests of NetworkPolicies with real traffic: between Pods, and between a Pod and a network outside the machine.

use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Command, Stdio};

use agent_sandbox_node::runtime::ExecRequest;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::fixture::{Fixture, LIMIT, is_root, key, shell};

async fn policy(fixture: &Fixture, name: &str, spec: Value) {
    let api: Api<NetworkPolicy> = Api::namespaced(fixture.client.clone(), "default");
    let object = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
}

/// A server in Python that accepts connections on several ports, for Pods and for the outside network.
const SERVER: &str = "import socket,threading
def serve(port):
    s=socket.create_server(('0.0.0.0', port))
    while True:
        c,_=s.accept(); c.close()
for p in (8000, 8005, 9000): threading.Thread(target=serve, args=(p,)).start()";

async fn pod(fixture: &Fixture, name: &str, container: Value) -> IpAddr {
    let metadata = json!({"labels": {"app": name},
        "annotations": {"runtime.agents.x-k8s.io/inject-sandboxd": "false"}});
    fixture.create(name, metadata, json!({"containers": [container], "terminationGracePeriodSeconds": 0})).await;
    let ready = fixture.until_ready(name).await;
    ready.status.unwrap().pod_ip.unwrap().parse().unwrap()
}

/// Whether a Pod can connect. Only a timeout counts as closed; a refused connection would mean that a packet came back.
async fn reaches(fixture: &Fixture, name: &str, address: IpAddr, port: u16) -> bool {
    let script = format!(
        "import socket\ntry:\n socket.create_connection(('{address}', {port}), 1); print('open')\nexcept TimeoutError:\n print('closed')"
    );
    match fixture.output(name, "main", &["python3", "-c", &script]).await.trim() {
        "open" => true,
        "closed" => false,
        other => unreachable!("{other}"),
    }
}

/// Waits until a Pod can connect: rules reach the kernel shortly after the API has stored them.
async fn until_open(fixture: &Fixture, name: &str, address: IpAddr, port: u16) {
    let opened = async { while !reaches(fixture, name, address, port).await {} };
    assert!(tokio::time::timeout(LIMIT, opened).await.is_ok(), "{name} does not reach {address}:{port}");
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_that_change_while_no_node_runs_are_enforced_by_the_next() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::open().await;
    let server = json!({"name": "main", "image": "host", "command": ["python3", "-c", SERVER],
        "readinessProbe": {"tcpSocket": {"port": 9000}}});
    let db = pod(&fixture, "db", server).await;
    pod(&fixture, "web", shell("sleep 1000")).await;
    let pods = json!([{"podSelector": {}}]);
    let only = |name: &str| json!({"matchLabels": {"app": name}});
    let ingress = json!([{"from": pods}]);
    policy(&fixture, "in", json!({"podSelector": only("db"), "policyTypes": ["Ingress"], "ingress": ingress})).await;
    let egress = json!([{"to": pods}]);
    policy(&fixture, "out", json!({"podSelector": only("web"), "policyTypes": ["Egress"], "egress": egress})).await;
    until_open(&fixture, "web", db, 8000).await;
    let fixture = fixture
        .restart_after(async |client| {
            let policies: Api<NetworkPolicy> = Api::namespaced(client.clone(), "default");
            policies.delete("out", &DeleteParams::default()).await.unwrap();
        })
        .await;
    let nothing = || ExecRequest { command: vec!["true".to_owned()], ..ExecRequest::default() };
    let known = async { while fixture.node.exec(&key("web"), "main", nothing()).await.is_err() {} };
    tokio::time::timeout(LIMIT, known).await.expect("the next node finds its Pods");
    let closed = async { while reaches(&fixture, "web", db, 8000).await {} };
    assert!(tokio::time::timeout(LIMIT, closed).await.is_ok(), "the policy that is gone still opens the way");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn selectors_named_ports_and_ranges_allow_exactly_what_they_list() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::open().await;
    let server = json!({"name": "main", "image": "host", "command": ["python3", "-c", SERVER],
        "ports": [{"name": "api", "containerPort": 8000}], "readinessProbe": {"tcpSocket": {"port": 9000}}});
    let db = pod(&fixture, "db", server).await;
    let web = pod(&fixture, "web", shell("sleep 1000")).await;
    pod(&fixture, "other", shell("sleep 1000")).await;
    assert!(!reaches(&fixture, "web", db, 8000).await, "closed by default");
    let named = json!({"matchLabels": {"kubernetes.io/metadata.name": "default"}});
    let from = json!([{"namespaceSelector": named, "podSelector": {"matchLabels": {"app": "web"}}}]);
    let ports = json!([{"port": "api"}, {"port": 8004, "endPort": 8006}]);
    policy(
        &fixture,
        "db",
        json!({"podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": from, "ports": ports}]}),
    )
    .await;
    let out = json!([{"to": [{"podSelector": {"matchLabels": {"app": "db"}}}]}]);
    let callers = json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "other"]}]});
    policy(&fixture, "callers", json!({"podSelector": callers, "policyTypes": ["Egress"], "egress": out})).await;
    until_open(&fixture, "web", db, 8000).await;
    assert!(reaches(&fixture, "web", db, 8005).await, "within the range");
    assert!(!reaches(&fixture, "web", db, 9000).await, "past the range");
    assert!(!reaches(&fixture, "other", db, 8000).await, "not selected by the receiver");
    assert!(!reaches(&fixture, "db", web, 8000).await, "no way back of its own");
    let services: Api<Service> = Api::namespaced(fixture.client.clone(), "default");
    let service = json!({"metadata": {"name": "data"}, "spec": {"clusterIP": "None", "selector": {"app": "db"}}});
    services.create(&PostParams::default(), &serde_json::from_value(service).unwrap()).await.unwrap();
    let lookup = "import socket\ntry: print(socket.gethostbyname('data'))\nexcept OSError: print('unknown')";
    let found =
        async { while fixture.output("web", "main", &["python3", "-c", lookup]).await.trim() != db.to_string() {} };
    assert!(tokio::time::timeout(LIMIT, found).await.is_ok(), "the Service has its Pod's address");
    fixture.close().await;
}

/// A network namespace with two addresses that stands for a network outside the machine.
struct Outside {
    name: String,
    server: Child,
}

impl Outside {
    fn open() -> Self {
        let name = format!("np-{}", std::process::id());
        let ip = |words: &[&str]| {
            let done = Command::new("ip").args(words).status().unwrap();
            assert!(done.success(), "ip {words:?}");
        };
        let (near, far) = (format!("{name}a"), format!("{name}b"));
        ip(&["netns", "add", &name]);
        ip(&["link", "add", &near, "type", "veth", "peer", "name", &far, "netns", &name]);
        ip(&["addr", "add", "198.51.100.1/24", "dev", &near]);
        ip(&["link", "set", &near, "up"]);
        for address in ["198.51.100.2/24", "198.51.100.3/24"] {
            ip(&["-n", &name, "addr", "add", address, "dev", &far]);
        }
        ip(&["-n", &name, "link", "set", "lo", "up"]);
        ip(&["-n", &name, "link", "set", &far, "up"]);
        ip(&["-n", &name, "route", "add", "default", "via", "198.51.100.1"]);
        let server = Command::new("ip")
            .args(["netns", "exec", &name, "python3", "-c", SERVER])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self { name, server }
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        for words in [["link", "del", &format!("{}a", self.name)], ["netns", "del", &self.name]] {
            let _ = Command::new("ip").args(words).status();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_block_allows_all_but_its_exceptions() {
    if !is_root() {
        return;
    }
    let outside = Outside::open();
    let fixture = Fixture::open().await;
    pod(&fixture, "web", shell("sleep 1000")).await;
    let (allowed, excepted) =
        (IpAddr::from(Ipv4Addr::new(198, 51, 100, 2)), IpAddr::from(Ipv4Addr::new(198, 51, 100, 3)));
    assert!(!reaches(&fixture, "web", allowed, 8000).await, "closed by default");
    let block = json!({"cidr": "198.51.100.0/24", "except": ["198.51.100.3/32"]});
    let egress = json!([{"to": [{"ipBlock": block}], "ports": [{"port": 8000, "endPort": 8010}]}]);
    policy(&fixture, "out", json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": egress})).await;
    until_open(&fixture, "web", allowed, 8000).await;
    assert!(reaches(&fixture, "web", allowed, 8005).await);
    assert!(!reaches(&fixture, "web", allowed, 9000).await, "another port");
    assert!(!reaches(&fixture, "web", excepted, 8000).await, "the exception");
    policy(
        &fixture,
        "more",
        json!({"podSelector": {}, "policyTypes": ["Egress"],
        "egress": [{"to": [{"ipBlock": {"cidr": "198.51.100.3/32"}}]}]}),
    )
    .await;
    until_open(&fixture, "web", excepted, 8000).await;
    fixture.close().await;
    drop(outside);
}
