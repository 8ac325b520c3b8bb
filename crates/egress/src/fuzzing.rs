//! Fuzz targets: rules, the first bytes of a TLS connection, heads of HTTP requests, responses of resolvers.

#[cfg(test)]
#[path = "../../../fuzz/src/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/src/request.rs"]
mod input;

use crate::{Name, RuleSet, dns, http, tls};

/// A function that gets any bytes and panics if they are handled wrongly.
pub type Target = fn(&[u8]);

/// Name and function of each target.
pub const TARGETS: &[(&str, Target)] = &[
    ("egress-rules", rules),
    ("egress-tls-hello", tls_hello),
    ("egress-http-host", http_host),
    ("egress-dns-answer", dns_answer),
];

/// The first line is a name, the rest are rules. Both readings of the rules must agree.
fn rules(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (name, rules) = text.split_once('\n').unwrap_or((text, ""));
    let (Ok(name), Ok(set)) = (Name::parse(name), RuleSet::parse(rules)) else { return };
    assert_eq!(Name::parse(name.as_str()).as_ref(), Ok(&name), "the one form of a name is stable");
    let ports = set.ports(&name);
    for port in [1, 22, 80, 443, 8000, 65_535] {
        assert_eq!(ports.contains(port), set.decide(&name, port).is_ok());
    }
    assert!(!rules.is_empty() || ports.is_empty());
}

/// The bytes begin a connection. More bytes never change a name that was read.
fn tls_hello(data: &[u8]) {
    let whole = tls::server_name(data);
    if let Ok(Some(name)) = &whole {
        let found = data.windows(name.as_str().len()).any(|part| part.eq_ignore_ascii_case(name.as_str().as_bytes()));
        assert!(found || data.len() > name.as_str().len(), "a name that was not sent");
    }
    for cut in [data.len() / 2, data.len().saturating_sub(1)] {
        if let Ok(Some(name)) = tls::server_name(data.get(..cut).unwrap_or_default()) {
            assert_eq!(whole, Ok(Some(name)), "more bytes changed the name");
        }
    }
}

/// The bytes are a request. The host that is read must be the one that its only Host header has.
fn http_host(data: &[u8]) {
    let Some(request) = input::request(data) else { return };
    let _ = http::logged_path(request.uri().path());
    let Ok(name) = http::host(&request, 80) else { return };
    let header = request.headers().get("host").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let bare = header.strip_suffix(":80").unwrap_or(header);
    assert!(bare.trim_end_matches('.').eq_ignore_ascii_case(name.as_str()), "{header:?} is read as {name}");
    assert!(request.headers().get_all("host").iter().count() == 1);
}

/// The bytes are a response to a query for `a.example` with the id 7.
fn dns_answer(data: &[u8]) {
    let name = Name::parse("a.example").expect("a name");
    if let Ok(answer) = dns::answer(data, 7, &name) {
        assert!(answer.addresses.len() <= dns::MAX_ADDRESSES);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn corpora_pass() {
        super::corpus::replay(super::TARGETS);
    }
}
