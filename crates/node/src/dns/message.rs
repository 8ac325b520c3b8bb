//! DNS messages, as far as a responder for addresses needs them.

use std::net::IpAddr;

/// A question someone asked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Question {
    id: u16,
    recursion_desired: bool,
    /// Lower case, without the dot at its end.
    pub(super) name: String,
    pub(super) kind: u16,
    /// The question as it was asked, for the answer.
    raw: Vec<u8>,
}

pub(super) const A: u16 = 1;
pub(super) const AAAA: u16 = 28;

/// How an answer ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Code {
    Fine = 0,
    ServerFailure = 2,
    NoSuchName = 3,
    Refused = 5,
}

/// Seconds an answer may be kept: Pods come and go.
const LIFETIME: u32 = 5;
/// Answers that fit any datagram.
const MOST: usize = 20;

/// Reads a query of one question; anything else is not answered.
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
        // Longer lengths are pointers, which have nothing to point at in a question.
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
    })
}

/// An answer with these addresses, those of the asked kind only.
pub(super) fn answer(question: &Question, code: Code, addresses: &[IpAddr]) -> Vec<u8> {
    let wanted: Vec<&IpAddr> = addresses
        .iter()
        .filter(|ip| matches!((question.kind, ip), (A, IpAddr::V4(_)) | (AAAA, IpAddr::V6(_))))
        .take(MOST)
        .collect();
    let authoritative = if matches!(code, Code::Fine | Code::NoSuchName) { 0x0400 } else { 0 };
    let recursion = if question.recursion_desired { 0x0100 } else { 0 };
    let flags: u16 = 0x8000 | authoritative | recursion | 0x0080 | code as u16;
    let mut out = Vec::with_capacity(64 + wanted.len() * 28);
    out.extend(question.id.to_be_bytes());
    out.extend(flags.to_be_bytes());
    for count in [1, wanted.len() as u16, 0, 0] {
        out.extend(count.to_be_bytes());
    }
    out.extend(&question.raw);
    for ip in wanted {
        // 0xc00c points at the name in the question.
        out.extend([0xc0, 0x0c]);
        out.extend(question.kind.to_be_bytes());
        out.extend(1_u16.to_be_bytes());
        out.extend(LIFETIME.to_be_bytes());
        let (length, bytes) = match ip {
            IpAddr::V4(ip) => (4_u16, ip.octets().to_vec()),
            IpAddr::V6(ip) => (16, ip.octets().to_vec()),
        };
        out.extend(length.to_be_bytes());
        out.extend(bytes);
    }
    out
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A query for a name.
    pub(in crate::dns) fn query(name: &str, kind: u16) -> Vec<u8> {
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
    fn questions_are_read_and_answered_in_kind() {
        let question = parse(&query("Web.NS.svc", A)).unwrap();
        assert_eq!((question.name.as_str(), question.kind), ("web.ns.svc", A));
        let both = ["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        let reply = answer(&question, Code::Fine, &both);
        assert_eq!(reply[..4], [0x12, 0x34, 0x85, 0x80]);
        assert_eq!(reply[6..8], [0, 1], "one answer of the asked kind");
        assert_eq!(reply[reply.len() - 4..], [10, 0, 0, 1]);
        let none = answer(&question, Code::NoSuchName, &[]);
        assert_eq!((none[3] & 0x0f, &none[6..8]), (3, &[0, 0][..]));
    }

    #[test]
    fn what_is_not_a_question_is_passed_over() {
        let good = query("a.b", A);
        for cut in 0..good.len() {
            assert_eq!(parse(&good[..cut]), None, "cut at {cut}");
        }
        let mut reply = good.clone();
        reply[2] |= 0x80;
        assert_eq!(parse(&reply), None);
        let mut pointer = good.clone();
        pointer[12] = 0xc0;
        assert_eq!(parse(&pointer), None);
        let mut two = good;
        two[5] = 2;
        assert_eq!(parse(&two), None);
    }
}
