//! The documented examples, in a mount namespace with a real `/home/user`. Needs root.

use std::process::Command;

use crate::client::encode;
use crate::fixture::{Daemon, is_root, start_command};

/// A daemon that sees an empty `/home/user` and an empty `/tmp`.
pub(crate) fn with_home() -> Option<Daemon> {
    with_home_and("")
}

/// The same, with further flags.
pub(crate) fn with_home_and(flags: &str) -> Option<Daemon> {
    if !is_root() {
        println!("skipped: a home directory of its own needs root");
        return None;
    }
    // Opened first: it may lie in a folder that is hidden then.
    let script = format!(
        "exec 9<{} && mount -t tmpfs home /home && mkdir /home/user && mkdir -p /run && mount -t tmpfs tmp /tmp && \
         exec env HOME=/home/user /proc/self/fd/9 --listen 127.0.0.1:0 --listen 127.0.0.1:0 --root-dir /home/user {flags}",
        crate::fixture::program()
    );
    let mut command = Command::new("unshare");
    // In a pid namespace, so that no process outlives the daemon.
    command.args(["--mount", "--pid", "--fork", "--mount-proc", "--kill-child=KILL", "sh", "-c", &script]);
    Some(start_command(command))
}

/// D-046, D-047
#[test]
fn a_file_is_written_read_listed_and_printed() {
    let Some(daemon) = with_home() else { return };
    for filename in ["hello.txt", "home/user/hello.txt", "/home/user/hello.txt"] {
        assert_eq!(daemon.upload(filename, b"Hello from the SDK!").status, 200);
        let path = encode("/home/user/hello.txt");
        assert_eq!(daemon.get(&format!("/download/{path}")).text(), "Hello from the SDK!");
        assert_eq!(daemon.get(&format!("/exists/{path}")).json()["exists"], true);
        let listed = daemon.get(&format!("/list/{}", encode("/home/user"))).json();
        assert_eq!(listed[0]["name"], "hello.txt");
        assert_eq!(daemon.execute("cat /home/user/hello.txt")["stdout"], "Hello from the SDK!");
    }
}

/// D-015, D-016
#[test]
fn redirections_land_where_they_say() {
    let Some(daemon) = with_home() else { return };
    let response = daemon.execute("echo 'analysis complete' > /home/user/results.txt");
    assert_eq!((response["stdout"].as_str(), response["exit_code"].as_i64()), (Some(""), Some(0)));
    assert_eq!(daemon.get(&format!("/download/{}", encode("/home/user/results.txt"))).text(), "analysis complete\n");
    assert_eq!(daemon.get("/download/home%2Fuser%2Fresults.txt").text(), "analysis complete\n");
    daemon.execute("mkdir -p /tmp/data && echo 'session_active' > /tmp/data/status.txt");
    assert_eq!(daemon.execute("cat /tmp/data/status.txt")["stdout"], "session_active\n");
}

/// D-048, D-049
#[test]
fn uploaded_scripts_run_by_either_name() {
    let Some(daemon) = with_home() else { return };
    if daemon.execute("command -v python3")["exit_code"] != 0 {
        println!("skipped: no python3");
        return;
    }
    for filename in ["run.py", "home/user/run.py"] {
        daemon.upload(filename, b"print('ran')");
        assert_eq!(daemon.execute("python3 /home/user/run.py")["stdout"], "ran\n");
        assert_eq!(daemon.execute("python3 run.py")["exit_code"], 0);
    }
    daemon.upload("home/user/input.csv", b"a,b\n1,2\n");
    let script = "import csv\nrows = list(csv.reader(open('/home/user/input.csv')))\nprint(f'Processed {len(rows)} rows')\ncsv.writer(open('/home/user/output.csv', 'w')).writerows(rows)\n";
    daemon.upload("home/user/process.py", script.as_bytes());
    assert_eq!(daemon.execute("python3 /home/user/process.py")["stdout"], "Processed 2 rows\n");
    assert_eq!(daemon.get("/download/home%2Fuser%2Foutput.csv").text(), "a,b\r\n1,2\r\n");
}

/// D-050
#[test]
fn stripped_paths_reach_the_temporary_directory() {
    let Some(daemon) = with_home() else { return };
    daemon.upload("tmp/hello.txt", b"from tmp");
    assert_eq!(daemon.execute("cat /tmp/hello.txt")["stdout"], "from tmp");
    assert_eq!(daemon.get("/download/tmp%2Fhello.txt").text(), "from tmp");
}
