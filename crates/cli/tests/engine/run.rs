//! `run`: exit codes, streams, terminals, limits, networks, and clean-up.

use crate::fixture::{Engine, PROGRAM, can_run, eventually, is_root};
use k8s_openapi::api::core::v1::Event;
use std::{
    io::{Read as _, Write as _},
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

fn run(words: &[&str]) -> Output {
    Command::new(PROGRAM).arg("run").args(words).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn run_passes_the_exit_code_and_the_streams_through() {
    if !can_run() {
        return;
    }
    let output = run(&["--", "python3", "-c", "print(1)"]);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), b"1\n".as_slice()), "{output:?}");
    let output = run(&["--env", "A=b", "--", "sh", "-c", "echo $A; echo no >&2; exit 9"]);
    assert_eq!(
        (output.status.code(), output.stdout.as_slice(), output.stderr.as_slice()),
        (Some(9), b"b\n".as_slice(), b"no\n".as_slice())
    );
    let output = run(&["--timeout", "1s", "--", "sleep", "60"]);
    assert_eq!(output.status.code(), Some(124));
    let said = "cannot run no-such-program: there is no such program in the sandbox's PATH\n";
    let output = run(&["--", "no-such-program"]);
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(127), said));
    let output = run(&["--", "/no/such/program"]);
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    let output = run(&["--", "/etc/passwd"]);
    assert_eq!(output.status.code(), Some(126), "{output:?}");
    assert!(text(&output.stderr).starts_with("cannot run /etc/passwd: Permission denied"), "{output:?}");
}

/// The limit of a process's cgroup, in the controller's own hierarchy or in the unified one; `None` if there is none.
fn limit_of(pid: u32, controller: &str, v1: &str, v2: &str) -> Option<u64> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let fields = groups.lines().map(|line| line.splitn(3, ':').collect::<Vec<_>>());
    let (mut own, mut unified) = (None, None);
    for field in fields {
        match field[1] {
            "" => unified = Some(field[2].to_owned()),
            names if names.split(',').any(|name| name == controller) => own = Some(field[2].to_owned()),
            _ => {}
        }
    }
    let (folder, file) = match own {
        Some(group) => (format!("/sys/fs/cgroup/{controller}{group}"), v1),
        None => (format!("/sys/fs/cgroup{}", unified.unwrap()), v2),
    };
    // The limit is the one of the container's cgroup, or of its Pod's above it.
    Path::new(&folder).ancestors().take(2).find_map(|folder| {
        let text = std::fs::read_to_string(folder.join(file)).ok()?;
        // What version 1 shows where no limit is set is no number of pages that a machine has.
        text.split_whitespace().next()?.parse::<u64>().ok().filter(|limit| *limit < 1 << 60)
    })
}

/// `run` without flags has the limits of the node's defaults, and `none` takes one away.
#[test]
fn a_command_without_flags_has_the_default_limits() {
    if !is_root() || !can_run() {
        return;
    }
    let machine = agent_sandbox_node::kernel::NodeDefaults::of_machine();
    for (flags, pids) in [(&[][..], Some(1024)), (&["--pids", "none"], None)] {
        let mark = format!("97{}{}", std::process::id(), flags.len());
        let words = [&["run"], flags, &["--", "sleep", &mark]].concat();
        let child = Command::new(PROGRAM).args(&words).stdin(Stdio::null()).spawn().unwrap();
        let mut pid = None;
        eventually("the command runs", || {
            pid = process(&["sleep", &mark]);
            pid.is_some()
        });
        let pid = pid.unwrap();
        let memory = limit_of(pid, "memory", "memory.limit_in_bytes", "memory.max");
        let quota = limit_of(pid, "cpu", "cpu.cfs_quota_us", "cpu.max");
        let found = (memory, quota.map(|micros| micros / 100), limit_of(pid, "pids", "pids.max", "pids.max"));
        let own = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        rustix::process::kill_process(own, rustix::process::Signal::INT).unwrap();
        assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
        assert_eq!(found, (machine.memory_bytes, machine.cpu_millis, pids), "{words:?}");
    }
}

/// The process with exactly these arguments.
fn process(words: &[&str]) -> Option<u32> {
    let wanted: Vec<u8> = words.iter().flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let mut named = entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())));
    named.find(|(_, path)| std::fs::read(path.join("cmdline")).is_ok_and(|line| line == wanted)).map(|(pid, _)| pid)
}

/// A command that runs out of memory says so, and a process that it leaves behind does not delay its end.
#[test]
fn lack_of_memory_is_named_and_processes_in_the_background_are_not_waited_for() {
    if !is_root() {
        return;
    }
    let message = "the command was killed: out of memory: the limit is 64Mi\n";
    let output = run(&["--memory", "64Mi", "--", "tail", "/dev/zero"]);
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(137), message));
    let Some(engine) = Engine::start() else { return };
    engine.ok(&["create", "box", "--memory", "64Mi"]);
    let (code, _, said) = engine.fails(&["exec", "box", "--", "sh", "-c", "tail /dev/zero"]);
    assert!(code == 137 && said.ends_with(message), "{code}: {said}");
    // The fastest of several: one may be slow for another reason.
    let fastest = |script: &str| {
        let time = |_| {
            let began = Instant::now();
            assert_eq!(engine.ok(&["exec", "box", "--", "sh", "-c", script]), "started\n");
            began.elapsed()
        };
        (0..5).map(time).min().unwrap()
    };
    let (alone, with_child) = (fastest("echo started"), fastest("sleep 600 & echo started"));
    assert!(
        with_child < alone + Duration::from_millis(700),
        "it waited for the process in the background: {with_child:?}"
    );
}

/// A sandbox whose command is killed for lack of memory says so: in the error, in `get`, and with an event.
#[test]
fn a_sandbox_killed_for_lack_of_memory_says_so() {
    if !is_root() {
        return;
    }
    let Some(engine) = Engine::start_with(&["--warm", "0"]) else { return };
    let (_, _, said) = engine.fails(&["create", "hungry", "--memory", "64Mi", "--keep", "--", "tail", "/dev/zero"]);
    assert!(said.contains("memory"), "{said}");
    eventually("`get` shows the reason", || {
        let shown = engine.ok(&["get", "hungry"]);
        shown.lines().any(|line| line.starts_with("Reason:") && line.contains("more memory than the limit"))
    });
    let events: Vec<Event> = engine.list();
    let killed = events.iter().find(|event| event.reason.as_deref() == Some("OOMKilled"));
    let message = killed.and_then(|event| event.message.clone()).unwrap_or_else(|| panic!("{events:?}"));
    assert!(message.contains("was killed") && message.contains("64Mi"), "{message}");
}

#[test]
fn standard_input_reaches_the_command() {
    if !can_run() {
        return;
    }
    let mut child = Command::new(PROGRAM)
        .args(["run", "-i", "--", "sh", "-c", "wc -c"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let much = vec![b'x'; 300_000];
    child.stdin.take().unwrap().write_all(&much).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout).trim(), "300000");
}

#[test]
fn the_command_gets_a_terminal_of_the_same_size() {
    if !can_run() {
        return;
    }
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("SKIPPED: util-linux's `script` is not here");
        return;
    }
    let inside = "stty size; test -t 0 && test -t 1 && echo terminal; exit 3";
    let whole = format!("stty rows 33 cols 77; {PROGRAM} run -it -- sh -c '{inside}'");
    let mut script = Command::new("script");
    let script = script.args(["-qec", &whole, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = script.spawn().unwrap();
    // Held open: when it is closed, `script` types an end-of-file character into the terminal.
    let _typing = child.stdin.take();
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stdout).replace('\r', "");
    assert!(said.contains("33 77\nterminal\n"), "{said}");
    assert_eq!(output.status.code(), Some(3), "{said}");
}

#[test]
fn volumes_and_the_folder_to_start_in() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("in.txt"), "from outside\n").unwrap();
    let shown = format!("{}:/mnt/data:ro", folder.path().display());
    let output = run(&[
        "--volume",
        &shown,
        "--workdir",
        "/mnt/data",
        "--",
        "sh",
        "-c",
        "cat in.txt; touch x 2>/dev/null || echo closed",
    ]);
    // A private folder of root cannot be read by the user inside.
    assert!(["from outside\nclosed\n", "closed\n"].contains(&text(&output.stdout).as_str()), "{output:?}");
    assert!(!folder.path().join("x").exists());
}

#[test]
fn an_error_about_a_missing_oci_runtime_names_the_program_to_install() {
    if !can_run() {
        return;
    }
    let output = run(&["--isolation", "gvisor", "--timeout", "60s", "--", "true"]);
    if Command::new("runsc").arg("--version").output().is_err() {
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = "error: the sandbox cannot start: runtime class handler gvisor needs the program runsc, which is not installed; \
                    install it, or leave runtimeClassName out\n";
        assert_eq!(text(&output.stderr), said);
    }
}

#[test]
fn a_closed_network_allows_no_connections() {
    if !can_run() {
        return;
    }
    let probe = "import socket\ntry:\n  socket.create_connection(('1.1.1.1', 53), 2)\n  print('open')\nexcept OSError as error:\n  print('closed')";
    assert_eq!(text(&run(&["--", "python3", "-c", probe]).stdout), "closed\n");
    assert_eq!(text(&run(&["--network", "none", "--", "python3", "-c", probe]).stdout), "closed\n");
    let listing = text(&run(&["--network", "public", "--", "cat", "/proc/net/route"]).stdout);
    if is_root() {
        assert!(listing.lines().count() > 1, "a public network has a route: {listing}");
    }
}

/// Processes whose command line holds this text.
fn processes(text: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(text)).count()
}

#[test]
fn interrupting_cleans_up() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mark = format!("sleep 98{}", std::process::id());
    let child = Command::new(PROGRAM)
        .args(["run", "--", "sh", "-c", &format!("{mark}; true")])
        .env("TMPDIR", folder.path())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    // Two processes: the command, and the shell that starts it.
    eventually("the command runs", || processes(&mark) >= 2);
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    eventually("nothing runs any more", || processes(&mark) == 0);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// `exec box -- yes | head -1`, `logs -f box | head -1`: the end of the reader ends the command on both sides, quietly.
#[test]
fn a_closed_pipe_ends_the_command() {
    let Some(engine) = Engine::start() else { return };
    engine.ok(&["create", "box"]);
    engine.ok(&["create", "chatty", "--", "sh", "-c", "while echo y; do sleep 0.05; done"]);
    for words in [
        &["exec", "box", "--", "yes"][..],
        &["logs", "-f", "chatty"],
        &["exec", "box", "--", "sh", "-c", "echo y; exec sleep 1000"],
        &["run", "--", "yes"],
    ] {
        let mut child = engine.command(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = [0; 2];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        assert_eq!(&first, b"y\n");
        let mut status = None;
        eventually("it ends with its reader", || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!((status.unwrap().code(), said.as_str()), (Some(141), ""), "{words:?}");
    }
    eventually("nothing runs on inside", || {
        let processes = engine.ok(&["exec", "box", "--", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]);
        !processes.contains("yes") && !processes.contains("sleep 1000")
    });
    let output = engine.run(&["exec", "box", "--", "sh", "-c", "echo all; exit 3"]);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(3), &b"all\n"[..]));
}
