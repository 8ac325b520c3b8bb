//! Egress rules by domain with real traffic: unmodified programs in Pods, and servers and a resolver in a network
//! namespace that stands for the internet.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use agent_sandbox_api::keys::annotations;
use agent_sandbox_node::runtime::{ExecRequest, PodRuntime};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::fixture::{Fixture, LIMIT, Tuning, is_root, key, shell};

/// Servers outside: HTTP on port 80, TLS on 443 (ALPN h2 or HTTP/1.1), an echo on 2222, and a resolver whose names are
/// the lines `name ttl target...` of a file.
const SERVERS: &str = r#"
import http.server, json, os, socket, socketserver, ssl, struct, sys, threading
folder, dns_address = sys.argv[1:]
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        path = self.path.split('?')[0]
        if path.startswith('/simple/') or path.startswith('/files/'):
            file = os.path.join(folder, path.strip('/'))
            file = os.path.join(file, 'index.html') if os.path.isdir(file) else file
            body = open(file, 'rb').read(); kind = 'text/html' if file.endswith('.html') else 'application/octet-stream'
        else:
            body = json.dumps({'host': self.headers['host'], 'at': self.connection.getsockname()[0]}).encode(); kind = 'application/json'
        self.send_response(200); self.send_header('content-type', kind)
        self.send_header('content-length', str(len(body))); self.end_headers(); self.wfile.write(body)
    def do_POST(self):
        body = self.rfile.read(int(self.headers['content-length']))
        self.send_response(200); self.send_header('content-length', str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *_): pass
class Server(http.server.ThreadingHTTPServer):
    allow_reuse_address = True; daemon_threads = True
plain = Server(('0.0.0.0', 80), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(folder + '/cert.pem', folder + '/key.pem'); context.set_alpn_protocols(['h2', 'http/1.1'])
def secure(listener):
    def one(raw):
        try:
            with context.wrap_socket(raw, server_side=True) as c:
                if c.selected_alpn_protocol() == 'h2':
                    c.sendall(b'frames of h2'); c.recv(1); return
                c.recv(4096); c.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nsecure')
        except OSError: pass
    while True: threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()
def echo(listener):
    def one(c):
        while data := c.recv(4096): c.sendall(data)
    while True: threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()
def names(question, out, answers=0):
    for line in open(folder + '/names').read().splitlines():
        name, ttl, *targets = line.split()
        if name != question: continue
        for target in targets:
            owner = b''.join(bytes([len(l)]) + l.encode() for l in name.split('.')) + b'\0'
            try: kind, data = 1, socket.inet_aton(target)
            except OSError: kind, data = 5, b''.join(bytes([len(l)]) + l.encode() for l in target.split('.')) + b'\0'
            out += owner + struct.pack('>HHIH', kind, 1, int(ttl), len(data)) + data; answers += 1
            if kind == 5: out, answers = names(target, out, answers)
    return out, answers
def resolver(s):
    while True:
        packet, client = s.recvfrom(4096)
        at, labels = 12, []
        while packet[at]: labels.append(packet[at + 1:at + 1 + packet[at]].decode().lower()); at += 1 + packet[at]
        end = at + 5; kind = struct.unpack('>H', packet[at + 1:at + 3])[0]
        name = '.'.join(labels)
        with open(folder + '/asked', 'a') as log: log.write(f'{name} {kind}\n')
        records, count = names(name, b'') if kind == 1 else (b'', 0)
        known = any(line.split()[0] == name for line in open(folder + '/names').read().splitlines())
        s.sendto(packet[:2] + struct.pack('>HHHHH', 0x8180 | (0 if known else 3), 1, count, 0, 0) + packet[12:end] + records, client)
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind((dns_address, 53))
for run, listener in [(secure, socket.create_server(('0.0.0.0', 443))), (echo, socket.create_server(('0.0.0.0', 2222)))]:
    threading.Thread(target=run, args=(listener,), daemon=True).start()
threading.Thread(target=plain.serve_forever, daemon=True).start()
open(folder + '/started', 'w').close()
resolver(udp)
"#;

/// The internet of a test: four addresses in a network of its own.
struct Internet {
    name: String,
    folder: tempfile::TempDir,
    server: Child,
    base: u8,
}

fn run(program: &str, words: &[&str]) {
    let done = Command::new(program).args(words).stderr(Stdio::null()).status().unwrap();
    assert!(done.success(), "{program} {words:?}");
}

impl Internet {
    async fn open(base: u8) -> Self {
        let name = format!("eg{base}-{}", std::process::id());
        let folder = tempfile::tempdir().unwrap();
        let path = |file: &str| folder.path().join(file).display().to_string();
        let (key, certificate) = (path("key.pem"), path("cert.pem"));
        let subject = ["-subj", "/CN=a.example", "-days", "2", "-nodes"];
        let request = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", &key];
        run("openssl", &[&request[..], &["-out", &certificate], &subject].concat());
        std::fs::write(path("names"), "").unwrap();
        let (near, far) = (format!("{name}a"), format!("{name}b"));
        let address = |host: u8| format!("203.0.113.{}/26", base + host);
        run("ip", &["netns", "add", &name]);
        run("ip", &["link", "add", &near, "type", "veth", "peer", "name", &far, "netns", &name]);
        run("ip", &["addr", "add", &address(1), "dev", &near]);
        run("ip", &["link", "set", &near, "up"]);
        for host in [10, 11, 53] {
            run("ip", &["-n", &name, "addr", "add", &address(host), "dev", &far]);
        }
        run("ip", &["-n", &name, "link", "set", "lo", "up"]);
        run("ip", &["-n", &name, "link", "set", &far, "up"]);
        let gateway = format!("203.0.113.{}", base + 1);
        run("ip", &["-n", &name, "route", "add", "default", "via", &gateway]);
        let resolver = format!("203.0.113.{}", base + 53);
        let server = Command::new("ip")
            .args(["netns", "exec", &name, "python3", "-c", SERVERS])
            .arg(folder.path())
            .arg(&resolver)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let internet = Self { name, folder, server, base };
        let started = async {
            while !internet.folder.path().join("started").exists() {
                tokio::task::yield_now().await
            }
        };
        tokio::time::timeout(LIMIT, started).await.expect("the servers start");
        internet
    }

    fn address(&self, host: u8) -> String {
        format!("203.0.113.{}", self.base + host)
    }

    /// Sets what the resolver answers: `WEB` and `OTHER` stand for the servers' addresses.
    fn names(&self, lines: &str) {
        let staged = self.folder.path().join("names.new");
        let (web, other) = (self.address(10), self.address(11));
        std::fs::write(&staged, lines.replace("WEB", &web).replace("OTHER", &other)).unwrap();
        std::fs::rename(staged, self.folder.path().join("names")).unwrap();
    }

    fn asked(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("asked")).unwrap_or_default()
    }

    async fn fixture(&self) -> Fixture {
        let resolver = format!("{}:53", self.address(53)).parse().unwrap();
        Fixture::open_tuned(Tuning { resolvers: Some(vec![resolver]), ..Tuning::default() }, |_| {}).await
    }
}

impl Drop for Internet {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        for words in [["link", "del", &format!("{}a", self.name)], ["netns", "del", &self.name]] {
            let _ = Command::new("ip").args(words).status();
        }
    }
}

/// Creates a Pod with these annotations and waits until the gateway knows it: a name that is not allowed is then
/// answered with an extended error, or not at all before.
async fn pod(fixture: &Fixture, name: &str, rules: Value) {
    let mut annotations = rules;
    annotations["runtime.agents.x-k8s.io/inject-sandboxd"] = "false".into();
    let container = shell("sleep 1000");
    let spec = json!({"containers": [container], "terminationGracePeriodSeconds": 0});
    fixture.create(name, json!({"labels": {"app": name}, "annotations": annotations}), spec).await;
    fixture.until_ready(name).await;
}

/// Runs Python in a Pod, with helpers; returns what it prints.
async fn python(fixture: &Fixture, pod: &str, script: &str) -> String {
    let program = format!("{HELPERS}\n{script}");
    let ran = fixture.exec(pod, "main", &["python3", "-c", &program]).await;
    assert_eq!(ran.code, 0, "{script}: {ran:?}");
    ran.stdout.trim().to_owned()
}

const HELPERS: &str = r#"
import errno, json, socket, ssl, sys
def get(address, host, port=80, path='/'):
    s = socket.create_connection((address, port), 5); s.settimeout(20)
    s.sendall(f'GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n'.encode())
    out = b''
    while part := s.recv(4096): out += part
    return out.decode()
def status(address, host, path='/'):
    return get(address, host, 80, path).split(' ')[1]
def tls(address, name, alpn=None):
    c = ssl.create_default_context(); c.check_hostname = False; c.verify_mode = ssl.CERT_NONE
    if alpn: c.set_alpn_protocols(alpn)
    try:
        with c.wrap_socket(socket.create_connection((address, 443), 5), server_hostname=name) as s:
            return s.selected_alpn_protocol() or 'plain'
    except ssl.SSLError as e: return e.reason or str(e)
def connect(address, port):
    try:
        s = socket.create_connection((address, port), 3); s.sendall(b'x'); s.settimeout(5)
        return 'open' if s.recv(1) == b'x' else 'ended'
    except OSError as e: return errno.errorcode.get(e.errno, type(e).__name__)
def resolve(name):
    try: return ' '.join(sorted(socket.gethostbyname_ex(name)[2]))
    except OSError as e: return 'unknown'
"#;

/// Waits until a script prints this: rules take effect shortly after they are stored.
async fn until(fixture: &Fixture, pod: &str, script: &str, wanted: &str) {
    let mut seen = String::new();
    let wait = async {
        while seen != wanted {
            seen = python(fixture, pod, script).await;
        }
    };
    let done = tokio::time::timeout(LIMIT, wait).await.is_ok();
    assert!(done, "{script} prints {seen:?} instead of {wanted:?}");
}

const NAMES: &str =
    "a.example 30 WEB\nb.example 30 WEB\nevil.example 30 OTHER\nx.wild.example 30 WEB\nwild.example 30 WEB
alias.example 30 one.cdn.example\none.cdn.example 20 two.cdn.example\ntwo.cdn.example 5 WEB\nssh.example 1 WEB
private.example 30 10.1.2.3\nmetadata.example 30 169.254.169.254\nmixed.example 30 WEB 127.0.0.1\nme.example 30 HOST\n";

#[tokio::test(flavor = "multi_thread")]
async fn only_names_with_a_rule_are_resolved_and_reached() {
    if !is_root() {
        return;
    }
    let internet = Internet::open(0).await;
    let (web, other) = (internet.address(10), internet.address(11));
    internet.names(&NAMES.replace("HOST", &internet.address(1)));
    let fixture = internet.fixture().await;
    let rules = "a.example, *.wild.example alias.example ssh.example:2222 private.example metadata.example \
                 mixed.example me.example";
    pod(&fixture, "box", json!({annotations::EGRESS: rules})).await;
    until(&fixture, "box", "print(resolve('a.example'))", &web).await;

    let says = async |script: &str| python(&fixture, "box", script).await;
    // DNS: what is allowed, over aliases, and nothing else.
    assert_eq!(says("print(resolve('x.wild.example'))").await, web);
    assert_eq!(says("print(resolve('alias.example'))").await, web);
    for name in ["b.example", "evil.example", "wild.example", "one.cdn.example", "secret.evil.example"] {
        assert_eq!(says(&format!("print(resolve('{name}'))")).await, "unknown", "{name}");
        let asked = internet.asked().lines().any(|line| line.split(' ').next() == Some(name));
        assert!(!asked, "{name} left the machine");
    }
    // Rebinding: private addresses are no answer, and are left out of one.
    for name in ["private.example", "metadata.example", "me.example"] {
        assert_eq!(says(&format!("print(resolve('{name}'))")).await, "unknown", "{name}");
    }
    assert_eq!(says("print(resolve('mixed.example'))").await, web);

    // Plain HTTP.
    assert_eq!(says(&format!("print(status('{web}', 'a.example'))")).await, "200");
    let denied = says(&format!("print(get('{web}', 'b.example'))")).await;
    assert!(denied.starts_with("HTTP/1.1 403") && denied.contains("b.example: no rule of the annotation"), "{denied}");
    let literal = says(&format!("print(get('{web}', '{web}'))")).await;
    assert!(literal.starts_with("HTTP/1.1 403") && literal.contains("IP address"), "{literal}");
    let elsewhere = says(&format!("print(get('{other}', 'a.example'))")).await;
    assert!(elsewhere.contains(&format!("a.example does not lead to {other}")), "{elsewhere}");
    let fronted = format!(
        "import http.client; c=http.client.HTTPConnection('{web}',80,timeout=5)\n\
         for h in ('a.example','b.example'):\n c.request('GET','/',headers={{'host':h}}); r=c.getresponse(); r.read(); \
         print(r.status, c.sock is not None)"
    );
    let decided = says(&fronted).await;
    assert!(decided.starts_with("200 True\n403 "), "each request of a connection is decided: {decided}");
    // TLS.
    assert_eq!(says(&format!("print(tls('{web}', 'a.example'))")).await, "plain");
    assert_eq!(says(&format!("print(tls('{web}', 'a.example', ['h2']))")).await, "h2");
    for name in ["'b.example'", "None", "'evil.example'"] {
        let refused = says(&format!("print(tls('{web}', {name}))")).await;
        assert!(refused.contains("ALERT_ACCESS_DENIED"), "{name}: {refused}");
    }
    let elsewhere = says(&format!("print(tls('{other}', 'a.example'))")).await;
    assert!(elsewhere.contains("ALERT_ACCESS_DENIED"), "another address with an allowed name: {elsewhere}");
    // Other ports: by resolved address, for as long as the answer is usable.
    assert_eq!(says(&format!("print(connect('{web}', 2222))")).await, "EHOSTUNREACH");
    assert_eq!(says(&format!("resolve('ssh.example'); print(connect('{web}', 2222))")).await, "open");
    assert_eq!(says(&format!("print(connect('{other}', 2222))")).await, "EHOSTUNREACH");
    // QUIC and DNS past the rules.
    let udp = |address: &str, port: u16| {
        format!(
            "s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.settimeout(5); s.connect(('{address}',{port})); s.send(b'x')\n\
             try: s.recv(9); print('answered')\nexcept OSError as e: print(errno.errorcode.get(e.errno))"
        )
    };
    assert_eq!(says(&udp(&web, 443)).await, "EHOSTUNREACH");
    assert_eq!(says(&udp(&internet.address(53), 53)).await, "EHOSTUNREACH");
    // Unmodified programs.
    let curl =
        async |words: &[&str]| fixture.exec("box", "main", &[&["curl", "-sS", "-m", "20"], words].concat()).await;
    assert!(curl(&["http://a.example/"]).await.stdout.contains("\"a.example\""));
    assert_eq!(curl(&["-k", "--http1.1", "https://a.example/"]).await.stdout, "secure");
    assert_ne!(curl(&["http://b.example/"]).await.code, 0);
    let upload = "head -c 3000000 /dev/zero | curl -sS -m 20 --data-binary @- http://a.example/ | wc -c";
    assert_eq!(fixture.output("box", "main", &["sh", "-c", upload]).await.trim(), "3000000");
    let requests = "import pip._vendor.requests as r; print(r.get('http://a.example/').json()['host'])";
    assert_eq!(says(requests).await, "a.example");
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_are_apart_rules_change_live_and_without_an_engine_nothing_opens() {
    if !is_root() {
        return;
    }
    let internet = Internet::open(64).await;
    let (web, gateway_port) = (internet.address(10), 280);
    internet.names("a.example 300 WEB\nb.example 300 WEB\nssh.example 300 WEB\n");
    let fixture = internet.fixture().await;
    pod(&fixture, "one", json!({annotations::EGRESS: "a.example ssh.example:2222"})).await;
    pod(&fixture, "two", json!({annotations::EGRESS: "b.example"})).await;
    pod(&fixture, "none", json!({})).await;
    until(&fixture, "one", "print(resolve('a.example'))", &web).await;
    until(&fixture, "two", "print(resolve('b.example'))", &web).await;
    assert_eq!(
        python(&fixture, "one", &format!("resolve('ssh.example'); print(connect('{web}', 2222))")).await,
        "open"
    );
    // What one may, the others may not, although it is open for one.
    assert_eq!(python(&fixture, "two", &format!("print(status('{web}', 'a.example'))")).await, "403");
    assert_eq!(python(&fixture, "two", &format!("print(connect('{web}', 2222))")).await, "EHOSTUNREACH");
    assert_eq!(python(&fixture, "none", &format!("print(connect('{web}', 2222))")).await, "TimeoutError");
    // The proxy itself: closed for a Pod without rules, of no use for one with.
    let pod_object = fixture.pods().get("one").await.unwrap();
    let uid = pod_object.metadata.uid.clone().unwrap();
    let gateway = fixture.runtime.dns_address().unwrap();
    let direct = format!("print(connect('{gateway}', {gateway_port}))");
    assert_eq!(python(&fixture, "none", &direct).await, "TimeoutError");
    assert!(["ended", "ECONNRESET"].contains(&python(&fixture, "two", &direct).await.as_str()));

    // A live change closes what is no longer allowed, the open connections of the proxy included.
    let watching = format!(
        "s=ssl.create_default_context(); s.check_hostname=False; s.verify_mode=ssl.CERT_NONE; s.set_alpn_protocols(['h2'])\n\
         c=s.wrap_socket(socket.create_connection(('{web}',443),5),server_hostname='a.example'); c.recv(99)\n\
         open('/tmp/connected','w').close()\ntry: print('ended' if c.recv(1) == b'' else 'data')\nexcept OSError: print('ended')"
    );
    let tunnel = python(&fixture, "one", &watching);
    let change = async {
        until(&fixture, "one", "import os; print(os.path.exists('/tmp/connected'))", "True").await;
        annotate(&fixture.pods(), "one", annotations::EGRESS, "b.example").await;
    };
    let (ended, ()) = tokio::join!(tunnel, change);
    assert_eq!(ended, "ended");
    until(&fixture, "one", "print(resolve('a.example'))", "unknown").await;
    until(&fixture, "one", &format!("print(connect('{web}', 2222))"), "EHOSTUNREACH").await;
    assert_eq!(
        python(&fixture, "one", &format!("resolve('b.example'); print(status('{web}', 'b.example'))")).await,
        "200"
    );

    // A ceiling of the namespace narrows, also live; a claim's rules too.
    let namespaces: Api<Namespace> = Api::all(fixture.client.clone());
    annotate(&namespaces, "default", annotations::EGRESS_CEILING, "a.example").await;
    until(&fixture, "one", "print(resolve('b.example'))", "unknown").await;
    annotate(&namespaces, "default", annotations::EGRESS_CEILING, "*").await;
    until(&fixture, "one", "print(resolve('b.example'))", &web).await;
    annotate(&fixture.pods(), "one", annotations::EGRESS_OF_CLAIM, "a.example").await;
    until(&fixture, "one", "print(resolve('b.example'))", "unknown").await;
    annotate(&fixture.pods(), "one", annotations::EGRESS_OF_CLAIM, "*").await;
    until(&fixture, "one", "print(resolve('b.example'))", &web).await;
    // A bad rule closes everything and says which one.
    annotate(&fixture.pods(), "one", annotations::EGRESS, "b.example, http://x").await;
    until(&fixture, "one", "print(resolve('b.example'))", "unknown").await;
    let event = fixture.until_event("InvalidEgressRules").await;
    assert!(event.contains("egress rule 2 (\"http://x\")"), "{event}");
    annotate(&fixture.pods(), "one", annotations::EGRESS, "b.example").await;
    until(&fixture, "one", "print(resolve('b.example'))", &web).await;

    // Without an engine the rules of the packet filter stay, and nobody answers behind them.
    fixture.node.shutdown().await;
    for (script, wanted) in [
        (format!("print(connect('{web}', 80))"), "ECONNREFUSED"),
        (format!("print(connect('{web}', 443))"), "ECONNREFUSED"),
        (format!("print(connect('{web}', 2222))"), "EHOSTUNREACH"),
    ] {
        let command = ["python3", "-c", &format!("{HELPERS}\n{script}")].map(str::to_owned).to_vec();
        let request = ExecRequest { command, stdout: true, stderr: false, ..ExecRequest::default() };
        let mut session = fixture.runtime.exec(&uid, "main", request).await.unwrap();
        let mut printed = String::new();
        session.stdout.take().unwrap().read_to_string(&mut printed).await.unwrap();
        assert_eq!(printed.trim(), wanted, "{script}");
    }
    // The next engine goes on with the rules, also for a program that has resolved its name before.
    let fixture = fixture.restart().await;
    let known = async { while fixture.node.exec(&key("one"), "main", nothing()).await.is_err() {} };
    tokio::time::timeout(LIMIT, known).await.expect("the next node finds its Pods");
    until(
        &fixture,
        "one",
        &format!("print(connect('{web}', 80) == 'ECONNREFUSED' or status('{web}', 'b.example'))"),
        "200",
    )
    .await;
    assert_eq!(python(&fixture, "one", &format!("print(status('{web}', 'a.example'))")).await, "403");
    let log = std::fs::read_to_string(fixture.folder().join("egress.jsonl")).unwrap();
    let records: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let found =
        |wanted: &[(&str, &str)]| records.iter().any(|record| wanted.iter().all(|(key, value)| record[*key] == *value));
    assert!(found(&[("sandbox", "one"), ("protocol", "tls"), ("sni", "a.example"), ("decision", "allow")]), "{log}");
    assert!(found(&[("sandbox", "two"), ("protocol", "http"), ("name", "a.example"), ("decision", "deny")]), "{log}");
    assert!(found(&[
        ("sandbox", "one"),
        ("protocol", "http"),
        ("method", "GET"),
        ("path", "/"),
        ("rule", "b.example")
    ]));
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_end_what_a_network_policy_or_earlier_rules_had_opened() {
    if !is_root() {
        return;
    }
    let internet = Internet::open(192).await;
    let (web, other) = (internet.address(10), internet.address(11));
    internet.names("a.example 300 WEB\nssh.example 300 WEB\n");
    let fixture = internet.fixture().await;
    pod(&fixture, "box", json!({})).await;
    let policies: Api<NetworkPolicy> = Api::namespaced(fixture.client.clone(), "default");
    let blocks = ["0.0.0.0/0".to_owned(), format!("{other}/32")];
    let egress: Vec<Value> = blocks.iter().map(|cidr| json!({"to": [{"ipBlock": {"cidr": cidr}}]})).collect();
    let spec = json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": egress});
    let policy = serde_json::from_value(json!({"metadata": {"name": "world"}, "spec": spec})).unwrap();
    policies.create(&PostParams::default(), &policy).await.unwrap();
    until(&fixture, "box", &format!("print(connect('{web}', 2222))"), "open").await;
    // One connection to a proxied port, one to another port, and one to an address that the policy names.
    let connected = format!(
        "import http.client, time
def ask(c):
    c.request('GET', '/'); answer = c.getresponse(); answer.read(); return answer.status
web, other = [http.client.HTTPConnection(a, 80, timeout=20) for a in ('{web}', '{other}')]
echo = socket.create_connection(('{web}', 2222), 20)
ask(web), ask(other); web.auto_open = other.auto_open = 0
open('/tmp/connected', 'w').close()
try:
    while True: ask(web); time.sleep(0.01)
except OSError as e: print(errno.errorcode.get(e.errno, e))
echo.sendall(b'x'); print(echo.recv(1).decode(), ask(other))"
    );
    let talking = python(&fixture, "box", &connected);
    let namespaces: Api<Namespace> = Api::all(fixture.client.clone());
    let change = async {
        until(&fixture, "box", "import os; print(os.path.exists('/tmp/connected'))", "True").await;
        annotate(&namespaces, "default", annotations::EGRESS_CEILING, "a.example").await;
    };
    let (ended, ()) = tokio::join!(tokio::time::timeout(LIMIT, talking), change);
    assert_eq!(ended.expect("the connection ends"), "ECONNRESET\nx 200");

    // What rules had opened past the proxy is closed for the next rules, also when there were none in between.
    annotate(&namespaces, "default", annotations::EGRESS_CEILING, None::<&str>).await;
    annotate(&fixture.pods(), "box", annotations::EGRESS, "ssh.example:2222").await;
    until(&fixture, "box", &format!("resolve('ssh.example'); print(connect('{web}', 2222))"), "open").await;
    until(&fixture, "box", "print(resolve('ssh.example'), resolve('a.example'))", &format!("{web} unknown")).await;
    annotate(&fixture.pods(), "box", annotations::EGRESS, None::<&str>).await;
    until(&fixture, "box", &format!("print(status('{web}', '{web}'))"), "200").await;
    annotate(&fixture.pods(), "box", annotations::EGRESS, "a.example").await;
    until(&fixture, "box", "print(resolve('a.example'))", &web).await;
    assert_eq!(python(&fixture, "box", &format!("print(connect('{web}', 2222))")).await, "EHOSTUNREACH");

    // The table is written again, with the rules of all Pods, when another program removes it.
    let folder = fixture.folder().display().to_string();
    let nft = |words: &[&str]| {
        let done = Command::new("nft").args(words).output().unwrap();
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    let tables = nft(&["list", "tables"]);
    let names = tables.lines().filter_map(|line| line.strip_prefix("table inet "));
    let table = names.into_iter().find(|name| nft(&["list", "table", "inet", name]).contains(&folder)).unwrap();
    run("nft", &["delete", "table", "inet", table]);
    until(&fixture, "box", &format!("print(status('{web}', 'b.example'))"), "403").await;
    until(&fixture, "box", &format!("resolve('a.example'); print(status('{web}', 'a.example'))"), "200").await;
    fixture.close().await;
}

/// A command that does nothing.
fn nothing() -> ExecRequest {
    ExecRequest { command: vec!["true".to_owned()], ..ExecRequest::default() }
}

async fn annotate<K>(api: &Api<K>, name: &str, key: &str, value: impl serde::Serialize)
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let patch = json!({"metadata": {"annotations": {key: value}}});
    api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn pip_installs_from_an_allowed_index_and_a_bad_rule_refuses_the_pod() {
    if !is_root() {
        return;
    }
    let internet = Internet::open(128).await;
    internet.names("index.example 60 WEB\nfiles.example 60 OTHER\n");
    wheel(internet.folder.path());
    let fixture = internet.fixture().await;
    pod(&fixture, "box", json!({annotations::EGRESS: "index.example files.example"})).await;
    pod(&fixture, "half", json!({annotations::EGRESS: "index.example"})).await;
    let bad: Pod = fixture
        .create("bad", json!({"annotations": {annotations::EGRESS: "@pyhton"}}), json!({"containers": [shell("true")]}))
        .await;
    assert!(bad.metadata.name.is_some());
    let refused = fixture.until_phase("bad", "Failed").await;
    let message = refused.status.unwrap().message.unwrap();
    assert!(message.contains("egress rule 1 (\"@pyhton\")"), "{message}");
    until(&fixture, "box", "print(resolve('files.example'))", &internet.address(11)).await;
    let pip = "python3 -m pip install --no-cache-dir --disable-pip-version-check --break-system-packages --retries 0 \
               --target /tmp/t --index-url http://index.example/simple --trusted-host index.example \
               --trusted-host files.example tinything && PYTHONPATH=/tmp/t python3 -c 'import tinything'";
    let ran = fixture.exec("box", "main", &["sh", "-c", pip]).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    let ran = fixture.exec("half", "main", &["sh", "-c", pip]).await;
    assert_ne!(ran.code, 0, "the files' host is not allowed: {ran:?}");
    fixture.close().await;
}

/// An index with one package, whose file is on another host.
fn wheel(folder: &Path) {
    let script = r#"
import os, sys, zipfile
folder = sys.argv[1]; name = 'tinything-1.0-py3-none-any.whl'
for part in ('simple/tinything', 'files'): os.makedirs(os.path.join(folder, part))
with zipfile.ZipFile(os.path.join(folder, 'files', name), 'w') as z:
    z.writestr('tinything.py', ''); d = 'tinything-1.0.dist-info/'
    z.writestr(d + 'METADATA', 'Metadata-Version: 2.1\nName: tinything\nVersion: 1.0\n')
    z.writestr(d + 'WHEEL', 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
    z.writestr(d + 'RECORD', f'tinything.py,,\n{d}METADATA,,\n{d}WHEEL,,\n{d}RECORD,,\n')
open(os.path.join(folder, 'simple/tinything/index.html'), 'w').write(f'<a href="http://files.example/files/{name}">{name}</a>')
"#;
    run("python3", &["-c", script, &PathBuf::from(folder).display().to_string()]);
}
