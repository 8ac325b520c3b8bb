//! Blocks of addresses: reading them, and whether one lies inside another.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An address with the length of its prefix. Bits after the prefix are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    address: IpAddr,
    length: u8,
}

impl Block {
    /// Whether every address of its family is in it.
    pub(crate) fn is_everything(&self) -> bool {
        self.length == 0
    }

    /// Length of its prefix.
    pub(crate) fn length(&self) -> u8 {
        self.length
    }

    pub(crate) fn is_v4(&self) -> bool {
        self.address.is_ipv4()
    }

    /// Whether the other block lies inside this one, or is the same.
    pub(crate) fn contains(&self, other: &Self) -> bool {
        self.length <= other.length && masked(other.address, self.length) == self.address
    }
}

/// The block that is not one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotABlock;

impl FromStr for Block {
    type Err = NotABlock;

    /// Reads a block, or an address as the block that has only this address.
    fn from_str(text: &str) -> Result<Self, NotABlock> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length.parse::<u8>().map_err(|_| NotABlock)?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NotABlock)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length = length.unwrap_or(most);
        if length > most {
            return Err(NotABlock);
        }
        Ok(Self { address: masked(address, length), length })
    }
}

impl fmt::Display for Block {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.address, self.length)
    }
}

/// The address without the bits after a prefix, which is no longer than the address.
fn masked(address: IpAddr, length: u8) -> IpAddr {
    let length = u32::from(length);
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(length)).unwrap_or(0);
            IpAddr::V4((u32::from(address) & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(length)).unwrap_or(0);
            IpAddr::V6((u128::from(address) & mask).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(text: &str) -> Block {
        text.parse().unwrap()
    }

    #[test]
    fn a_block_is_read_without_the_bits_after_its_prefix() {
        for (text, read) in [
            ("1.2.3.4", "1.2.3.4/32"),
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("1.2.3.4/0", "0.0.0.0/0"),
            ("fe80::1", "fe80::1/128"),
            ("fe80::1/10", "fe80::/10"),
            ("fe80::1/0", "::/0"),
        ] {
            assert_eq!(block(text).to_string(), read, "{text}");
        }
        for text in ["", "example.com", "1.1.1.1/33", "::/129", "x/8", "1.1.1.1/", "1.1.1.1/-1", "1.1.1/8"] {
            assert_eq!(text.parse::<Block>(), Err(NotABlock), "{text}");
        }
    }

    #[test]
    fn a_block_contains_itself_and_its_parts() {
        for (outer, inner) in
            [("0.0.0.0/0", "10.0.0.0/8"), ("10.0.0.0/8", "10.0.0.0/8"), ("10.0.0.0/8", "10.9.8.7"), ("::/0", "fe80::1")]
        {
            assert!(block(outer).contains(&block(inner)), "{outer} {inner}");
        }
        for (outer, other) in [("10.0.0.0/8", "0.0.0.0/0"), ("10.0.0.0/8", "11.0.0.0/8"), ("0.0.0.0/0", "::1")] {
            assert!(!block(outer).contains(&block(other)), "{outer} {other}");
        }
    }
}
