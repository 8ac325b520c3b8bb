//! The published clients of E2B, unmodified, against an engine, with nothing set but two URLs and a key. Their
//! environments are made once, under the cache directory; without a package index the tests print so and are skipped,
//! but fail in CI.

use crate::fixture::Engine;
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
};

const PYTHON_PACKAGES: [&str; 2] = ["e2b==2.63.0", "e2b-code-interpreter==2.11.5"];
const NODE_PACKAGES: [&str; 2] = ["e2b@2.51.0", "@e2b/code-interpreter@2.8.0"];
/// The page with the table of methods, between two comments.
const PAGE: &str = "docs/reference/e2b.md";

fn cache(name: &str) -> PathBuf {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    base.unwrap_or_else(std::env::temp_dir).join("agent-sandbox/sdk").join(name)
}

/// Runs the steps that fill a cache folder, unless it is filled; `false`, with a message, if one of them fails.
fn fill(folder: &Path, what: &str, steps: &mut [Command]) -> bool {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock();
    let done = folder.join("installed");
    if done.exists() {
        return true;
    }
    fs::create_dir_all(folder).unwrap();
    if steps.iter_mut().any(|step| !step.status().is_ok_and(|status| status.success())) {
        assert!(std::env::var_os("CI").is_none(), "cannot install {what}");
        eprintln!("SKIPPED: cannot install {what}");
        return false;
    }
    fs::write(done, "").unwrap();
    true
}

fn python() -> Option<PathBuf> {
    let folder = cache("e2b-2.63.0");
    let program = folder.join("bin/python");
    let mut make = Command::new("python3");
    make.args(["-m", "venv"]).arg(&folder);
    let mut install = Command::new(&program);
    install.args(["-m", "pip", "install", "-q", "--disable-pip-version-check"]).args(PYTHON_PACKAGES);
    fill(&folder, "e2b", &mut [make, install]).then_some(program)
}

fn node_modules() -> Option<PathBuf> {
    let folder = cache("e2b-node-2.51.0");
    let mut install = Command::new("npm");
    install.args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"]).arg(&folder).args(NODE_PACKAGES);
    fill(&folder, "e2b for Node", &mut [install]).then(|| folder.join("node_modules"))
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk").join(name)
}

/// Runs a program of a client with what a user sets; returns the results of its methods, which it prints last.
fn run(engine: &Engine, mut command: Command) -> Map<String, Value> {
    let router = engine.state()["router"].as_str().unwrap().to_owned();
    let key = engine.ok(&["token", "e2b"]);
    command.env("E2B_API_URL", format!("{router}/e2b")).env("E2B_SANDBOX_URL", router).env("E2B_API_KEY", key.trim());
    command.env("FILES_ONLY_KEY", engine.ok(&["token", "e2b", "--pause-without-memory"]).trim());
    let output = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}\n{}", engine.log());
    serde_json::from_str(stdout.lines().last().unwrap()).unwrap()
}

fn python_methods(way: &str) -> Option<Map<String, Value>> {
    let (engine, python) = (Engine::start()?, python()?);
    let mut command = Command::new(python);
    command.arg(script("e2b_api.py")).arg(way).arg(env!("CARGO_BIN_EXE_agent-sandbox")).arg(engine.data());
    Some(run(&engine, command))
}

fn node_methods() -> Option<Map<String, Value>> {
    let (engine, modules) = (Engine::start()?, node_modules()?);
    // Node finds packages beside the program that imports them.
    let folder = engine.folder.path().join("node");
    fs::create_dir_all(&folder).unwrap();
    std::os::unix::fs::symlink(&modules, folder.join("node_modules")).unwrap();
    fs::copy(script("e2b_api.mjs"), folder.join("e2b_api.mjs")).unwrap();
    let mut command = Command::new("node");
    command.arg(folder.join("e2b_api.mjs"));
    Some(run(&engine, command))
}

/// `Sandbox.git.remoteAdd` as Python names it.
fn in_snake_case(method: &str) -> String {
    let (class, name) = method.rsplit_once('.').unwrap();
    let mut snake = String::new();
    for letter in name.replace("JSON", "Json").chars() {
        if letter.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    format!("{class}.{snake}")
}

/// The table of results, with how many of them are `works`.
fn table(clients: [&Map<String, Value>; 3]) -> String {
    let mut rows: BTreeMap<String, [&str; 3]> = BTreeMap::new();
    for (column, results) in clients.iter().enumerate() {
        for (method, result) in *results {
            rows.entry(in_snake_case(method)).or_insert(["–"; 3])[column] = result.as_str().unwrap();
        }
    }
    let results = || rows.values().flatten().filter(|result| **result != "–");
    let (all, works) = (results().count(), results().filter(|result| result.starts_with("works")).count());
    let share = works * 100 / all;
    let mut text = format!("{works} of {all} results are `works` ({share} %).\n\n");
    text.push_str("| method | Python | Python, asynchronous | Node |\n|---|---|---|---|\n");
    for (method, [sync, asynchronous, node]) in &rows {
        text.push_str(&format!("| `{method}` | {sync} | {asynchronous} | {node} |\n"));
    }
    text
}

/// E-001, E-002, E-003, E-004, E-006, E-008, E-012, E-014, E-020, E-022, E-023, E-024, E-034, E-035, E-037, E-038,
/// E-039, E-040, E-041, E-071, E-073, E-082, E-093, E-105, E-106, E-111, E-112, E-120, E-121, E-122, E-123, E-124, E-127,
/// E-128, E-129, E-044, E-045
#[test]
fn published_clients_use_every_method() {
    let [sync, asynchronous, node] = std::thread::scope(|scope| {
        let sync = scope.spawn(|| python_methods("sync"));
        let asynchronous = scope.spawn(|| python_methods("async"));
        let node = scope.spawn(node_methods);
        [sync, asynchronous, node].map(|client| client.join().unwrap())
    });
    let (Some(sync), Some(asynchronous), Some(node)) = (sync, asynchronous, node) else { return };
    check_page("methods", &table([&sync, &asynchronous, &node]));
}

/// Compares what the page has between two comments, or writes it.
fn check_page(part: &str, table: &str) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE);
    let text = fs::read_to_string(&page).unwrap();
    let (before, rest) = text.split_once(&format!("<!-- {part} -->\n")).unwrap();
    let (_, after) = rest.split_once(&format!("<!-- end of {part} -->\n")).unwrap();
    let new = format!("{before}<!-- {part} -->\n{table}<!-- end of {part} -->\n{after}");
    if std::env::var_os("AGENT_SANDBOX_WRITE_DOCS").is_some() {
        fs::write(&page, &new).unwrap();
    }
    assert_eq!(
        fs::read_to_string(&page).unwrap(),
        new,
        "{PAGE} differs: run this test with AGENT_SANDBOX_WRITE_DOCS=1"
    );
}

/// The published command-line client, on an engine of its own.
struct CommandLine {
    engine: Engine,
    program: PathBuf,
    key: String,
}

impl CommandLine {
    fn start() -> Option<Self> {
        let folder = cache("e2b-cli-2.19.0");
        let mut install = Command::new("npm");
        install
            .args(["install", "--silent", "--no-audit", "--no-fund", "--prefix"])
            .arg(&folder)
            .arg("@e2b/cli@2.19.0");
        if !fill(&folder, "@e2b/cli", &mut [install]) {
            return None;
        }
        let engine = Engine::start()?;
        let key = engine.ok(&["token", "e2b"]).trim().to_owned();
        Some(Self { engine, program: folder.join("node_modules/@e2b/cli/dist/index.js"), key })
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("node");
        command.arg(&self.program).args(words).stdin(Stdio::null());
        self.set(&mut command);
        command
    }

    /// What a user sets; settings of this machine's own user are not read.
    fn set(&self, command: &mut Command) {
        let router = self.engine.state()["router"].as_str().unwrap().to_owned();
        command.env("E2B_API_URL", format!("{router}/e2b")).env("E2B_SANDBOX_URL", router);
        command.env("E2B_API_KEY", &self.key).env("HOME", self.engine.folder.path());
    }

    /// The exit code, and everything that was printed.
    fn run(&self, words: &[&str]) -> (i32, String) {
        let output = self.command(words).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap(), String::from_utf8(text).unwrap())
    }

    fn ok(&self, words: &[&str]) -> String {
        let (code, text) = self.run(words);
        assert_eq!(code, 0, "{words:?}: {text}");
        text
    }

    fn unsupported(&self, words: &[&str]) {
        let (code, text) = self.run(words);
        assert!(code != 0 && text.contains("501"), "{words:?}: {code} {text}");
    }

    /// The mode of the Sandbox behind an id, as the cluster has it.
    fn mode(&self, id: &str) -> Value {
        let name = id.split_once("--").unwrap().0;
        let stored: Value = serde_json::from_str(&self.engine.ok(&["get", name, "-o", "json"])).unwrap();
        stored["spec"]["operatingMode"].clone()
    }
}

/// E-031, E-038, E-041, E-042: every command of the client that talks to a server, but for those of E2B's own
/// accounts.
#[test]
fn the_published_command_line_client_works() {
    let Some(mut e2b) = CommandLine::start() else { return };
    let created = e2b.ok(&["sandbox", "create", "base", "--detach"]);
    let id = created.split_whitespace().find(|word| word.ends_with("--default")).unwrap().to_owned();
    assert!(e2b.ok(&["sandbox", "list"]).contains(&id));
    let info: Value = serde_json::from_str(&e2b.ok(&["sandbox", "info", &id, "--format", "json"])).unwrap();
    assert_eq!((&info["sandboxId"], &info["state"]), (&Value::from(id.as_str()), &Value::from("running")));
    let (code, said) = e2b.run(&["sandbox", "exec", &id, "--", "sh", "-c", "echo words; exit 3"]);
    assert!(code == 3 && said.contains("words"), "{code} {said}");
    assert!(e2b.ok(&["sandbox", "metrics", &id]).contains("CPU:"));
    assert!(e2b.ok(&["sandbox", "logs", &id]).contains("Logs for sandbox"));

    // It needs a terminal.
    let connect = format!("node {} sandbox connect {id}", e2b.program.display());
    let mut terminal = Command::new("script");
    terminal.args(["-qec", &connect, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    e2b.set(&mut terminal);
    let mut terminal = terminal.spawn().unwrap();
    let mut keys = terminal.stdin.take().unwrap();
    let mut screen = BufReader::new(terminal.stdout.take().unwrap());
    let mut shown = String::new();
    // The client sends what is typed after it is connected.
    while !shown.contains("Terminal connecting") {
        assert!(screen.read_line(&mut shown).unwrap() > 0, "{shown}");
    }
    keys.write_all(b"echo typed > typed; exit\n").unwrap();
    screen.read_to_string(&mut shown).unwrap();
    terminal.wait().unwrap();
    assert_eq!(e2b.ok(&["sandbox", "exec", &id, "--", "cat", "typed"]).trim(), "typed", "{shown}");

    e2b.unsupported(&["sandbox", "pause", &id]);
    assert_eq!(e2b.mode(&id), "Running");
    e2b.key = e2b.engine.ok(&["token", "e2b", "--pause-without-memory"]).trim().to_owned();
    e2b.ok(&["sandbox", "pause", &id]);
    assert_eq!(e2b.mode(&id), "Suspended");
    assert!(e2b.ok(&["sandbox", "list", "--state", "paused"]).contains(&id));
    e2b.ok(&["sandbox", "resume", &id]);
    assert_eq!(e2b.mode(&id), "Running");
    e2b.ok(&["sandbox", "snapshot", "create", &id, "--name", "mine"]);
    assert!(e2b.ok(&["sandbox", "snapshot", "list"]).contains("mine:default"));
    e2b.ok(&["sandbox", "snapshot", "delete", "mine:default"]);
    assert!(!e2b.ok(&["sandbox", "snapshot", "list"]).contains("mine:default"));
    for words in [
        &["template", "delete", "base", "-y"][..],
        &["template", "publish", "x", "-y"],
        &["template", "unpublish", "x", "-y"],
    ] {
        e2b.unsupported(words);
    }
    fs::write(e2b.engine.folder.path().join("Dockerfile"), "FROM host\n").unwrap();
    let folder = e2b.engine.folder.path().display().to_string();
    e2b.unsupported(&["template", "create", "mine", "--path", &folder, "--dockerfile", "Dockerfile"]);
    assert!(e2b.ok(&["template", "list"]).contains("code-interpreter-v1"));
    assert!(e2b.ok(&["sandbox", "kill", &id]).contains("has been killed"));
    assert!(e2b.ok(&["sandbox", "kill", &id]).contains("wasn't found"));
    assert!(e2b.ok(&["sandbox", "list"]).contains("No sandboxes found"));

    let works = ["create", "list", "info", "exec", "connect", "metrics", "logs", "resume", "kill"];
    let mut rows: Vec<_> = works.iter().map(|name| (format!("sandbox {name}"), "works")).collect();
    rows.push((
        "sandbox pause".to_owned(),
        "501, or works with a key of `token e2b --pause-without-memory`: processes end",
    ));
    rows.push(("template list".to_owned(), "works"));
    let files_only = "works with a key of `token e2b --pause-without-memory`: keeps files";
    rows.push(("sandbox snapshot create".to_owned(), files_only));
    rows.extend(["list", "delete"].map(|name| (format!("sandbox snapshot {name}"), "works")));
    let missing = ["template create", "template delete", "template publish", "template unpublish"];
    rows.extend(missing.map(|name| (name.to_owned(), "501")));
    rows.sort();
    let rows: String = rows.iter().map(|(name, result)| format!("| `e2b {name}` | {result} |\n")).collect();
    check_page("commands", &format!("| command | result |\n|---|---|\n{rows}"));
}

/// A key can be listed, replaced and revoked; it ends with its account and at its time.
#[test]
fn keys_are_listed_replaced_and_revoked() {
    let Some(engine) = Engine::start() else { return };
    let router = engine.state()["router"].as_str().unwrap().to_owned();
    let works = |key: &str| {
        let output = Command::new("curl")
            .args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "-H"])
            .arg(format!("X-API-KEY: {}", key.trim()))
            .arg(format!("{router}/e2b/v2/sandboxes"))
            .output()
            .unwrap();
        match String::from_utf8(output.stdout).unwrap().as_str() {
            "200" => true,
            "401" => false,
            other => unreachable!("{other}"),
        }
    };
    let key = engine.ok(&["token", "e2b"]);
    assert!(key.starts_with("e2b_") && works(&key));
    assert!(!works("e2b_0000"));
    let listed = engine.ok(&["token", "list"]);
    let row = listed.lines().find(|line| line.starts_with("e2b-")).unwrap().to_owned();
    assert!(
        row.contains("default") && (row.ends_with("90d") || row.ends_with("89d")) && !listed.contains(key.trim()),
        "{listed}"
    );
    let id = row.split_whitespace().next().unwrap();

    let new = engine.ok(&["token", "rotate", id]);
    assert!(works(&new) && !works(&key), "the old key ends with the new one");
    assert!(engine.ok(&["token", "revoke", new.trim()]).starts_with("key e2b-"));
    assert!(!works(&new));
    let (_, _, unknown) = engine.fails(&["token", "revoke", id]);
    assert!(unknown.contains("there is no key"), "{unknown}");
    let (_, _, missing) = engine.fails(&["token", "e2b", "--account", "nobody"]);
    assert!(missing.contains("no ServiceAccount \"nobody\""), "{missing}");

    let lasting = engine.ok(&["token", "e2b", "--expires-in", "never"]);
    let listed = engine.ok(&["token", "list"]);
    assert!(listed.lines().any(|line| line.starts_with("e2b-") && line.ends_with("never")), "{listed}");
    engine.ok(&["token", "revoke", lasting.trim()]);

    let short = engine.ok(&["token", "e2b", "--expires-in", "2s"]);
    crate::fixture::eventually("the key ends at its time", || !works(&short));
    assert!(!engine.ok(&["token", "list"]).contains("e2b-"), "expired keys are not listed");
}

/// What clients do through E2B's API and ports is in the audit log with the account, the command, the code and the
/// file; so are a wrong key, and a wrong token with the sandbox that it was tried on.
#[test]
fn what_clients_do_is_recorded() {
    let Some(engine) = Engine::start() else { return };
    let router = engine.state()["router"].as_str().unwrap().to_owned();
    let key = engine.ok(&["token", "e2b"]).trim().to_owned();
    let post = |path: &str, headers: &[&str], body: &[u8]| -> (String, Vec<u8>) {
        let file = tempfile::NamedTempFile::new_in(engine.folder.path()).unwrap();
        fs::write(file.path(), body).unwrap();
        let mut command = Command::new("curl");
        command.args(["-s", "-X", "POST", "-w", "%{stderr}%{http_code}", "--data-binary"]);
        command.arg(format!("@{}", file.path().display()));
        headers.iter().for_each(|header| {
            command.args(["-H", header]);
        });
        let output = command.arg(format!("{router}{path}")).output().unwrap();
        (String::from_utf8(output.stderr).unwrap(), output.stdout)
    };
    let plain = "Content-Type: application/json";
    let create = |key: &str| {
        let key = format!("X-API-KEY: {key}");
        post("/e2b/sandboxes", &[plain, &key], br#"{"templateID":"base","timeout":300,"secure":true}"#)
    };
    assert_eq!(create("e2b_0000").0, "401");
    let (status, body) = create(&key);
    assert_eq!(status, "201", "{}", String::from_utf8_lossy(&body));
    let made: Value = serde_json::from_slice(&body).unwrap();
    let id = made["sandboxID"].as_str().unwrap();
    let name = id.split_once("--").unwrap().0;
    let sandbox = format!("E2b-Sandbox-Id: {id}");
    let token = format!("X-Access-Token: {}", made["envdAccessToken"].as_str().unwrap());
    let (envd, interpreter) = ("E2b-Sandbox-Port: 49983", "E2b-Sandbox-Port: 49999");

    let start = br#"{"process":{"cmd":"/bin/bash","args":["-l","-c","echo hello"]},"stdin":false}"#;
    let framed = [&[0, 0, 0, 0, u8::try_from(start.len()).unwrap()], start.as_slice()].concat();
    let connect = "Content-Type: application/connect+json";
    let process = "/process.Process/Start";
    assert_eq!(post(process, &[&sandbox, envd, &token, connect], &framed).0, "200");
    assert_eq!(post(process, &[&sandbox, envd, "X-Access-Token: wrong", connect], &framed).0, "401");
    let bytes = "Content-Type: application/octet-stream";
    let (status, body) = post("/files?path=/home/user/note", &[&sandbox, envd, &token, bytes], b"text");
    assert_eq!(status, "200", "{}", String::from_utf8_lossy(&body));
    let remove = "/filesystem.Filesystem/Remove";
    assert_eq!(post(remove, &[&sandbox, envd, &token, plain], br#"{"path":"/home/user/note"}"#).0, "200");
    let code = br#"{"code":"print(6 * 7)"}"#;
    assert_eq!(post("/execute", &[&sandbox, interpreter, &token, plain], code).0, "200");

    let records = || -> Vec<Value> {
        let output = engine.ok(&["audit", "-o", "json"]);
        output.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    // Records are written in batches.
    crate::fixture::eventually("the last call is recorded", || {
        records().iter().any(|record| record["argv"][0] == "print(6 * 7)")
    });
    let all = records();
    let of = |action: &str, decision: &str| -> Vec<&Value> {
        let wanted = |one: &&Value| one["action"] == action && one["decision"] == decision;
        all.iter().filter(wanted).collect()
    };
    let created: Vec<_> = of("create", "allow").into_iter().filter(|one| one["name"] == name).collect();
    assert!(
        created.iter().any(|one| one["source"] == "api"
            && one["resource"] == "sandboxes.agents.x-k8s.io"
            && one["user"].as_str().is_some_and(|user| user.starts_with("system:serviceaccount:default:"))),
        "{all:#?}"
    );
    let ran: Vec<_> = of("exec", "allow").into_iter().map(|one| (&one["name"], &one["port"], &one["argv"])).collect();
    let (name, shell, code) =
        (Value::from(name), json!(["/bin/bash", "-l", "-c", "echo hello"]), json!(["print(6 * 7)"]));
    assert_eq!(ran, [(&name, &json!(49983), &shell), (&name, &json!(49999), &code)]);
    let written: Vec<_> = of("write-file", "allow").into_iter().map(|one| (&one["name"], &one["path"])).collect();
    let path = Value::from("/home/user/note");
    assert_eq!(written, [(&name, &path), (&name, &path)], "written, then removed");
    let refused = of("exec", "deny");
    assert_eq!(refused.len(), 1, "{all:#?}");
    assert_eq!((&refused[0]["name"], &refused[0]["status"]), (&name, &json!(401)));
    let keys = of("other", "deny");
    assert!(keys.iter().any(|one| one["request"] == "POST /e2b/sandboxes" && one["status"] == 401), "{all:#?}");
}

/// E2B's client for browsers runs in pages of any origin, which have to know a key; without one they get nothing, and
/// under a name that only resolves to this machine not even with a key.
#[test]
fn a_web_page_needs_a_key_and_a_local_name() {
    let Some(engine) = Engine::start() else { return };
    let router = engine.state()["router"].as_str().unwrap().to_owned();
    let key = engine.ok(&["token", "e2b"]).trim().to_owned();
    let status = |method: &str, path: &str, headers: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "-X", method]);
        command.args(["-d", r#"{"templateID":"base"}"#, "-H", "Origin: https://evil.example"]);
        headers.iter().for_each(|header| {
            command.args(["-H", header]);
        });
        String::from_utf8(command.arg(format!("{router}/e2b{path}")).output().unwrap().stdout).unwrap()
    };
    let (rebound, key) = ("Host: evil.example", format!("X-API-KEY: {key}"));
    for (method, path) in [("GET", "/v2/sandboxes"), ("POST", "/sandboxes"), ("DELETE", "/sandboxes/box")] {
        // Without asking, a page can send this type only.
        for kind in ["Content-Type: text/plain", "Content-Type: application/json"] {
            assert_eq!(status(method, path, &[kind]), "401", "{method} {path}");
            assert_eq!(status(method, path, &[kind, "Cookie: key=1", "Sec-Fetch-Site: cross-site"]), "401", "{path}");
            assert_eq!(status(method, path, &[kind, rebound]), "421", "{method} {path}");
            assert_eq!(status(method, path, &[kind, rebound, &key]), "421", "{method} {path}");
        }
    }
    assert_eq!(status("GET", "/v2/sandboxes", &[&key]), "200", "a page that knows a key");
    assert_eq!(engine.ok(&["list", "-o", "name"]), "", "no request made a sandbox");
}
