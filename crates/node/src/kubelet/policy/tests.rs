//! Tests of the rules that typical policies produce.

use super::*;
use serde_json::{Value, json};

fn inputs(policies: &[Value]) -> PolicyInputs {
    let mut inputs = PolicyInputs { pod_network: Some(("10.80.0.0".parse().unwrap(), 16)), ..PolicyInputs::default() };
    for (number, policy) in policies.iter().enumerate() {
        let object = json!({"metadata": {"name": format!("p{number}"), "namespace": "ns"}, "spec": policy});
        inputs.policies.insert(format!("p{number}"), serde_json::from_value(object).unwrap());
    }
    inputs.namespaces.insert("ns".into(), Labels::new());
    inputs.ceilings.put("ns", &Default::default());
    inputs.namespaces.insert("other".into(), Labels::from([("team".into(), "red".into())]));
    for (uid, namespace, label, ip) in
        [("1", "ns", "me", "10.80.0.1"), ("2", "ns", "db", "10.80.0.2"), ("3", "other", "db", "10.80.0.3")]
    {
        let pod = PolicyPod {
            namespace: namespace.into(),
            labels: Labels::from([("app".into(), label.into())]),
            ips: vec![ip.parse().unwrap()],
            ports: vec![("sql".into(), Protocol::Tcp, if uid == "2" { 5432 } else { 5433 })],
            ..PolicyPod::default()
        };
        inputs.pods.insert(uid.into(), pod);
    }
    inputs
}

fn rules(policies: &[Value]) -> PodRules {
    let inputs = inputs(policies);
    inputs.rules(&inputs.pods["1"])
}

fn show(allow: &Allow) -> String {
    let peer = |b: &IpBlock| {
        let except: String = b.except.iter().map(|(a, p)| format!("-{a}/{p}")).collect();
        format!("{}/{}{except}", b.address, b.prefix)
    };
    let port = |p: &PortRange| format!("{:?}:{}-{}", p.protocol, p.first, p.last);
    let peers: Vec<String> = allow.peers.iter().map(peer).collect();
    let ports: Vec<String> = allow.ports.iter().map(port).collect();
    format!("{} [{}]", peers.join(" "), ports.join(" "))
}

fn shown(list: &[Allow]) -> Vec<String> {
    list.iter().map(show).collect()
}

const ANY_ADDRESS: &str = "0.0.0.0/0-10.80.0.0/16 ::/0 []";

#[test]
fn a_pod_that_no_policy_selects_is_closed_both_ways() {
    assert_eq!(rules(&[]), PodRules::default());
    let others = json!({"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [{}], "egress": [{}]});
    assert_eq!(rules(&[others]), PodRules::default());
}

#[test]
fn x_237_an_empty_policy_of_both_types_denies_everything() {
    assert_eq!(rules(&[json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]})]), PodRules::default());
}

#[test]
fn the_secure_default_lets_out_to_the_world_but_not_to_private_networks() {
    let policy = json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "agent-sandbox-system"}},
                               "podSelector": {"matchLabels": {"app": "sandbox-router"}}}]}],
        "egress": [{"to": [
            {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8", "192.168.0.0/16"]}},
            {"ipBlock": {"cidr": "::/0", "except": ["fc00::/7"]}}]}]});
    let rules = rules(&[policy]);
    assert_eq!(shown(&rules.ingress), Vec::<String>::new());
    assert_eq!(shown(&rules.egress), ["0.0.0.0/0-10.0.0.0/8-192.168.0.0/16-10.80.0.0/16 []", "::/0-fc00::/7 []"]);
}

#[test]
fn a_direction_that_no_policy_covers_is_open_to_the_world() {
    let ingress_only = rules(&[json!({"podSelector": {}, "ingress": []})]);
    assert_eq!(shown(&ingress_only.egress), [ANY_ADDRESS]);
    assert_eq!(ingress_only.ingress, []);
    let egress_only = rules(&[json!({"podSelector": {}, "policyTypes": ["Egress"]})]);
    assert_eq!(shown(&egress_only.ingress), [ANY_ADDRESS]);
    assert_eq!(egress_only.egress, []);
}

#[test]
fn rules_of_all_selecting_policies_add_up() {
    let one = json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": [{"ipBlock": {"cidr": "1.1.1.1/32"}}]}]});
    let two = json!({"podSelector": {"matchLabels": {"app": "me"}}, "policyTypes": ["Egress"],
        "egress": [{"to": [{"ipBlock": {"cidr": "8.8.8.8/32"}}], "ports": [{"protocol": "UDP", "port": 53}]}]});
    assert_eq!(
        shown(&rules(&[one, two]).egress),
        ["1.1.1.1/32-10.80.0.0/16 []", "8.8.8.8/32-10.80.0.0/16 [Udp:53-53]"]
    );
}

#[test]
fn selectors_name_pods_in_the_right_namespaces() {
    let to = |peer: Value| json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": [peer]}]});
    let db = json!({"matchLabels": {"app": "db"}});
    assert_eq!(shown(&rules(&[to(json!({"podSelector": db}))]).egress), ["10.80.0.2/32 []"]);
    let red = json!({"matchLabels": {"team": "red"}});
    assert_eq!(shown(&rules(&[to(json!({"namespaceSelector": red}))]).egress), ["10.80.0.3/32 []"]);
    assert_eq!(
        shown(&rules(&[to(json!({"namespaceSelector": {}, "podSelector": db}))]).egress),
        ["10.80.0.2/32 []", "10.80.0.3/32 []"]
    );
    let by_name = json!({"matchLabels": {"kubernetes.io/metadata.name": "other"}});
    assert_eq!(shown(&rules(&[to(json!({"namespaceSelector": by_name}))]).egress), ["10.80.0.3/32 []"]);
    let unlabelled = json!({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]});
    let found = rules(&[to(json!({"namespaceSelector": unlabelled, "podSelector": db}))]);
    assert_eq!(shown(&found.egress), ["10.80.0.2/32 []"], "a name is not the only label of a namespace");
    let ingress = json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": db}], "ports": [{"port": "sql"}]}]});
    assert_eq!(
        shown(&rules(&[ingress]).ingress),
        ["10.80.0.2/32 [Tcp:5433-5433]"],
        "named ports are the receiver's own"
    );
}

#[test]
fn ports_are_ranges_and_names_of_the_receiver() {
    let policy = json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{
        "to": [{"podSelector": {"matchLabels": {"app": "db"}}}],
        "ports": [{"port": "sql"}, {"port": 8000, "endPort": 8010}, {"protocol": "UDP"}]}]});
    assert_eq!(shown(&rules(&[policy]).egress), ["10.80.0.2/32 [Tcp:5432-5432 Tcp:8000-8010 Udp:1-65535]"]);
    let nothing = json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"ports": [{"port": "nope"}]}]});
    assert_eq!(rules(&[nothing]).egress, [], "a named port that no Pod has opens nothing");
    let backwards =
        json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"ports": [{"port": 9, "endPort": 8}]}]});
    assert_eq!(rules(&[backwards]).egress, []);
}

#[test]
fn a_rule_without_peers_allows_the_world_but_no_other_pods() {
    let open = json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{}], "egress": [{}]});
    let rules = rules(&[open]);
    assert_eq!(shown(&rules.ingress), [ANY_ADDRESS]);
    assert_eq!(shown(&rules.egress), [ANY_ADDRESS]);
}

#[test]
fn external_names_are_resolved_only_where_egress_is_allowed() {
    let resolver: IpAddr = "192.168.1.1".parse().unwrap();
    let egress = |egress: Value| rules(&[json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": egress})]);
    assert!(!may_resolve(&PodRules::default(), resolver));
    assert!(may_resolve(&egress(json!([{}])), resolver));
    assert!(may_resolve(
        &egress(json!([{"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["192.168.0.0/16"]}}]}])),
        resolver
    ));
    assert!(may_resolve(&egress(json!([{"to": [{"ipBlock": {"cidr": "192.168.0.0/16"}}]}])), resolver));
    assert!(!may_resolve(&egress(json!([{"to": [{"ipBlock": {"cidr": "1.1.1.1/32"}}]}])), resolver));
    assert!(!may_resolve(&egress(json!([{"ports": [{"port": 443}]}])), resolver));
}

#[test]
fn a_pod_that_ended_is_no_peer() {
    let pod: Pod = serde_json::from_value(json!({"metadata": {"namespace": "ns", "labels": {"a": "b"}},
        "spec": {"containers": [{"name": "c", "ports": [{"name": "web", "containerPort": 80}]}]},
        "status": {"phase": "Running", "podIPs": [{"ip": "10.80.0.9"}]}}))
    .unwrap();
    let running = PolicyPod::of(&pod);
    assert_eq!(running.ips.len(), 1);
    assert_eq!(running.ports, [("web".to_owned(), Protocol::Tcp, 80)]);
    let mut ended = pod;
    ended.status.as_mut().unwrap().phase = Some("Succeeded".into());
    assert!(PolicyPod::of(&ended).ips.is_empty());
}

#[test]
fn rules_by_domain_replace_a_permission_for_the_world_and_leave_what_names_a_part_of_it() {
    let policy = json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [
        {"to": [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}}]},
        {"to": [{"ipBlock": {"cidr": "128.0.0.0/1"}}]},
        {"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "ports": [{"port": 443}]},
        {"to": [{"podSelector": {"matchLabels": {"app": "db"}}}]}, {},
    ]});
    let mut inputs = inputs(&[policy]);
    assert!(!inputs.rules(&inputs.pods["1"]).by_domain);
    let annotations = json!({"metadata": {"annotations": {agent_sandbox_api::keys::annotations::EGRESS: "a.com"}}});
    let mut pod = inputs.pods["1"].clone();
    pod.egress = EgressRules::of(&serde_json::from_value(annotations).unwrap());
    let by_domain = inputs.rules(&pod);
    assert!(by_domain.by_domain && !may_resolve(&by_domain, "192.0.2.53".parse().unwrap()));
    assert_eq!(shown(&by_domain.egress), ["192.0.2.0/24-10.80.0.0/16 [Tcp:443-443]", "10.80.0.2/32 []"]);
    // Without rules of its own, in a namespace with a ceiling.
    let ceiling = json!({"metadata": {"annotations": {agent_sandbox_api::keys::annotations::EGRESS_CEILING: "*"}}});
    inputs.ceilings.put("ns", &serde_json::from_value(ceiling).unwrap());
    assert_eq!(inputs.rules(&inputs.pods["1"]), by_domain);
}

#[test]
fn a_namespace_that_is_not_listed_yet_gives_no_permission_for_the_world() {
    let policy = json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [
        {"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}, {"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}]});
    let mut inputs = inputs(&[policy]);
    let both = ["0.0.0.0/0-10.80.0.0/16 []", "192.0.2.0/24-10.80.0.0/16 []"];
    assert_eq!(shown(&inputs.rules(&inputs.pods["1"]).egress), both);
    inputs.ceilings = Ceilings::default();
    let unknown = inputs.rules(&inputs.pods["1"]);
    assert_eq!(shown(&unknown.egress), both[1..]);
    assert!(!unknown.by_domain, "a node that cannot enforce rules by domain does not refuse the Pod");
    assert!(inputs.ceilings.set_forbidden());
    assert_eq!(shown(&inputs.rules(&inputs.pods["1"]).egress), both);
}
