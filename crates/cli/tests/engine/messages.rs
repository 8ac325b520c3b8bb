//! Messages and exit codes of commands that used to say too little.

use crate::fixture::{Engine, Mode, eventually, in_both_modes};
use k8s_openapi::api::core::v1::Event;
use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    net::TcpStream,
    process::Stdio,
};

in_both_modes! {
    purge_removes_the_merged_context_and_needs_an_answer,
    a_forward_to_a_closed_port_says_so,
    what_the_machine_lacks_is_reported_once,
}

/// One warning about the node, however many sandboxes run, and none about their Pods.
fn what_the_machine_lacks_is_reported_once(mode: Mode) {
    let Some(engine) = Engine::start_as(mode, &["--warm", "0"]) else { return };
    let names = ["a", "b", "c"];
    names.iter().for_each(|name| drop(engine.ok(&["create", name])));
    let about = |event: &Event, kind: &str, name: Option<&str>| {
        let object = &event.involved_object;
        object.kind.as_deref() == Some(kind) && name.is_none_or(|name| object.name.as_deref() == Some(name))
    };
    // Events are written in batches, in the order in which they happened.
    let mut events = Vec::new();
    eventually("the last Pod's events are there", || {
        events = engine.list::<Event>();
        let of_pod = |name| events.iter().any(|event| about(event, "Pod", Some(name)));
        names.iter().all(|name| of_pod(name))
    });
    let warnings: Vec<&Event> = events.iter().filter(|event| event.type_.as_deref() == Some("Warning")).collect();
    assert!(!warnings.iter().any(|event| about(event, "Pod", None)), "{warnings:?}");
    let reports = warnings.iter().filter(|event| about(event, "Node", None)).count();
    // As root a machine may lack nothing.
    assert!(reports == 1 || reports == 0 && mode == Mode::Caller, "{warnings:?}");
}

fn purge_removes_the_merged_context_and_needs_an_answer(mode: Mode) {
    let Some(engine) = Engine::start_as(mode, &["--warm", "0"]) else { return };
    let home = engine.folder.path().join("home");
    fs::create_dir_all(home.join(".kube")).unwrap();
    let own = "apiVersion: v1\nkind: Config\ncurrent-context: mine\ncontexts:\n- name: mine\n  context: {cluster: c}\n";
    fs::write(home.join(".kube/config"), own).unwrap();
    [".kube", ".kube/config"].iter().for_each(|path| engine.give(&home.join(path)));
    let at_home = |words: &[&str]| engine.command(words).env("HOME", &home).output().unwrap();
    assert!(at_home(&["kubeconfig", "--merge"]).status.success());
    let merged = || fs::read_to_string(home.join(".kube/config")).unwrap();
    assert!(merged().contains("agent-sandbox"));
    let refused = at_home(&["down", "--purge"]);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("add --yes"), "{refused:?}");
    engine.ok(&["status"]);
    let purged = at_home(&["down", "--purge", "--yes"]);
    assert!(purged.status.success(), "{purged:?}");
    assert!(!merged().contains("agent-sandbox") && merged().contains("mine"), "{}", merged());
    let again = engine.ok(&["down"]);
    assert!(again.starts_with("no engine was running; there is no data in "), "{again}");
}

#[test]
fn objects_are_printed_without_managed_fields() {
    let Some(engine) = Engine::start_with(&["--warm", "0"]) else { return };
    let created = engine.ok(&["create", "box", "-o", "json"]);
    for shown in [created, engine.ok(&["get", "box", "-o", "yaml"]), engine.ok(&["list", "-o", "json"])] {
        assert!(shown.contains("box") && !shown.contains("managedFields"), "{shown}");
    }
    let (_, _, said) = engine.fails(&["pool", "create", "p", "--template", "python-sandbox-templat"]);
    assert!(said.contains("did you mean `python-sandbox-template`?"), "{said}");
    let (_, _, said) = engine.fails(&["pool", "create", "p", "--template", "nope"]);
    assert!(said.contains("there is no template `nope`"), "{said}");
    assert!(!engine.ok(&["pool", "list", "-o", "name"]).contains("sandboxwarmpool/p\n"));
}

#[test]
fn warm_changes_the_pool_of_an_existing_engine() {
    let Some(engine) = Engine::start_with(&["--warm", "0"]) else { return };
    let wanted = || engine.ok(&["status", "-o", "json"]).contains("\"wanted\": 1");
    assert!(!wanted());
    engine.ok(&["down"]);
    engine.up_with(&["--warm", "1"]);
    assert!(wanted());
    engine.ok(&["down"]);
    engine.up();
    assert!(wanted(), "without the flag the pool stays as it is");
    engine.ok(&["pool", "delete", "python-sandbox-template"]);
    engine.ok(&["down"]);
    engine.up_with(&["--warm", "1"]);
    eventually("the log says why nothing changed", || engine.log().contains("--warm changes nothing"));
}

/// Nothing listens on the port: the connection is closed and the command says why.
fn a_forward_to_a_closed_port_says_so(mode: Mode) {
    let Some(engine) = Engine::start_as(mode, &["--warm", "0"]) else { return };
    engine.ok(&["create", "box"]);
    let mut child = engine.command(&["port-forward", "box", ":7777"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let address = first.strip_prefix("forwarding ").and_then(|rest| rest.split(' ').next()).unwrap().to_owned();
    let mut connection = TcpStream::connect(address).unwrap();
    let _ = connection.read_to_end(&mut Vec::new());
    let said = lines.next().unwrap().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(said.starts_with("error: ") && said.contains("7777"), "{said}");
}
