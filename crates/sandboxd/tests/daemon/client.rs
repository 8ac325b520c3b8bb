//! A plain HTTP/1.1 client that sends exactly the given bytes, unusual paths included.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// A response.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl HttpResponse {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// Timeout for any single exchange of the tests.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the daemon listens");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    stream.set_nodelay(true).expect("an option");
    stream
}

/// Sends a request and reads the response to its end.
pub(crate) fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> HttpResponse {
    let mut stream = connect(address);
    stream.write_all(&head(method, path, headers, body.len())).expect("sent");
    // The daemon may refuse the request before it has read all of it.
    let _ = stream.write_all(body);
    read_answer(&mut stream)
}

pub(crate) fn head(method: &str, path: &str, headers: &[(&str, &str)], length: usize) -> Vec<u8> {
    let mut head = format!("{method} {path} HTTP/1.1\r\n");
    for (name, value) in [("host", "sandbox"), ("connection", "close")] {
        if !headers.iter().any(|(given, _)| *given == name) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    if length > 0 || matches!(method, "POST" | "PUT") {
        head.push_str(&format!("content-length: {length}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    head.into_bytes()
}

pub(crate) fn read_answer(stream: &mut TcpStream) -> HttpResponse {
    let mut bytes = Vec::new();
    // A reset after the response (the daemon closed with unread bytes) does not lose the response.
    let _ = stream.read_to_end(&mut bytes);
    parse(&bytes)
}

pub(crate) fn parse(bytes: &[u8]) -> HttpResponse {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap_or_else(|| {
        panic!("no response: {:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(200)]));
    });
    let text = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut lines = text.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).expect("a status line");
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": ").map(|(name, value)| (name.to_owned(), value.to_owned())))
        .collect();
    let raw = &bytes[end + 4..];
    let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
    let body = if chunked { unchunk(raw) } else { raw.to_vec() };
    HttpResponse { status: status.parse().expect("a status"), headers, body }
}

fn unchunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(end) = bytes.windows(2).position(|window| window == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).expect("a size").trim(), 16).expect("hex");
        if size == 0 || bytes.len() < end + 2 + size {
            break;
        }
        out.extend_from_slice(&bytes[end + 2..end + 2 + size]);
        bytes = bytes.get(end + 4 + size..).unwrap_or_default();
    }
    out
}

pub(crate) const BOUNDARY: &str = "boundary-of-tests";

/// A multipart form with one part, as the published clients write it.
pub(crate) fn form(field: &str, filename: Option<&str>, part_type: Option<&str>, content: &[u8]) -> Vec<u8> {
    let mut form = format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{field}\"");
    if let Some(filename) = filename {
        form.push_str(&format!("; filename=\"{filename}\""));
    }
    if let Some(part_type) = part_type {
        form.push_str(&format!("\r\nContent-Type: {part_type}"));
    }
    form.push_str("\r\n\r\n");
    let mut form = form.into_bytes();
    form.extend_from_slice(content);
    form.extend_from_slice(format!("\r\n--{BOUNDARY}--\r\n").as_bytes());
    form
}

pub(crate) fn form_type() -> String {
    format!("multipart/form-data; boundary={BOUNDARY}")
}

/// Percent-encodes everything but letters and digits, as cautious clients do.
pub(crate) fn encode(path: &str) -> String {
    path.bytes()
        .map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
