//! The router's signature, and the real sandboxd that checks it.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use agent_sandbox_router::RouterConfig;
use base64::Engine as _;
use http::{Request, StatusCode};
use http_body_util::Full;

use crate::support::*;

/// The static daemon that `make sandboxd` builds; `None`, with a message, without it.
fn program() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/embed/sandboxd");
    if !path.exists() {
        assert!(std::env::var_os("CI").is_none(), "run `make sandboxd` first");
        eprintln!("SKIPPED: no static sandboxd; run `make sandboxd` first");
        return None;
    }
    Some(path)
}

fn pem(label: &str, der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

/// An Ed25519 key pair as openssl writes it: the private key as PKCS #8, and the public key.
fn key_pair(seed: u8) -> (String, String) {
    let der = [&[0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20][..], &[seed; 32]].concat();
    let pair = ring::signature::Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap();
    let public = ring::signature::KeyPair::public_key(&pair).as_ref().to_vec();
    let spki = [&[0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0][..], &public].concat();
    (pem("PRIVATE KEY", &der), pem("PUBLIC KEY", &spki))
}

struct Daemon(Child, SocketAddr);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// sandboxd as the Pod `pod_uid`, which accepts the router of this public key only.
fn daemon(program: &Path, folder: &Path, public: &Path, pod_uid: &str) -> Daemon {
    let mut command = Command::new(program);
    command.args(["--listen", "127.0.0.1:0", "--pod-uid", pod_uid]).arg("--router-key-file").arg(public);
    command.arg("--base-dir").arg(folder).arg("--root-dir").arg(folder);
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let address = lines.find_map(|line| line.unwrap().split_once("Listening address=")?.1.trim().parse().ok());
    // Keeps the pipe open.
    std::thread::spawn(move || lines.for_each(drop));
    Daemon(child, address.expect("the daemon says where it listens"))
}

fn execute() -> Request<Full<bytes::Bytes>> {
    let head = Request::post("/execute").header("x-sandbox-id", "box").header("content-type", "application/json");
    head.body(Full::from(r#"{"command":"echo signed"}"#)).unwrap()
}

#[tokio::test]
async fn the_daemon_runs_what_its_router_has_signed_and_nothing_else() {
    let Some(program) = program() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let ((private, public), (other, _)) = (key_pair(7), key_pair(8));
    let (private, public, other) = (file("key", &private), file("key.pub", &public), file("other", &other));
    let signing = |key: Option<&PathBuf>| RouterConfig { sandbox_token_key: key.cloned(), ..quiet() };

    let own = daemon(&program, folder.path(), &public, "pod-uid-box");
    let reply = TestRouter::with(signing(Some(&private)), own.1).await.send(execute()).await;
    assert_eq!(reply.status, StatusCode::OK, "{reply:?}");
    assert!(reply.text().contains("signed"), "{reply:?}");
    for (key, case) in [(Some(&other), "signed with another key"), (None, "not signed")] {
        let reply = TestRouter::with(signing(key), own.1).await.send(execute()).await;
        assert_eq!(reply.status, StatusCode::UNAUTHORIZED, "{case}: {reply:?}");
    }
    let direct = send(own.1, execute()).await;
    assert_eq!(direct.status, StatusCode::UNAUTHORIZED, "past the router: {direct:?}");

    // The router signs for the Pod that it means: another one does not take it.
    let foreign = daemon(&program, folder.path(), &public, "pod-uid-other");
    let reply = TestRouter::with(signing(Some(&private)), foreign.1).await.send(execute()).await;
    assert_eq!(reply.status, StatusCode::UNAUTHORIZED, "{reply:?}");
}
