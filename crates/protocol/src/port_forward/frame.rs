//! WebSocket frame headers (RFC 6455, section 5.2) and masking.

use std::io;

/// Maximum length of a frame header.
pub(super) const MAX_HEADER: usize = 14;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Data: the first frame of a message, or a continuation.
    Content {
        first: bool,
    },
    Close,
    Ping,
    Pong,
}

/// A frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// Whether this is the last frame of its message.
    pub(super) last: bool,
    pub(super) mask: Option<[u8; 4]>,
    pub(super) length: u64,
}

impl Header {
    /// Parses the header at the beginning of `bytes`, and returns it with its length; `None` while it is incomplete.
    pub(super) fn read(bytes: &[u8]) -> io::Result<Option<(Self, usize)>> {
        let [first, second, rest @ ..] = bytes else { return Ok(None) };
        let kind = match first & !FIN {
            bits if bits & RESERVED != 0 => {
                return Err(invalid("WebSocket frame uses an extension that was not negotiated"));
            }
            0 => Kind::Content { first: false },
            1 | 2 => Kind::Content { first: true },
            8 => Kind::Close,
            9 => Kind::Ping,
            10 => Kind::Pong,
            _ => return Err(invalid("WebSocket frame with an unknown opcode")),
        };
        let (length, rest) = match second & !MASKED {
            126 => match rest.split_first_chunk() {
                Some((length, rest)) => (u64::from(u16::from_be_bytes(*length)), rest),
                None => return Ok(None),
            },
            127 => match rest.split_first_chunk() {
                Some((length, rest)) => (u64::from_be_bytes(*length), rest),
                None => return Ok(None),
            },
            length => (u64::from(length), rest),
        };
        let last = first & FIN != 0;
        if !matches!(kind, Kind::Content { .. }) && (length > 125 || !last) {
            return Err(invalid("WebSocket control frame is too long or fragmented"));
        }
        let (mask, rest) = match rest.split_first_chunk() {
            _ if second & MASKED == 0 => (None, rest),
            Some((mask, rest)) => (Some(*mask), rest),
            None => return Ok(None),
        };
        Ok(Some((Self { kind, last, mask, length }, bytes.len() - rest.len())))
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let opcode = match self.kind {
            Kind::Content { first: false } => 0,
            Kind::Content { first: true } => 2,
            Kind::Close => 8,
            Kind::Ping => 9,
            Kind::Pong => 10,
        };
        out.push(if self.last { FIN | opcode } else { opcode });
        let masked = if self.mask.is_some() { MASKED } else { 0 };
        match (u8::try_from(self.length), u16::try_from(self.length)) {
            (Ok(length @ ..126), _) => out.push(masked | length),
            (_, Ok(length)) => {
                out.push(masked | 126);
                out.extend_from_slice(&length.to_be_bytes());
            }
            _ => {
                out.push(masked | 127);
                out.extend_from_slice(&self.length.to_be_bytes());
            }
        }
        out.extend(self.mask.into_iter().flatten());
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Masks or unmasks, eight bytes at a time. `phase` is the number of bytes of the frame before `content`.
pub(super) fn apply(content: &mut [u8], mut mask: [u8; 4], phase: u64) {
    if mask == [0; 4] {
        return;
    }
    mask.rotate_left((phase % 4) as usize);
    let wide = u64::from_ne_bytes([mask[0], mask[1], mask[2], mask[3], mask[0], mask[1], mask[2], mask[3]]);
    let (words, rest) = content.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask) {
        *byte ^= mask;
    }
    // At most seven bytes are left, so the mask is repeated at most once.
    for (byte, mask) in rest.iter_mut().skip(4).zip(mask) {
        *byte ^= mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kinds() -> impl Strategy<Value = Kind> {
        prop_oneof![
            Just(Kind::Content { first: false }),
            Just(Kind::Content { first: true }),
            Just(Kind::Close),
            Just(Kind::Ping),
            Just(Kind::Pong)
        ]
    }

    proptest! {
        #[test]
        fn headers_round_trip_and_no_prefix_of_one_is_complete(
            kind in kinds(), last: bool, mask: Option<[u8; 4]>,
            length in prop_oneof![0_u64..200, 60_000_u64..70_000, any::<u64>()],
        ) {
            let control = !matches!(kind, Kind::Content { .. });
            let header = Header { kind, last: last || control, mask, length: if control { length % 126 } else { length } };
            let mut bytes = Vec::new();
            header.write(&mut bytes);
            prop_assert!(bytes.len() <= MAX_HEADER);
            for part in 0..bytes.len() {
                prop_assert_eq!(Header::read(&bytes[..part]).unwrap(), None);
            }
            bytes.push(7);
            prop_assert_eq!(Header::read(&bytes).unwrap(), Some((header, bytes.len() - 1)));
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..20)) {
            let _ = Header::read(&bytes);
        }

        #[test]
        fn masks_cover_every_byte_once(
            content in prop::collection::vec(any::<u8>(), 0..50),
            mask: [u8; 4],
            cut in 0_usize..50,
        ) {
            let expected: Vec<u8> = content.iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]).collect();
            let mut masked = content;
            let cut = cut.min(masked.len());
            let (front, back) = masked.split_at_mut(cut);
            apply(front, mask, 0);
            apply(back, mask, cut as u64);
            prop_assert_eq!(masked, expected);
        }
    }
}
