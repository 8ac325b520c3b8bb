//! Header blocks: a count, then length-prefixed names and values, compressed in one zlib stream per direction.

use bytes::{Buf, BufMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::{SpdyError, dictionary};

/// Maximum size of a decompressed block, against decompression bombs. Clients send three short headers.
pub const MAX_HEADER_BYTES: usize = 64 * 1024;

/// Header names (lower case) and values, in order.
pub type Headers = Vec<(String, String)>;

pub fn find<'a>(headers: &'a Headers, name: &str) -> Option<&'a str> {
    headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
}

/// Decompresses the header blocks of a connection.
pub struct Decoder {
    zlib: Decompress,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { zlib: Decompress::new(true) }
    }
}

impl Decoder {
    /// Must be called for every block of a connection, also those of refused streams: all share one zlib window.
    pub fn decode(&mut self, block: &[u8]) -> Result<Headers, SpdyError> {
        parse(&self.inflate(block)?)
    }

    fn inflate(&mut self, mut input: &[u8]) -> Result<Vec<u8>, SpdyError> {
        let mut output = Vec::with_capacity(1024);
        loop {
            if output.len() >= MAX_HEADER_BYTES {
                return Err(SpdyError::HeadersTooLong);
            }
            if output.len() == output.capacity() {
                output.reserve(output.len());
            }
            let (read, written) = (self.zlib.total_in(), self.zlib.total_out());
            match self.zlib.decompress_vec(input, &mut output, FlushDecompress::Sync) {
                Ok(Status::StreamEnd) => return Err(SpdyError::Compression("the stream ended".into())),
                Ok(_) => {}
                Err(error) if error.needs_dictionary().is_some() => {
                    self.load_dictionary()?;
                }
                Err(error) => return Err(SpdyError::Compression(error.to_string())),
            }
            let consumed = (self.zlib.total_in() - read) as usize;
            input = &input[consumed..];
            let progressed = consumed > 0 || self.zlib.total_out() > written;
            if input.is_empty() && output.len() < output.capacity() {
                return Ok(output);
            }
            if !progressed && output.len() < output.capacity() {
                return Err(SpdyError::Compression("no progress".into()));
            }
        }
    }

    fn load_dictionary(&mut self) -> Result<(), SpdyError> {
        match self.zlib.set_dictionary(dictionary::bytes()) {
            Ok(_) => Ok(()),
            Err(error) => Err(SpdyError::Compression(error.to_string())),
        }
    }
}

fn parse(mut block: &[u8]) -> Result<Headers, SpdyError> {
    let count = take_u32(&mut block)?;
    // Each pair takes at least eight bytes; this check bounds the allocation below for a false count.
    if count > block.len() / 8 {
        return Err(SpdyError::HeadersTruncated);
    }
    let mut headers = Vec::with_capacity(count);
    for _ in 0..count {
        let name = take_text(&mut block)?;
        let value = take_text(&mut block)?;
        headers.push((name.to_ascii_lowercase(), value));
    }
    Ok(headers)
}

fn take_u32(block: &mut &[u8]) -> Result<usize, SpdyError> {
    if block.len() < 4 {
        return Err(SpdyError::HeadersTruncated);
    }
    Ok(block.get_u32() as usize)
}

fn take_text(block: &mut &[u8]) -> Result<String, SpdyError> {
    let length = take_u32(block)?;
    if length > block.len() {
        return Err(SpdyError::HeadersTruncated);
    }
    let (text, rest) = block.split_at(length);
    *block = rest;
    Ok(String::from_utf8_lossy(text).into_owned())
}

/// Compresses the header blocks of a connection.
pub struct Encoder {
    zlib: Compress,
    dictionary_loaded: bool,
}

impl Default for Encoder {
    fn default() -> Self {
        Self { zlib: Compress::new(Compression::new(6), true), dictionary_loaded: false }
    }
}

impl Encoder {
    pub fn encode(&mut self, headers: &Headers) -> Result<Vec<u8>, SpdyError> {
        if !self.dictionary_loaded {
            self.zlib.set_dictionary(dictionary::bytes()).map_err(|error| SpdyError::Compression(error.to_string()))?;
            self.dictionary_loaded = true;
        }
        let mut plain = Vec::with_capacity(64);
        plain.put_u32(headers.len() as u32);
        for (name, value) in headers {
            for text in [name, value] {
                plain.put_u32(text.len() as u32);
                plain.put_slice(text.as_bytes());
            }
        }
        self.deflate(&plain)
    }

    fn deflate(&mut self, plain: &[u8]) -> Result<Vec<u8>, SpdyError> {
        let mut output = Vec::with_capacity(plain.len() + 64);
        let start = self.zlib.total_in();
        loop {
            let done = (self.zlib.total_in() - start) as usize;
            self.zlib
                .compress_vec(&plain[done..], &mut output, FlushCompress::Sync)
                .map_err(|error| SpdyError::Compression(error.to_string()))?;
            // Spare capacity after a sync flush means that everything was flushed.
            if output.len() < output.capacity() {
                return Ok(output);
            }
            output.reserve(256);
        }
    }
}

/// Fuzz target: the bytes are a compressed block, then the content of one.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(data: &[u8]) {
    let _ = Decoder::default().decode(data);
    if let Ok(headers) = parse(data) {
        let block = Encoder::default().encode(&headers).expect("headers that were read can be written");
        match Decoder::default().decode(&block) {
            Ok(again) => assert_eq!(again, headers),
            // Replacing invalid UTF-8 can make a block longer than it was.
            Err(error) => assert!(matches!(error, SpdyError::HeadersTooLong), "{error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(n: usize) -> Headers {
        vec![("streamtype".into(), "data".into()), ("port".into(), "8080".into()), ("requestid".into(), n.to_string())]
    }

    #[test]
    fn blocks_of_one_connection_share_a_window() {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        let mut sizes = Vec::new();
        for n in 0..20 {
            let block = encoder.encode(&sample(n)).unwrap();
            sizes.push(block.len());
            assert_eq!(decoder.decode(&block).unwrap(), sample(n));
        }
        assert!(sizes[1] < sizes[0], "a repeated block must be smaller: {sizes:?}");
    }

    #[test]
    fn a_block_with_values_larger_than_one_buffer_round_trips() {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        let noise: String =
            (0..20_000u32).map(|n| char::from(33 + (n.wrapping_mul(2_654_435_761) >> 25) as u8 % 90)).collect();
        let headers = vec![("x".to_owned(), noise)];
        assert_eq!(decoder.decode(&encoder.encode(&headers).unwrap()).unwrap(), headers);
    }

    #[test]
    fn a_decompression_bomb_is_refused() {
        let mut encoder = Encoder::default();
        let bomb = encoder.encode(&vec![("x".to_owned(), "a".repeat(4 * MAX_HEADER_BYTES))]).unwrap();
        assert!(bomb.len() < 4096);
        assert!(matches!(Decoder::default().decode(&bomb), Err(SpdyError::HeadersTooLong)));
    }
}
