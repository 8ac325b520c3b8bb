//! The process service over gRPC.

use std::time::Duration;

use agent_sandbox_protocol::grpc::attach::attach_response::Event as AttachEvent;
use agent_sandbox_protocol::grpc::attach::attach_service_client::AttachServiceClient;
use agent_sandbox_protocol::grpc::attach::{AttachRequest, ListRequest};
use agent_sandbox_protocol::grpc::health::HealthCheckRequest;
use agent_sandbox_protocol::grpc::health::health_client::HealthClient;
use agent_sandbox_protocol::grpc::process::process_service_client::ProcessServiceClient;
use agent_sandbox_protocol::grpc::process::start_response::Event;
use agent_sandbox_protocol::grpc::process::write_stdin_request::Payload;
use agent_sandbox_protocol::grpc::process::*;
use agent_sandbox_protocol::grpc::reflection::server_reflection_client::ServerReflectionClient;
use agent_sandbox_protocol::grpc::reflection::server_reflection_request::MessageRequest;
use agent_sandbox_protocol::grpc::reflection::{ServerReflectionRequest, server_reflection_response};
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use crate::fixture::{Daemon, daemon, is_alive, wait_for};

async fn channel(daemon: &Daemon) -> Channel {
    let address = format!("http://{}", daemon.address);
    Channel::from_shared(address).expect("an address").connect().await.expect("the daemon listens")
}

async fn client(daemon: &Daemon) -> ProcessServiceClient<Channel> {
    ProcessServiceClient::new(channel(daemon).await)
}

fn config(command: &[&str]) -> ProcessConfig {
    let command = command.iter().map(|word| (*word).to_owned()).collect();
    ProcessConfig { command, ..ProcessConfig::default() }
}

pub(crate) async fn execute(daemon: &Daemon, config: ProcessConfig) -> Result<ExecuteResponse, Status> {
    let request = ExecuteRequest { config: Some(config) };
    client(daemon).await.execute(request).await.map(tonic::Response::into_inner)
}

async fn start(daemon: &Daemon, command: &[&str], pty: Option<Pty>) -> (i32, Streaming<StartResponse>) {
    let request = StartRequest { config: Some(config(command)), pty };
    let mut stream = client(daemon).await.start(request).await.expect("started").into_inner();
    match stream.message().await.expect("a message").and_then(|message| message.event) {
        Some(Event::Init(init)) => (init.process_id, stream),
        other => panic!("{other:?}"),
    }
}

/// Everything until the end: stdout, stderr, exit code.
async fn finish(mut stream: Streaming<StartResponse>) -> (Vec<u8>, Vec<u8>, i32) {
    let (mut stdout, mut stderr, mut code) = (Vec::new(), Vec::new(), None);
    while let Some(message) = stream.message().await.expect("a message") {
        assert!(code.is_none(), "exit is last");
        match message.event {
            Some(Event::Stdout(bytes)) => {
                assert!(bytes.len() <= 4096);
                stdout.extend_from_slice(&bytes);
            }
            Some(Event::Stderr(bytes)) => stderr.extend_from_slice(&bytes),
            Some(Event::Exit(exit)) => code = Some(exit.exit_code),
            other => panic!("{other:?}"),
        }
    }
    (stdout, stderr, code.expect("an exit event"))
}

async fn write(daemon: &Daemon, process_id: i32, payload: Payload) -> Result<(), Status> {
    let request = WriteStdinRequest { process_id, payload: Some(payload) };
    client(daemon).await.write_stdin(request).await.map(|_| ())
}

/// D-081, D-082, D-083
#[tokio::test]
async fn execute_runs_to_the_end() {
    let daemon = daemon().start();
    let done = execute(&daemon, config(&["echo", "hello"])).await.expect("ran");
    assert_eq!(
        (done.exit_code, done.stdout.as_ref(), done.stderr.as_ref()),
        (0, b"hello\n".as_slice(), b"".as_slice())
    );
    let done = execute(&daemon, config(&["sh", "-c", "exit 3"])).await.expect("ran");
    assert_eq!(done.exit_code, 3);
    std::fs::create_dir(daemon.workspace().join("sub")).expect("a directory");
    let with_both = ProcessConfig {
        env_vars: [("GREETING".to_owned(), "moin".to_owned())].into(),
        cwd: Some("sub".into()),
        ..config(&["sh", "-c", "echo $GREETING; pwd; cat"])
    };
    let done = execute(&daemon, with_both).await.expect("ran");
    let expected = format!("moin\n{}/sub\n", daemon.workspace().display());
    assert_eq!(String::from_utf8_lossy(&done.stdout), expected);
    let done = execute(&daemon, config(&["sh", "-c", "kill -9 $$"])).await.expect("ran");
    assert_eq!(done.exit_code, 137);
}

#[tokio::test]
async fn signals_can_be_reported_as_minus_one() {
    let daemon = daemon().flag("--signal-exit-minus-one").start();
    assert_eq!(execute(&daemon, config(&["sh", "-c", "kill -9 $$"])).await.expect("ran").exit_code, -1);
}

/// D-084, D-085, D-086
#[tokio::test]
async fn what_cannot_run_has_a_status() {
    let daemon = daemon().start();
    let unusable = daemon.workspace().join("unusable");
    std::fs::write(&unusable, "x").expect("a file");
    let in_cwd = |cwd: &str| ProcessConfig { cwd: Some(cwd.into()), ..config(&["true"]) };
    for (config, code) in [
        (config(&[]), Code::InvalidArgument),
        (config(&[""]), Code::InvalidArgument),
        (in_cwd("../.."), Code::PermissionDenied),
        (in_cwd("missing"), Code::NotFound),
        (config(&["nosuchprogram"]), Code::NotFound),
        (config(&["./unusable"]), Code::PermissionDenied),
    ] {
        let status = execute(&daemon, config.clone()).await.expect_err("refused");
        assert_eq!(status.code(), code, "{config:?}");
    }
    let status = client(&daemon).await.execute(ExecuteRequest { config: None }).await.expect_err("refused");
    assert_eq!(status.code(), Code::InvalidArgument);
}

/// D-087, D-095
#[tokio::test]
async fn start_streams_both_outputs_between_init_and_exit() {
    let daemon = daemon().start();
    let script = "i=0; while [ $i -lt 2000 ]; do echo out$i; echo err$i >&2; i=$((i+1)); done; exit 7";
    let (id, stream) = start(&daemon, &["sh", "-c", script], None).await;
    assert_eq!(id, 1);
    let (stdout, stderr, code) = finish(stream).await;
    let expected = |name: &str| (0..2000).map(|number| format!("{name}{number}\n")).collect::<String>();
    assert_eq!(String::from_utf8_lossy(&stdout), expected("out"));
    assert_eq!(String::from_utf8_lossy(&stderr), expected("err"));
    assert_eq!(code, 7);
    let ids = futures::future::join_all((0..20).map(|_| async { start(&daemon, &["true"], None).await.0 })).await;
    let mut sorted = ids.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (2..22).collect::<Vec<_>>());
}

/// D-088
#[tokio::test]
async fn cat_echoes_until_eof() {
    let daemon = daemon().start();
    let (id, stream) = start(&daemon, &["cat"], None).await;
    let input = vec![b'x'; 300_000];
    let reading = tokio::spawn(finish(stream));
    write(&daemon, id, Payload::Input(input.clone().into())).await.expect("written");
    write(&daemon, id, Payload::Input(bytes::Bytes::new())).await.expect("nothing");
    write(&daemon, id, Payload::Eof(())).await.expect("ended");
    let (stdout, _, code) = reading.await.expect("read");
    assert_eq!((stdout == input, code), (true, 0));
}

/// D-089
#[tokio::test]
async fn unknown_processes_are_not_found() {
    let daemon = daemon().start();
    let mut client = client(&daemon).await;
    let written = write(&daemon, 99, Payload::Eof(())).await.expect_err("refused");
    let signal = SendSignalRequest { process_id: 99, signal: Signal::Sigterm.into() };
    let signalled = client.send_signal(signal).await.expect_err("refused");
    let resized = client.resize_tty(ResizeTtyRequest { process_id: 99, cols: 1, rows: 1 }).await.expect_err("refused");
    assert_eq!([written.code(), signalled.code(), resized.code()], [Code::NotFound; 3]);
}

/// D-090, D-091, D-092
#[tokio::test]
async fn signals_reach_the_group() {
    let daemon = daemon().start();
    let (id, stream) = start(&daemon, &["sleep", "30"], None).await;
    let mut client = client(&daemon).await;
    for signal in [0, 17, 99] {
        let refused = client.send_signal(SendSignalRequest { process_id: id, signal }).await.expect_err("refused");
        assert_eq!(refused.code(), Code::InvalidArgument, "{signal}");
    }
    let refused =
        client.resize_tty(ResizeTtyRequest { process_id: id, cols: 80, rows: 24 }).await.expect_err("refused");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    client.send_signal(SendSignalRequest { process_id: id, signal: Signal::Sigterm.into() }).await.expect("sent");
    assert_eq!(finish(stream).await.2, 143);
}

/// D-093
#[tokio::test]
async fn terminals_have_a_size_that_changes() {
    let daemon = daemon().start();
    let script = "stty size; read line; stty size; echo $TERM; cat; echo done";
    let (id, mut stream) = start(&daemon, &["sh", "-c", script], Some(Pty { cols: 80, rows: 24 })).await;
    let mut seen = String::new();
    while !seen.contains("24 80") {
        let message = stream.message().await.expect("a message").expect("not the end");
        if let Some(Event::Stdout(bytes)) = message.event {
            seen.push_str(&String::from_utf8_lossy(&bytes));
        }
    }
    let mut client = client(&daemon).await;
    let too_large =
        client.resize_tty(ResizeTtyRequest { process_id: id, cols: 70_000, rows: 1 }).await.expect_err("refused");
    assert_eq!(too_large.code(), Code::InvalidArgument);
    client.resize_tty(ResizeTtyRequest { process_id: id, cols: 120, rows: 40 }).await.expect("resized");
    write(&daemon, id, Payload::Input("go\n".into())).await.expect("typed");
    write(&daemon, id, Payload::Eof(())).await.expect("ended");
    let (stdout, stderr, code) = finish(stream).await;
    let stdout = String::from_utf8_lossy(&stdout);
    assert!(stdout.contains("40 120") && stdout.contains("xterm-256color") && stdout.contains("done"), "{stdout}");
    assert_eq!((stderr.len(), code), (0, 0));
}

/// D-094
#[tokio::test]
async fn shutdown_ends_processes_and_their_streams() {
    let mut daemon = daemon().start();
    let stubborn = ["sh", "-c", "trap 'echo term' TERM; echo ready; while :; do sleep 0.05; done"];
    let (_, mut stream) = start(&daemon, &stubborn, None).await;
    let first = stream.message().await.expect("a message").expect("not the end");
    assert_eq!(first.event, Some(Event::Stdout("ready\n".into())));
    daemon.signal(rustix::process::Signal::TERM);
    let (stdout, _, code) = finish(stream).await;
    assert_eq!((String::from_utf8_lossy(&stdout).as_ref(), code), ("term\n", 137));
    assert!(daemon.wait().success());
}

/// D-097
#[tokio::test]
async fn files_and_processes_see_the_same_bytes() {
    let daemon = daemon().start();
    assert_eq!(daemon.send("PUT", "/v1/files/shared.txt", b"shared").status, 204);
    let done = execute(&daemon, config(&["cat", "shared.txt"])).await.expect("ran");
    assert_eq!(done.stdout.as_ref(), b"shared");
}

/// D-098, D-101
#[tokio::test(flavor = "multi_thread")]
async fn deadlines_and_cancelled_calls_end_the_whole_group() {
    let daemon = daemon().start();
    let script = "sleep 61 & echo $! $$ > pids; wait";
    let pids = || -> Option<Vec<u32>> {
        let text = std::fs::read_to_string(daemon.workspace().join("pids")).ok()?;
        let pids: Vec<u32> = text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
        (pids.len() == 2).then_some(pids)
    };
    let mut request = tonic::Request::new(ExecuteRequest { config: Some(config(&["sh", "-c", script])) });
    request.set_timeout(Duration::from_millis(700));
    let status = client(&daemon).await.execute(request).await.expect_err("too late");
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status}");
    let first = wait_for(pids, "the command ran");
    wait_for(|| first.iter().all(|pid| !is_alive(*pid)).then_some(()), "the group is gone");
    std::fs::remove_file(daemon.workspace().join("pids")).expect("a file");
    let (_, stream) = start(&daemon, &["sh", "-c", script], None).await;
    let second = tokio::task::block_in_place(|| wait_for(pids, "the command ran"));
    drop(stream);
    tokio::task::block_in_place(|| wait_for(|| second.iter().all(|pid| !is_alive(*pid)).then_some(()), "it is gone"));
}

/// D-102
#[tokio::test]
async fn large_output_is_cut_below_what_clients_take() {
    let daemon = daemon().start();
    let done = execute(&daemon, config(&["sh", "-c", "head -c 10485760 /dev/zero; head -c 10485760 /dev/zero >&2"]));
    let done = done.await.expect("the response fits");
    assert_eq!(done.exit_code, 0);
    assert!(done.stdout.len() + done.stderr.len() < 4 << 20);
    assert!(String::from_utf8_lossy(&done.stdout).contains("bytes of output left out"));
}

/// D-103
#[tokio::test]
async fn reflection_and_health_answer() {
    let daemon = daemon().start();
    let ask = || ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut reflection = ServerReflectionClient::new(channel(&daemon).await);
    let mut responses =
        reflection.server_reflection_info(tokio_stream::once(ask())).await.expect("responses").into_inner();
    let response = responses.message().await.expect("a response").and_then(|response| response.message_response);
    let Some(server_reflection_response::MessageResponse::ListServicesResponse(list)) = response else {
        panic!("{response:?}");
    };
    assert!(list.service.iter().any(|service| service.name == "process.v1.ProcessService"), "{list:?}");
    let health =
        HealthClient::new(channel(&daemon).await).check(HealthCheckRequest::default()).await.expect("responses");
    assert_eq!(health.into_inner().status, 1);
}

#[tokio::test]
async fn a_process_can_be_found_and_joined_again() {
    let daemon = daemon().start();
    let (id, stream) = start(&daemon, &["sh", "-c", "echo one; echo two >&2; read x; echo three"], None).await;
    let mut attach = AttachServiceClient::new(channel(&daemon).await);
    let listed = attach.list(ListRequest {}).await.expect("listed").into_inner().processes;
    assert_eq!((listed.len(), listed[0].process_id, listed[0].running), (1, id, true));
    let mut again = attach.attach(AttachRequest { process_id: id, offset: 0 }).await.expect("joined").into_inner();
    write(&daemon, id, Payload::Input("go\n".into())).await.expect("typed");
    let mut seen = Vec::new();
    let mut code = None;
    while let Some(message) = again.message().await.expect("a message") {
        match message.event {
            Some(AttachEvent::Stdout(bytes) | AttachEvent::Stderr(bytes)) => seen.extend_from_slice(&bytes),
            Some(AttachEvent::ExitCode(exit)) => code = Some(exit),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((seen.len(), code), ("one\ntwo\nthree\n".len(), Some(0)));
    assert_eq!(finish(stream).await.2, 0);
}
