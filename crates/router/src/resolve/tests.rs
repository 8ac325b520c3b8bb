//! Which endpoint is chosen, and which is refused.

use http::HeaderMap;

use super::*;
use crate::resolve::index::PodFacts;
use agent_sandbox_protocol::router_headers::Loopback;

const STRICT: Verification = Verification { verify_targets: true, allow_loopback: false };
const LOOSE: Verification = Verification { verify_targets: false, allow_loopback: false };

fn index() -> PodIndex {
    let in_namespace = |namespace: &str, sandbox: &str, uid: &str, ips: &[&str], name_routable| PodFacts {
        namespace: namespace.into(),
        sandbox: sandbox.into(),
        sandbox_uid: uid.into(),
        pod: format!("{sandbox}-pod"),
        pod_uid: format!("{uid}-pod"),
        ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
        name_routable,
        idle: None,
        e2b: None,
    };
    let pod = |sandbox: &str, uid: &str, ips: &[&str], name_routable| {
        in_namespace("default", sandbox, uid, ips, name_routable)
    };
    let index = PodIndex::default();
    index.replace_all(vec![
        pod("box", "u1", &["10.0.0.7", "2001:db8::7"], true),
        pod("other", "u2", &["10.0.0.8"], true),
        pod("pooled", "u3", &["10.0.0.9"], false),
        pod("local", "u4", &["127.0.0.1"], true),
        in_namespace("evil", "box", "u1", &["10.6.6.6"], true),
        in_namespace("evil", "own", "u6", &["10.6.6.7"], true),
    ]);
    index
}

fn request(pairs: &[(&'static str, &str)]) -> SandboxRequest {
    let headers: HeaderMap = pairs.iter().map(|(k, v)| (k.parse().unwrap(), v.parse().unwrap())).collect();
    SandboxRequest::parse(&headers, Loopback::Allowed).unwrap()
}

fn outcome(pairs: &[(&'static str, &str)], verification: Verification) -> String {
    match decide(&request(pairs), &index(), verification, Some("cluster.local")) {
        Decision::Dial(endpoint) => format!("{} pod={}", endpoint.addr, endpoint.pod.is_some()),
        Decision::LookUp(name) => name,
        Decision::Absent => "absent".into(),
        Decision::Forbidden => "forbidden".into(),
    }
}

const BOX: (&str, &str) = ("x-sandbox-id", "box");

/// D-119
#[test]
fn address_beats_uid_beats_name_beats_dns() {
    let six = ("x-sandbox-pod-ip", "2001:db8::7");
    assert_eq!(outcome(&[BOX, six, ("x-sandbox-uid", "u1")], STRICT), "[2001:db8::7]:8888 pod=true");
    assert_eq!(outcome(&[BOX, ("x-sandbox-uid", "u1")], STRICT), "10.0.0.7:8888 pod=true");
    assert_eq!(outcome(&[BOX, ("x-sandbox-uid", "unknown")], STRICT), "10.0.0.7:8888 pod=true");
    assert_eq!(outcome(&[BOX, ("x-sandbox-port", "9")], STRICT), "10.0.0.7:9 pod=true");
    assert_eq!(outcome(&[("x-sandbox-id", "missing")], STRICT), "missing.default.svc.cluster.local");
    // Without verification the order is the same, and a UID alone decides.
    assert_eq!(
        outcome(&[BOX, ("x-sandbox-pod-ip", "10.9.9.9"), ("x-sandbox-uid", "u2")], LOOSE),
        "10.9.9.9:8888 pod=false"
    );
    assert_eq!(outcome(&[BOX, ("x-sandbox-uid", "u2")], LOOSE), "10.0.0.8:8888 pod=true");
}

/// D-116, D-117
#[test]
fn unknown_names_are_looked_up_as_services() {
    let wanted = [("x-sandbox-id", "missing"), ("x-sandbox-namespace", "team-a")];
    assert_eq!(outcome(&wanted, LOOSE), "missing.team-a.svc.cluster.local");
    let decision = decide(&request(&wanted), &index(), LOOSE, Some("example.local"));
    assert!(matches!(decision, Decision::LookUp(name) if name == "missing.team-a.svc.example.local"));
    assert!(matches!(decide(&request(&wanted), &index(), STRICT, None), Decision::Absent));
}

/// D-159: members of a pool are reachable by UID, by their own address, and by DNS, but not by name alone.
#[test]
fn pool_members_are_not_found_by_name() {
    let pooled = ("x-sandbox-id", "pooled");
    assert_eq!(outcome(&[pooled], STRICT), "pooled.default.svc.cluster.local");
    assert_eq!(outcome(&[pooled, ("x-sandbox-uid", "u3")], STRICT), "10.0.0.9:8888 pod=true");
    assert_eq!(outcome(&[pooled, ("x-sandbox-pod-ip", "10.0.0.9")], STRICT), "10.0.0.9:8888 pod=true");
}

#[test]
fn addresses_and_uids_of_others_are_refused() {
    assert_eq!(outcome(&[BOX, ("x-sandbox-pod-ip", "10.0.0.8")], STRICT), "forbidden");
    assert_eq!(outcome(&[BOX, ("x-sandbox-pod-ip", "10.96.0.1")], STRICT), "forbidden");
    assert_eq!(outcome(&[BOX, ("x-sandbox-uid", "u2")], STRICT), "forbidden");
    assert_eq!(outcome(&[BOX, ("x-sandbox-uid", "u2"), ("x-sandbox-pod-ip", "10.0.0.8")], STRICT), "forbidden");
    assert_eq!(outcome(&[("x-sandbox-id", "missing"), ("x-sandbox-pod-ip", "10.0.0.7")], STRICT), "absent");
    assert_eq!(outcome(&[BOX, ("x-sandbox-uid", "u6")], STRICT), "forbidden", "a UID of another namespace");
    assert_eq!(outcome(&[BOX, ("x-sandbox-uid", "u6"), ("x-sandbox-pod-ip", "10.6.6.7")], STRICT), "forbidden");
    // Without a live Pod the request waits; a Pod that took over its UID meanwhile cannot prevent the wake-up.
    let asleep = [("x-sandbox-id", "asleep"), ("x-sandbox-uid", "u6")];
    assert_eq!(outcome(&asleep, STRICT), "asleep.default.svc.cluster.local");
    assert!(matches!(decide(&request(&asleep), &index(), STRICT, None), Decision::Absent));
    let elsewhere = [BOX, ("x-sandbox-namespace", "team-a"), ("x-sandbox-pod-ip", "10.0.0.7")];
    assert_eq!(outcome(&elsewhere, STRICT), "absent");
}

/// D-115
#[test]
fn loopback_is_dialled_only_when_allowed() {
    let loopback = ("x-sandbox-pod-ip", "127.0.0.1");
    assert_eq!(outcome(&[BOX, loopback], STRICT), "forbidden");
    let allowed = Verification { allow_loopback: true, ..STRICT };
    assert_eq!(outcome(&[BOX, loopback], allowed), "127.0.0.1:8888 pod=false");
    assert_eq!(outcome(&[("x-sandbox-id", "local")], STRICT), "forbidden");
    assert_eq!(outcome(&[("x-sandbox-id", "local")], allowed), "127.0.0.1:8888 pod=true");
}

#[test]
fn dns_answers_are_verified_like_any_other_address() {
    let decide_by_dns = |id: &str, answer: &[&str], verification| {
        let answer: Vec<IpAddr> = answer.iter().map(|ip| ip.parse().unwrap()).collect();
        match decide_by_dns_answer(&request(&[("x-sandbox-id", id)]), &answer, &index(), verification) {
            Decision::Dial(endpoint) => endpoint.addr.ip().to_string(),
            _ => "refused".into(),
        }
    };
    assert_eq!(decide_by_dns("pooled", &["10.0.0.9"], STRICT), "10.0.0.9");
    assert_eq!(decide_by_dns("pooled", &["10.96.0.10", "::ffff:10.0.0.9"], STRICT), "10.0.0.9");
    assert_eq!(decide_by_dns("pooled", &["10.0.0.8"], STRICT), "refused");
    assert_eq!(decide_by_dns("missing", &["10.0.0.9"], STRICT), "refused");
    assert_eq!(decide_by_dns("missing", &["10.96.0.10"], LOOSE), "10.96.0.10");
    for rebound in ["127.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "64:ff9b::a9fe:a9fe", "0.0.0.0"] {
        assert_eq!(decide_by_dns("missing", &[rebound], LOOSE), "refused", "{rebound}");
    }
    assert_eq!(decide_by_dns("missing", &[], LOOSE), "refused");
}

/// The published SDKs keep sending the address they learnt, which is outdated after a suspension.
#[test]
fn a_former_address_of_the_sandbox_resolves_to_its_current_one() {
    let index = index();
    let was = |ip: &str| PodFacts {
        namespace: "default".into(),
        sandbox: "box".into(),
        sandbox_uid: "u1".into(),
        pod: "box-pod".into(),
        pod_uid: "u1-pod".into(),
        ips: vec![ip.parse().unwrap()],
        name_routable: true,
        idle: None,
        e2b: None,
    };
    index.apply(was("10.0.0.20"));
    let decided = |ip: &str| decide(&request(&[BOX, ("x-sandbox-pod-ip", ip)]), &index, STRICT, None);
    assert!(matches!(decided("10.0.0.7"), Decision::Dial(endpoint) if endpoint.addr.ip().to_string() == "10.0.0.20"));
    assert!(matches!(decided("10.0.0.8"), Decision::Forbidden), "another Pod's");
    assert!(matches!(decided("10.96.0.1"), Decision::Forbidden), "an address that no Pod ever had");
}
