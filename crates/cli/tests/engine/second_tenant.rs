//! A second tenant against another tenant's objects, through every interface. The cases are generated from API
//! discovery, the sandbox's own description of its HTTP API, the list of MCP tools and the CLI's command tree: whatever
//! is added there is tried here, and a verb or a command without a case fails the test.

#![expect(clippy::panic, reason = "a verb or a command without a case fails the test")]

use crate::fixture::{Engine, eventually, is_root};
use crate::tenants::{config, connect, tenant};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    config::{Kubeconfig, NamedAuthInfo},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::Stdio,
};

/// The namespace of the attacked tenant.
const VICTIM: &str = "team-b";
/// Requests about the caller itself, which every user may make.
const ABOUT_ONESELF: [&str; 3] = ["selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"];

/// E-125
#[test]
fn a_second_tenant_is_refused_by_every_verb_and_changes_nothing() {
    let Some(engine) = Engine::start() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (admin, token) = runtime.block_on(async {
        let admin = Client::try_from(config(&engine, None).await).unwrap();
        let token = tenant(&admin, "team-a").await;
        tenant(&admin, VICTIM).await;
        (admin, token)
    });
    engine.ok(&["-n", VICTIM, "create", "box"]);
    engine.ok(&["-n", VICTIM, "template", "create", "t", "--image", "host"]);
    engine.ok(&["-n", VICTIM, "pool", "create", "p", "--template", "t", "--replicas", "1"]);
    if is_root() {
        engine.ok(&["-n", VICTIM, "snapshot", "create", "box", "s"]);
    }
    let claim = engine.ok(&["-n", VICTIM, "claim", "p", "-o", "name"]);
    let claim = claim.trim().rsplit('/').next().unwrap().to_owned();
    let link = engine.ok(&["-n", VICTIM, "url", "box", "3000", "-o", "name"]);
    let e2b_box = runtime.block_on(async {
        let api = E2bApi::open(&engine, VICTIM).await;
        let (status, created) = api.call("POST", "/v2/sandboxes", &json!({"templateID": "base", "timeout": 600})).await;
        assert_eq!(status, StatusCode::CREATED, "{created}");
        created
    });
    let pool = format!("/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/{VICTIM}/sandboxwarmpools/p");
    eventually("the pool is full again, so that the controller has nothing left to write", || {
        let pool = runtime.block_on(get(&admin, &pool));
        pool["status"]["readyReplicas"] == 1
    });
    let resources = runtime.block_on(discover(&admin));
    let before = runtime.block_on(state(&admin, &resources));
    assert!(before.len() > 5, "{before:?}");

    runtime.block_on(async {
        let user = Client::try_from(config(&engine, Some(&token)).await).unwrap();
        attack_api(&user, &resources).await;
        attack_router(&engine, &token).await;
        attack_links(&engine, &token, &link).await;
        attack_e2b(&engine, &e2b_box).await;
    });
    let kubeconfig = kubeconfig_of(&engine, &token);
    attack_by_mcp(&engine, &kubeconfig, &claim);
    attack_by_cli(&engine, &kubeconfig, &claim);

    let after = runtime.block_on(state(&admin, &resources));
    assert_eq!(after, before, "nothing of the other tenant has changed");
}

/// A resource as discovery describes it.
struct Resource {
    /// `/api/v1` or `/apis/GROUP/VERSION`.
    prefix: String,
    plural: String,
    subresource: Option<String>,
    namespaced: bool,
    verbs: Vec<String>,
}

impl Resource {
    fn collection(&self, namespace: &str) -> String {
        match self.namespaced {
            true => format!("{}/namespaces/{namespace}/{}", self.prefix, self.plural),
            false => format!("{}/{}", self.prefix, self.plural),
        }
    }

    fn object(&self, namespace: &str, name: &str) -> String {
        let subresource = self.subresource.as_ref().map(|name| format!("/{name}")).unwrap_or_default();
        format!("{}/{name}{subresource}", self.collection(namespace))
    }
}

async fn get(client: &Client, path: &str) -> Value {
    client.request(Request::get(path).body(Vec::new()).unwrap()).await.unwrap()
}

async fn discover(admin: &Client) -> Vec<Resource> {
    let mut prefixes = vec!["/api/v1".to_owned()];
    let groups = get(admin, "/apis").await;
    for group in groups["groups"].as_array().unwrap() {
        let versions = group["versions"].as_array().unwrap().iter();
        prefixes.extend(versions.map(|version| format!("/apis/{}", version["groupVersion"].as_str().unwrap())));
    }
    let mut resources = Vec::new();
    for prefix in prefixes {
        let list = get(admin, &prefix).await;
        for resource in list["resources"].as_array().unwrap() {
            let name = resource["name"].as_str().unwrap();
            let (plural, subresource) = match name.split_once('/') {
                Some((plural, subresource)) => (plural, Some(subresource.to_owned())),
                None => (name, None),
            };
            let verbs = resource["verbs"].as_array().unwrap().iter().map(|verb| verb.as_str().unwrap().to_owned());
            resources.push(Resource {
                prefix: prefix.clone(),
                plural: plural.to_owned(),
                subresource,
                namespaced: resource["namespaced"].as_bool().unwrap(),
                verbs: verbs.collect(),
            });
        }
    }
    resources
}

/// Versions of all objects of the attacked tenant, without those that components write by themselves.
async fn state(admin: &Client, resources: &[Resource]) -> BTreeMap<String, String> {
    let mut versions = BTreeMap::new();
    for resource in resources {
        let written_by_components = ["events", "leases", "endpoints", "endpointslices", "pods"];
        let listed = resource.namespaced && resource.verbs.iter().any(|verb| verb == "list");
        if !listed || written_by_components.contains(&resource.plural.as_str()) {
            continue;
        }
        let path = resource.collection(VICTIM);
        for object in get(admin, &path).await["items"].as_array().unwrap() {
            let metadata = &object["metadata"];
            let version = metadata["resourceVersion"].as_str().unwrap().to_owned();
            versions.insert(format!("{path}/{}", metadata["name"].as_str().unwrap()), version);
        }
    }
    versions
}

async fn status(client: &Client, method: Method, path: &str, body: &Value) -> StatusCode {
    let media_type = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let request = Request::builder().method(method).uri(path).header("content-type", media_type);
    let body = kube::client::Body::from(body.to_string().into_bytes());
    client.send(request.body(body).unwrap()).await.unwrap().status()
}

async fn attack_api(user: &Client, resources: &[Resource]) {
    let mut tried = 0;
    for resource in resources {
        for verb in &resource.verbs {
            let name = if resource.plural == "namespaces" { VICTIM } else { "box" };
            let (collection, object) = (resource.collection(VICTIM), resource.object(VICTIM, name));
            let new = if resource.subresource.is_some() { object.clone() } else { collection.clone() };
            let requests = match verb.as_str() {
                "get" => vec![(Method::GET, object)],
                "list" => {
                    vec![(Method::GET, collection), (Method::GET, format!("{}/{}", resource.prefix, resource.plural))]
                }
                "watch" => vec![(Method::GET, format!("{collection}?watch=true&timeoutSeconds=1"))],
                "create" if matches!(resource.subresource.as_deref(), Some("exec" | "attach" | "portforward")) => {
                    vec![(Method::POST, format!("{object}?command=id&stdout=true")), (Method::GET, object)]
                }
                "create" => vec![(Method::POST, new)],
                "update" => vec![(Method::PUT, object)],
                "patch" => vec![(Method::PATCH, object)],
                "delete" => vec![(Method::DELETE, object)],
                "deletecollection" => vec![(Method::DELETE, collection)],
                other => panic!("no case for the verb {other} of {}", resource.plural),
            };
            for (method, path) in requests {
                if ABOUT_ONESELF.contains(&resource.plural.as_str()) {
                    continue;
                }
                let answer = status(user, method.clone(), &path, &json!({})).await;
                assert_eq!(answer, StatusCode::FORBIDDEN, "{method} {path}");
                tried += 1;
            }
            // The own namespace in the path, the other one in the object.
            if verb == "create" && resource.namespaced && resource.subresource.is_none() {
                let path = resource.collection("team-a");
                let body = json!({"metadata": {"name": "intruder", "namespace": VICTIM}});
                let answer = status(user, Method::POST, &path, &body).await;
                assert!(answer.is_client_error(), "{path}: {answer}");
                tried += 1;
            }
        }
    }
    assert!(tried > 150, "discovery listed only {tried} requests");
}

async fn attack_router(engine: &Engine, token: &str) {
    let router = engine.state()["router"].as_str().unwrap().trim_start_matches("http://").to_owned();
    let mut connection = connect(tokio::net::TcpStream::connect(&router).await.unwrap()).await;
    let kubeconfig = std::fs::read_to_string(engine.data().join("kubeconfig")).unwrap();
    let kubeconfig: Value = serde_saphyr::from_str(&kubeconfig).unwrap();
    let admin = kubeconfig["users"][0]["user"]["token"].as_str().unwrap().to_owned();
    let mut call = async |token: &str, method: &str, path: &str| {
        let request = Request::builder().method(method).uri(path).header("host", "localhost");
        let request = request.header("x-sandbox-id", "box").header("x-sandbox-namespace", VICTIM);
        let request = request.header("authorization", format!("Bearer {token}"));
        connection.ready().await.unwrap();
        let response = connection.send_request(request.body(Full::new(Bytes::new())).unwrap()).await.unwrap();
        let status = response.status();
        (status, response.into_body().collect().await.unwrap().to_bytes())
    };
    let (found, description) = call(&admin, "GET", "/sandbox/v1/openapi.json").await;
    assert_eq!(found, StatusCode::OK);
    let description: Value = serde_json::from_slice(&description).unwrap();
    let mut routes = vec![
        ("GET".to_owned(), "/".to_owned()),
        ("POST".to_owned(), "/execute".to_owned()),
        ("POST".to_owned(), "/upload".to_owned()),
        ("GET".to_owned(), "/download/x".to_owned()),
        ("GET".to_owned(), "/list/x".to_owned()),
        ("GET".to_owned(), "/exists/x".to_owned()),
    ];
    for (path, methods) in description["paths"].as_object().unwrap() {
        let methods = methods.as_object().unwrap().keys().filter(|key| *key != "parameters");
        routes.extend(methods.map(|method| (method.to_uppercase(), path.replace("{id}", "1"))));
    }
    assert!(routes.len() > 30, "{routes:?}");
    for (method, path) in routes {
        let (refused, _) = call(token, &method, &path).await;
        assert_eq!(refused, StatusCode::FORBIDDEN, "{method} {path}");
    }
}

/// Creates and revokes links of the other tenant's sandbox, at the listener and over a port-forward in a namespace of
/// one's own.
async fn attack_links(engine: &Engine, token: &str, link: &str) {
    let router = engine.state()["router"].as_str().unwrap().trim_start_matches("http://").to_owned();
    let listener = connect(tokio::net::TcpStream::connect(&router).await.unwrap()).await;
    let user = Client::try_from(config(engine, Some(token)).await).unwrap();
    let forwarded = Api::<Pod>::namespaced(user, "team-a").portforward("sandbox-router", &[8080]).await;
    let mut forwarder = forwarded.unwrap();
    let forwarded = connect(forwarder.take_stream(8080).unwrap()).await;
    let create = json!({"ports": [8888], "ttlSeconds": 600, "allowDaemon": true}).to_string();
    let path = format!("/sandbox-links/{VICTIM}/box");
    for mut connection in [listener, forwarded] {
        // A refused request with a body may end its connection, so that it comes last.
        for (method, path, body) in
            [("DELETE", format!("{path}/{}", link.trim()), String::new()), ("POST", path.clone(), create.clone())]
        {
            let request = Request::builder().method(method).uri(&path).header("host", "localhost");
            let request = request.header("authorization", format!("Bearer {token}"));
            let request = request.header("content-type", "application/json").body(Full::from(body)).unwrap();
            connection.ready().await.unwrap();
            let response = connection.send_request(request).await.unwrap();
            assert_eq!(response.status(), StatusCode::FORBIDDEN, "{method} {path}");
            response.into_body().collect().await.unwrap();
        }
    }
}

/// E2B's API with the key of one tenant.
struct E2bApi {
    router: String,
    key: String,
}

impl E2bApi {
    async fn open(engine: &Engine, namespace: &str) -> Self {
        let router = engine.state()["router"].as_str().unwrap().trim_start_matches("http://").to_owned();
        let key = engine.ok(&["-n", namespace, "token", "e2b"]).trim().to_owned();
        Self { router, key }
    }

    /// On a connection of its own: a refused request with a body may end its connection.
    async fn send(&self, request: http::request::Builder, body: &Value) -> (StatusCode, Value) {
        let request = request.header("host", "localhost").header("content-type", "application/json");
        let mut connection = connect(tokio::net::TcpStream::connect(&self.router).await.unwrap()).await;
        let body = Full::new(Bytes::from(body.to_string()));
        let response = connection.send_request(request.body(body).unwrap()).await.unwrap();
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    async fn call(&self, method: &str, path: &str, body: &Value) -> (StatusCode, Value) {
        let request = Request::builder().method(method).uri(format!("/e2b{path}")).header("x-api-key", &self.key);
        self.send(request, body).await
    }
}

/// E-125: a sandbox of another tenant does not exist, and what the other tenant's own sandbox hands out opens nothing else.
async fn attack_e2b(engine: &Engine, victim: &Value) {
    let mut api = E2bApi::open(engine, "team-a").await;
    let id = victim["sandboxID"].as_str().unwrap();
    for (method, path, body) in [
        ("GET", format!("/sandboxes/{id}"), json!(null)),
        ("DELETE", format!("/sandboxes/{id}"), json!(null)),
        ("POST", format!("/sandboxes/{id}/pause"), json!({})),
        ("POST", format!("/sandboxes/{id}/connect"), json!({"timeout": 900})),
        ("POST", format!("/v2/sandboxes/{id}/connect"), json!({"timeout": 900})),
        ("POST", format!("/sandboxes/{id}/resume"), json!({"timeout": 900})),
        ("POST", format!("/sandboxes/{id}/timeout"), json!({"timeout": 1})),
        ("POST", format!("/sandboxes/{id}/refreshes"), json!({"duration": 900})),
        ("GET", format!("/sandboxes/{id}/metrics"), json!(null)),
        ("GET", format!("/sandboxes/{id}/logs"), json!(null)),
        ("GET", format!("/v2/sandboxes/{id}/logs"), json!(null)),
        ("PUT", format!("/sandboxes/{id}/network"), json!({})),
        ("POST", format!("/sandboxes/{id}/snapshots"), json!({"memory": false})),
        ("POST", format!("/sandboxes/{id}/fork"), json!({})),
        // Templates and snapshots of the other tenant.
        ("POST", "/v2/sandboxes".to_owned(), json!({"templateID": "s"})),
        ("DELETE", "/templates/s".to_owned(), json!(null)),
        ("GET", "/templates/aliases/t".to_owned(), json!(null)),
        ("POST", "/v2/sandboxes".to_owned(), json!({"templateID": "t"})),
        ("POST", "/v2/sandboxes".to_owned(), json!({"templateID": "p"})),
    ] {
        let (status, answer) = api.call(method, &path, &body).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{method} {path}: {answer}");
    }
    let snapshots = format!("/snapshots?sandboxID={id}");
    for path in ["/sandboxes", "/v2/sandboxes", "/snapshots", &snapshots] {
        assert_eq!(api.call("GET", path, &json!(null)).await, (StatusCode::OK, json!([])), "{path}");
    }
    let (status, own) = api.call("POST", "/v2/sandboxes", &json!({"templateID": "base"})).await;
    assert_eq!(status, StatusCode::CREATED, "{own}");
    for (port, path) in [
        ("49983", "/process.Process/List"),
        ("49983", "/files?path=/etc/passwd"),
        ("49983", "/envs"),
        ("49983", "/init"),
        ("49999", "/execute"),
        ("49999", "/contexts"),
        ("8888", "/execute"),
    ] {
        let request = Request::builder().method("POST").uri(path).header("e2b-sandbox-id", id);
        let request = request.header("e2b-sandbox-port", port);
        let request = request.header("x-access-token", own["envdAccessToken"].as_str().unwrap());
        let request = request.header("e2b-traffic-access-token", own["trafficAccessToken"].as_str().unwrap());
        let (status, answer) = api.send(request, &json!({})).await;
        let refused = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&status);
        assert!(refused, "{port} {path}: {status} {answer}");
    }
    let id = own["sandboxID"].as_str().unwrap();
    assert_eq!(api.call("DELETE", &format!("/sandboxes/{id}"), &json!(null)).await.0, StatusCode::NO_CONTENT);
    // Without a key there is nothing at all.
    api.key = "e2b_0".to_owned();
    assert_eq!(api.call("GET", "/v2/sandboxes", &json!(null)).await.0, StatusCode::UNAUTHORIZED);
}

/// A kubeconfig with the tenant's token.
fn kubeconfig_of(engine: &Engine, token: &str) -> PathBuf {
    let mut file = Kubeconfig::read_from(engine.data().join("kubeconfig")).unwrap();
    let info: &mut NamedAuthInfo = &mut file.auth_infos[0];
    info.auth_info.as_mut().unwrap().token = Some(token.to_owned().into());
    let path = engine.folder.path().join("tenant.kubeconfig");
    std::fs::write(&path, serde_json::to_string(&file).unwrap()).unwrap();
    path
}

/// A value for a required argument of a tool.
fn argument(name: &str, schema: &Value, claim: &str) -> Value {
    match (name, schema["type"].as_str()) {
        ("namespace", _) => json!(VICTIM),
        ("warmpool", _) => json!("p"),
        ("sandbox_claim_name", _) => json!(claim),
        (_, Some("string")) => json!("x"),
        (_, Some("integer")) => json!(1),
        (_, Some("boolean")) => json!(false),
        (name, kind) => panic!("no case for the argument {name} of type {kind:?}"),
    }
}

fn attack_by_mcp(engine: &Engine, kubeconfig: &Path, claim: &str) {
    let path = kubeconfig.to_str().unwrap();
    let mut server = engine.command(&["--kubeconfig", path, "mcp"]);
    let mut server = server.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut input = server.stdin.take().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let mut call = |id: u64, method: &str, params: Value| -> Value {
        writeln!(input, "{}", json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).unwrap();
        let answer = lines.find_map(|line| {
            let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
            (message["id"] == id).then_some(message)
        });
        answer.unwrap()
    };
    let client = json!({"name": "test", "version": "1"});
    let hello = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
    assert!(call(1, "initialize", hello)["result"].is_object());
    let tools = call(2, "tools/list", json!({}));
    let tools = tools["result"]["tools"].as_array().unwrap();
    assert!(tools.len() >= 7, "{tools:?}");
    for (number, tool) in tools.iter().enumerate() {
        let name = tool["name"].as_str().unwrap();
        let schema = &tool["inputSchema"];
        let mut arguments: BTreeMap<&str, Value> = BTreeMap::new();
        for required in schema["required"].as_array().unwrap() {
            let required = required.as_str().unwrap();
            arguments.insert(required, argument(required, &schema["properties"][required], claim));
        }
        if schema["properties"]["namespace"].is_object() {
            arguments.insert("namespace", json!(VICTIM));
        }
        let answer = call(number as u64 + 3, "tools/call", json!({"name": name, "arguments": arguments}));
        let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_default();
        assert_eq!(answer["result"]["isError"], true, "{name}: {answer}");
        assert!(text.contains("forbidden"), "{name}: {text}");
    }
    drop(input);
    let _ = server.wait();
}

/// What a command can reach.
enum Case {
    /// This machine, the data folder of its own user, or nothing: not another tenant's objects.
    Local,
    /// Objects of a cluster: refused with these arguments.
    Refused(Vec<Vec<String>>),
}

/// The case of each command. `path` is the command with its subcommand.
fn case(path: &str, claim: &str, folder: &Path) -> Case {
    let manifest = folder.join("intruder.yaml");
    std::fs::write(&manifest, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: intruder}\n").unwrap();
    let manifest = manifest.to_str().unwrap().to_owned();
    let refused = |lines: &[&str]| {
        let line = |line: &&str| line.split(' ').map(|word| word.replace("CLAIM", claim)).collect();
        Case::Refused(lines.iter().map(line).collect())
    };
    match path {
        "run" | "up" | "down" | "status" | "top" | "doctor" | "audit" | "kubeconfig" | "controller" | "router"
        | "node" | "version" | "completion" | "token mint" | "token list" | "token revoke" | "token rotate" => {
            Case::Local
        }
        // Files of the data folder, which only its own user can enter.
        path if path.starts_with("changes ") || path.starts_with("image ") => Case::Local,
        // The key of another account, and an account of one's own.
        "token e2b" => refused(&["token e2b --account tenant", "token e2b"]),
        // Tried by its tools.
        "mcp" => Case::Local,
        "create" => refused(&["create intruder", "create intruder --snapshot s"]),
        "claim" => refused(&["claim p"]),
        "list" => refused(&["list"]),
        "get" => refused(&["get box", "get CLAIM"]),
        "exec" => refused(&["exec box -- true", "exec CLAIM -- true"]),
        "shell" => refused(&["shell box"]),
        "cp" => refused(&["cp box:/etc/hostname /dev/null"]),
        "logs" => refused(&["logs box"]),
        "history" => refused(&["history box", "history CLAIM 1"]),
        "suspend" => refused(&["suspend box"]),
        "resume" => refused(&["resume box"]),
        "keep-alive" => refused(&["keep-alive box", "keep-alive CLAIM --for 1h"]),
        "delete" => refused(&["delete box", "delete CLAIM"]),
        "apply" => refused(&[&format!("apply -f {manifest}")]),
        "port-forward" => refused(&["port-forward box 0:8888"]),
        "snapshot create" => refused(&["snapshot create box intruder"]),
        "snapshot list" => refused(&["snapshot list"]),
        "snapshot delete" => refused(&["snapshot delete s"]),
        "fork" => refused(&["fork box intruder"]),
        "rollback" => refused(&["rollback box s"]),
        "url" => refused(&["url box 3000", "url CLAIM 8888 --allow-daemon"]),
        "url list" => refused(&["url list"]),
        "url revoke" => refused(&["url revoke LINK"]),
        "egress log" => refused(&["egress log box", "egress log CLAIM --follow"]),
        "egress test" => refused(&["egress test box https://a.example"]),
        "pool create" => refused(&["pool create intruder --template t"]),
        "pool list" => refused(&["pool list"]),
        "pool scale" => refused(&["pool scale p 0"]),
        "pool delete" => refused(&["pool delete p"]),
        "template create" => refused(&["template create intruder --image host"]),
        "template list" => refused(&["template list"]),
        "template delete" => refused(&["template delete t"]),
        other => panic!("no case for the command `{other}`: add what a second tenant could try with it"),
    }
}

/// The commands that a help page lists.
fn commands(engine: &Engine, words: &[&str]) -> Vec<String> {
    let page = engine.ok(&[words, &["--help"]].concat());
    let list = page.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    list.filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .collect()
}

fn attack_by_cli(engine: &Engine, kubeconfig: &Path, claim: &str) {
    let target = ["--kubeconfig", kubeconfig.to_str().unwrap(), "-n", VICTIM];
    let mut paths = Vec::new();
    // `help` has no help page and reaches nothing.
    for command in commands(engine, &[]).into_iter().filter(|command| command != "help") {
        let below = commands(engine, &[&command]).into_iter().filter(|below| below != "help");
        let below: Vec<String> = below.map(|below| format!("{command} {below}")).collect();
        // `url` works without a subcommand too.
        if below.is_empty() || command == "url" {
            paths.push(command);
        }
        paths.extend(below);
    }
    assert!(paths.len() > 45, "{paths:?}");
    for path in paths {
        let Case::Refused(lines) = case(&path, claim, engine.folder.path()) else { continue };
        for line in lines {
            let words: Vec<&str> = target.iter().copied().chain(line.iter().map(String::as_str)).collect();
            let (_, stdout, stderr) = engine.fails(&words);
            assert!(stderr.contains("forbidden"), "{line:?}: {stderr}");
            assert_eq!(stdout, "", "{line:?}");
        }
    }
}
