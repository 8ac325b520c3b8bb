//! Reads the response of a resolver: the IPv4 addresses of a name, over its chain of aliases.

use std::net::Ipv4Addr;

use crate::name::Name;

/// Longest chain of aliases.
const MAX_ALIASES: usize = 16;
/// Maximum number of addresses that are used.
pub const MAX_ADDRESSES: usize = 20;
/// Maximum number of records that are read.
const MAX_RECORDS: usize = 256;

const TYPE_A: u16 = 1;
const TYPE_CNAME: u16 = 5;
const CLASS_IN: u16 = 1;

/// The addresses of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The response code (RCODE): 0 for success, 3 for a name that does not exist.
    pub code: u8,
    pub addresses: Vec<Ipv4Addr>,
    /// Lowest time to live of the records that led to the addresses, in seconds.
    pub ttl: u32,
    /// Cut off: the query must be repeated over TCP.
    pub truncated: bool,
}

/// Why bytes are not a response to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DnsError {
    #[error("the response is incomplete or malformed")]
    Malformed,
    #[error("the response is for another question")]
    OtherQuestion,
}

/// A query for the IPv4 addresses of a name.
pub fn query(id: u16, name: &Name) -> Vec<u8> {
    const RECURSION_DESIRED: u16 = 0x0100;
    let mut out = Vec::with_capacity(name.as_str().len() + 18);
    for word in [id, RECURSION_DESIRED, 1, 0, 0, 0] {
        out.extend(word.to_be_bytes());
    }
    for label in name.as_str().split('.') {
        // Labels of a name have at most 63 bytes.
        out.push(label.len() as u8);
        out.extend(label.as_bytes());
    }
    out.push(0);
    for word in [TYPE_A, CLASS_IN] {
        out.extend(word.to_be_bytes());
    }
    out
}

/// Reads the response to [`query`] with this id and name. Records that are not on the chain from the name to its
/// addresses are ignored.
pub fn answer(packet: &[u8], id: u16, name: &Name) -> Result<Answer, DnsError> {
    let mut reader = Reader { packet, at: 0 };
    let mut header = [0; 6];
    for word in &mut header {
        *word = reader.word()?;
    }
    let [got, flags, questions, answers, _, _] = header;
    if got != id || flags & 0x8000 == 0 || questions != 1 {
        return Err(DnsError::OtherQuestion);
    }
    let asked = reader.name()?;
    if (reader.word()?, reader.word()?) != (TYPE_A, CLASS_IN) || asked != name.as_str() {
        return Err(DnsError::OtherQuestion);
    }
    let truncated = flags & 0x0200 != 0;
    let mut records = Vec::new();
    for _ in 0..usize::from(answers).min(MAX_RECORDS) {
        match reader.record() {
            Ok(record) => records.extend(record),
            Err(_) if truncated => break,
            Err(error) => return Err(error),
        }
    }
    let (addresses, ttl) = follow(name.as_str(), &records);
    Ok(Answer { code: (flags & 0x000f) as u8, addresses, ttl, truncated })
}

/// The addresses at the end of the chain that begins with a name.
fn follow(name: &str, records: &[Record]) -> (Vec<Ipv4Addr>, u32) {
    let (mut owner, mut ttl) = (name, u32::MAX);
    for _ in 0..=MAX_ALIASES {
        let own = || records.iter().filter(|record| record.owner == owner);
        let mut addresses = Vec::new();
        for record in own() {
            if let Data::Address(address) = record.data
                && addresses.len() < MAX_ADDRESSES
                && !addresses.contains(&address)
            {
                addresses.push(address);
                ttl = ttl.min(record.ttl);
            }
        }
        if !addresses.is_empty() {
            return (addresses, ttl);
        }
        let alias = own().find_map(|record| match &record.data {
            Data::Alias(target) => Some((target, record.ttl)),
            Data::Address(_) => None,
        });
        let Some((target, alias_ttl)) = alias else { break };
        (owner, ttl) = (target, ttl.min(alias_ttl));
    }
    (Vec::new(), 0)
}

struct Record {
    owner: String,
    ttl: u32,
    data: Data,
}

enum Data {
    Address(Ipv4Addr),
    Alias(String),
}

struct Reader<'a> {
    packet: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], DnsError> {
        let bytes = self.packet.get(self.at..).and_then(|rest| rest.first_chunk::<N>()).ok_or(DnsError::Malformed)?;
        self.at += N;
        Ok(*bytes)
    }

    fn word(&mut self) -> Result<u16, DnsError> {
        self.take().map(u16::from_be_bytes)
    }

    /// A name in lower case without a trailing dot. A compression pointer must lead backwards, so reading ends.
    fn name(&mut self) -> Result<String, DnsError> {
        let mut name = String::new();
        let (mut at, mut limit, mut after) = (self.at, self.packet.len(), None);
        loop {
            let length = *self.packet.get(at).ok_or(DnsError::Malformed)?;
            match length {
                0 => {
                    self.at = after.unwrap_or(at + 1);
                    return Ok(name);
                }
                1..=63 => {
                    let end = at + 1 + usize::from(length);
                    let label =
                        self.packet.get(at + 1..end.min(limit)).filter(|label| label.len() == usize::from(length));
                    let label = label.ok_or(DnsError::Malformed)?;
                    if name.len() + label.len() > 254 {
                        return Err(DnsError::Malformed);
                    }
                    if !name.is_empty() {
                        name.push('.');
                    }
                    // Bytes that no host name has make a name that is not on the chain.
                    name.extend(label.iter().map(|byte| match byte {
                        b'.' | 128.. => '\u{fffd}',
                        other => char::from(other.to_ascii_lowercase()),
                    }));
                    at = end;
                }
                192.. => {
                    let low = *self.packet.get(at + 1).ok_or(DnsError::Malformed)?;
                    let target = usize::from(length & 0x3f) << 8 | usize::from(low);
                    if target >= at.min(limit) {
                        return Err(DnsError::Malformed);
                    }
                    after = after.or(Some(at + 2));
                    limit = at.min(limit);
                    at = target;
                }
                _ => return Err(DnsError::Malformed),
            }
        }
    }

    /// The next record; `None` for one of another type or class.
    fn record(&mut self) -> Result<Option<Record>, DnsError> {
        let owner = self.name()?;
        let (kind, class) = (self.word()?, self.word()?);
        let ttl = u32::from_be_bytes(self.take()?);
        // A value with the highest bit set is to be read as zero.
        let ttl = if ttl > i32::MAX as u32 { 0 } else { ttl };
        let length = usize::from(self.word()?);
        let (start, end) = (self.at, self.at + length);
        if end > self.packet.len() {
            return Err(DnsError::Malformed);
        }
        let data = match (kind, class) {
            (TYPE_A, CLASS_IN) => {
                if length != 4 {
                    return Err(DnsError::Malformed);
                }
                Some(Data::Address(Ipv4Addr::from(self.take::<4>()?)))
            }
            (TYPE_CNAME, CLASS_IN) => {
                let target = self.name()?;
                if self.at != end {
                    return Err(DnsError::Malformed);
                }
                Some(Data::Alias(target))
            }
            _ => None,
        };
        debug_assert!(self.at >= start, "reading goes forwards");
        self.at = end;
        Ok(data.map(|data| Record { owner, ttl, data }))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::parse(text).unwrap()
    }

    fn wire(name: &str) -> Vec<u8> {
        let mut out = Vec::new();
        for label in name.split('.') {
            out.push(label.len() as u8);
            out.extend(label.as_bytes());
        }
        out.push(0);
        out
    }

    /// A record whose owner is written out.
    fn record(owner: &str, kind: u16, ttl: u32, data: &[u8]) -> Vec<u8> {
        let mut out = wire(owner);
        out.extend(kind.to_be_bytes());
        out.extend(1u16.to_be_bytes());
        out.extend(ttl.to_be_bytes());
        out.extend((data.len() as u16).to_be_bytes());
        out.extend(data);
        out
    }

    fn response(id: u16, asked: &str, records: &[Vec<u8>]) -> Vec<u8> {
        let mut out = query(id, &name(asked));
        out[2] |= 0x80;
        out[7] = records.len() as u8;
        out.extend(records.concat());
        out
    }

    #[test]
    fn addresses_are_found_over_a_chain_with_the_lowest_ttl() {
        let records = [
            record("a.example", TYPE_CNAME, 300, &wire("B.cdn.example")),
            record("b.cdn.example", TYPE_CNAME, 20, &wire("c.cdn.example")),
            record("c.cdn.example", TYPE_A, 60, &[192, 0, 2, 1]),
            record("c.cdn.example", TYPE_A, 60, &[192, 0, 2, 2]),
            record("other.example", TYPE_A, 1, &[192, 0, 2, 9]),
        ];
        let found = answer(&response(7, "a.example", &records), 7, &name("A.example.")).unwrap();
        assert_eq!(found.addresses, [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)]);
        assert_eq!((found.ttl, found.code, found.truncated), (20, 0, false));
    }

    #[test]
    fn compressed_names_are_read_and_loops_are_refused() {
        let mut packet = response(7, "a.example", &[]);
        packet[7] = 1;
        packet.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 192, 0, 2, 1]);
        assert_eq!(answer(&packet, 7, &name("a.example")).unwrap().addresses, [Ipv4Addr::new(192, 0, 2, 1)]);
        let at = packet.len() - 16;
        packet[at + 1] = at as u8;
        assert_eq!(answer(&packet, 7, &name("a.example")), Err(DnsError::Malformed), "a pointer to itself");
        let circle = [
            record("a.example", TYPE_CNAME, 9, &wire("b.example")),
            record("b.example", TYPE_CNAME, 9, &wire("a.example")),
        ];
        assert_eq!(
            answer(&response(7, "a.example", &circle), 7, &name("a.example")).unwrap().addresses,
            Vec::<Ipv4Addr>::new()
        );
    }

    #[test]
    fn responses_to_other_questions_are_refused() {
        let good = response(7, "a.example", &[record("a.example", TYPE_A, 9, &[192, 0, 2, 1])]);
        assert_eq!(answer(&good, 8, &name("a.example")), Err(DnsError::OtherQuestion));
        assert_eq!(answer(&good, 7, &name("b.example")), Err(DnsError::OtherQuestion));
        assert_eq!(answer(&query(7, &name("a.example")), 7, &name("a.example")), Err(DnsError::OtherQuestion));
        for cut in 0..good.len() {
            assert!(answer(&good[..cut], 7, &name("a.example")).is_err(), "cut at {cut}");
        }
    }
}
