//! A keep-alive HTTP connection with as little client code as possible, so that the server is what is measured.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// One HTTP/1.1 connection.
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    address: SocketAddr,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        Ok(Self { stream, buffer: vec![0; 512 * 1024], address })
    }

    pub(crate) fn post_json(&mut self, path: &str, body: &str) {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        self.stream.write_all(head.as_bytes()).expect("sent");
        self.answer().expect("answered");
    }

    pub(crate) fn get(&mut self, path: &str) -> usize {
        self.stream
            .write_all(format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", self.address).as_bytes())
            .expect("sent");
        self.answer().expect("answered")
    }

    /// Sends a large body between two parts.
    pub(crate) fn send(&mut self, head: &str, parts: [&[u8]; 3]) -> io::Result<()> {
        self.stream.write_all(head.as_bytes())?;
        for part in parts {
            self.stream.write_all(part)?;
        }
        self.answer().map(|_| ())
    }

    /// Reads one response; returns the size of its body.
    fn answer(&mut self) -> io::Result<usize> {
        let mut filled = 0;
        let end = loop {
            filled += self.fill(filled)?;
            if let Some(end) = self.buffer[..filled].windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
        };
        let head = String::from_utf8_lossy(&self.buffer[..end]).to_ascii_lowercase();
        if !head.starts_with("http/1.1 2") {
            return Err(io::Error::other(head));
        }
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse::<usize>().ok());
        let length = length.unwrap_or(0);
        let mut left = length - (filled - end).min(length);
        while left > 0 {
            left -= self.fill(0)?.min(left);
        }
        Ok(length)
    }

    fn fill(&mut self, from: usize) -> io::Result<usize> {
        match self.stream.read(&mut self.buffer[from..])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => Ok(read),
        }
    }
}
