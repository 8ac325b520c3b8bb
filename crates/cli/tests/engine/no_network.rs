//! An engine of an ordinary user on a machine without pasta: its sandboxes have no network, and commands say so.

use crate::fixture::{Engine, PROGRAM, is_root};
use std::{fs, os::unix::fs::chown, process::Command};

/// A uid that owns no files.
const USER: u32 = 54_323;

/// Starts the engine as the user, in a mount namespace without pasta, in which the user can execute this program.
const UP: &str = r#"
for program in $(command -v pasta || true); do mount --bind /dev/null "$program"; done
mount --bind "$1" "$2/program"
exec setpriv --reuid "$3" --regid "$3" --clear-groups env HOME="$2" TMPDIR="$2" \
    "$2/program" --data-dir "$2/data" up --detach --api-listen 127.0.0.1:0 --router-listen 127.0.0.1:0 --warm 0
"#;

#[test]
fn a_public_network_is_refused_where_there_is_none() {
    if !is_root() {
        eprintln!("SKIPPED: starts an engine as another user, which needs root");
        return;
    }
    let Some(engine) = Engine::stopped() else { return };
    let folder = engine.folder.path();
    fs::write(folder.join("program"), "").unwrap();
    chown(folder, Some(USER), Some(USER)).unwrap();
    let user = USER.to_string();
    let words = ["--mount", "--propagation", "private", "sh", "-eu", "-c", UP, "sh", PROGRAM];
    let mut up = Command::new("unshare");
    up.args(words).arg(folder).arg(user).current_dir("/").env_remove("KUBECONFIG").env_remove("XDG_DATA_HOME");
    let output = up.output().unwrap();
    assert!(output.status.success(), "{output:?}{}", engine.log());
    for words in [
        &["create", "box", "--network", "public"][..],
        &["run", "-d", "--name", "box", "--network", "public", "--", "sleep", "1000"],
    ] {
        let (_, _, said) = engine.fails(words);
        assert!(said.contains("--network public is not available here: sandboxes have no network"), "{said}");
        assert_eq!(engine.ok(&["list", "-o", "name"]), "", "nothing was made");
    }
    engine.ok(&["create", "box", "--network", "none"]);
}
