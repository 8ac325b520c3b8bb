//! Bytes in chunks: between archives, which are read and written piece by piece, and whatever carries them. What carries is the caller's.

use bytes::{Buf, Bytes};
use std::io::{self, Read, Write};

/// Gathers what is written into chunks of a size and hands each over. Nothing is handed over by dropping it: flush at the end.
pub struct ChunkWriter<F> {
    hand_over: F,
    size: usize,
    gathered: Vec<u8>,
}

impl<F: FnMut(Bytes) -> io::Result<()>> ChunkWriter<F> {
    pub fn new(size: usize, hand_over: F) -> Self {
        Self { hand_over, size, gathered: Vec::with_capacity(size) }
    }
}

impl<F: FnMut(Bytes) -> io::Result<()>> Write for ChunkWriter<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.gathered.extend_from_slice(bytes);
        if self.gathered.len() >= self.size {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let chunk = std::mem::replace(&mut self.gathered, Vec::with_capacity(self.size));
        (self.hand_over)(chunk.into())
    }
}

/// Reads chunks as one stream of bytes, until there is none left.
pub struct ChunkReader<F> {
    next: F,
    chunk: Bytes,
}

impl<F: FnMut() -> Option<io::Result<Bytes>>> ChunkReader<F> {
    pub fn new(next: F) -> Self {
        Self { next, chunk: Bytes::new() }
    }
}

impl<F: FnMut() -> Option<io::Result<Bytes>>> Read for ChunkReader<F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() {
            match (self.next)() {
                Some(chunk) => self.chunk = chunk?,
                None => return Ok(0),
            }
        }
        let size = buffer.len().min(self.chunk.len());
        self.chunk.copy_to_slice(&mut buffer[..size]);
        Ok(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_in_chunks_is_read_as_one() {
        let mut carried = Vec::new();
        let mut writer = ChunkWriter::new(4, |chunk| {
            carried.push(chunk);
            Ok(())
        });
        for piece in ["a", "bcdefg", "", "h"] {
            writer.write_all(piece.as_bytes()).unwrap();
        }
        writer.flush().unwrap();
        writer.flush().unwrap();
        assert_eq!(carried, ["abcdefg", "h"]);
        // An empty chunk is not the end.
        let mut left = [Bytes::new()].into_iter().chain(carried).map(Ok);
        let mut read = String::new();
        ChunkReader::new(move || left.next()).read_to_string(&mut read).unwrap();
        assert_eq!(read, "abcdefgh");
    }

    #[test]
    fn failures_on_either_side_are_passed_on() {
        let mut writer = ChunkWriter::new(1, |_| Err(io::ErrorKind::BrokenPipe.into()));
        assert_eq!(writer.write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        let mut reader = ChunkReader::new(|| Some(Err(io::ErrorKind::UnexpectedEof.into())));
        assert_eq!(reader.read(&mut [0; 1]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
