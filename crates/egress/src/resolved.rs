//! What a sandbox has resolved: a connection's name must be one that led to its address.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use crate::name::Name;

/// Bounds of the time for which an address stays usable. Programs connect some time after they have resolved a name,
/// and retry; the upper bound is the longest time for which a name's new owner is not noticed.
pub const SHORTEST: Duration = Duration::from_secs(60);
pub const LONGEST: Duration = Duration::from_secs(3600);
/// Maximum number of pairs of address and name of one sandbox.
const MAX_PAIRS: usize = 4096;

/// The time for which an answer with this time to live stays usable.
pub fn lifetime(ttl_seconds: u32) -> Duration {
    Duration::from_secs(ttl_seconds.into()).clamp(SHORTEST, LONGEST)
}

/// Pairs of addresses and names of one sandbox, with the time until which they are usable.
#[derive(Clone, Debug, Default)]
pub struct Resolved {
    until: HashMap<(Ipv4Addr, Name), Instant>,
}

impl Resolved {
    /// Notes that a name led to these addresses. With too many pairs, the one that ends first is forgotten.
    pub fn insert(&mut self, name: &Name, addresses: &[Ipv4Addr], until: Instant, now: Instant) {
        for address in addresses {
            let pair = (*address, name.clone());
            if self.until.len() >= MAX_PAIRS && !self.until.contains_key(&pair) {
                self.make_room(now);
            }
            let kept = self.until.entry(pair).or_insert(until);
            *kept = until.max(*kept);
        }
    }

    fn make_room(&mut self, now: Instant) {
        self.until.retain(|_, until| *until > now);
        if self.until.len() >= MAX_PAIRS
            && let Some(first) = self.until.iter().min_by_key(|(_, until)| **until).map(|(pair, _)| pair.clone())
        {
            self.until.remove(&first);
        }
    }

    /// Whether the name led to this address.
    pub fn contains(&self, name: &Name, address: Ipv4Addr, now: Instant) -> bool {
        self.until.get(&(address, name.clone())).is_some_and(|until| *until > now)
    }

    /// The usable pairs, with the time until which they are.
    pub fn pairs(&self, now: Instant) -> impl Iterator<Item = (&Name, Ipv4Addr, Instant)> {
        self.until
            .iter()
            .filter(move |(_, until)| **until > now)
            .map(|((address, name), until)| (name, *address, *until))
    }

    /// Forgets the names for which `keep` is false.
    pub fn retain(&mut self, keep: impl Fn(&Name) -> bool) {
        self.until.retain(|(_, name), _| keep(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::parse(text).unwrap()
    }

    #[test]
    fn only_the_name_that_was_asked_leads_to_an_address_and_not_forever() {
        let (now, address) = (Instant::now(), Ipv4Addr::new(192, 0, 2, 1));
        let mut resolved = Resolved::default();
        resolved.insert(&name("a.b"), &[address], now + lifetime(1), now);
        assert!(resolved.contains(&name("a.b"), address, now + Duration::from_secs(59)), "short ones are lengthened");
        assert!(!resolved.contains(&name("a.b"), address, now + Duration::from_secs(60)));
        assert!(!resolved.contains(&name("c.d"), address, now));
        assert!(!resolved.contains(&name("a.b"), Ipv4Addr::new(192, 0, 2, 2), now));
        resolved.insert(&name("a.b"), &[address], now + lifetime(300), now);
        resolved.insert(&name("a.b"), &[address], now + lifetime(1), now);
        assert!(resolved.contains(&name("a.b"), address, now + Duration::from_secs(299)), "never shortened");
        assert_eq!(lifetime(u32::MAX), LONGEST);
        resolved.retain(|kept| kept.as_str() != "a.b");
        assert!(!resolved.contains(&name("a.b"), address, now));
    }

    #[test]
    fn the_table_is_bounded() {
        let now = Instant::now();
        let mut resolved = Resolved::default();
        for number in 0..2 * MAX_PAIRS as u32 {
            let until = now + SHORTEST + Duration::from_secs(number.into());
            resolved.insert(&name("a.b"), &[Ipv4Addr::from(0x0100_0000 + number)], until, now);
        }
        assert_eq!(resolved.until.len(), MAX_PAIRS);
        assert!(resolved.contains(&name("a.b"), Ipv4Addr::from(0x0100_0000 + 2 * MAX_PAIRS as u32 - 1), now));
    }
}
