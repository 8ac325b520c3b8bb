use super::*;
use proptest::prelude::*;

fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

fn allowed(rules: &str, host: &str, port: u16) -> bool {
    RuleSet::parse(rules).unwrap().decide(&name(host), port).is_ok()
}

#[test]
fn rules_allow_what_they_name_and_nothing_else() {
    for (rules, host, port, want) in [
        ("", "pypi.org", 443, false),
        ("pypi.org", "pypi.org", 443, true),
        ("pypi.org", "pypi.org", 80, true),
        ("pypi.org", "pypi.org", 22, false),
        ("pypi.org", "evil.pypi.org", 443, false),
        ("pypi.org", "pypi.org.evil.com", 443, false),
        ("pypi.org", "evilpypi.org", 443, false),
        ("PYPI.org.", "pypi.ORG.", 443, true),
        ("bücher.example", "xn--bcher-kva.example", 443, true),
        ("*.example.com", "a.example.com", 443, true),
        ("*.example.com", "a.b.example.com", 443, true),
        ("*.example.com", "example.com", 443, false),
        ("*.example.com", "badexample.com", 443, false),
        ("*.githubusercontent.com:443", "raw.githubusercontent.com", 80, false),
        ("db.example.com:5432", "db.example.com", 5432, true),
        ("db.example.com:5432", "db.example.com", 443, false),
        ("db.example.com:8000-8010", "db.example.com", 8010, true),
        ("db.example.com:8000-8010", "db.example.com", 8011, false),
        ("*", "anything.example", 443, true),
        ("*", "anything.example", 25, false),
        ("*, !evil.com", "evil.com", 443, false),
        ("!evil.com *", "evil.com", 443, false),
        ("*, !*.evil.com", "a.evil.com", 443, false),
        ("*, !evil.com:80", "evil.com", 443, true),
        ("!evil.com evil.com", "evil.com", 443, false),
        ("@python", "files.pythonhosted.org", 443, true),
        ("@python:443", "pypi.org", 80, false),
        ("@github", "github.com", 22, true),
        ("@github:443", "github.com", 22, false),
        ("* !@github", "github.com", 22, false),
        ("* !@github", "api.github.com", 443, false),
    ] {
        assert_eq!(allowed(rules, host, port), want, "{rules:?} {host}:{port}");
    }
}

#[test]
fn a_bad_rule_is_named_with_its_position() {
    for (rules, position, problem) in [
        ("pypi.org, https://a.b", 2, Problem::Scheme),
        ("api.openai.com/v1/*", 1, Problem::Path),
        ("a.b\n\n c.d,a.*.b", 3, Problem::Wildcard),
        ("*foo.com", 1, Problem::Wildcard),
        ("*.", 1, Problem::Name(NameError::Empty)),
        ("a.b:0", 1, Problem::Port),
        ("a.b:", 1, Problem::Port),
        ("a.b:65536", 1, Problem::Port),
        ("a.b:+1", 1, Problem::Port),
        ("a.b:9-8", 1, Problem::Port),
        ("a.b:1-65535", 1, Problem::Port),
        ("@pythn", 1, Problem::Group),
        ("10.0.0.1", 1, Problem::Address),
        ("10.0.0.0/8", 1, Problem::Address),
        ("10.0.0.1:443", 1, Problem::Address),
        ("[::1]:443", 1, Problem::Address),
        ("::1", 1, Problem::Address),
        ("!", 1, Problem::Name(NameError::Empty)),
        ("!!a.b", 1, Problem::Name(NameError::Character)),
    ] {
        let error = RuleSet::parse(rules).unwrap_err();
        assert_eq!((error.position, &error.problem), (position, &problem), "{rules:?}: {error}");
        assert!(error.to_string().contains(&format!("egress rule {position} (")), "{error}");
    }
    let said = RuleSet::parse("@pythn").unwrap_err().to_string();
    assert!(said.contains("\"@pythn\"") && said.contains("@python"), "{said}");
}

#[test]
fn the_deciding_rule_is_named() {
    let set = RuleSet::parse("*.a.com !x.a.com @python").unwrap();
    assert_eq!(set.decide(&name("y.a.com"), 443), Ok("*.a.com"));
    assert_eq!(set.decide(&name("x.a.com"), 443), Err(Some("!x.a.com")));
    assert_eq!(set.decide(&name("pypi.org"), 443), Ok("@python (pypi.org)"));
    assert_eq!(set.decide(&name("b.com"), 443), Err(None));
}

#[test]
fn long_lists_are_read_and_bounded() {
    let list = |count: usize| (0..count).map(|n| format!("host{n}.example.com")).collect::<Vec<_>>().join(",");
    let set = RuleSet::parse(&list(10_000)).unwrap();
    assert!(set.decide(&name("host9999.example.com"), 443).is_ok());
    assert!(set.decide(&name("host10000.example.com"), 443).is_err());
    assert_eq!(RuleSet::parse(&list(MAX_RULES + 1)).unwrap_err().problem, Problem::TooMany);
}

fn pattern() -> impl Strategy<Value = String> {
    let label = prop::sample::select(vec!["a", "b", "c"]);
    let labels = prop::collection::vec(label, 1..4).prop_map(|labels| labels.join("."));
    let port = prop::sample::select(vec!["", ":80", ":443", ":79-81", ":22"]);
    let sign = prop::sample::select(vec!["", "", "!"]);
    let star = prop::sample::select(vec!["", "*."]);
    (sign, star, labels, port).prop_map(|(sign, star, labels, port)| format!("{sign}{star}{labels}{port}"))
}

fn host() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), 1..5).prop_map(|labels| labels.join("."))
}

/// A second reading of one rule, by comparing texts.
fn matches_plainly(rule: &str, host: &str, port: u16) -> bool {
    let rule = rule.trim_start_matches('!');
    let (pattern, ports) = rule.split_once(':').unwrap_or((rule, ""));
    let named = match pattern.strip_prefix("*.") {
        Some(parent) => host.ends_with(&format!(".{parent}")),
        None => host == pattern,
    };
    let port_named = match ports.split_once('-') {
        _ if ports.is_empty() => port == 80 || port == 443,
        Some((first, last)) => (first.parse().unwrap()..=last.parse().unwrap()).contains(&port),
        None => ports.parse::<u16>().unwrap() == port,
    };
    named && port_named
}

proptest! {
    #[test]
    fn decisions_are_those_of_the_rules_read_one_by_one(
        rules in prop::collection::vec(pattern(), 0..8), host in host(), port in prop::sample::select(vec![22u16, 79, 80, 443, 444]),
    ) {
        let set = RuleSet::parse(&rules.join(",")).unwrap();
        let host_name = name(&host);
        let any = |denies: bool| {
            rules.iter().any(|rule| rule.starts_with('!') == denies && matches_plainly(rule, &host, port))
        };
        let want = any(false) && !any(true);
        prop_assert_eq!(set.decide(&host_name, port).is_ok(), want, "{:?}", rules);
        prop_assert_eq!(set.ports(&host_name).contains(port), want, "the same decision as a set of ports");
        let reversed: Vec<&str> = rules.iter().rev().map(String::as_str).collect();
        let reversed = RuleSet::parse(&reversed.join("\n")).unwrap();
        prop_assert_eq!(reversed.decide(&host_name, port).is_ok(), want, "the order does not matter");
        prop_assert_eq!(RuleSet::parse(&rules.join(" ").to_uppercase()).unwrap().decide(&host_name, port).is_ok(), want);
    }

    #[test]
    fn any_text_is_read_or_refused(text in ".{0,200}") {
        let _ = RuleSet::parse(&text);
    }
}
