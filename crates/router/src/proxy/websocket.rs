//! The parts of RFC 6455 that a tunnel needs: frame boundaries, message sizes and close frames. Payloads are not
//! parsed.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest, Sha1};

/// Close codes that the router sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseCode {
    GoingAway = 1001,
    PolicyViolation = 1008,
    TooBig = 1009,
}

/// Tracks the frames in one direction of a WebSocket.
#[derive(Debug, Default)]
pub(crate) struct FrameTracker {
    /// The received part of the current frame's header.
    header: [u8; 14],
    header_len: usize,
    payload_left: u64,
    /// Payload size of the current message, over all its frames.
    message: u64,
    /// Maximum size of a message; 0 means no limit.
    limit: u64,
}

/// A message is larger than allowed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooBig;

impl FrameTracker {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Whether a frame could be inserted here without breaking another one.
    pub(crate) fn at_boundary(&self) -> bool {
        self.header_len == 0 && self.payload_left == 0
    }

    /// Tracks bytes that are about to be passed on.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> Result<(), TooBig> {
        while !bytes.is_empty() {
            if self.payload_left > 0 {
                let skipped = self.payload_left.min(bytes.len() as u64);
                self.payload_left -= skipped;
                bytes = &bytes[skipped as usize..];
                continue;
            }
            self.header[self.header_len] = bytes[0];
            self.header_len += 1;
            bytes = &bytes[1..];
            if self.header_len >= 2 && self.header_len == self.header_size() {
                self.header_complete()?;
            }
        }
        Ok(())
    }

    /// Size of the current header, known from its second byte on.
    fn header_size(&self) -> usize {
        let extended = match self.header[1] & 0x7f {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let mask = if self.header[1] & 0x80 != 0 { 4 } else { 0 };
        2 + extended + mask
    }

    fn header_complete(&mut self) -> Result<(), TooBig> {
        let h = &self.header;
        let length = match h[1] & 0x7f {
            126 => u64::from(u16::from_be_bytes([h[2], h[3]])),
            127 => u64::from_be_bytes([h[2], h[3], h[4], h[5], h[6], h[7], h[8], h[9]]),
            short => u64::from(short),
        };
        let (last, opcode) = (h[0] & 0x80 != 0, h[0] & 0x0f);
        self.header_len = 0;
        self.payload_left = length;
        // Control frames may come between the frames of a message and are not part of it.
        if opcode >= 8 {
            return Ok(());
        }
        self.message = self.message.saturating_add(length);
        if self.limit > 0 && self.message > self.limit {
            return Err(TooBig);
        }
        if last {
            self.message = 0;
        }
        Ok(())
    }
}

/// A close frame in the form that a server sends.
pub(crate) fn close_to_client(code: CloseCode) -> [u8; 4] {
    let [high, low] = (code as u16).to_be_bytes();
    [0x88, 2, high, low]
}

/// A close frame in the form that a client sends: masked, here with a mask of zeros.
pub(crate) fn close_to_backend(code: CloseCode) -> [u8; 8] {
    let [high, low] = (code as u16).to_be_bytes();
    [0x88, 0x82, 0, 0, 0, 0, high, low]
}

/// The `Sec-WebSocket-Accept` value for a `Sec-WebSocket-Key`.
pub(crate) fn accept_key(key: &[u8]) -> String {
    let mut hash = Sha1::new();
    hash.update(key);
    hash.update(b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    STANDARD.encode(hash.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(fin: bool, opcode: u8, masked: bool, length: usize) -> Vec<u8> {
        let mut bytes = vec![if fin { 0x80 | opcode } else { opcode }];
        let mask = if masked { 0x80 } else { 0 };
        match length {
            0..=125 => bytes.push(mask | length as u8),
            126..=65535 => {
                bytes.push(mask | 126);
                bytes.extend((length as u16).to_be_bytes());
            }
            _ => {
                bytes.push(mask | 127);
                bytes.extend((length as u64).to_be_bytes());
            }
        }
        if masked {
            bytes.extend([1, 2, 3, 4]);
        }
        bytes.extend(std::iter::repeat_n(0x88, length));
        bytes
    }

    #[test]
    fn the_handshake_example_of_the_rfc() {
        assert_eq!(accept_key(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn messages_count_over_their_frames_and_control_frames_do_not() {
        let mut tracker = FrameTracker::new(100);
        assert_eq!(tracker.feed(&frame(false, 2, true, 60)), Ok(()));
        assert_eq!(tracker.feed(&frame(true, 9, true, 100)), Ok(()));
        assert_eq!(tracker.feed(&frame(true, 0, true, 40)), Ok(()));
        assert_eq!(tracker.feed(&frame(true, 2, true, 100)), Ok(()));
        assert_eq!(tracker.feed(&frame(false, 1, true, 60)), Ok(()));
        assert_eq!(tracker.feed(&frame(true, 0, true, 41)), Err(TooBig));
    }

    #[test]
    fn an_announced_giant_is_refused_before_its_payload() {
        let mut giant = vec![0x82, 0xff];
        giant.extend(u64::MAX.to_be_bytes());
        giant.extend([0; 4]);
        assert_eq!(FrameTracker::new(1).feed(&giant), Err(TooBig));
        assert_eq!(FrameTracker::new(0).feed(&giant), Ok(()));
    }

    proptest! {
        /// Boundaries are found exactly at the ends of frames, however the bytes are split.
        #[test]
        fn boundaries_do_not_depend_on_packets(
            lengths in prop::collection::vec(0_usize..70_000, 1..5),
            masked in any::<bool>(),
            cut in 1_usize..5_000,
        ) {
            let mut tracker = FrameTracker::new(0);
            for length in lengths {
                let bytes = frame(true, 2, masked, length);
                let mut left = bytes.len();
                for chunk in bytes.chunks(cut) {
                    prop_assert_eq!(tracker.feed(chunk), Ok(()));
                    left -= chunk.len();
                    prop_assert_eq!(tracker.at_boundary(), left == 0);
                }
            }
        }
    }
}
