//! Two tenants on one engine: a user with rights in one namespace reaches nothing in another one.

use crate::fixture::{Engine, eventually};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::{
    authentication::v1::TokenRequest,
    core::v1::{Namespace, Pod, ServiceAccount},
    rbac::v1::RoleBinding,
};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// The engine's API as its administrator, and as the holder of another token.
pub(crate) async fn config(engine: &Engine, token: Option<&str>) -> Config {
    let mut file = Kubeconfig::read_from(engine.data().join("kubeconfig")).unwrap();
    if let Some(token) = token {
        file.auth_infos[0].auth_info.as_mut().unwrap().token = Some(token.to_owned().into());
    }
    Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap()
}

/// A namespace with a ServiceAccount that may edit it; returns the account's token.
pub(crate) async fn tenant(admin: &Client, name: &str) -> String {
    let create = PostParams::default();
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    namespaces.create(&create, &object(json!({"metadata": {"name": name}}))).await.unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), name);
    accounts.create(&create, &object(json!({"metadata": {"name": "tenant"}}))).await.unwrap();
    let binding = json!({
        "metadata": {"name": "tenant"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "ServiceAccount", "name": "tenant", "namespace": name}],
    });
    Api::<RoleBinding>::namespaced(admin.clone(), name).create(&create, &object(binding)).await.unwrap();
    let request: TokenRequest = object(json!({"metadata": {}, "spec": {"audiences": []}}));
    accounts.create_token_request("tenant", &create, &request).await.unwrap().status.unwrap().token.unwrap()
}

/// Runs a command through the router; the status of the response and, on success, the command's output.
pub(crate) async fn execute(
    connection: &mut SendRequest<Full<Bytes>>,
    token: Option<&str>,
    namespace: &str,
    sandbox: &str,
    command: &str,
) -> (StatusCode, String) {
    let mut request = Request::post("/execute")
        .header("host", "localhost")
        .header("content-type", "application/json")
        .header("x-sandbox-id", sandbox)
        .header("x-sandbox-namespace", namespace);
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let body = Full::new(Bytes::from(json!({ "command": command }).to_string()));
    connection.ready().await.unwrap();
    let response = connection.send_request(request.body(body).unwrap()).await.unwrap();
    let status = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let answer: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    (status, answer["stdout"].as_str().unwrap_or_default().to_owned())
}

pub(crate) async fn connect(
    stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
) -> SendRequest<Full<Bytes>> {
    let (sender, connection) = handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

#[test]
fn the_router_serves_a_user_only_where_rbac_lets_it_forward_ports() {
    let Some(engine) = Engine::start() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let admin = Client::try_from(config(&engine, None).await).unwrap();
        let token = tenant(&admin, "team-a").await;
        tenant(&admin, "team-b").await;
        for namespace in ["team-a", "team-b"] {
            tokio::task::block_in_place(|| engine.ok(&["-n", namespace, "create", "box"]));
        }
        let user = Client::try_from(config(&engine, Some(&token)).await).unwrap();
        let namespaces: Api<Namespace> = Api::all(user.clone());
        namespaces.get("team-a").await.expect("a tenant may read its own namespace");
        assert!(namespaces.get("team-b").await.is_err(), "and no other one");
        let pods: Api<Pod> = Api::namespaced(user, "team-a");
        let router = engine.state()["router"].as_str().unwrap().trim_start_matches("http://").to_owned();
        let listen = async || connect(tokio::net::TcpStream::connect(&router).await.unwrap()).await;
        let mut forwards = Vec::new();
        let mut tunnels = Vec::new();
        for _ in 0..4 {
            let mut forward = pods.portforward("sandbox-router", &[8080]).await.unwrap();
            tunnels.push(connect(forward.take_stream(8080).unwrap()).await);
            forwards.push(forward);
        }
        let listeners = [listen().await, listen().await, listen().await, listen().await];
        let mut open = Vec::new();
        for (connections, token) in [(tunnels, None), (Vec::from(listeners), Some(token.as_str()))] {
            let mut connections = connections.into_iter();
            // The right namespace with a foreign name, the wrong namespace, and one that does not exist. The router
            // closes a connection of which it has refused a request with a body.
            for (namespace, sandbox) in [("team-b", "box"), ("default", "box"), ("nowhere", "box")] {
                let mut refused = connections.next().unwrap();
                let (status, _) = execute(&mut refused, token, namespace, sandbox, "touch /home/user/intruder").await;
                assert_eq!(status, StatusCode::FORBIDDEN, "{namespace}/{sandbox}");
            }
            let mut connection = connections.next().unwrap();
            for said in ["hello", "again"] {
                let own = execute(&mut connection, token, "team-a", "box", &format!("echo {said}")).await;
                assert_eq!(own, (StatusCode::OK, format!("{said}\n")));
            }
            open.push((connection, token));
        }
        for wrong in [None, Some("wrong")] {
            let (status, _) = execute(&mut listen().await, wrong, "team-a", "box", "true").await;
            assert_eq!(status, StatusCode::UNAUTHORIZED, "the listener requires a token");
        }
        let bindings: Api<RoleBinding> = Api::namespaced(admin, "team-a");
        bindings.delete("tenant", &DeleteParams::default()).await.unwrap();
        for (mut connection, token) in open {
            let (status, _) = execute(&mut connection, token, "team-a", "box", "true").await;
            assert_eq!(status, StatusCode::FORBIDDEN, "a right that was taken away ends with the next request");
        }
    });
    let files = engine.ok(&["-n", "team-b", "exec", "box", "--", "ls", "/home/user"]);
    assert!(!files.contains("intruder"), "{files}");
    check_audit(&engine);
}

/// The audit log after the test above: who ran what where, and what was refused.
fn check_audit(engine: &Engine) {
    const TENANT: &str = "system:serviceaccount:team-a:tenant";
    let records = |arguments: &[&str]| -> Vec<Value> {
        let output = engine.ok(&[&["audit", "-o", "json"], arguments].concat());
        output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    // Records are written in batches.
    eventually("the last command is recorded", || {
        records(&["--name", "box"]).iter().any(|record| record["argv"] == json!(["ls", "/home/user"]))
    });
    let by_tenant = records(&["--user", TENANT]);
    let is = |record: &&Value, source: &str, action: &str, decision: &str| {
        record["source"] == source && record["action"] == action && record["decision"] == decision
    };
    let ran = by_tenant.iter().filter(|record| is(record, "router", "exec", "allow"));
    let ran: Vec<&Value> = ran.map(|record| &record["argv"][0]).collect();
    assert_eq!(ran, ["echo hello", "echo again", "echo hello", "echo again"]);
    let refused = by_tenant.iter().filter(|record| is(record, "router", "exec", "deny"));
    let refused: Vec<(&Value, &Value)> = refused.map(|record| (&record["namespace"], &record["status"])).collect();
    let status = json!(403);
    for namespace in ["team-b", "default", "nowhere"] {
        let count = refused.iter().filter(|(refused, code)| *refused == namespace && **code == status).count();
        assert_eq!(count, 2, "{namespace}: {refused:?}");
    }
    assert!(by_tenant.iter().any(|record| is(&record, "api", "port-forward", "allow")));
    let denied = records(&["--denied", "--user", TENANT]);
    let read = |record: &Value| record["request"] == "GET /api/v1/namespaces/team-b" && record["source"] == "api";
    assert!(denied.iter().any(read), "a refused read is recorded: {denied:?}");
    let anonymous = records(&["--denied"]);
    assert!(anonymous.iter().any(|record| record["status"] == 401 && record["user"].is_null()));
    let created = records(&["-n", "team-b", "--name", "box"]);
    let sandbox = |record: &&Value| record["resource"] == "sandboxes.agents.x-k8s.io" && record["action"] == "create";
    let created: Vec<&Value> = created.iter().filter(sandbox).collect();
    assert_eq!(created.len(), 1, "{created:?}");
    let text = engine.ok(&["audit", "--user", TENANT, "--denied"]);
    assert!(text.contains("exec  sandboxes team-b/box  denied 403"), "{text}");
    let none = engine.ok(&["audit", "--since", "0s"]);
    assert_eq!(none, "");
}

/// Changes of files through the router, and uses of a program's port: one record a minute for each caller and port,
/// however many requests it sends. Of a port-forward to the Pod itself, as `cp` makes, only the port is known.
#[test]
fn written_files_and_used_ports_are_in_the_audit_log() {
    let Some(engine) = Engine::start() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    engine.ok(&["create", "box", "--", "python3", "-m", "http.server", "3000"]);
    eventually("the program listens", || {
        let probe = "import socket; socket.create_connection(('localhost', 3000))";
        engine.run(&["exec", "box", "--", "python3", "-c", probe]).status.success()
    });
    let local = engine.folder.path().join("local.txt");
    std::fs::write(&local, "copied").unwrap();
    engine.ok(&["cp", local.to_str().unwrap(), "box:/tmp/copied.txt"]);
    let token = engine.ok(&["token", "mint", "box"]).trim().to_owned();
    let router = engine.state()["router"].as_str().unwrap().trim_start_matches("http://").to_owned();
    runtime.block_on(async {
        let mut connection = connect(tokio::net::TcpStream::connect(&router).await.unwrap()).await;
        let mut send = async |request: http::request::Builder, port: &str, body: &str| {
            let request = request
                .header("host", "localhost")
                .header("authorization", format!("Bearer {token}"))
                .header("x-sandbox-id", "box")
                .header("x-sandbox-port", port);
            connection.ready().await.unwrap();
            let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
            let response = connection.send_request(request).await.unwrap();
            let status = response.status();
            response.into_body().collect().await.unwrap();
            status
        };
        let native = Request::put("/sandbox/v1/files?path=/tmp/native.txt");
        assert_eq!(send(native, "8888", "text").await, StatusCode::NO_CONTENT);
        let form =
            "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"uploaded.txt\"\r\n\r\ntext\r\n--x--\r\n";
        let upload = Request::post("/upload").header("content-type", "multipart/form-data; boundary=x");
        assert_eq!(send(upload, "8888", form).await, StatusCode::OK);
        for path in ["/", "/", "/missing"] {
            let expected = if path == "/" { StatusCode::OK } else { StatusCode::NOT_FOUND };
            assert_eq!(send(Request::get(path), "3000", "").await, expected);
        }
        // The last request of the test, and the last record.
        let execute = Request::post("/execute").header("content-type", "application/json");
        assert_eq!(send(execute, "8888", r#"{"command":"echo last"}"#).await, StatusCode::OK);
    });
    let records = || -> Vec<Value> {
        let output = engine.ok(&["audit", "-o", "json", "--name", "box"]);
        output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    eventually("the last command is recorded", || {
        records().iter().any(|record| record["argv"] == json!(["echo last"]))
    });
    let records = records();
    let of = |action: &str| -> Vec<[&Value; 6]> {
        let found = records.iter().filter(|record| record["action"] == action);
        found
            .map(|record| ["source", "user", "namespace", "decision", "path", "port"].map(|key| &record[key]))
            .collect()
    };
    let [router, scoped, namespace, allow] = ["router", "scoped-token", "default", "allow"].map(|text| json!(text));
    let (none, program, daemon) = (Value::Null, json!(3000), json!(8888));
    assert_eq!(of("port"), [[&router, &scoped, &namespace, &allow, &none, &program]]);
    let (native, uploaded) = (json!("/tmp/native.txt"), json!("uploaded.txt"));
    let written = [&native, &uploaded].map(|path| [&router, &scoped, &namespace, &allow, path, &daemon]);
    assert_eq!(of("write-file"), written);
    let (api, admin) = (json!("api"), json!("kubernetes-admin"));
    let forward = [&api, &admin, &namespace, &allow, &none, &daemon];
    assert!(of("port-forward").contains(&forward), "{:?}", of("port-forward"));
}

/// A token that `token mint` creates with the engine's own secret opens one sandbox, also as a link in a browser.
#[test]
fn a_scoped_token_opens_one_sandbox_at_the_routers_listener() {
    let Some(engine) = Engine::start() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    engine.ok(&["create", "box"]);
    engine.ok(&["create", "other"]);
    let token = engine.ok(&["token", "mint", "box"]).trim().to_owned();
    let router = engine.state()["router"].as_str().unwrap().trim_start_matches("http://").to_owned();
    runtime.block_on(async {
        let mut connection = connect(tokio::net::TcpStream::connect(&router).await.unwrap()).await;
        let own = execute(&mut connection, Some(&token), "default", "box", "echo hello").await;
        assert_eq!(own, (StatusCode::OK, "hello\n".to_owned()));
        let (other, _) = execute(&mut connection, Some(&token), "default", "other", "true").await;
        assert_eq!(other, StatusCode::FORBIDDEN);
        let forged = format!("{token}x");
        let (status, _) = execute(&mut connection, Some(&forged), "default", "box", "true").await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
        let port = router.rsplit_once(':').unwrap().1;
        let mut get = async |host: &str, target: &str, header: (&str, &str)| {
            let request = Request::get(target).header("host", format!("{host}:{port}")).header(header.0, header.1);
            connection.ready().await.unwrap();
            connection.send_request(request.body(Full::default()).unwrap()).await.unwrap()
        };
        let host = "8888-box--default.localhost";
        let link = get(host, &format!("/exists/.?agent-sandbox-token={token}"), ("accept", "*/*")).await;
        assert_eq!(link.status(), StatusCode::FOUND);
        let cookie = link.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
        drop(link.into_body().collect().await.unwrap());
        let page = get(host, "/exists/.", ("cookie", &cookie)).await;
        assert_eq!(page.status(), StatusCode::OK);
        drop(page.into_body().collect().await.unwrap());
        let other = get("8888-other--default.localhost", "/exists/.", ("cookie", &cookie)).await;
        assert_eq!(other.status(), StatusCode::FORBIDDEN);
    });
}

/// Sends requests to the API with a token; the status code.
async fn api_status(engine: &Engine, token: Option<&str>) -> u16 {
    let client = Client::try_from(config(engine, token).await).unwrap();
    match Api::<Pod>::namespaced(client, "team-a").list(&Default::default()).await {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => unreachable!("{error}"),
    }
}

fn admin_token(engine: &Engine) -> String {
    let file = Kubeconfig::read_from(engine.data().join("kubeconfig")).unwrap();
    serde_json::to_value(&file.auth_infos[0].auth_info).unwrap()["token"].as_str().unwrap().to_owned()
}

/// `token list|revoke|rotate`: API and router refuse a token from the moment that the command ends, on connections that
/// are open as well.
#[test]
fn tokens_are_listed_revoked_and_rotated_at_once() {
    let Some(engine) = Engine::start() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let admin = runtime.block_on(async { Client::try_from(config(&engine, None).await).unwrap() });
    let token = runtime.block_on(tenant(&admin, "team-a"));
    engine.ok(&["-n", "team-a", "create", "box"]);
    let listed = engine.ok(&["token", "list"]);
    let row = listed.lines().find(|line| line.contains("team-a")).unwrap().to_owned();
    assert!(row.contains("tenant") && !listed.contains(&token), "{listed}");
    let id = row.split_whitespace().next().unwrap().to_owned();
    let router = engine.state()["router"].as_str().unwrap().trim_start_matches("http://").to_owned();
    let open = || runtime.block_on(async { connect(tokio::net::TcpStream::connect(&router).await.unwrap()).await });
    let run = |connection: &mut SendRequest<Full<Bytes>>, token: &str| {
        runtime.block_on(execute(connection, Some(token), "team-a", "box", "echo hello"))
    };
    let hello = (StatusCode::OK, "hello\n".to_owned());
    let refused = (StatusCode::UNAUTHORIZED, String::new());
    let mut connection = open();
    assert_eq!(run(&mut connection, &token), hello);

    let (_, _, unknown) = engine.fails(&["token", "revoke", "no-such-token"]);
    assert!(unknown.contains("there is no token \"no-such-token\""), "{unknown}");
    assert_eq!(engine.ok(&["token", "revoke", &id]), format!("token {id} revoked\n"));
    assert_eq!(run(&mut connection, &token), refused);
    assert_eq!(runtime.block_on(api_status(&engine, Some(&token))), 401);
    assert!(!engine.ok(&["token", "list"]).contains("team-a"), "revoked tokens are not listed");

    let old = admin_token(&engine);
    assert_eq!(run(&mut connection, &old), hello);
    engine.ok(&["token", "rotate"]);
    let new = admin_token(&engine);
    assert_ne!(old, new);
    assert_eq!(run(&mut connection, &old), refused, "on the open connection");
    assert_eq!(run(&mut open(), &old), refused);
    assert_eq!(run(&mut connection, &new), hello);
    assert_eq!(runtime.block_on(api_status(&engine, Some(&old))), 401);
    assert_eq!(runtime.block_on(api_status(&engine, None)), 200, "the kubeconfig has the new token");

    let recorded = || -> Vec<Value> {
        let output = engine.ok(&["audit", "-o", "json"]);
        let records = output.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        records.filter(|record| record["resource"] == "tokens").collect()
    };
    eventually("the changes are recorded", || recorded().len() == 3);
    let recorded = recorded();
    let seen: Vec<_> = recorded.iter().map(|one| (&one["action"], &one["status"], &one["name"])).collect();
    let (revoke, rotate) = (json!("revoke-token"), json!("rotate-token"));
    let ended = (&revoke, &json!(200), &json!(id));
    assert_eq!(seen, [(&revoke, &json!(500), &Value::Null), ended, (&rotate, &json!(200), &Value::Null)]);
}

/// `kubectl top` works without metrics-server.
#[test]
fn kubectl_top_shows_the_use_of_sandboxes() {
    let Some(engine) = Engine::start() else { return };
    engine.ok(&["create", "box"]);
    let kubectl = |words: &[&str]| {
        let mut command = std::process::Command::new("kubectl");
        command.arg("--kubeconfig").arg(engine.data().join("kubeconfig"));
        command.arg("--cache-dir").arg(engine.folder.path().join("cache")).args(words);
        command.output()
    };
    if kubectl(&["version", "--client"]).is_err() {
        eprintln!("SKIPPED: kubectl is not installed");
        return;
    }
    // A process that holds 50 MiB.
    let hold = "import time; held = bytearray(50 << 20); time.sleep(1000)";
    engine.ok(&["exec", "box", "--", "sh", "-c", &format!("python3 -c '{hold}' > /dev/null 2>&1 &")]);
    for (words, name) in [(&["top", "pod", "box", "--no-headers"][..], "box"), (&["top", "node", "--no-headers"], "")] {
        let mut shown = String::new();
        // Usage is the difference of two samples.
        eventually("the use is measured", || {
            let output = kubectl(words).unwrap();
            shown = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
            let memory = shown.split_whitespace().find_map(|field| field.strip_suffix("Mi")?.parse::<u64>().ok());
            output.status.success() && memory.is_some_and(|memory| memory >= 50)
        });
        let fields: Vec<&str> = shown.split_whitespace().collect();
        assert!(fields[0].contains(name) && fields[1].ends_with('m'), "{shown}");
    }
}

#[test]
fn listeners_without_tls_stay_on_this_machine() {
    let Some(engine) = Engine::stopped() else { return };
    for flag in ["--router-listen", "--metrics-listen"] {
        let (_, _, stderr) = engine.fails(&["up", "--api-listen", "127.0.0.1:0", flag, "0.0.0.0:0"]);
        assert!(stderr.contains("without TLS") && stderr.contains(flag), "{stderr}");
    }
}

/// Everything that a test suite creates goes with its namespace: template, pool, claim, Pods, and the router's Pod.
#[test]
fn a_namespace_with_sandboxes_is_deleted_within_seconds() {
    let Some(engine) = Engine::start() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let admin = runtime.block_on(async { Client::try_from(config(&engine, None).await).unwrap() });
    runtime.block_on(tenant(&admin, "suite"));
    engine.ok(&["-n", "suite", "create", "box"]);
    engine.ok(&["-n", "suite", "template", "create", "t", "--image", "host"]);
    engine.ok(&["-n", "suite", "pool", "create", "p", "--template", "t", "--replicas", "1"]);
    engine.ok(&["-n", "suite", "claim", "p"]);
    let namespaces: Api<Namespace> = Api::all(admin);
    runtime.block_on(namespaces.delete("suite", &DeleteParams::default())).unwrap();
    let started = std::time::Instant::now();
    eventually("the namespace is gone", || runtime.block_on(namespaces.get_opt("suite")).unwrap().is_none());
    eprintln!("gone after {:?}", started.elapsed());
}
