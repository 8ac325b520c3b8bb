//! Decisions about requests of E2B's clients.

use super::*;
use crate::addressing::Routing;
use crate::resolve::index::PodFacts;

fn access() -> E2bAccess {
    E2bAccess::new(Secret::from_file_bytes(&[b'k'; 32]).unwrap())
}

fn index() -> PodIndex {
    let index = PodIndex::default();
    for (number, (sandbox, e2b)) in
        [("open", Some(Traffic::Public)), ("closed", Some(Traffic::Private)), ("plain", None)].into_iter().enumerate()
    {
        index.apply(PodFacts {
            namespace: "team".into(),
            sandbox: sandbox.into(),
            sandbox_uid: format!("u{number}"),
            pod: sandbox.into(),
            pod_uid: format!("p{number}"),
            ips: vec![format!("10.0.0.{}", number + 1).parse().unwrap()],
            name_routable: true,
            idle: None,
            e2b,
        });
    }
    index
}

fn decide(uri: &str, headers: &[(&str, String)], credential: bool) -> Grant {
    let mut request = Request::builder().uri(uri);
    for (name, value) in headers {
        request = request.header(*name, value);
    }
    let request = request.body(()).unwrap();
    let routing = Routing { path_prefix: None, host_domain: Some("localhost".to_owned()) };
    let named = match routing.find(&request).unwrap() {
        Named::InHeaders => access().find(&request, &index()).map_or(Named::InHeaders, Result::unwrap),
        named => named,
    };
    access().decide(&named, &request, &index(), credential)
}

fn by_client(name: &str, port: u16) -> Vec<(&'static str, String)> {
    vec![("e2b-sandbox-id", format!("{name}--team")), ("e2b-sandbox-port", port.to_string())]
}

fn token(kind: Token, name: &str) -> (&'static str, String) {
    let header = if kind == Token::Access { ACCESS_TOKEN } else { TRAFFIC_TOKEN };
    (header, kind.derive(&access().secret, "team", name))
}

/// E-009, E-010, E-074, E-104
#[test]
fn each_port_needs_its_token() {
    let refused = Grant::Refused;
    let (own, traffic) = (token(Token::Access, "open"), token(Token::Traffic, "open"));
    for (port, path, extra, expected) in [
        (ENVD_PORT, "/process.Process/List", None, refused(E2bError::Token)),
        (ENVD_PORT, "/process.Process/List", Some(&own), Grant::Proven),
        (ENVD_PORT, "/process.Process/List", Some(&traffic), refused(E2bError::Token)),
        (ENVD_PORT, "/process.Process/List", Some(&token(Token::Access, "closed")), refused(E2bError::Token)),
        (ENVD_PORT, "/health", None, Grant::Proven),
        (ENVD_PORT, "/init", Some(&own), refused(E2bError::Init)),
        (ENVD_PORT, "//init/", Some(&own), refused(E2bError::Init)),
        (ENVD_PORT, "/files?path=x", None, refused(E2bError::Token)),
        (INTERPRETER_PORT, "/contexts", None, refused(E2bError::Traffic)),
        (INTERPRETER_PORT, "/contexts", Some(&traffic), Grant::Proven),
        (INTERPRETER_PORT, "//execute", Some(&own), Grant::Proven),
        (3000, "/", None, Grant::Program),
        // Commands through the runtime API need the rights of a user of the cluster.
        (DEFAULT_PORT, "/execute", Some(&own), Grant::Ordinary),
    ] {
        let mut headers = by_client("open", port);
        headers.extend(extra.cloned());
        assert_eq!(decide(path, &headers, false), expected, "{port} {path} {extra:?}");
    }
}

/// E-010, E-120
#[test]
fn a_private_sandbox_needs_the_traffic_token_on_every_port() {
    assert_eq!(decide("/", &by_client("closed", 3000), false), Grant::Refused(E2bError::Traffic));
    let mut with_token = by_client("closed", 3000);
    with_token.push(token(Token::Traffic, "closed"));
    assert_eq!(decide("/", &with_token, false), Grant::Program);
    for unknown in ["plain", "absent"] {
        assert_eq!(decide("/", &by_client(unknown, 3000), false), Grant::Refused(E2bError::NotFound), "{unknown}");
    }
    let mut paused = by_client("absent", ENVD_PORT);
    paused.push(token(Token::Access, "absent"));
    assert_eq!(decide("/", &paused, false), Grant::Proven, "a paused sandbox may be woken by its own token only");
    assert_eq!(decide("/init", &paused, false), Grant::Refused(E2bError::NotFound));
    for (port, token_of) in [(DEFAULT_PORT, Token::Access), (DEFAULT_PORT, Token::Traffic), (ENVD_PORT, Token::Traffic)]
    {
        let mut other = by_client("absent", port);
        other.push(token(token_of, "absent"));
        assert_eq!(decide("/execute", &other, false), Grant::Refused(E2bError::NotFound), "{port}");
    }
    let mut program = by_client("absent", 3000);
    program.push(token(Token::Traffic, "absent"));
    assert_eq!(decide("/", &program, false), Grant::Program);
}

/// E-005
#[test]
fn hosts_of_sandboxes_follow_the_same_rules_and_users_keep_their_own() {
    let host = |name: &str, port: u16| vec![("host", format!("{port}-{name}--team.localhost:8080"))];
    assert_eq!(decide("/", &host("open", 3000), false), Grant::Program);
    assert_eq!(decide("/", &host("closed", 3000), false), Grant::Refused(E2bError::Traffic));
    assert_eq!(decide("/", &host("closed", 3000), true), Grant::Ordinary, "a user signs in as elsewhere");
    assert_eq!(decide("/x", &host("open", ENVD_PORT), false), Grant::Refused(E2bError::Token));
    assert_eq!(decide("/", &host("open", DEFAULT_PORT), false), Grant::Ordinary);
    for other in ["plain", "absent"] {
        assert_eq!(decide("/", &host(other, 3000), false), Grant::Ordinary, "{other}");
    }
}

/// E-007
#[test]
fn a_signed_address_names_its_sandbox() {
    use agent_sandbox_protocol::e2b::{Operation, Signed};
    let (_, token) = token(Token::Access, "closed");
    let signed = Signed { path: "/a", operation: Operation::Read, user: "", expiration: None };
    let digest = {
        use base64::Engine as _;
        use sha2::Digest as _;
        base64::engine::general_purpose::STANDARD_NO_PAD.encode(sha2::Sha256::digest(format!("/a:read::{token}")))
    };
    let signature = format!("v1_{digest}");
    assert!(signed.verify(&token, &signature, 0));
    let query = signature.replace('+', "%2B").replace('/', "%2F");
    assert_eq!(decide(&format!("/files?path=/a&signature={query}"), &[], false), Grant::Proven);
    let headers = by_client("open", ENVD_PORT);
    let foreign = decide(&format!("/files?path=/a&signature={query}"), &headers, false);
    assert_eq!(foreign, Grant::Refused(E2bError::Token), "of another sandbox");
    assert_eq!(decide("/files?path=/a&signature=v1_x", &[], false), Grant::Ordinary);
    // sandboxd reads the names as they are: it would serve /etc/passwd.
    for twice in
        ["path=/etc/passwd&%70ath=/a", "path=/etc/passwd&path=/a", "%70ath=/a", "path=/a&username=root&username="]
    {
        assert_eq!(decide(&format!("/files?{twice}&signature={query}"), &[], false), Grant::Ordinary, "{twice}");
    }
}

#[test]
fn only_what_is_for_the_sandbox_is_passed_on() {
    let completed = |grant: Grant, value: &'static str| {
        let mut headers = HeaderMap::new();
        headers.insert(TRAFFIC_TOKEN, HeaderValue::from_static("t"));
        grant.complete(&mut headers, Some(HeaderValue::from_static(value)));
        let kept = headers.get(AUTHORIZATION).is_some();
        (kept, headers.contains_key(TRAFFIC_TOKEN), headers.contains_key(PUBLIC_ACCESS))
    };
    assert_eq!(completed(Grant::Proven, "Basic cm9vdDo="), (true, true, false));
    assert_eq!(completed(Grant::Proven, "Bearer x"), (false, true, false));
    assert_eq!(completed(Grant::Program, "Bearer x"), (true, false, true));
    assert_eq!(completed(Grant::Ordinary, "Basic cm9vdDo="), (false, true, false));
}
