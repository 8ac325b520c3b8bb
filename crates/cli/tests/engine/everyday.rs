//! Snapshots of whole command lines of everyday use, as root and as an ordinary user without newuidmap, pasta and
//! delegated cgroups. Both users see the same, except where a snapshot's name ends with the user.

use crate::{
    fixture::{Engine, Mode, eventually, in_both_modes},
    outputs::assert_snapshot,
};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use std::{fs, os::unix::fs::MetadataExt as _, os::unix::fs::PermissionsExt as _};

in_both_modes! {
    the_first_command_starts_the_engine,
    pipes_and_streams,
    familiar_flags_and_history,
    volumes_are_read_and_written,
    permanent_failures_end_at_once,
    the_network_is_there_or_refused,
}

/// Runs command lines one after the other and compares everything that they print with a snapshot.
fn check(engine: &Engine, name: &str, lines: &[&str]) {
    let shown = |line: &&str| {
        let output = engine.line(line);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().unwrap();
        let code = if code == 0 { String::new() } else { format!("exit {code}\n") };
        format!("$ {line}\n{}{}{code}", text(&output.stdout), text(&output.stderr))
    };
    let text: Vec<String> = lines.iter().map(shown).collect();
    assert_snapshot(engine, &format!("everyday_{name}"), &text.join("\n"));
}

/// A snapshot's name for what differs between the modes.
fn of(mode: Mode, name: &str) -> String {
    let user = if mode == Mode::Caller { "root" } else { "plain_user" };
    format!("{name}_{user}")
}

fn the_first_command_starts_the_engine(mode: Mode) {
    let Some(engine) = Engine::stopped_as(mode) else { return };
    check(
        &engine,
        "start",
        &[
            "agent-sandbox status",
            "agent-sandbox list",
            "agent-sandbox exec box -- true",
            "agent-sandbox create box",
            "agent-sandbox exec box -- echo hello",
            "agent-sandbox down",
            "agent-sandbox claim python-sandbox-template --name mine -o name",
            "agent-sandbox exec mine -- echo hello",
            "agent-sandbox down --purge",
            "agent-sandbox down --purge --yes",
            "agent-sandbox down",
        ],
    );
}

fn pipes_and_streams(mode: Mode) {
    let Some(engine) = Engine::start_as(mode, &["--warm", "0"]) else { return };
    check(
        &engine,
        "pipes",
        &[
            "agent-sandbox create box -- sh -c 'while :; do echo tick; sleep 0.1; done'",
            "agent-sandbox exec box -- yes | head -1",
            "agent-sandbox exec box -- seq 1000000 | head -2",
            "agent-sandbox run -- yes | head -1",
            "agent-sandbox logs -f box | head -1",
            "echo typed | agent-sandbox exec -i box -- cat",
            "echo typed | agent-sandbox cp - box:~/typed",
            "agent-sandbox cp box:typed -",
            "echo one > one; echo two > two; agent-sandbox cp one two box:/tmp",
            "agent-sandbox exec box -- cat /tmp/one /tmp/two",
            "agent-sandbox cp box:/tmp -",
            "agent-sandbox exec box -- sh -c 'echo out; echo err >&2; exit 3'",
        ],
    );
}

fn familiar_flags_and_history(mode: Mode) {
    let Some(engine) = Engine::start_as(mode, &["--warm", "0"]) else { return };
    check(
        &engine,
        "flags",
        &[
            "agent-sandbox create box --env A=b --memory 256Mi --cpus 1",
            "agent-sandbox exec box printenv A",
            "agent-sandbox exec -e A=c -w /usr box sh -c 'echo $A; pwd'",
            "agent-sandbox exec --timeout 200ms box sleep 100",
            "agent-sandbox ps",
            "agent-sandbox stop box",
            "agent-sandbox history box",
            "agent-sandbox start box",
            "agent-sandbox rm -f box no-such-name",
            "agent-sandbox rm box",
            "agent-sandbox run --rm --name once hostname",
            "agent-sandbox run -d --name behind sleep 1000",
            "agent-sandbox exec behind hostname",
        ],
    );
    check(
        &engine,
        "history",
        &[
            "agent-sandbox exec behind -- sh -c 'echo out; echo err >&2; exit 3'",
            "agent-sandbox exec behind -- no-such-program",
            "agent-sandbox history behind",
            "agent-sandbox history behind 2",
            "agent-sandbox history behind 77",
            "agent-sandbox history behind --tail 1 -o name",
        ],
    );
}

fn volumes_are_read_and_written(mode: Mode) {
    let Some(engine) = Engine::stopped_as(mode) else { return };
    let shared = engine.folder.path().canonicalize().unwrap().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::write(shared.join("in"), "from outside\n").unwrap();
    for path in [engine.folder.path(), &shared] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    [shared.clone(), shared.join("in")].iter().for_each(|path| engine.give(path));
    let volume = json!({"name": "v", "hostPath": {"path": shared}});
    let mount = json!({"name": "v", "mountPath": "/x", "readOnly": true});
    let container = json!({"name": "c", "image": "host", "volumeMounts": [mount]});
    let spec = json!({"podTemplate": {"spec": {"containers": [container], "volumes": [volume]}}});
    let thief = json!({"apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "thief"}, "spec": spec});
    fs::write(engine.folder.path().join("thief.json"), thief.to_string()).unwrap();
    check(
        &engine,
        "volume",
        &[
            "agent-sandbox run -v $PWD/shared:/mnt/shared -- sh -c 'cat /mnt/shared/in; echo inside > /mnt/shared/out'",
            "agent-sandbox run -v $PWD/shared:/mnt/shared:ro -- touch /mnt/shared/refused",
            "agent-sandbox create box -v $PWD/shared:/mnt/shared",
            "agent-sandbox exec -w /mnt/shared box sh -c 'echo again >> out; cp /bin/cat program; chmod 4755 program'",
            "cat shared/out",
            "agent-sandbox create reader -v $PWD/shared:/mnt/shared:ro",
            "agent-sandbox exec reader -- sh -c 'cat /mnt/shared/in; touch /mnt/shared/refused'",
            "agent-sandbox run -d --name behind -v $PWD/shared:/mnt/shared -- sleep 1000",
            "agent-sandbox exec behind -- tail -1 /mnt/shared/out",
            "cd shared && agent-sandbox create here --here --write",
            "agent-sandbox exec here -- sh -c 'echo here >> out'",
            "agent-sandbox stop box",
            "agent-sandbox start box",
            "agent-sandbox exec box -- tail -1 /mnt/shared/out",
            "agent-sandbox list",
        ],
    );
    // Through the API alone nobody gets a folder of this machine.
    engine.ok(&["apply", "-f", engine.folder.path().join("thief.json").to_str().unwrap()]);
    eventually("a Sandbox to which the folder was not given is refused", || {
        let pods = engine.list::<Pod>();
        let pod = pods.iter().find(|pod| pod.metadata.name.as_deref() == Some("thief"));
        let message = pod.and_then(|pod| pod.status.as_ref()?.message.as_deref());
        message.is_some_and(|message| message.contains("hostPath") && message.contains("--allow-host-path"))
    });
    for name in ["out", "program"] {
        let (file, folder) = (fs::metadata(shared.join(name)).unwrap(), fs::metadata(&shared).unwrap());
        assert_eq!((file.uid(), file.gid()), (folder.uid(), folder.gid()), "{name}");
        assert_eq!(file.mode() & 0o7000, 0, "{name}: no setuid program of the folder's owner is made in a sandbox");
    }
}

fn permanent_failures_end_at_once(mode: Mode) {
    let Some(engine) = Engine::start_as(mode, &["--warm", "0"]) else { return };
    // A claim that no command waits for, and that no pool can serve.
    let waiting = "apiVersion: extensions.agents.x-k8s.io/v1beta1\nkind: SandboxClaim\nmetadata: {name: waiting}\nspec: {warmPoolRef: {name: none}}\n";
    fs::write(engine.folder.path().join("waiting.yaml"), waiting).unwrap();
    check(
        &engine,
        "failures",
        &[
            "agent-sandbox create bad --image 127.0.0.1:9/missing:v1",
            "agent-sandbox run --image 127.0.0.1:9/missing:v1 -- true",
            "agent-sandbox create bad --isolation no-such-runtime",
            "agent-sandbox create crash -- sh -c 'exit 3'",
            "agent-sandbox claim nowhere",
            "agent-sandbox template create broken --image 127.0.0.1:9/missing:v1",
            "agent-sandbox claim broken --name bad",
            "agent-sandbox list",
            "agent-sandbox claim broken --name bad --keep",
            "agent-sandbox get bad | grep 127.0.0.1",
            "agent-sandbox create worse --image 127.0.0.1:9/missing:v1 --keep",
            "agent-sandbox get worse | grep missing:v1",
            "agent-sandbox exec worse true",
            "agent-sandbox apply -f waiting.yaml",
            "agent-sandbox list -o name",
            "agent-sandbox list -o json | grep '\"kind\": \"SandboxClaim\"'",
            "agent-sandbox pool create pool --template brokn",
            "agent-sandbox status -o name",
        ],
    );
}

/// Without root and pasta there is no network: that is said before anything runs.
fn the_network_is_there_or_refused(mode: Mode) {
    let Some(engine) = Engine::start_as(mode, &["--warm", "0"]) else { return };
    check(
        &engine,
        &of(mode, "network"),
        &[
            "agent-sandbox create shut --network none -o name",
            "agent-sandbox create open --network public -o name",
            "agent-sandbox run --network public -- echo works",
            "agent-sandbox run -d --network public --name behind sleep 1000",
            "agent-sandbox list -o name",
        ],
    );
}
