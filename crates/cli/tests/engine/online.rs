//! `--network public`: names resolve, and pip, uv and npm install through the network, from an index of the test's own;
//! what is not public stays closed. As root, and as an ordinary user through pasta.

use crate::{
    fixture::{Engine, Mode},
    world::{FAR, RESOLVER, World},
};
use std::{path::Path, process::Command};

/// Which addresses and names a sandbox reaches.
const PROBE: &str = r#"
import socket, sys
def attempt(what, work):
    try:
        print(what, work())
    except OSError as error:
        print(what, "closed")
attempt("name", lambda: socket.gethostbyname("index.test"))
attempt("index", lambda: socket.create_connection((sys.argv[1], 80), 3) and "open")
attempt("private", lambda: socket.create_connection((sys.argv[2], 53), 1) and "open")
"#;

/// uv as a wheel in the folder; `None`, with a message, where pip cannot download it.
fn uv(folder: &Path) -> Option<()> {
    let words = ["-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "uv", "-d"];
    let done = Command::new("python3").args(words).arg(folder).output();
    if done.is_ok_and(|output| output.status.success()) {
        return Some(());
    }
    eprintln!("SKIPPED: pip cannot download uv here");
    None
}

fn packages_are_installed_through_the_network(mode: Mode) {
    let wheels = tempfile::tempdir().unwrap();
    let has_uv = uv(wheels.path()).is_some();
    let Some(world) = World::open(wheels.path()) else { return };
    let Some(engine) = Engine::stopped_in(mode, Some(&world)) else { return };
    engine.up_with(&["--warm", "0"]);
    let probe = |name: &str| engine.ok(&["exec", name, "--", "python3", "-c", PROBE, FAR, RESOLVER]);
    engine.ok(&["create", "shut"]);
    assert_eq!(probe("shut"), "name closed\nindex closed\nprivate closed\n");

    let settings = ["PIP_INDEX_URL=http://index.test/simple", "PIP_TRUSTED_HOST=index.test"];
    let more = ["UV_DEFAULT_INDEX=http://index.test/simple", "NPM_CONFIG_REGISTRY=http://index.test/npm/"];
    let env: Vec<&str> = settings.iter().chain(&more).flat_map(|setting| ["-e", setting]).collect();
    engine.ok(&[&["create", "box", "--network", "public"], env.as_slice()].concat());
    assert_eq!(probe("box"), format!("name {FAR}\nindex open\nprivate closed\n"));
    assert_eq!(probe("shut"), "name closed\nindex closed\nprivate closed\n", "the other has no network still");
    let run = engine.ok(&["run", "--network", "public", "--", "python3", "-c", PROBE, FAR, RESOLVER]);
    assert_eq!(run, format!("name {FAR}\nindex open\nprivate closed\n"));

    let python = engine.ok(&["exec", "box", "--", "sh", "-c", "command -v python3"]);
    if python != "/home/user/.venv/bin/python3\n" {
        eprintln!("SKIPPED: this host's Python is not below /usr: {python}");
        return;
    }
    engine.ok(&["exec", "box", "pip", "install", "demo-pip"]);
    assert_eq!(engine.ok(&["exec", "box", "demo-pip"]), "demo-pip from the index\n");
    if has_uv {
        engine.ok(&["exec", "box", "pip", "install", "uv"]);
        engine.ok(&["exec", "box", "uv", "pip", "install", "demo-uv"]);
        assert_eq!(engine.ok(&["exec", "box", "demo-uv"]), "demo-uv from the index\n");
    }
    if !engine.run(&["exec", "box", "npm", "--version"]).status.success() {
        eprintln!("SKIPPED: this host has no npm that a sandbox can run");
        return;
    }
    engine.ok(&["exec", "box", "--", "npm", "install", "--global", "--no-audit", "--no-fund", "demo-npm"]);
    assert_eq!(engine.ok(&["exec", "box", "demo-npm"]), "demo-npm from the index\n");
}

#[test]
fn packages_are_installed_through_the_network_as_root() {
    packages_are_installed_through_the_network(Mode::Caller);
}

#[test]
fn packages_are_installed_through_the_network_as_an_ordinary_user() {
    let pasta = Path::new("/usr/bin/pasta").exists();
    assert!(pasta || std::env::var_os("CI").is_none(), "pasta (package passt) must be installed where CI is set");
    if pasta {
        packages_are_installed_through_the_network(Mode::PastaUser);
    } else {
        eprintln!("SKIPPED: pasta (package passt) is not installed");
    }
}
