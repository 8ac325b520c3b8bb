//! Encoding of an object in its database row: plain JSON, or LZ4-compressed JSON from 256 bytes on. Compression cuts
//! the bytes to about a quarter, and with them the write-ahead log that every batch waits for.

use std::borrow::Cow;

/// First byte of a compressed row. Plain JSON rows begin with a brace instead.
const COMPRESSED: u8 = 1;
/// Length of the header before the compressed bytes: the tag byte and a 32-bit little-endian uncompressed length.
const HEADER_LEN: usize = 5;
/// Minimum JSON length for compression: shorter objects would not gain from it.
const MIN_COMPRESSED_LEN: usize = 256;
/// Maximum uncompressed length. A row that declares more is damaged.
const MAX_OBJECT_LEN: usize = 64 << 20;

/// Encodes objects as rows, reusing its buffers.
#[derive(Default)]
pub(super) struct RowEncoder {
    plain: Vec<u8>,
    compressed: Vec<u8>,
}

impl RowEncoder {
    /// Encodes the JSON that `write` produces.
    pub(super) fn encode(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> &[u8] {
        self.plain.clear();
        write(&mut self.plain);
        if self.plain.len() < MIN_COMPRESSED_LEN {
            return &self.plain;
        }
        let longest = HEADER_LEN + lz4_flex::block::get_maximum_output_size(self.plain.len());
        if self.compressed.len() < longest {
            self.compressed.resize(longest, 0);
        }
        match lz4_flex::block::compress_into(&self.plain, &mut self.compressed[HEADER_LEN..]) {
            Ok(length) if HEADER_LEN + length < self.plain.len() => {
                self.compressed[0] = COMPRESSED;
                self.compressed[1..HEADER_LEN].copy_from_slice(&(self.plain.len() as u32).to_le_bytes());
                &self.compressed[..HEADER_LEN + length]
            }
            _ => &self.plain,
        }
    }
}

/// Decodes a row to JSON. The error describes the damage.
pub(super) fn decode(row: &[u8]) -> Result<Cow<'_, [u8]>, String> {
    let Some((&COMPRESSED, rest)) = row.split_first() else { return Ok(row.into()) };
    let (length, block) = rest.split_first_chunk::<4>().ok_or("the compression header is incomplete")?;
    let length = u32::from_le_bytes(*length) as usize;
    if length > MAX_OBJECT_LEN {
        return Err(format!("uncompressed length {length} exceeds the maximum of {MAX_OBJECT_LEN}"));
    }
    let plain = lz4_flex::block::decompress(block, length).map_err(|e| e.to_string())?;
    if plain.len() == length {
        Ok(plain.into())
    } else {
        Err("the uncompressed length does not match the header".into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn long_objects_are_compressed_and_short_ones_stay_plain() {
        let mut encoder = RowEncoder::default();
        assert_eq!(encoder.encode(|out| out.extend_from_slice(b"{}")), b"{}");
        let long = format!("{{\"a\":[{}1]}}", "\"the same text\",".repeat(100));
        let row = encoder.encode(|out| out.extend_from_slice(long.as_bytes())).to_vec();
        assert!(row.len() < long.len() / 4, "{}", row.len());
        assert_eq!(&*decode(&row).unwrap(), long.as_bytes());
        for cut in 1..row.len() {
            assert!(decode(&row[..cut]).is_err(), "a row that ends after {cut} bytes");
        }
    }

    proptest! {
        #[test]
        fn encoded_rows_decode_to_the_same_json(body in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let json = [b"{", body.as_slice()].concat();
            let mut encoder = RowEncoder::default();
            let row = encoder.encode(|out| out.extend_from_slice(&json)).to_vec();
            prop_assert_eq!(&*decode(&row).unwrap(), &json[..]);
        }

        #[test]
        fn damaged_rows_do_not_panic(row in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&[&[COMPRESSED], row.as_slice()].concat());
        }
    }
}
