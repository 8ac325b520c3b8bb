//! Durability: restarts, `kill -9`, power loss, full disks; and the errors for data that cannot be used.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops when something is wrong")]

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

mod power_loss;

use agent_sandbox_apiserver::{ApiServer, Config, OpenError, UserInfo};
use futures::StreamExt as _;
use http_body_util::{BodyExt as _, Full};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::json;

async fn open(folder: &Path) -> Result<ApiServer, OpenError> {
    ApiServer::open(Config { data_dir: Some(folder.to_owned()), ..Config::default() }).await
}

fn configs(server: &ApiServer) -> Api<ConfigMap> {
    Api::namespaced(server.client(), "default")
}

fn config(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"k": "v"}})).expect("a config map")
}

fn version(object: &ConfigMap) -> u64 {
    object.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).expect("stored objects have a version")
}

fn text_of(error: &OpenError) -> String {
    let mut out = error.to_string();
    let mut at: &dyn std::error::Error = error;
    while let Some(source) = at.source() {
        out.push_str(&format!(": {source}"));
        at = source;
    }
    out
}

#[tokio::test]
async fn all_objects_exist_after_a_restart_and_versions_continue() {
    let folder = tempfile::tempdir().unwrap();
    let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "things.example.com"},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    let (last, before) = {
        let server = open(folder.path()).await.unwrap();
        send(&server, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &crd).await;
        send(
            &server,
            "POST",
            "/apis/example.com/v1/namespaces/default/things",
            &json!({"metadata": {"name": "t"}, "x": 1}),
        )
        .await;
        configs(&server).create(&PostParams::default(), &config("gone")).await.unwrap();
        configs(&server).delete("gone", &Default::default()).await.unwrap();
        let made = configs(&server).create(&PostParams::default(), &config("kept")).await.unwrap();
        server.close();
        (version(&made), made)
    };
    let server = open(folder.path()).await.unwrap();
    let kept = configs(&server).get("kept").await.unwrap();
    assert_eq!(kept, before);
    assert!(configs(&server).get_opt("gone").await.unwrap().is_none());
    let (code, thing) = send(&server, "GET", "/apis/example.com/v1/namespaces/default/things/t", &json!({})).await;
    assert_eq!((code, &thing["x"]), (200, &json!(1)));
    let next = configs(&server).create(&PostParams::default(), &config("next")).await.unwrap();
    assert!(version(&next) > last);
    // A watch from before the restart gets 410 and must list again; one from the newest version continues.
    let old = configs(&server).watch(&WatchParams::default(), "2").await.unwrap().boxed().next().await;
    assert!(matches!(&old, Some(Ok(WatchEvent::Error(e))) if e.code == 410 && e.reason == "Expired"), "{old:?}");
    let mut events =
        configs(&server).watch(&WatchParams::default(), &version(&next).to_string()).await.unwrap().boxed();
    configs(&server).create(&PostParams::default(), &config("later")).await.unwrap();
    assert!(
        matches!(events.next().await, Some(Ok(WatchEvent::Added(o))) if o.metadata.name.as_deref() == Some("later"))
    );
}

async fn send(server: &ApiServer, method: &str, path: &str, body: &serde_json::Value) -> (u16, serde_json::Value) {
    let (code, bytes) = send_for_bytes(server, method, path, body).await;
    (code, serde_json::from_slice(&bytes).unwrap_or_default())
}

async fn send_for_bytes(server: &ApiServer, method: &str, path: &str, body: &serde_json::Value) -> (u16, bytes::Bytes) {
    let request = http::Request::builder().method(method).uri(path).header("content-type", "application/json");
    let request = request.body(Full::new(bytes::Bytes::from(body.to_string()))).expect("a request");
    let response = server.handle(&UserInfo::administrator(), request).await;
    let code = response.status().as_u16();
    (code, response.into_body().collect().await.expect("a body").to_bytes())
}

#[tokio::test]
async fn a_second_process_gets_an_error_that_names_the_owner_of_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path()).await.unwrap();
    let error = text_of(&open(folder.path()).await.err().expect("the folder is taken"));
    assert!(
        error.contains(&folder.path().display().to_string()) && error.contains(&std::process::id().to_string()),
        "{error}"
    );
    drop(first);
    open(folder.path()).await.unwrap();
}

#[tokio::test]
async fn damaged_foreign_and_newer_files_are_reported_and_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("objects.db");
    {
        let server = open(folder.path()).await.unwrap();
        configs(&server).create(&PostParams::default(), &config("a")).await.unwrap();
        server.close();
    }
    let good = std::fs::read(&file).unwrap();
    std::fs::write(&file, b"this is not a database, just some text that is long enough to be read").unwrap();
    let error = text_of(&open(folder.path()).await.err().expect("damaged"));
    assert!(error.contains("objects.db is damaged") && error.contains("move it away"), "{error}");
    assert!(std::fs::read(&file).unwrap().starts_with(b"this is not"), "nothing was changed");

    std::fs::write(&file, &good).unwrap();
    let edit = |sql: &str| rusqlite::Connection::open(&file).unwrap().execute_batch(sql).unwrap();
    edit("PRAGMA user_version=99");
    let error = text_of(&open(folder.path()).await.err().expect("newer"));
    assert!(error.contains("format 99") && error.contains("newer program"), "{error}");

    edit("PRAGMA user_version=2; UPDATE objects SET data = CAST('broken' AS BLOB) WHERE storage = '/configmaps'");
    let error = text_of(&open(folder.path()).await.err().expect("a broken row"));
    assert!(error.contains("is damaged (row"), "{error}");

    edit("PRAGMA application_id=7");
    let error = text_of(&open(folder.path()).await.err().expect("foreign"));
    assert!(error.contains("not a data file of this program"), "{error}");
}

/// The first file format stored every object as plain JSON.
#[tokio::test]
async fn a_file_of_the_first_format_is_read_and_upgraded() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("objects.db");
    let mut long = config("long");
    long.data = Some([("k".to_owned(), "the same again ".repeat(200))].into());
    let plain = {
        let server = open(folder.path()).await.unwrap();
        long = configs(&server).create(&PostParams::default(), &long).await.unwrap();
        let path = "/api/v1/namespaces/default/configmaps/long";
        let (_, plain) = send_for_bytes(&server, "GET", path, &serde_json::Value::Null).await;
        server.close();
        plain
    };
    {
        let database = rusqlite::Connection::open(&file).unwrap();
        let edited = database
            .execute(
                "UPDATE objects SET data = ?1 WHERE version = ?2 AND substr(data, 1, 1) = x'01'",
                rusqlite::params![&plain[..], i64::try_from(version(&long)).unwrap()],
            )
            .unwrap();
        assert_eq!(edited, 1, "the row was compressed");
        database.execute_batch("PRAGMA user_version=1").unwrap();
    }
    let server = open(folder.path()).await.unwrap();
    assert_eq!(configs(&server).get("long").await.unwrap(), long);
    let later = configs(&server).create(&PostParams::default(), &config("later")).await.unwrap();
    assert!(version(&later) > version(&long));
    server.close();
    drop(server);
    let format: i32 = rusqlite::Connection::open(&file)
        .and_then(|database| database.query_row("PRAGMA user_version", [], |row| row.get(0)))
        .unwrap();
    assert_eq!(format, 2);
}

/// The child process of the crash tests: writes and watches until it is killed, and prints each acknowledged write and
/// each watch event.
#[test]
fn crash_child() {
    let Ok(folder) = std::env::var("CRASH_TEST_FOLDER") else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let server = open(Path::new(&folder)).await.unwrap();
        let api = configs(&server);
        let mut events = api.watch(&WatchParams::default(), "0").await.unwrap().boxed();
        tokio::spawn(async move {
            while let Some(Ok(event)) = events.next().await {
                if let WatchEvent::Added(o) | WatchEvent::Modified(o) = event {
                    print_line(&format!("seen {} {}", o.metadata.name.as_deref().unwrap(), version(&o)));
                }
            }
        });
        for writer in 0..8 {
            let api = api.clone();
            tokio::spawn(async move {
                for n in 0u64.. {
                    let name = format!("w{writer}-{}", n % 50);
                    let patch =
                        Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"n": n.to_string()}}));
                    let stored = api.patch(&name, &PatchParams::apply("crash").force(), &patch).await.unwrap();
                    print_line(&format!("acked {name} {}", version(&stored)));
                }
            });
        }
        std::future::pending::<()>().await;
    });
}

fn print_line(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

fn rounds() -> u64 {
    if std::env::var_os("AGENT_SANDBOX_SOAK").is_some() { 50 } else { 8 }
}

/// The newest version of each object that a child has seen: acknowledged writes and watch events.
#[derive(Default)]
struct Observed {
    acked: HashMap<String, u64>,
    seen: HashMap<String, u64>,
}

#[test]
fn acknowledged_writes_survive_kill_and_no_other_write_was_visible() {
    let folder = tempfile::tempdir().unwrap();
    let mut newest = 0;
    for round in 0..rounds() {
        let observed = crash(folder.path(), None, Duration::from_millis(120 + 37 * (round % 7)));
        assert!(!observed.acked.is_empty() || round == 0, "round {round}: the child wrote nothing");
        newest = check_after_crash(folder.path(), round, &observed, newest);
    }
}

#[test]
fn acknowledged_writes_survive_power_loss_and_no_other_write_was_visible() {
    let top = tempfile::tempdir().unwrap();
    let mut folder = top.path().join("0");
    std::fs::create_dir(&folder).unwrap();
    let mut newest = 0;
    for round in 0..rounds() {
        let shadow = top.path().join(format!("shadow-{round}"));
        power_loss::begin(&folder, &shadow);
        let observed = crash(&folder, Some(&shadow), Duration::from_millis(120 + 37 * (round % 7)));
        assert!(!observed.acked.is_empty() || round == 0, "round {round}: the child wrote nothing");
        let after = top.path().join(format!("{}", round + 1));
        power_loss::cut(&folder, &shadow, &after, power_loss::some_survive(round));
        newest = check_after_crash(&after, round, &observed, newest);
        std::fs::remove_dir_all(&folder).unwrap();
        std::fs::remove_dir_all(&shadow).unwrap();
        folder = after;
    }
}

#[test]
fn a_disk_that_loses_synced_data_is_detected() {
    // Proves that the test above can fail: without the write-ahead log, which was synced, acknowledged writes are lost.
    let top = tempfile::tempdir().unwrap();
    let (folder, shadow, after) = (top.path().join("disk"), top.path().join("shadow"), top.path().join("after"));
    std::fs::create_dir(&folder).unwrap();
    power_loss::begin(&folder, &shadow);
    let observed = crash(&folder, Some(&shadow), Duration::from_millis(120));
    power_loss::cut(&folder, &shadow, &after, || false);
    std::fs::write(after.join("objects.db-wal"), b"").unwrap();
    let lost = std::panic::catch_unwind(|| check_after_crash(&after, 0, &observed, 0));
    assert!(lost.is_err() && !observed.acked.is_empty());
}

/// Opens the folder after a crash and compares it with what the child has seen. Returns the newest version.
fn check_after_crash(folder: &Path, round: u64, observed: &Observed, newest: u64) -> u64 {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let shown = observed.acked.values().chain(observed.seen.values()).copied().max().unwrap_or(0);
    let (now, stored) = runtime.block_on(async {
        let server = open(folder).await.unwrap();
        let api = configs(&server);
        let list = api.list(&ListParams::default()).await.unwrap();
        let now: u64 = list.metadata.resource_version.unwrap().parse().unwrap();
        // A watch from the last visible version continues or gets 410; it never misses an event silently.
        let mut from_shown = api.watch(&WatchParams::default(), &shown.max(1).to_string()).await.unwrap().boxed();
        if shown != now {
            match from_shown.next().await {
                Some(Ok(WatchEvent::Error(status))) => {
                    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
                }
                other => panic!("round {round}: nothing is known about the versions in between: {other:?}"),
            }
        }
        let mut events = api.watch(&WatchParams::default(), &now.to_string()).await.unwrap().boxed();
        let next = api.create(&PostParams::default(), &config(&format!("round-{round}"))).await.unwrap();
        let event = events.next().await;
        assert!(matches!(&event, Some(Ok(WatchEvent::Added(o))) if version(o) == version(&next)), "{event:?}");
        server.close();
        let stored: HashMap<String, u64> =
            list.items.iter().map(|o| (o.metadata.name.clone().unwrap(), version(o))).collect();
        (now, stored)
    });
    assert!(now >= shown && now >= newest, "round {round}: version {now} went back behind {shown} or {newest}");
    for (name, version) in observed.acked.iter().chain(&observed.seen) {
        let found = stored.get(name).copied().unwrap_or(0);
        assert!(found >= *version, "round {round}: {name} was shown at {version} and is {found} after the crash");
    }
    now
}

/// Runs the child for `life` and kills it; returns what it has seen.
fn crash(folder: &Path, shadow: Option<&Path>, life: Duration) -> Observed {
    let mut child = Command::new(std::env::current_exe().expect("this test's own program"))
        .args(["--exact", "crash_child", "--nocapture", "--test-threads=1"])
        .env("CRASH_TEST_FOLDER", folder)
        .envs(shadow.map(|shadow| ("POWER_TEST_SHADOW", shadow)))
        .stdout(Stdio::piped())
        .spawn()
        .expect("the child starts");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut all = Observed::default();
    let mut deadline = None;
    let give_up = Instant::now() + Duration::from_secs(60);
    for line in lines.map_while(Result::ok) {
        let words: Vec<&str> = line.split(' ').collect();
        if let [kind @ ("acked" | "seen"), name, version] = words.as_slice()
            && let Ok(version) = version.parse::<u64>()
        {
            let versions = if *kind == "acked" { &mut all.acked } else { &mut all.seen };
            let entry = versions.entry((*name).to_owned()).or_insert(0);
            *entry = version.max(*entry);
            deadline.get_or_insert_with(|| Instant::now() + life);
        }
        if deadline.is_some_and(|d| Instant::now() >= d) || Instant::now() >= give_up {
            let _ = child.kill();
            deadline = None;
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    all
}

#[tokio::test]
async fn a_full_disk_fails_writes_but_not_reads_and_recovers() {
    let folder = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "none"]).arg(folder.path()).status();
    if !mounted.is_ok_and(|s| s.success()) {
        println!("skipped: mounting a small tmpfs needs root");
        return;
    }
    let _unmount = Unmount(folder.path().to_owned());
    let mut acked = Vec::new();
    {
        let server = open(folder.path()).await.unwrap();
        let failure = fill(&server, &mut acked).await;
        assert_eq!(failure.code, 500);
        assert!(failure.message.contains("objects.db"), "{}", failure.message);
        assert!(!acked.is_empty());
        let listed = configs(&server).list(&ListParams::default()).await.unwrap().items;
        assert_eq!(listed.len(), acked.len(), "reads go on");
        // Once the running server has free space again, writes succeed again.
        resize(folder.path(), "size=3m");
        acked.push(configs(&server).create(&PostParams::default(), &large("healed")).await.unwrap());
        fill(&server, &mut acked).await;
        server.close();
    }
    // Enough space for a clean shutdown, then none at all.
    resize(folder.path(), "size=8m");
    open(folder.path()).await.unwrap().close();
    let ballast = folder.path().join("ballast");
    let mut file = std::fs::File::create(&ballast).unwrap();
    while file.write_all(&[0; 1024]).is_ok() {}
    // Opening writes a little data itself. Without space for that it fails with a clear error and changes nothing.
    let error = text_of(&open(folder.path()).await.err().expect("the disk is full"));
    assert!(error.contains(&folder.path().display().to_string()) && error.contains("no room"), "{error}");
    std::fs::remove_file(&ballast).unwrap();
    drop(file);
    let server = open(folder.path()).await.unwrap();
    for object in &acked {
        assert_eq!(&configs(&server).get(object.metadata.name.as_deref().unwrap()).await.unwrap(), object);
    }
    configs(&server).create(&PostParams::default(), &large("after")).await.unwrap();
}

/// A ConfigMap that does not compress.
fn large(name: &str) -> ConfigMap {
    let noise: String = (0..50_000).map(|_| char::from(rand::random_range(b'a'..=b'z'))).collect();
    let mut object = config(name);
    object.data = Some([("k".to_owned(), noise)].into());
    object
}

/// Creates objects until a write fails; returns the error.
async fn fill(server: &ApiServer, acked: &mut Vec<ConfigMap>) -> kube::core::Status {
    for _ in 0..400 {
        match configs(server).create(&PostParams::default(), &large(&format!("c{}", acked.len()))).await {
            Ok(made) => acked.push(made),
            Err(kube::Error::Api(status)) => return *status,
            Err(other) => panic!("{other}"),
        }
    }
    panic!("a few megabytes are full sooner or later");
}

fn resize(folder: &Path, size: &str) {
    let room = Command::new("mount").args(["-o", &format!("remount,{size}")]).arg(folder).status().unwrap();
    assert!(room.success());
}

struct Unmount(std::path::PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
