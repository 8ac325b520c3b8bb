//! Wrong input and the resulting messages. No engine runs: nothing may be changed before the input is parsed.

#![expect(clippy::unwrap_used, reason = "a test fails at the first error")]

use std::process::Command;

/// Exit code and all output, with the paths of this run replaced.
fn output_of(words: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_agent-sandbox"))
        .arg("--data-dir")
        .arg(folder.path())
        .args(words)
        .env("COLUMNS", "100")
        .env_remove("KUBECONFIG")
        .env_remove("AGENT_SANDBOX_TARGET")
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert!(folder.path().read_dir().unwrap().next().is_none(), "nothing is written for {words:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let text = text.replace(&folder.path().display().to_string(), "DATA");
    format!("$ agent-sandbox {}\n{text}exit {}", words.join(" "), output.status.code().unwrap_or(-1))
}

macro_rules! mistakes {
    ($($name:ident: [$($words:expr),+ $(,)?];)*) => {
        $(
            #[test]
            fn $name() {
                let said: Vec<String> = [$(output_of(&$words)),+].into();
                insta::assert_snapshot!(said.join("\n\n"));
            }
        )*
    };
}

mistakes! {
    top: [["lst"], ["--nope"], ["exce", "a", "--", "b"], ["rnu", "--", "true"], ["pu"], ["zzzzzz"]];
    run: [
        ["run", "--detach", "--pids", "9", "--", "true"],
        ["run", "--detach", "--memory", "none", "--", "true"],
        ["run"],
        ["run", "--memory", "lots", "--", "true"],
        ["run", "--timeout", "soon", "--", "true"],
        ["run", "--volume", "/no/such/folder:/mnt", "--", "true"],
        ["run", "--env", "NO_SUCH_VARIABLE_HERE", "--", "true"],
        ["run", "--tty", "--", "true"],
        ["run", "--network", "some", "--", "true"],
    ];
    up: [["up", "--api-listen", "here"], ["up", "--router-auth", "maybe"], ["up", "--warm", "-1"]];
    down: [["down", "now"], ["down", "--purge=yes"], ["down", "--force"], ["down", "--purge"], ["down", "--yes"]];
    status: [["status", "-o", "xml"], ["status", "box"], ["status", "--watch"]];
    usage: [["top", "now"], ["top", "--interval", "soon"], ["top", "-o", "xml"], ["top"]];
    doctor: [["doctor", "now"], ["doctor", "-o", "xml"], ["doctor", "--fixx"]];
    create: [["create"], ["create", "Bad_Name"], ["create", "a", "--env", "X"], ["create", "a", "--expires-in", "x"], ["create", "a", "--memory", "1Ki"]];
    claim: [["claim"], ["claim", "UPPER"], ["claim", "a", "--wait", "forever"]];
    list: [["list", "-o", "wide"], ["list", "box"], ["list"]];
    get: [["get"], ["get", "a", "b"], ["get", "a"]];
    exec: [["exec", "a"], ["exec", "--", "ls"], ["exec", "a", "--", "ls"]];
    shell: [["shell"], ["shell", "a", "b"], ["shell", "a"]];
    resume: [["resume"], ["resume", "A"], ["resume", "a"]];
    image: [
        ["image"],
        ["image", "pull"],
        ["image", "pull", "a", "--username", "me"],
        ["image", "import", "/no/such/file"],
        ["image", "import", "Cargo.toml"],
        ["image", "list", "a"],
        ["image", "remove"],
        ["image", "alias", "a"],
        ["image", "alias", "--clear", "--remove", "a"],
    ];
    node: [["node", "--pod-cidr", "ten"], ["node", "--allow-host-path", "usr"], ["node", "--client-ca-file", "/no/such/file"], ["node"]];
    router: [["router", "--no-such-flag"], ["router", "--proxy-timeout", "soon"], ["router", "now"]];
    controller: [["controller", "--no-such-flag"], ["controller", "--leader-elect=maybe"], ["controller", "now"]];
    token: [["token"], ["token", "mint"], ["token", "mint", "a", "--secret-file", "/no/such/file"]];
    version: [["version", "now"], ["version", "-o", "xml"], ["version", "--short"]];
    cp: [["cp", "a"], ["cp", "a", "b"], ["cp", "box:/a", "pod:/b"], ["cp", "/no/such/file", "box:/a"]];
    url: [["url"], ["url", "a"], ["url", "a", "0"], ["url", "a", "80", "--ttl", "soon"], ["url", "revoke"], ["url", "a", "80"]];
    logs: [["logs"], ["logs", "a", "--tail", "x"], ["logs", "a"]];
    suspend: [["suspend"], ["suspend", "a", "--wait", "-1"], ["suspend", "a"]];
    delete: [["delete"], ["delete", "a", "--all"], ["delete", "a"]];
    apply: [["apply"], ["apply", "-f"], ["apply", "-f", "/no/such/file.yaml"]];
    pool: [["pool"], ["pool", "create", "a"], ["pool", "scale", "a", "many"]];
    template: [["template"], ["template", "creat", "a"], ["template", "delete"]];
    kubeconfig: [["kubeconfig"], ["kubeconfig", "--merge"], ["kubeconfig", "--path"], ["kubeconfig", "x"]];
    port_forward: [["port-forward"], ["port-forward", "a"], ["port-forward", "a", "x"]];
    completion: [["completion"], ["completion", "cmd"], ["completion", "bash", "zsh"]];
}

/// A folder that is named by the variable is no part of the usage: it is not required.
#[test]
fn a_variable_does_not_change_the_usage() {
    let usage = |variable: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agent-sandbox"));
        command
            .args(["get"])
            .env_remove("AGENT_SANDBOX_DATA_DIR")
            .envs(variable.map(|path| ("AGENT_SANDBOX_DATA_DIR", path)));
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    assert_eq!(usage(Some("/no/such/folder")), usage(None));
}

/// A global flag and a command's own flag of the same name must have one type: clap panics otherwise.
#[test]
fn every_command_takes_every_global_flag() {
    let globals: [&[&str]; 5] = [
        &["--kubeconfig", "/no/such/file"],
        &["--context", "c"],
        &["-n", "n"],
        &["--data-dir", "/no/such/folder"],
        &["--verbose"],
    ];
    let commands: [&[&str]; 12] = [
        &["router", "--no-such-flag"],
        &["node", "--node-name", "N"],
        &["controller", "--no-such-flag"],
        &["token", "mint"],
        &["token", "mint", "a", "--secret-file", "/no/such/file"],
        &["router", "--config", "/no/such/file"],
        &["image", "pull"],
        &["list"],
        &["create", "A"],
        &["kubeconfig", "--merge", "x"],
        &["completion"],
        &["doctor", "x"],
    ];
    for command in commands {
        for global in globals {
            for words in [[command, global].concat(), [global, command].concat()] {
                let mut program = Command::new(env!("CARGO_BIN_EXE_agent-sandbox"));
                let output = program.args(&words).env_remove("KUBECONFIG").output().unwrap();
                assert!(matches!(output.status.code(), Some(1 | 2)), "{words:?}: {output:?}");
            }
        }
    }
}
