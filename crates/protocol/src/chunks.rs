//! Adapters between `Read`/`Write`, which archives use, and a sequence of byte chunks. The caller transports the
//! chunks.

use bytes::{Buf, Bytes};
use std::io::{self, Read, Write};

/// Collects written bytes into chunks of a given size and passes each chunk to a function. Dropping it discards the
/// last incomplete chunk: flush at the end.
pub struct ChunkWriter<F> {
    emit: F,
    size: usize,
    buffer: Vec<u8>,
}

impl<F: FnMut(Bytes) -> io::Result<()>> ChunkWriter<F> {
    pub fn new(size: usize, emit: F) -> Self {
        Self { emit, size, buffer: Vec::with_capacity(size) }
    }
}

impl<F: FnMut(Bytes) -> io::Result<()>> Write for ChunkWriter<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= self.size {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let chunk = std::mem::replace(&mut self.buffer, Vec::with_capacity(self.size));
        (self.emit)(chunk.into())
    }
}

/// Reads a sequence of chunks as one stream of bytes.
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
    fn written_chunks_are_read_as_one_stream() {
        let mut chunks = Vec::new();
        let mut writer = ChunkWriter::new(4, |chunk| {
            chunks.push(chunk);
            Ok(())
        });
        for piece in ["a", "bcdefg", "", "h"] {
            writer.write_all(piece.as_bytes()).unwrap();
        }
        writer.flush().unwrap();
        writer.flush().unwrap();
        assert_eq!(chunks, ["abcdefg", "h"]);
        // An empty chunk is not the end.
        let mut left = [Bytes::new()].into_iter().chain(chunks).map(Ok);
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
