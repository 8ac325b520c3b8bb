//! A listening socket that was opened before the daemon started: clients wait for the daemon instead of being refused.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};

use crate::client::connect;
use crate::fixture::{program, start_command_with};

#[test]
fn an_inherited_socket_is_served_and_hidden_from_commands() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = listener.local_addr().expect("an address");
    // Before the daemon is started.
    let early = connect(address);
    let script = format!(
        "exec 3<&0 0</dev/null; LISTEN_FDS=1 LISTEN_PID=$$ LISTEN_FDNAMES=x exec {} --listen {address} --base-dir / --root-dir /tmp",
        program()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]);
    let daemon = start_command_with(command, Stdio::from(OwnedFd::from(listener)));
    assert_eq!(daemon.address, address, "the same address is not bound again");
    assert_eq!(early.peer_addr().expect("still connected"), address);
    assert_eq!(daemon.get("/").status, 200);
    let inside = daemon.execute("env; ls -l /proc/self/fd")["stdout"].as_str().expect("text").to_owned();
    assert!(inside.contains("PATH="), "control: there is an environment: {inside}");
    assert!(!inside.contains("LISTEN_") && !inside.contains("socket:"), "{inside}");
}

#[test]
fn a_descriptor_that_is_no_listening_socket_is_ignored() {
    let script = format!(
        "exec 3</dev/null; LISTEN_FDS=2 LISTEN_PID=$$ exec {} --listen 127.0.0.1:0 --base-dir / --root-dir /tmp",
        program()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]);
    assert_eq!(start_command_with(command, Stdio::null()).get("/").status, 200);
}
