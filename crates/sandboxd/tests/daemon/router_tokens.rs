//! A daemon that was given a router's public key serves only what the router has signed.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use agent_sandbox_protocol::sandbox_token::SigningKey;

use crate::client::{HttpResponse, send};
use crate::fixture::{Daemon, daemon};

const POD: &str = "6f1c3c1e-0000-4000-8000-000000000001";

/// A key as an administrator makes it; `None` without openssl.
fn openssl_keys() -> Option<(SigningKey, String)> {
    let made = Command::new("openssl").args(["genpkey", "-algorithm", "ed25519"]).output().ok()?;
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("key.pem");
    std::fs::write(&file, &made.stdout).expect("a file");
    let public = Command::new("openssl").args(["pkey", "-pubout", "-in"]).arg(&file).output().ok()?;
    let private = SigningKey::from_pem(&String::from_utf8(made.stdout).expect("PEM")).expect("a key");
    Some((private, String::from_utf8(public.stdout).expect("PEM")))
}

fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_secs()).expect("a time")
}

fn execute(daemon: &Daemon, headers: &[(&str, &str)]) -> HttpResponse {
    send(daemon.address, "POST", "/execute", headers, br#"{"command":"true"}"#)
}

#[test]
fn only_signed_requests_are_served() {
    let Some((key, public)) = openssl_keys() else { return println!("skipped: no openssl here") };
    let start = || daemon().variable("SANDBOX_ROUTER_PUBLIC_KEY", &public).variable("SANDBOX_POD_UID", POD);
    let sandbox = start().start();
    let direct = execute(&sandbox, &[]);
    assert_eq!(direct.status, 401);
    assert!(direct.text().contains("router"), "{}", direct.text());
    let good = key.sign(POD, now() + 60);
    let header = "x-sandbox-token";
    // The router has checked the page already.
    assert_eq!(execute(&sandbox, &[(header, &good), ("origin", "https://evil.example")]).status, 200);
    for bad in [
        key.sign("another-pod", now() + 60),
        key.sign(POD, now() - 1),
        openssl_keys().expect("openssl").0.sign(POD, now() + 60),
        format!("{good}x"),
    ] {
        assert_eq!(execute(&sandbox, &[(header, &bad)]).status, 401, "{bad}");
    }
    assert_eq!(execute(&sandbox, &[("authorization", &format!("Bearer {good}"))]).status, 401);
    for probe in ["/", "/v1/health"] {
        assert_eq!(sandbox.get(probe).status, 200, "{probe}");
    }
    // Beside it a bearer token, for clients inside the Pod.
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("token");
    std::fs::write(&file, "secret").expect("a file");
    let both = start().flag(&format!("--token-file={}", file.display())).start();
    assert_eq!(execute(&both, &[(header, &good)]).status, 200);
    assert_eq!(execute(&both, &[("authorization", "Bearer secret")]).status, 200);
    assert_eq!(execute(&both, &[]).status, 401);
}
