//! Pods with addresses: closed by default, open where rules allow it, never open to the host.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use agent_sandbox_node::runtime::{
    Allow, IpBlock, NetworkMode, PodRules, PodRuntime, PodSandboxSpec, PortRange, Protocol, WeaknessKind,
};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

use crate::fixture::{DEADLINE, Node, is_root, pod};

fn routed(uid: &str) -> PodSandboxSpec {
    PodSandboxSpec { network: NetworkMode::Routed, ..pod(uid) }
}

/// A Pod that sends a greeting to every client on port 8000.
async fn greeter(node: &Node, uid: &str) -> IpAddr {
    let sandbox = node.runtime.create_pod(routed(uid)).await.unwrap();
    let server = "import socket\ns=socket.create_server(('0.0.0.0', 8000))\nwhile True:\n c,_=s.accept(); c.sendall(b'hello'); c.close()";
    let spec = node.container(uid, "c", &["python3", "-c", server]).await;
    node.runtime.start_container(uid, spec).await.unwrap();
    let dial = async {
        while node.runtime.dial(uid, 8000).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, dial).await.expect("the server comes up");
    sandbox.ips[0]
}

/// Whether a command in the Pod can connect. Only a timeout (dropped packets) counts as closed, not a refusal.
async fn reaches(node: &Node, uid: &str, address: IpAddr, port: u16) -> bool {
    let script = format!(
        "import socket\ntry:\n socket.create_connection(('{address}', {port}), 1); print('open')\nexcept TimeoutError:\n print('closed')"
    );
    let (_, out, err) = node.exec(uid, "c", &["python3", "-c", &script]).await;
    match out.trim() {
        "open" => true,
        "closed" => false,
        other => panic!("{other} {err}"),
    }
}

fn allow(peer: IpAddr, port: u16) -> Vec<Allow> {
    vec![Allow {
        peers: vec![IpBlock { address: peer, prefix: 32, except: Vec::new() }],
        ports: vec![PortRange { protocol: Protocol::Tcp, first: port, last: port }],
    }]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_user_may_bind_low_ports_unless_the_pod_sets_the_sysctl() {
    let node = Node::start().await;
    let name = "net.ipv4.ip_unprivileged_port_start";
    let host_value = std::fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))).unwrap();
    for (uid, said, seen, bound) in [("low-1", None, "0", "bound"), ("low-2", Some("1024"), "1024", "refused")] {
        let sysctls = said.map(|value| (name.to_owned(), value.to_owned())).into_iter().collect();
        node.runtime.create_pod(PodSandboxSpec { sysctls, ..pod(uid) }).await.unwrap();
        let script = format!(
            "import socket\nprint(open('/proc/sys/{}').read().strip())\ntry:\n socket.create_server(('127.0.0.1', 80)); print('bound')\nexcept PermissionError:\n print('refused')",
            name.replace('.', "/")
        );
        let mut spec = node.container(uid, "c", &["python3", "-c", &script]).await;
        spec.capabilities.clear();
        assert_eq!(node.run(uid, spec).await.code, 0, "{}", node.output(uid, "c"));
        assert_eq!(node.output(uid, "c"), format!("{seen}\n{bound}"));
        node.runtime.remove_pod(uid).await.unwrap();
    }
    let now = std::fs::read_to_string(format!("/proc/sys/{}", name.replace('.', "/"))).unwrap();
    assert_eq!(now, host_value, "the host's own setting is unchanged");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_host_reaches_a_pod_and_a_pod_never_reaches_the_host() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    let address = greeter(&node, "net-1").await;
    let mut stream = TcpStream::connect((address, 8000)).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "hello");
    let (_, addresses, _) = node.exec("net-1", "c", &["cat", "/proc/net/if_inet6"]).await;
    assert!(addresses.lines().all(|line| line.ends_with(" lo")), "IPv6 would bypass the nftables table: {addresses}");
    let gateway = node.runtime.dns_address().unwrap();
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    TcpStream::connect((gateway, port)).await.expect("control: the listener is there");
    assert!(!reaches(&node, "net-1", gateway, port).await);
    let everything = Allow {
        peers: vec![IpBlock { address: [0, 0, 0, 0].into(), prefix: 0, except: Vec::new() }],
        ports: Vec::new(),
    };
    let rules = PodRules { ingress: vec![everything.clone()], egress: vec![everything], by_domain: false };
    node.runtime.set_rules("net-1", rules).await.unwrap();
    assert!(!reaches(&node, "net-1", gateway, port).await, "no rule opens the host");
    node.runtime.remove_pod("net-1").await.unwrap();
}

/// Another program of the machine could use a sandbox without a token: its daemon listens at an address that
/// `/proc/net/route` shows to every user. Only the node's own cgroup is let through, whether or not the node is alive.
#[tokio::test(flavor = "multi_thread")]
async fn other_programs_of_the_host_reach_no_pod() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    let weaknesses = node.runtime.weaknesses();
    if let Some(weak) = weaknesses.iter().find(|weak| weak.kind == WeaknessKind::OpenToRoot) {
        eprintln!("skipped: {}", weak.message);
        return;
    }
    let address = greeter(&node, "net-1").await;
    // Children of this process are in the node's group, as are programs that the engine starts.
    let attempt = |uid: u32, leaves: bool| {
        let leave =
            if leaves { format!("open({:?}, 'w').write('0')", unified().join("cgroup.procs")) } else { "0".into() };
        let script = format!(
            "import os, socket\n{leave}\nos.setuid({uid})\nmade = socket.socket()\nmade.settimeout(5)\nmade.connect(('{address}', 8000))\nprint(made.recv(5))"
        );
        std::process::Command::new("python3").args(["-c", &script]).output().unwrap()
    };
    let rejected = |found: std::process::Output| {
        assert!(!found.status.success(), "{}", String::from_utf8_lossy(&found.stdout));
        let message = String::from_utf8_lossy(&found.stderr).into_owned();
        assert!(message.contains("No route to host"), "refused at once and not after a timeout: {message}");
    };
    let control = attempt(0, false);
    assert!(control.status.success(), "control: the node's group reaches it: {control:?}");
    rejected(attempt(0, true));
    rejected(attempt(65_534, true));
    // A socket that another program made is rejected in the node's own group, too.
    let script = format!(
        "import os, socket\nprocs = open({:?}, 'w')\nprocs.write('0')\nprocs.flush()\nmade = socket.socket()\n\
         open({:?}, 'w').write('0')\nmade.settimeout(5)\nmade.connect(('{address}', 8000))",
        unified().join("cgroup.procs"),
        own_group().join("cgroup.procs"),
    );
    rejected(std::process::Command::new("python3").args(["-c", &script]).output().unwrap());
    // The rules are the kernel's: they hold while no node runs, and the next one reaches its Pods again.
    let table = node_table(&node);
    let node = node.restart().await;
    assert_eq!(node_table(&node), table);
    rejected(attempt(0, true));
    node.runtime.list().await.unwrap();
    let mut text = String::new();
    TcpStream::connect((address, 8000)).await.unwrap().read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "hello");
    node.runtime.remove_pod("net-1").await.unwrap();
}

/// The top of the unified cgroup hierarchy.
fn unified() -> PathBuf {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 ")).unwrap();
    line.split(' ').nth(4).unwrap().into()
}

/// This process's cgroup in the unified hierarchy.
fn own_group() -> PathBuf {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    unified().join(groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap())
}

/// The output chain of the node's table.
fn node_table(node: &Node) -> String {
    let table = format!("agent-sandbox-{}", crate::leaks::node_id(node.data()));
    let listed = std::process::Command::new("nft").args(["list", "chain", "inet", &table, "output"]).output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    String::from_utf8_lossy(&listed.stdout).into_owned()
}

/// A host that did not forward packets before must not begin to do so between its own interfaces; those that other
/// programs add later are left to them.
#[tokio::test(flavor = "multi_thread")]
async fn forwarding_for_pods_opens_no_way_between_other_interfaces() {
    if !is_root() {
        return;
    }
    let script = r#"
set -e
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /run
mkdir -p /run/netns
ip link set lo up
ip netns add left; ip netns add right; ip netns add later
for side in left right; do
  ip link add $side type veth peer name eth0 netns $side
  ip link set $side up; ip -n $side link set eth0 up
done
ip addr add 192.0.2.1/25 dev left; ip -n left addr add 192.0.2.2/25 dev eth0; ip -n left route add default via 192.0.2.1
ip addr add 192.0.2.129/25 dev right; ip -n right addr add 192.0.2.130/25 dev eth0; ip -n right route add default via 192.0.2.129
echo 0 > /proc/sys/net/ipv4/ip_forward
exec "$0" --exact network::in_a_network_of_its_own --ignored --nocapture
"#;
    let own = std::env::current_exe().unwrap();
    let run = std::process::Command::new("unshare").args(["--net", "--mount", "sh", "-c", script]).arg(own).output();
    let run = run.unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success() && text.contains("1 passed"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by another test, in a network namespace of its own"]
async fn in_a_network_of_its_own() {
    let ip = |words: &str| {
        let done = std::process::Command::new("ip").args(words.split(' ')).output().unwrap();
        assert!(done.status.success(), "{words}: {done:?}");
    };
    let reaches = |from: &str, to: &str| {
        // Nothing listens there: a machine that is reached refuses.
        let script = format!("import socket; socket.create_connection(('{to}', 9), 1)");
        let words = ["netns", "exec", from, "python3", "-c", &script];
        let tried = std::process::Command::new("ip").args(words).output().unwrap();
        String::from_utf8_lossy(&tried.stderr).contains("ConnectionRefusedError")
    };
    let forwards = || std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap().trim() == "1";
    assert!(reaches("left", "192.0.2.1") && !reaches("left", "192.0.2.130"), "control: not before the node starts");
    let node = Node::start().await;
    let address = greeter(&node, "net-1").await;
    node.runtime
        .set_rules("net-1", PodRules { egress: allow(address, 80), ingress: Vec::new(), by_domain: false })
        .await
        .unwrap();
    assert!(forwards(), "the node switched it on");
    assert!(!reaches("left", "192.0.2.130"), "the host had both interfaces before, and did not forward");
    ip("link add later type veth peer name eth0 netns later");
    ip("link set later up");
    ip("-n later link set eth0 up");
    ip("addr add 198.51.100.1/24 dev later");
    ip("-n later addr add 198.51.100.2/24 dev eth0");
    ip("-n later route add default via 198.51.100.1");
    assert!(reaches("left", "198.51.100.2"), "an interface that another program added is its own business");
    node.runtime.remove_pod("net-1").await.unwrap();
    drop(node);
    assert!(!forwards(), "restored");
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_reach_each_other_only_where_both_sides_allow_it() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    let (a, b) = (greeter(&node, "net-a").await, greeter(&node, "net-b").await);
    assert!(!reaches(&node, "net-a", b, 8000).await, "closed by default");
    node.runtime
        .set_rules("net-a", PodRules { egress: allow(b, 8000), ingress: Vec::new(), by_domain: false })
        .await
        .unwrap();
    assert!(!reaches(&node, "net-a", b, 8000).await, "one side is not enough");
    node.runtime
        .set_rules("net-b", PodRules { ingress: allow(a, 8000), egress: Vec::new(), by_domain: false })
        .await
        .unwrap();
    assert!(reaches(&node, "net-a", b, 8000).await);
    assert!(!reaches(&node, "net-b", a, 8000).await, "and not the other way");
    node.runtime
        .set_rules("net-b", PodRules { ingress: allow(a, 9000), egress: Vec::new(), by_domain: false })
        .await
        .unwrap();
    assert!(!reaches(&node, "net-a", b, 8000).await, "another port is another port");
    for uid in ["net-a", "net-b"] {
        node.runtime.remove_pod(uid).await.unwrap();
    }
}

/// ARP entries fill a neighbour table of the whole machine: with 512 Pods it is full, and the next Pod is unreachable.
#[tokio::test(flavor = "multi_thread")]
async fn the_ends_of_a_veth_have_permanent_neighbour_entries() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    let address = greeter(&node, "arp-1").await;
    TcpStream::connect((address, 8000)).await.expect("the host reaches the Pod");
    let is_permanent = |table: &str, address: IpAddr| {
        let line = table.lines().find(|line| line.split_whitespace().next() == Some(&address.to_string()));
        line.and_then(|line| line.split_whitespace().nth(2)) == Some("0x6")
    };
    let hosts = std::fs::read_to_string("/proc/net/arp").unwrap();
    assert!(is_permanent(&hosts, address), "{hosts}");
    let (_, inside, _) = node.exec("arp-1", "c", &["cat", "/proc/net/arp"]).await;
    assert!(is_permanent(&inside, node.runtime.dns_address().unwrap()), "{inside}");
    node.runtime.remove_pod("arp-1").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_to_a_port_opened_in_advance_wait_for_the_program() {
    if !is_root() {
        return;
    }
    let node = Node::start().await;
    let address = node.runtime.create_pod(routed("open-1")).await.unwrap().ips[0];
    // The program never uses the socket, and exits when its input ends.
    let script = "echo $LISTEN_FDS $LISTEN_PID $LISTEN_FDNAMES; test -S /proc/self/fd/3 && echo socket; read _";
    let mut spec = node.container("open-1", "c", &["sh", "-c", script]).await;
    (spec.open_port, spec.stdin) = (Some(8888), true);
    spec.env.push(("LISTEN_FDNAMES".to_owned(), "another's".to_owned()));
    assert!(node.runtime.start_container("open-1", spec).await.unwrap().port_open);
    TcpStream::connect((address, 8888)).await.expect("open, although no program accepts there");
    TcpStream::connect((address, 8889)).await.expect_err("control: other ports are closed");
    for way in ["by the socket that came with the start", "by one that the supervisor opens"] {
        let stream = node.runtime.dial("open-1", 8888).await.expect(way);
        assert_eq!(stream.peer_addr().unwrap(), ([127, 0, 0, 1], 8888).into(), "{way}");
    }
    let mut late = node.container("open-1", "late", &["sleep", "1000"]).await;
    late.open_port = Some(8888);
    assert!(!node.runtime.start_container("open-1", late).await.unwrap().port_open, "another container has it");
    let printed = async {
        while node.output("open-1", "c") != "1 1\nsocket" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let printed = tokio::time::timeout(Duration::from_secs(10), printed).await;
    assert!(printed.is_ok(), "{}", node.output("open-1", "c"));
    node.runtime.remove_pod("open-1").await.unwrap();
}
