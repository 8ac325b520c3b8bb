//! Heads of WebSocket frames (RFC 6455, section 5.2), and masks.

use std::io;

/// The longest head that a frame can have.
pub(super) const MAX_HEAD: usize = 14;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Content, of a new message or of the one before.
    Content {
        first: bool,
    },
    Close,
    Ping,
    Pong,
}

/// Everything in front of a frame's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: Kind,
    /// Whether the message ends with this frame.
    pub(super) last: bool,
    pub(super) mask: Option<[u8; 4]>,
    pub(super) length: u64,
}

impl Head {
    /// The head at the beginning of `bytes`, and its own length; none while it is not whole.
    pub(super) fn read(bytes: &[u8]) -> io::Result<Option<(Self, usize)>> {
        let [first, second, rest @ ..] = bytes else { return Ok(None) };
        let kind = match first & !FIN {
            bits if bits & RESERVED != 0 => return Err(invalid("a frame uses an extension that nobody agreed to")),
            0 => Kind::Content { first: false },
            1 | 2 => Kind::Content { first: true },
            8 => Kind::Close,
            9 => Kind::Ping,
            10 => Kind::Pong,
            _ => return Err(invalid("a frame of an unknown kind")),
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
            return Err(invalid("a control frame is too long or in pieces"));
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

/// Masks or unmasks, eight bytes at a time. `phase` is how many bytes of the frame came before.
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
    // Seven bytes are left at most: the mask comes round once.
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
        fn heads_round_trip_and_no_part_of_one_is_a_whole(
            kind in kinds(), last: bool, mask: Option<[u8; 4]>,
            length in prop_oneof![0_u64..200, 60_000_u64..70_000, any::<u64>()],
        ) {
            let control = !matches!(kind, Kind::Content { .. });
            let head = Head { kind, last: last || control, mask, length: if control { length % 126 } else { length } };
            let mut bytes = Vec::new();
            head.write(&mut bytes);
            prop_assert!(bytes.len() <= MAX_HEAD);
            for part in 0..bytes.len() {
                prop_assert_eq!(Head::read(&bytes[..part]).unwrap(), None);
            }
            bytes.push(7);
            prop_assert_eq!(Head::read(&bytes).unwrap(), Some((head, bytes.len() - 1)));
        }

        #[test]
        fn no_bytes_break_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..20)) {
            let _ = Head::read(&bytes);
        }

        #[test]
        fn masks_cover_every_byte_once(content in prop::collection::vec(any::<u8>(), 0..50), mask: [u8; 4], cut in 0_usize..50) {
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
