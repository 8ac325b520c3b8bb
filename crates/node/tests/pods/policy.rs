//! NetworkPolicies of the API, seen in real traffic: between Pods, and between a Pod and a network outside the machine.

use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Command, Stdio};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use crate::bench::{Bench, LIMIT, is_root, shell};

async fn policy(bench: &Bench, name: &str, spec: Value) {
    let api: Api<NetworkPolicy> = Api::namespaced(bench.client.clone(), "default");
    let object = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
}

/// What the outside world and Pods answer with, on several ports.
const SERVER: &str = "import socket,threading
def serve(port):
    s=socket.create_server(('0.0.0.0', port))
    while True:
        c,_=s.accept(); c.close()
for p in (8000, 8005, 9000): threading.Thread(target=serve, args=(p,)).start()";

async fn pod(bench: &Bench, name: &str, container: Value) -> IpAddr {
    let metadata = json!({"labels": {"app": name},
        "annotations": {"runtime.agents.x-k8s.io/inject-sandboxd": "false"}});
    bench.create(name, metadata, json!({"containers": [container], "terminationGracePeriodSeconds": 0})).await;
    let ready = bench.until_ready(name).await;
    ready.status.unwrap().pod_ip.unwrap().parse().unwrap()
}

/// Whether a Pod gets a connection. Silence is closed; a refusal would be a packet that came back.
async fn reaches(bench: &Bench, name: &str, address: IpAddr, port: u16) -> bool {
    let script = format!(
        "import socket\ntry:\n socket.create_connection(('{address}', {port}), 1); print('open')\nexcept TimeoutError:\n print('closed')"
    );
    match bench.output(name, "main", &["python3", "-c", &script]).await.trim() {
        "open" => true,
        "closed" => false,
        other => unreachable!("{other}"),
    }
}

/// Rules reach the kernel a moment after the API has them.
async fn until_open(bench: &Bench, name: &str, address: IpAddr, port: u16) {
    let opened = async { while !reaches(bench, name, address, port).await {} };
    assert!(tokio::time::timeout(LIMIT, opened).await.is_ok(), "{name} does not reach {address}:{port}");
}

#[tokio::test(flavor = "multi_thread")]
async fn selectors_names_and_ranges_open_what_they_say_and_nothing_else() {
    if !is_root() {
        return;
    }
    let bench = Bench::open().await;
    let server = json!({"name": "main", "image": "host", "command": ["python3", "-c", SERVER],
        "ports": [{"name": "api", "containerPort": 8000}], "readinessProbe": {"tcpSocket": {"port": 9000}}});
    let db = pod(&bench, "db", server).await;
    let web = pod(&bench, "web", shell("sleep 1000")).await;
    pod(&bench, "other", shell("sleep 1000")).await;
    assert!(!reaches(&bench, "web", db, 8000).await, "closed by default");
    let named = json!({"matchLabels": {"kubernetes.io/metadata.name": "default"}});
    let from = json!([{"namespaceSelector": named, "podSelector": {"matchLabels": {"app": "web"}}}]);
    let ports = json!([{"port": "api"}, {"port": 8004, "endPort": 8006}]);
    policy(
        &bench,
        "db",
        json!({"podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": from, "ports": ports}]}),
    )
    .await;
    let out = json!([{"to": [{"podSelector": {"matchLabels": {"app": "db"}}}]}]);
    let callers = json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web", "other"]}]});
    policy(&bench, "callers", json!({"podSelector": callers, "policyTypes": ["Egress"], "egress": out})).await;
    until_open(&bench, "web", db, 8000).await;
    assert!(reaches(&bench, "web", db, 8005).await, "within the range");
    assert!(!reaches(&bench, "web", db, 9000).await, "past the range");
    assert!(!reaches(&bench, "other", db, 8000).await, "not selected by the receiver");
    assert!(!reaches(&bench, "db", web, 8000).await, "no way back of its own");
    let services: Api<Service> = Api::namespaced(bench.client.clone(), "default");
    let service = json!({"metadata": {"name": "data"}, "spec": {"clusterIP": "None", "selector": {"app": "db"}}});
    services.create(&PostParams::default(), &serde_json::from_value(service).unwrap()).await.unwrap();
    let lookup = "import socket\ntry: print(socket.gethostbyname('data'))\nexcept OSError: print('unknown')";
    let found =
        async { while bench.output("web", "main", &["python3", "-c", lookup]).await.trim() != db.to_string() {} };
    assert!(tokio::time::timeout(LIMIT, found).await.is_ok(), "the Service has its Pod's address");
    bench.close().await;
}

/// A network namespace that stands for the world outside the machine, with two addresses.
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
async fn an_address_block_opens_the_world_less_its_exceptions() {
    if !is_root() {
        return;
    }
    let outside = Outside::open();
    let bench = Bench::open().await;
    pod(&bench, "web", shell("sleep 1000")).await;
    let (allowed, excepted) =
        (IpAddr::from(Ipv4Addr::new(198, 51, 100, 2)), IpAddr::from(Ipv4Addr::new(198, 51, 100, 3)));
    assert!(!reaches(&bench, "web", allowed, 8000).await, "closed by default");
    let block = json!({"cidr": "198.51.100.0/24", "except": ["198.51.100.3/32"]});
    let egress = json!([{"to": [{"ipBlock": block}], "ports": [{"port": 8000, "endPort": 8010}]}]);
    policy(&bench, "out", json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": egress})).await;
    until_open(&bench, "web", allowed, 8000).await;
    assert!(reaches(&bench, "web", allowed, 8005).await);
    assert!(!reaches(&bench, "web", allowed, 9000).await, "another port");
    assert!(!reaches(&bench, "web", excepted, 8000).await, "the exception");
    policy(
        &bench,
        "more",
        json!({"podSelector": {}, "policyTypes": ["Egress"],
        "egress": [{"to": [{"ipBlock": {"cidr": "198.51.100.3/32"}}]}]}),
    )
    .await;
    until_open(&bench, "web", excepted, 8000).await;
    bench.close().await;
    drop(outside);
}
