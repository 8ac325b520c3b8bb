//! Which rules and policies network settings become, and which are refused.

use super::*;

const ROOT: Limits = Limits { ceiling: false, by_name: true };
const BELOW_CEILING: Limits = Limits { ceiling: true, by_name: true };

fn network(value: Value) -> Network {
    serde_json::from_value(value).unwrap()
}

/// A sandbox that was created with these settings.
fn created(settings: &Value) -> Record {
    let asked = network(settings.clone());
    let mut sandbox = Sandbox::default();
    Rules::Client(&asked).prepare(&mut sandbox);
    let stored = asked.annotation().map(|text| (annotations::E2B_NETWORK.to_owned(), text));
    sandbox.metadata.annotations.get_or_insert_default().extend(stored);
    Record { sandbox, claim: None }
}

/// E-032, E-043
#[test]
fn addresses_become_rules() {
    let public = json!([
        { "ipBlock": { "cidr": ALL_V4, "except": PRIVATE_V4 } },
        { "ipBlock": { "cidr": ALL_V6, "except": PRIVATE_V6 } },
    ]);
    assert_eq!(Network::default().egress(), json!([{ "to": public }]));
    assert_eq!(network(json!({"allow_internet_access": false})).egress(), json!([]));
    let one = network(json!({"allowOut": ["1.1.1.1"], "denyOut": ["0.0.0.0/0"]}));
    assert_eq!(one.egress(), json!([{ "to": [{ "ipBlock": { "cidr": "1.1.1.1/32" } }] }]));
    let some = network(json!({"denyOut": ["8.8.8.0/24"]})).egress();
    assert_eq!(some[0]["to"][0]["ipBlock"]["except"][4], "8.8.8.0/24");
}

/// E-032, E-043
#[test]
fn private_addresses_are_open_only_where_a_block_names_them() {
    let only = |allowed: &str| {
        let found = network(json!({ "allowOut": [allowed], "denyOut": [ALL_V4] })).egress();
        found[0]["to"][0]["ipBlock"].clone()
    };
    let except = |allowed: &str| only(allowed)["except"].as_array().unwrap().clone();
    let everything = except("0.0.0.0/0");
    assert!(PRIVATE_V4.iter().all(|private| everything.contains(&json!(private))), "{everything:?}");
    assert_eq!(except("9.9.9.9/0"), everything, "however it is written");
    assert!(PRIVATE_V6.iter().all(|private| except("::/0").contains(&json!(private))));
    assert_eq!(except("192.0.0.0/8"), ["192.168.0.0/16", "192.0.0.192/32"]);
    for named in ["10.0.0.0/8", "192.168.1.0/24", "172.16.0.1/32"] {
        assert_eq!(only(named), json!({ "cidr": named }), "{named}");
    }
}

/// E-032, E-043
#[test]
fn metadata_and_loopback_addresses_are_never_open() {
    for never in ["169.254.169.254", "169.254.0.0/16", "127.0.0.1", "100.100.100.200", "::1", "fe80::/64"] {
        let asked = network(json!({ "allowOut": [never], "denyOut": [ALL_V4] }));
        assert!(matches!(asked.check(ROOT), Err(Error::Invalid(_))), "{never}");
        assert_eq!(asked.egress(), json!([]), "{never}: not even if it was stored");
    }
    let shared = network(json!({ "allowOut": ["100.64.0.0/10"], "denyOut": [ALL_V4] }));
    assert!(shared.check(ROOT).is_ok());
    assert_eq!(shared.egress()[0]["to"][0]["ipBlock"]["except"], json!(["100.100.100.200/32"]));
    let everything = network(json!({ "allowOut": [ALL_V4] })).egress();
    let except = everything[0]["to"][0]["ipBlock"]["except"].as_array().unwrap();
    assert_eq!(except.iter().filter(|part| **part == "169.254.0.0/16").count(), 1, "{except:?}");
}

/// E-032, E-043
#[test]
fn clients_allow_no_addresses_below_a_ceiling() {
    for allowed in ["203.0.113.0/24", "10.0.0.1", ALL_V4] {
        let asked = network(json!({ "allowOut": [allowed] }));
        assert!(asked.check(ROOT).is_ok(), "{allowed}");
        let refused = asked.check(BELOW_CEILING).unwrap_err();
        assert!(matches!(&refused, Error::Forbidden(why) if why.contains(allowed)), "{refused}");
    }
    for narrower in [json!({}), json!({"denyOut": ["1.1.1.1"]}), json!({"allow_internet_access": false})] {
        assert!(network(narrower).check(BELOW_CEILING).is_ok());
    }
}

/// E-045
#[test]
fn a_copy_has_the_network_of_its_template_and_so_have_its_copies() {
    let hash = names::name_hash("closed");
    let spec = json!({
        "podSelector": { "matchLabels": { labels::TEMPLATE_REF_HASH: hash } },
        "policyTypes": ["Ingress", "Egress"],
        "egress": [{ "to": [{ "ipBlock": { "cidr": "192.0.2.1/32" } }] }],
    });
    let policy: NetworkPolicy = serde_json::from_value(json!({ "spec": spec })).unwrap();
    assert!(is_of_template(&policy, &hash) && !is_of_template(&policy, &names::name_hash("other")));

    let rules = Rules::Template { hash: hash.clone(), policy: Some(json!(policy.spec)) };
    let copied = rules.policy_spec("copy").unwrap();
    assert_eq!(copied["egress"], spec["egress"]);
    assert_eq!(copied["policyTypes"], spec["policyTypes"]);
    let own = json!({ "matchLabels": { labels::SANDBOX_NAME_HASH: names::name_hash("copy") } });
    assert_eq!(copied["podSelector"], own);
    assert_eq!(Rules::Template { hash: hash.clone(), policy: None }.policy_spec("copy"), None, "it stays closed");

    let mut sandbox = Sandbox::default();
    rules.prepare(&mut sandbox);
    assert_eq!(template_hash(&sandbox.spec.pod_template).as_deref(), Some(hash.as_str()));
    assert_eq!(sandbox.spec.pod_template.spec["dnsConfig"], Value::Null, "resolvers are the template's");
    assert!(Record { sandbox, claim: None }.has_network_of_template());

    let mut sandbox = Sandbox::default();
    Rules::Client(&Network::default()).prepare(&mut sandbox);
    assert_eq!(sandbox.spec.pod_template.spec["dnsConfig"]["nameservers"], json!(RESOLVERS));
    assert!(!Record { sandbox, claim: None }.has_network_of_template());
}

/// E-032, E-043
#[test]
fn names_become_egress_rules() {
    let asked = json!({ "allowOut": ["pypi.org", "*.Example.com", "192.0.2.1"], "denyOut": [ALL_V4] });
    let (asked, shut) =
        (network(asked.clone()), network(json!({ "allowOut": ["pypi.org"], "allow_internet_access": false })));
    for limits in [ROOT, BELOW_CEILING] {
        assert!(shut.check(limits).is_ok(), "a ceiling narrows names: {limits:?}");
    }
    assert!(asked.check(ROOT).is_ok());
    assert_eq!(asked.rules_by_name().as_deref(), Some("pypi.org, *.Example.com"));
    assert_eq!(asked.egress(), json!([{ "to": [{ "ipBlock": { "cidr": "192.0.2.1/32" } }] }]));

    let made = created(&json!(asked)).sandbox;
    assert_eq!(made.annotation(annotations::EGRESS), Some("pypi.org, *.Example.com"));
    assert_eq!(made.spec.pod_template.spec["dnsPolicy"], Value::Null, "the node resolves names");
    assert_eq!(created(&json!({})).sandbox.annotation(annotations::EGRESS), None);

    for (refused, why) in [
        (json!({ "allowOut": ["pypi.org"] }), "denyOut"),
        (json!({ "allowOut": ["pypi.org"], "denyOut": ["1.1.1.1"] }), "denyOut"),
        (json!({ "allowOut": ["pypi.org", "1.0.0.0/7"], "denyOut": [ALL_V4] }), "/8"),
    ] {
        let found = network(refused.clone()).check(ROOT).unwrap_err();
        assert!(matches!(&found, Error::Unsupported(text) if text.contains(why)), "{refused}: {found}");
    }
    assert!(matches!(shut.check(Limits::default()), Err(Error::Unsupported(why)) if why.contains("root")));
    for wrong in
        ["!pypi.org", "@python", "a.com:22", "a.com b.com", "a.com,b.com", "*", "a.*.com", "a..com", "1.2.3", "x/8", ""]
    {
        let found = network(json!({ "allowOut": [wrong], "denyOut": [ALL_V4] })).check(ROOT);
        assert!(matches!(found, Err(Error::Invalid(_))), "{wrong}: {found:?}");
    }
}

/// E-043
#[test]
fn an_update_replaces_the_names_of_clients_only() {
    let names = json!({ "allowOut": ["pypi.org"], "denyOut": [ALL_V4] });
    let other = network(json!({ "allowOut": ["crates.io"], "denyOut": [ALL_V4] }));
    let mut with_names = created(&names);
    assert_eq!(with_names.replaced_rules(&other).unwrap().as_deref(), Some("crates.io"));
    assert_eq!(with_names.replaced_rules(&Network::default()).unwrap(), None, "what is left out is cleared");
    with_names.sandbox.metadata.annotations.get_or_insert_default().remove(annotations::E2B_NETWORK);
    assert!(with_names.replaced_rules(&Network::default()).is_err(), "rules of an administrator stay");

    let open = created(&json!({}));
    assert_eq!(open.replaced_rules(&Network::default()).unwrap(), None);
    assert!(matches!(open.replaced_rules(&other), Err(Error::Unsupported(why)) if why.contains("resolvers")));
}

/// E-044, E-045
#[test]
fn egress_rules_of_a_snapshot_stay() {
    let mut kept = Sandbox::default();
    kept.metadata.annotations = Some(
        [(annotations::EGRESS, "pypi.org"), (annotations::SNAPSHOT, "first")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
    );
    kept.spec.pod_template.spec.make_mut()["dnsPolicy"] = "None".into();
    Rules::Client(&Network::default()).prepare(&mut kept);
    assert_eq!(kept.annotation(annotations::EGRESS), Some("pypi.org"));
    assert_eq!(kept.spec.pod_template.spec["dnsPolicy"], Value::Null, "the node resolves names");

    let mut snapshot = SandboxSnapshot::default();
    let names = network(json!({ "allowOut": ["pypi.org"], "denyOut": [ALL_V4] }));
    assert!(names.check_of_snapshot(&snapshot).is_ok());
    let source = json!({ "uid": "u", "egress": { annotations::EGRESS: "pypi.org" } });
    snapshot.status = serde_json::from_value(json!({ "sandbox": source })).unwrap();
    assert!(Network::default().check_of_snapshot(&snapshot).is_ok());
    for asked in [names.clone(), network(json!({ "allowOut": ["192.0.2.1"] }))] {
        assert!(matches!(asked.check_of_snapshot(&snapshot), Err(Error::Unsupported(_))), "{asked:?}");
    }
    let stored = (annotations::E2B_NETWORK.to_owned(), names.annotation().unwrap());
    kept.metadata.annotations.get_or_insert_default().extend([stored]);
    let record = Record { sandbox: kept, claim: None };
    assert!(record.replaced_rules(&Network::default()).is_err(), "whatever its client asked for");
}

/// E-126
#[test]
fn what_cannot_be_enforced_is_refused() {
    assert!(network(json!({"allowOut": ["1.1.1.0/24"], "rules": {}, "dnsServers": []})).check(ROOT).is_ok());
    for unsupported in [json!({"allowOut": ["example.com"]}), json!({"egressProxy": {"address": "x"}})] {
        assert!(matches!(network(unsupported).check(ROOT), Err(Error::Unsupported(_))));
    }
    for invalid in ["example.com", "1.1.1.1/33", "x/8"] {
        assert!(matches!(network(json!({ "denyOut": [invalid] })).check(ROOT), Err(Error::Invalid(_))), "{invalid}");
    }
}
