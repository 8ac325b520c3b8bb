//! Parsing and building of DNS messages, as far as a responder for A and AAAA records needs them.

use std::net::IpAddr;

/// A DNS question.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Question {
    id: u16,
    recursion_desired: bool,
    /// The name in lower case, without a trailing dot.
    pub(super) name: String,
    pub(super) kind: u16,
    /// The question section as it was received, to be repeated in the response.
    raw: Vec<u8>,
    /// The query has an OPT record (EDNS), so that the response may have one.
    extended: bool,
}

pub(super) const A: u16 = 1;
pub(super) const AAAA: u16 = 28;
const OPT: u16 = 41;

/// Response codes (RCODE).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Code {
    NoError = 0,
    ServFail = 2,
    NxDomain = 3,
    Refused = 5,
}

/// TTL of answers in seconds: short, because Pods are short-lived.
const TTL_SECONDS: u32 = 5;
/// Maximum number of answers in a response, so that it fits into every datagram.
const MAX_ANSWERS: usize = 20;

/// Parses a query with one question; `None` for anything else, which gets no response.
pub(super) fn parse(packet: &[u8]) -> Option<Question> {
    let header = packet.get(..12)?;
    let flags = u16::from_be_bytes([header[2], header[3]]);
    let is_query = flags & 0x8000 == 0 && flags & 0x7800 == 0;
    if !is_query || u16::from_be_bytes([header[4], header[5]]) != 1 {
        return None;
    }
    let mut at = 12;
    let mut name = String::new();
    loop {
        let length = usize::from(*packet.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        // Lengths above 63 are compression pointers, which cannot occur in a single question.
        if length > 63 || name.len() + length > 254 {
            return None;
        }
        let label = std::str::from_utf8(packet.get(at..at + length)?).ok()?;
        if !name.is_empty() {
            name.push('.');
        }
        name.push_str(&label.to_ascii_lowercase());
        at += length;
    }
    let tail = packet.get(at..at + 4)?;
    Some(Question {
        id: u16::from_be_bytes([header[0], header[1]]),
        recursion_desired: flags & 0x0100 != 0,
        name,
        kind: u16::from_be_bytes([tail[0], tail[1]]),
        raw: packet[12..at + 4].to_vec(),
        // The root's name and the type OPT, directly after the question.
        extended: header[6..10] == [0; 4] && packet.get(at + 4..at + 7) == Some(&[0, 0, OPT as u8]),
    })
}

/// Builds a response with the addresses that match the question's type.
pub(super) fn response(question: &Question, code: Code, addresses: &[IpAddr]) -> Vec<u8> {
    response_for(question, code, addresses, TTL_SECONDS)
}

/// Builds the response for a name that rules do not allow: it does not exist for this Pod. Clients that understand
/// extended errors (RFC 8914) get the reason.
pub(super) fn blocked(question: &Question, reason: &str) -> Vec<u8> {
    const ADDITIONAL_COUNT: usize = 11;
    const EXTENDED_ERROR: u16 = 15;
    const BLOCKED: u16 = 15;
    const PAYLOAD: u16 = 1232;
    const MAX_REASON: usize = 200;
    let mut out = response(question, Code::NxDomain, &[]);
    if question.extended {
        let reason: String = reason.chars().filter(char::is_ascii).take(MAX_REASON).collect();
        out[ADDITIONAL_COUNT] = 1;
        out.push(0);
        for word in [OPT, PAYLOAD, 0, 0, reason.len() as u16 + 6, EXTENDED_ERROR, reason.len() as u16 + 2, BLOCKED] {
            out.extend(word.to_be_bytes());
        }
        out.extend(reason.as_bytes());
    }
    out
}

/// As [`response`], with this time to live.
pub(super) fn response_for(question: &Question, code: Code, addresses: &[IpAddr], ttl: u32) -> Vec<u8> {
    let matching: Vec<&IpAddr> = addresses
        .iter()
        .filter(|ip| matches!((question.kind, ip), (A, IpAddr::V4(_)) | (AAAA, IpAddr::V6(_))))
        .take(MAX_ANSWERS)
        .collect();
    let authoritative = if matches!(code, Code::NoError | Code::NxDomain) { 0x0400 } else { 0 };
    let recursion = if question.recursion_desired { 0x0100 } else { 0 };
    let flags: u16 = 0x8000 | authoritative | recursion | 0x0080 | code as u16;
    let mut out = Vec::with_capacity(64 + matching.len() * 28);
    out.extend(question.id.to_be_bytes());
    out.extend(flags.to_be_bytes());
    for count in [1, matching.len() as u16, 0, 0] {
        out.extend(count.to_be_bytes());
    }
    out.extend(&question.raw);
    for ip in matching {
        // 0xc00c points at the name in the question.
        out.extend([0xc0, 0x0c]);
        out.extend(question.kind.to_be_bytes());
        out.extend(1_u16.to_be_bytes());
        out.extend(ttl.to_be_bytes());
        let (length, bytes) = match ip {
            IpAddr::V4(ip) => (4_u16, ip.octets().to_vec()),
            IpAddr::V6(ip) => (16, ip.octets().to_vec()),
        };
        out.extend(length.to_be_bytes());
        out.extend(bytes);
    }
    out
}

/// Fuzz target: the bytes are a packet of a Pod. Both responses must be read as responses to its question.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(data: &[u8], find: impl Fn(&str)) {
    let Some(question) = parse(data) else { return };
    assert!(question.name.len() <= 254 && question.raw.len() <= 260);
    find(&question.name);
    let addresses = [IpAddr::from([10, 0, 0, 1]), IpAddr::from([0_u16; 8])];
    for (code, addresses) in [(Code::NoError, &addresses[..]), (Code::Refused, &[])] {
        let answer = response(&question, code, addresses);
        assert_eq!(
            (answer[0..2].to_vec(), &answer[12..12 + question.raw.len()]),
            (data[0..2].to_vec(), &question.raw[..])
        );
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A query for a name.
    pub(in crate::kubelet::dns) fn query(name: &str, kind: u16) -> Vec<u8> {
        let mut out = vec![0x12, 0x34, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            out.push(label.len() as u8);
            out.extend(label.as_bytes());
        }
        out.push(0);
        out.extend(kind.to_be_bytes());
        out.extend(1_u16.to_be_bytes());
        out
    }

    #[test]
    fn questions_are_parsed_and_answered_by_type() {
        let question = parse(&query("Web.NS.svc", A)).unwrap();
        assert_eq!((question.name.as_str(), question.kind), ("web.ns.svc", A));
        let both = ["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        let built = response(&question, Code::NoError, &both);
        assert_eq!(built[..4], [0x12, 0x34, 0x85, 0x80]);
        assert_eq!(built[6..8], [0, 1], "one answer of the asked type");
        assert_eq!(built[built.len() - 4..], [10, 0, 0, 1]);
        let none = response(&question, Code::NxDomain, &[]);
        assert_eq!((none[3] & 0x0f, &none[6..8]), (3, &[0, 0][..]));
    }

    #[test]
    fn a_blocked_name_does_not_exist_and_the_reason_is_an_extended_error() {
        let plain = parse(&query("a.b", A)).unwrap();
        let none = blocked(&plain, "why");
        assert_eq!((none[3] & 0x0f, none[11]), (3, 0));
        let mut extended = query("a.b", A);
        extended[11] = 1;
        extended.extend([0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
        let told = blocked(&parse(&extended).unwrap(), "why");
        assert_eq!((told[3] & 0x0f, told[11]), (3, 1));
        assert_eq!(told[told.len() - 9..], [0, 15, 0, 5, 0, 15, b'w', b'h', b'y']);
    }

    #[test]
    fn malformed_queries_are_ignored() {
        let good = query("a.b", A);
        for cut in 0..good.len() {
            assert_eq!(parse(&good[..cut]), None, "cut at {cut}");
        }
        let mut response = good.clone();
        response[2] |= 0x80;
        assert_eq!(parse(&response), None);
        let mut pointer = good.clone();
        pointer[12] = 0xc0;
        assert_eq!(parse(&pointer), None);
        let mut two = good;
        two[5] = 2;
        assert_eq!(parse(&two), None);
    }
}
