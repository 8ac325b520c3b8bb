//! A request as input of a fuzz target. Included by the modules `fuzzing` of several crates.

use http::{HeaderName, HeaderValue, Request};

/// Reads a request: method and target in the first line, headers in the next ones, and after an empty line the body.
/// `None` if it cannot be represented, which an HTTP library would have refused.
pub(crate) fn request(data: &[u8]) -> Option<Request<Vec<u8>>> {
    let (head, body) = match data.windows(2).position(|pair| pair == b"\n\n") {
        Some(end) => (&data[..end], &data[end + 2..]),
        None => (data, &[][..]),
    };
    let mut lines = head.split(|byte| *byte == b'\n');
    let mut first = lines.next()?.splitn(2, |byte| *byte == b' ');
    let mut request = Request::builder().method(first.next()?).uri(first.next()?);
    for line in lines {
        let at = line.iter().position(|byte| *byte == b':')?;
        let name = HeaderName::from_bytes(&line[..at]).ok()?;
        request = request.header(name, HeaderValue::from_bytes(line[at + 1..].trim_ascii()).ok()?);
    }
    request.body(body.to_vec()).ok()
}
