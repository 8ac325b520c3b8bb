//! Streaming reader of `multipart/form-data` (RFC 7578). Content is passed on in the buffers it was read into: uploads
//! are not copied.

mod disposition;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use disposition::parameters;
use http::{HeaderMap, Request, header};
use http_body_util::BodyExt as _;
use memchr::memmem::Finder;

/// Maximum number of header lines of a part, and their maximum total size.
const MAX_HEADERS: usize = 32;
const MAX_HEAD: usize = 64 * 1024;

/// A form that is read part by part.
pub struct Form {
    body: Body,
    /// Bytes that are read but not passed on yet.
    buffer: Bytes,
    /// CRLF and the delimiter between two parts.
    delimiter: Finder<'static>,
    position: Position,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// Before the first part.
    Preamble,
    /// In the content of a part.
    Content,
    /// After a delimiter.
    Delimiter,
    End,
}

/// The headers of a part.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Part {
    pub name: Option<String>,
    pub file_name: Option<String>,
}

/// Why a form could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FormError {
    #[error("the form ended early")]
    Incomplete,
    #[error("the headers of a part are larger than {MAX_HEAD} bytes")]
    LargeHead,
    #[error("the headers of a part are malformed: {0}")]
    Head(#[from] httparse::Error),
    #[error("the body could not be read: {0}")]
    Body(axum::Error),
}

impl Form {
    /// The form in a request; its body if the content type is not a form with a boundary.
    pub fn of(request: Request<Body>) -> Result<Self, Body> {
        let Some(boundary) = boundary(request.headers()) else { return Err(request.into_body()) };
        let delimiter = Finder::new(format!("\r\n--{boundary}").as_bytes()).into_owned();
        Ok(Self { body: request.into_body(), buffer: Bytes::new(), delimiter, position: Position::Preamble })
    }

    /// What is left of the body.
    pub fn into_body(self) -> Body {
        self.body
    }

    /// The next part, discarding the rest of the previous one; `None` after the last.
    pub async fn next(&mut self) -> Result<Option<Part>, FormError> {
        if self.position == Position::Preamble {
            // The first delimiter may be at the very beginning, without CRLF before it.
            self.buffer = Bytes::from_static(b"\r\n");
            self.position = Position::Content;
        }
        while self.chunk().await?.is_some() {}
        if self.position == Position::End || self.is_last().await? {
            self.position = Position::End;
            return Ok(None);
        }
        self.end_line().await?;
        let head = self.head().await?;
        self.position = Position::Content;
        Ok(Some(part(&head)?))
    }

    /// The next piece of the part's content; `None` at its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, FormError> {
        while self.position == Position::Content {
            if let Some(at) = self.delimiter.find(&self.buffer) {
                let content = self.buffer.split_to(at);
                let _ = self.buffer.split_to(self.delimiter.needle().len());
                self.position = Position::Delimiter;
                return Ok(Some(content).filter(|content| !content.is_empty()));
            }
            let complete = self.buffer.len() - partial_match(&self.buffer, self.delimiter.needle());
            if complete > 0 {
                return Ok(Some(self.buffer.split_to(complete)));
            }
            self.read().await?;
        }
        Ok(None)
    }

    /// Whether the last delimiter was the closing one.
    async fn is_last(&mut self) -> Result<bool, FormError> {
        self.fill(2).await?;
        Ok(self.buffer.starts_with(b"--"))
    }

    /// Skips the rest of a delimiter's line, which may only be blank.
    async fn end_line(&mut self) -> Result<(), FormError> {
        loop {
            self.fill(1).await?;
            match self.buffer[0] {
                b' ' | b'\t' => drop(self.buffer.split_to(1)),
                _ => break,
            }
        }
        self.fill(2).await?;
        if self.buffer.split_to(2) != b"\r\n"[..] {
            return Err(FormError::Incomplete);
        }
        Ok(())
    }

    /// The header lines of a part, including the empty line.
    async fn head(&mut self) -> Result<Bytes, FormError> {
        const END: &[u8] = b"\r\n\r\n";
        loop {
            if let Some(at) = memchr::memmem::find(&self.buffer, END) {
                return Ok(self.buffer.split_to(at + END.len()));
            }
            if self.buffer.len() > MAX_HEAD {
                return Err(FormError::LargeHead);
            }
            self.read().await?;
        }
    }

    async fn fill(&mut self, count: usize) -> Result<(), FormError> {
        while self.buffer.len() < count {
            self.read().await?;
        }
        Ok(())
    }

    /// Reads the next frame. Only a rest in the buffer (a line, or the start of a delimiter) is copied, to join it with
    /// the frame.
    async fn read(&mut self) -> Result<(), FormError> {
        let frame = self.body.frame().await.ok_or(FormError::Incomplete)?.map_err(FormError::Body)?;
        let Ok(bytes) = frame.into_data() else { return Ok(()) };
        if self.buffer.is_empty() {
            self.buffer = bytes;
        } else {
            let mut joined = BytesMut::with_capacity(self.buffer.len() + bytes.len());
            joined.extend_from_slice(&self.buffer);
            joined.extend_from_slice(&bytes);
            self.buffer = joined.freeze();
        }
        Ok(())
    }
}

/// Number of bytes at the end of `bytes` that may be the start of `whole`.
fn partial_match(bytes: &[u8], whole: &[u8]) -> usize {
    let longest = bytes.len().min(whole.len() - 1);
    let tail = &bytes[bytes.len() - longest..];
    memchr::memchr_iter(whole[0], tail).map(|at| &tail[at..]).find(|end| whole.starts_with(end)).map_or(0, <[u8]>::len)
}

/// The boundary parameter of the content type.
fn boundary(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(header::CONTENT_TYPE)?.as_bytes();
    let (kind, mut parameters) = parameters(text);
    if !kind.eq_ignore_ascii_case(b"multipart/form-data") {
        return None;
    }
    let (_, boundary) = parameters.find(|(name, _)| name.eq_ignore_ascii_case(b"boundary"))?;
    boundary.filter(|boundary| !boundary.is_empty())
}

fn part(head: &[u8]) -> Result<Part, FormError> {
    let mut lines = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let httparse::Status::Complete((_, lines)) = httparse::parse_headers(head, &mut lines)? else {
        return Err(FormError::Incomplete);
    };
    let last = lines.iter().rev().find(|line| line.name.eq_ignore_ascii_case("content-disposition"));
    let mut part = Part::default();
    for (name, value) in last.into_iter().flat_map(|line| parameters(line.value).1) {
        let wanted = match name.to_ascii_lowercase().as_slice() {
            b"name" => &mut part.name,
            b"filename" => &mut part.file_name,
            _ => continue,
        };
        if wanted.is_none() {
            *wanted = value;
        }
    }
    Ok(part)
}

#[cfg(test)]
mod tests;
