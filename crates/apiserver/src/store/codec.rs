//! How an object stands in its row: as JSON, or, when it is longer than a few lines, compressed. A quarter of the bytes is a quarter of
//! the log that every batch waits for.

use std::borrow::Cow;

/// First byte of a compressed row; JSON begins with a brace.
const COMPRESSED: u8 = 1;
/// Mark and length before the compressed bytes.
const HEADER: usize = 5;
/// Shorter objects stay readable: nothing would be gained.
const WORTHWHILE: usize = 256;
/// No object is longer than this: a row that says so is damaged.
const LONGEST: usize = 64 << 20;

/// Turns objects into rows, in one buffer that is used again and again.
#[derive(Default)]
pub(super) struct Packer {
    plain: Vec<u8>,
    packed: Vec<u8>,
}

impl Packer {
    /// The row for what `write` writes.
    pub(super) fn pack(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> &[u8] {
        self.plain.clear();
        write(&mut self.plain);
        if self.plain.len() < WORTHWHILE {
            return &self.plain;
        }
        let longest = HEADER + lz4_flex::block::get_maximum_output_size(self.plain.len());
        if self.packed.len() < longest {
            self.packed.resize(longest, 0);
        }
        match lz4_flex::block::compress_into(&self.plain, &mut self.packed[HEADER..]) {
            Ok(length) if HEADER + length < self.plain.len() => {
                self.packed[0] = COMPRESSED;
                self.packed[1..HEADER].copy_from_slice(&(self.plain.len() as u32).to_le_bytes());
                &self.packed[..HEADER + length]
            }
            _ => &self.plain,
        }
    }
}

/// The JSON in a row, or why there is none.
pub(super) fn unpack(row: &[u8]) -> Result<Cow<'_, [u8]>, String> {
    let Some((&COMPRESSED, rest)) = row.split_first() else { return Ok(row.into()) };
    let (length, block) = rest.split_first_chunk::<4>().ok_or("it ends too early")?;
    let length = u32::from_le_bytes(*length) as usize;
    if length > LONGEST {
        return Err(format!("{length} bytes are more than an object has"));
    }
    let plain = lz4_flex::block::decompress(block, length).map_err(|e| e.to_string())?;
    if plain.len() == length { Ok(plain.into()) } else { Err("its length is wrong".into()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn long_objects_get_shorter_and_short_ones_stay_readable() {
        let mut packer = Packer::default();
        assert_eq!(packer.pack(|out| out.extend_from_slice(b"{}")), b"{}");
        let long = format!("{{\"a\":[{}1]}}", "\"the same text\",".repeat(100));
        let row = packer.pack(|out| out.extend_from_slice(long.as_bytes())).to_vec();
        assert!(row.len() < long.len() / 4, "{}", row.len());
        assert_eq!(&*unpack(&row).unwrap(), long.as_bytes());
        for cut in 1..row.len() {
            assert!(unpack(&row[..cut]).is_err(), "a row that ends after {cut} bytes");
        }
    }

    proptest! {
        #[test]
        fn what_is_packed_comes_back(body in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let json = [b"{", body.as_slice()].concat();
            let mut packer = Packer::default();
            let row = packer.pack(|out| out.extend_from_slice(&json)).to_vec();
            prop_assert_eq!(&*unpack(&row).unwrap(), &json[..]);
        }

        #[test]
        fn damage_is_noticed_or_harmless(row in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = unpack(&[&[COMPRESSED], row.as_slice()].concat());
        }
    }
}
