//! Flags and commands that users know from other container tools.

use crate::{
    archive::Image,
    fixture::{Engine, Mode, eventually, in_both_modes, is_root},
};
use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    process::Stdio,
};

in_both_modes! {
    exec_takes_environment_folder_user_and_timeout,
    create_takes_a_template_a_network_volumes_and_ports,
    a_published_port_is_open_until_the_sandbox_is_deleted,
    cp_takes_several_sources_streams_and_the_home_folder,
    run_knows_rm_detach_and_name_and_the_images_own_command,
    names_are_completed,
}

fn exec_takes_environment_folder_user_and_timeout(mode: Mode) {
    let Some(engine) = Engine::start_as(mode, &["--warm", "0"]) else { return };
    engine.ok(&["create", "box"]);
    assert_eq!(engine.ok(&["exec", "box", "echo", "-n", "--", "hi"]), "-- hi", "without `--` before the command");
    let words = ["exec", "-e", "A=x y", "-w", "/usr", "box", "sh", "-c", "echo \"$A\"; pwd"];
    assert_eq!(engine.ok(&words), "x y\n/usr\n");
    let output = engine.command(&["exec", "-e", "HERE", "box", "printenv", "HERE"]).env("HERE", "from here").output();
    assert_eq!(output.unwrap().stdout, b"from here\n");
    let (code, _, said) = engine.fails(&["exec", "-e", "NO_SUCH_VARIABLE", "box", "true"]);
    assert!(code == 2 && said.contains("this shell has no variable `NO_SUCH_VARIABLE`"), "{said}");
    let own = engine.ok(&["exec", "box", "id", "-u"]);
    assert_eq!(engine.ok(&["exec", "-u", own.trim(), "box", "id", "-u"]), own);
    let as_root = engine.run(&["exec", "-u", "root", "-w", "/", "box", "id", "-u"]);
    let as_number = engine.run(&["exec", "-u", "12:34", "box", "sh", "-c", "id -u; id -g"]);
    if mode == Mode::PlainUser {
        for refused in [as_root, as_number] {
            let said = String::from_utf8_lossy(&refused.stderr);
            assert!(refused.status.code() == Some(126) && said.contains("has no such user id"), "{said}");
        }
    } else if is_root() {
        assert_eq!((as_root.stdout.as_slice(), as_number.stdout.as_slice()), (&b"0\n"[..], &b"12\n34\n"[..]));
    }
    let (code, _, said) = engine.fails(&["exec", "--timeout", "1s", "box", "sleep", "4321"]);
    assert!(code == 124 && said.contains("longer than --timeout"), "{said}");
    eventually("nothing runs on inside", || {
        !engine.ok(&["exec", "box", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).contains("sleep 4321 ")
    });
}

fn create_takes_a_template_a_network_volumes_and_ports(mode: Mode) {
    let Some(engine) = Engine::stopped_as(mode) else { return };
    let shared = engine.folder.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    fs::write(shared.join("greeting"), "hello\n").unwrap();
    fs::set_permissions(engine.folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let shared = shared.to_str().unwrap();
    engine.up_with(&["--warm", "0"]);
    engine.ok(&["template", "create", "t1"]);
    let said = engine.ok(&["create", "mine", "--template", "t1"]);
    assert!(said.starts_with("claim mine has sandbox "), "{said}");
    assert_eq!(engine.ok(&["exec", "mine", "echo", "works"]), "works\n");
    let volume = format!("{shared}:/mnt/shared:ro");
    engine.ok(&["create", "box", "-v", &volume, "-w", "/mnt/shared", "--network", "none", "-p", "0:7070"]);
    assert_eq!(engine.ok(&["exec", "box", "cat", "/mnt/shared/greeting"]), "hello\n");
}

fn a_published_port_is_open_until_the_sandbox_is_deleted(mode: Mode) {
    let Some(engine) = Engine::start_as(mode, &["--warm", "0"]) else { return };
    let output = engine.run(&["create", "web", "-p", "0:7070", "--", "python3", "-m", "http.server", "7070"]);
    let said = String::from_utf8(output.stderr).unwrap();
    let address = said.strip_prefix("forwarding ").and_then(|rest| rest.split(' ').next()).unwrap().to_owned();
    eventually("the server answers", || {
        let mut stream = TcpStream::connect(&address).unwrap();
        let _ = stream.write_all(b"GET / HTTP/1.0\r\n\r\n");
        let mut text = String::new();
        std::io::Read::read_to_string(&mut stream, &mut text).is_ok() && text.starts_with("HTTP/1.0 200")
    });
    engine.ok(&["stop", "web"]);
    engine.ok(&["start", "web"]);
    assert!(engine.ok(&["ps"]).contains("web "));
    assert!(TcpStream::connect(&address).is_ok());
    engine.ok(&["rm", "-f", "web", "no-such-name"]);
    eventually("the port is closed", || TcpStream::connect(&address).is_err());
}

fn cp_takes_several_sources_streams_and_the_home_folder(mode: Mode) {
    let Some(engine) = Engine::start_as(mode, &["--warm", "0"]) else { return };
    engine.ok(&["create", "box"]);
    let file = |name: &str| {
        let path = engine.folder.path().join(name);
        fs::write(&path, format!("{name}\n")).unwrap();
        path.to_str().unwrap().to_owned()
    };
    engine.ok(&["exec", "box", "mkdir", "in"]);
    engine.ok(&["cp", &file("a"), &file("b"), "box:~/in"]);
    assert_eq!(engine.ok(&["exec", "box", "cat", "/home/user/in/a", "/home/user/in/b"]), "a\nb\n");
    assert_eq!(engine.ok(&["cp", "box:in/a", "-"]), "a\n");
    let mut child = engine.command(&["cp", "-", "box:~/typed"]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"typed in\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(engine.ok(&["cp", "box:~/typed", "-"]), "typed in\n");
    // The working directory is not the home folder.
    engine.ok(&["create", "elsewhere", "-w", "/tmp"]);
    engine.ok(&["exec", "elsewhere", "sh", "-c", "echo at home > ~/note"]);
    assert_eq!(engine.ok(&["cp", "elsewhere:~/note", "-"]), "at home\n");
    engine.ok(&["cp", &file("a"), "elsewhere:~"]);
    assert_eq!(engine.ok(&["exec", "elsewhere", "sh", "-c", "cat ~/a"]), "a\n");
    let out = engine.folder.path().join("out");
    fs::create_dir(&out).unwrap();
    engine.give(&out);
    engine.ok(&["cp", "box:in/a", "box:in/b", out.to_str().unwrap()]);
    assert_eq!(fs::read_dir(&out).unwrap().count(), 2);
    let (_, _, said) = engine.fails(&["cp", "box:in/a", "box:in/b", &file("c")]);
    assert!(said.contains("need a folder"), "{said}");
    let (_, _, said) = engine.fails(&["cp", "box:in", "-"]);
    assert!(said.contains("is a folder"), "{said}");
}

fn run_knows_rm_detach_and_name_and_the_images_own_command(mode: Mode) {
    let Some(engine) = Engine::start_as(mode, &["--warm", "0"]) else { return };
    assert_eq!(engine.ok(&["run", "--rm", "--name", "once", "hostname"]), "once\n");
    engine.ok(&["run", "-d", "--name", "behind", "--storage", "64Mi", "sleep", "1000"]);
    let asked = engine.ok(&["get", "behind", "-o", "json"]);
    assert!(asked.contains(r#""ephemeral-storage": "64Mi""#), "{asked}");
    assert!(engine.ok(&["exec", "behind", "ps", "ax"]).contains("sleep 1000"));
    for (name, script) in [("soon", "sleep 2"), ("failing", "sleep 2; exit 3"), ("at-once", "true")] {
        engine.ok(&["run", "--rm", "-d", "--name", name, "sh", "-c", script]);
    }
    assert!(engine.ok(&["list", "-o", "name"]).contains("sandbox/soon\n"), "it is there while its command runs");
    eventually("their commands have ended, and they are gone", || {
        engine.ok(&["list", "-o", "name"]) == "sandbox/behind\n"
    });
    let archive = engine.folder.path().join("image.tar");
    Image::with_shell().save(&archive, "example.com/shell:v1");
    engine.ok(&["image", "import", archive.to_str().unwrap()]);
    engine.ok(&["rm", "behind"]);
    engine.ok(&["down"]);
    let words = ["run", "-i", "--image", "example.com/shell:v1"];
    let mut child = engine.command(&words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"cat /data/here\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "in the image\n");
}

/// bash is told the names that the running engine knows.
fn names_are_completed(mode: Mode) {
    let Some(engine) = Engine::start_as(mode, &["--warm", "0"]) else { return };
    engine.ok(&["create", "my-box"]);
    engine.ok(&["template", "create", "my-template"]);
    let script = engine.folder.path().join("completion.bash");
    fs::write(&script, engine.ok(&["completion", "bash"])).unwrap();
    let complete = |words: &str| {
        let count = words.split(' ').count();
        let call =
            "_agent_sandbox_with_names agent-sandbox \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"";
        let test = format!(
            "source {}; COMP_WORDS=(agent-sandbox {words}); COMP_CWORD={count}; {call}; echo \"${{COMPREPLY[@]}}\"",
            script.display()
        );
        let mut bash = std::process::Command::new("bash");
        bash.args(["--norc", "-c", &test]);
        engine.set_environment(&mut bash);
        let output = bash.env("PATH", engine.path()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{words}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(complete("snap").split_whitespace().any(|word| word == "snapshot"), "{}", complete("snap"));
    for (words, wanted) in
        [("create --sn", "--snapshot"), ("port-forward --kube", "--kubeconfig"), ("changes apply --r", "--risky")]
    {
        assert!(complete(words).contains(wanted), "{words}: {}", complete(words));
    }
    engine.ok(&["pool", "create", "my-pool", "--template", "my-template", "--replicas", "0"]);
    let archive = engine.folder.path().join("image.tar");
    Image::with_shell().save(&archive, "example.com/my-image:v1");
    engine.ok(&["image", "import", archive.to_str().unwrap()]);
    assert!(complete("exec my").split_whitespace().any(|word| word == "my-box"), "{}", complete("exec my"));
    assert!(complete("claim my-t").contains("my-template"), "{}", complete("claim my-t"));
    assert!(!complete("exec other").contains("my-box"));
    assert!(complete("pool delete my").contains("my-pool"), "{}", complete("pool delete my"));
    assert!(!complete("pool delete my").contains("my-template"), "{}", complete("pool delete my"));
    assert!(complete("claim my-p").contains("my-pool"), "{}", complete("claim my-p"));
    assert!(!complete("-n elsewhere exec my").contains("my-box"), "names of the namespace on the line");
    assert!(complete("-n default fork my").contains("my-box"), "{}", complete("-n default fork my"));
    assert!(complete("create --template my").contains("my-template"), "{}", complete("create --template my"));
    assert!(complete("create --image example").contains("example.com/my-image"));
    assert!(!complete("exec my-box my").contains("my-box"), "the command is completed by the shell");
    engine.ok(&["pool", "scale", "my-pool", "1"]);
    eventually("the pool has a member", || engine.ok(&["list", "--all"]).contains("my-pool-"));
    assert!(!complete("exec my").contains("my-pool-"), "{}", complete("exec my"));
    assert!(complete("image remove example").contains("example.com/my-image"), "{}", complete("image remove example"));
}

/// A sandbox and a claim share their names: of two, each would hide the other.
#[test]
fn a_name_is_of_one_sandbox_or_claim() {
    let Some(engine) = Engine::start_with(&["--warm", "0"]) else { return };
    engine.ok(&["create", "box"]);
    engine.ok(&["template", "create", "t"]);
    engine.ok(&["claim", "t", "--name", "mine"]);
    for words in [
        &["create", "box", "--template", "t"][..],
        &["claim", "t", "--name", "box"],
        &["create", "mine"],
        &["create", "mine", "--template", "t"],
    ] {
        let (_, _, said) = engine.fails(words);
        assert!(said.contains("already exists"), "{words:?}: {said}");
    }
    let names = engine.ok(&["list", "-o", "name"]);
    assert_eq!(names.lines().filter(|line| line.ends_with("/box") || line.ends_with("/mine")).count(), 2, "{names}");
    let printed = names.lines().find(|line| line.ends_with("/box")).unwrap();
    engine.ok(&["delete", printed]);
}

/// Waiting members of a pool are hidden unless they are asked for, and `--watch` shows every change.
#[test]
fn list_hides_pool_members_and_watches() {
    let Some(engine) = Engine::start_with(&["--warm", "1"]) else { return };
    let has_member = |text: &str| text.contains("python-sandbox-template-");
    eventually("the pool is filled", || has_member(&engine.ok(&["list", "--all"])));
    assert!(!has_member(&engine.ok(&["list"])), "{}", engine.ok(&["list"]));
    let mut child = engine.command(&["list", "--watch"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut until = |wanted: &dyn Fn(&str) -> bool| {
        let found = lines.by_ref().map(Result::unwrap).find(|line| wanted(line));
        found.expect("the watch goes on")
    };
    assert!(until(&|line| line.contains("no sandboxes")).contains("agent-sandbox create"));
    engine.ok(&["create", "seen"]);
    until(&|line| line.starts_with("seen ") && line.contains("Ready"));
    engine.ok(&["suspend", "seen"]);
    until(&|line| line.starts_with("seen ") && line.contains("Suspended"));
    engine.ok(&["delete", "seen"]);
    until(&|line| line.contains("no sandboxes"));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(child.wait().unwrap().success());
}
