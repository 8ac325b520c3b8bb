//! Forms of several parts (`multipart/form-data`, RFC 7578) as they arrive. A part's content is handed on in the very buffers that it was
//! read into: an upload is not copied on its way.

mod disposition;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use disposition::parameters;
use http::{HeaderMap, Request, header};
use http_body_util::BodyExt as _;
use memchr::memmem::Finder;

/// Lines in front of a part's content, and their size together.
const MAX_HEADERS: usize = 32;
const MAX_HEAD: usize = 64 * 1024;

/// A form that is being read, part by part.
pub struct Form {
    body: Body,
    /// What was read and not handed on.
    held: Bytes,
    /// A line's end and what stands between two parts.
    delimiter: Finder<'static>,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In front of the first part.
    Before,
    /// In a part's content.
    Inside,
    /// Behind a delimiter.
    Between,
    After,
}

/// What a part's head says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Part {
    pub name: Option<String>,
    pub file_name: Option<String>,
}

/// Why a form could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FormError {
    #[error("the form broke off")]
    Incomplete,
    #[error("the head of a part is larger than {MAX_HEAD} bytes")]
    LargeHead,
    #[error("the head of a part is malformed: {0}")]
    Head(#[from] httparse::Error),
    #[error("the body broke off: {0}")]
    Body(axum::Error),
}

impl Form {
    /// The form in a request; none when the request does not say that it holds one.
    pub fn of(request: Request<Body>) -> Option<Self> {
        let boundary = boundary(request.headers())?;
        let delimiter = Finder::new(format!("\r\n--{boundary}").as_bytes()).into_owned();
        Some(Self { body: request.into_body(), held: Bytes::new(), delimiter, place: Place::Before })
    }

    /// The next part; what is left of the one before is thrown away. None behind the last one.
    pub async fn next(&mut self) -> Result<Option<Part>, FormError> {
        if self.place == Place::Before {
            // The first delimiter may be the very beginning, where no line ends.
            self.held = Bytes::from_static(b"\r\n");
            self.place = Place::Inside;
        }
        while self.chunk().await?.is_some() {}
        if self.place == Place::After || self.is_last().await? {
            self.place = Place::After;
            return Ok(None);
        }
        self.end_line().await?;
        let head = self.head().await?;
        self.place = Place::Inside;
        Ok(Some(part(&head)?))
    }

    /// More of the part's content; none at its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, FormError> {
        while self.place == Place::Inside {
            if let Some(at) = self.delimiter.find(&self.held) {
                let content = self.held.split_to(at);
                let _ = self.held.split_to(self.delimiter.needle().len());
                self.place = Place::Between;
                return Ok(Some(content).filter(|content| !content.is_empty()));
            }
            let sure = self.held.len() - begun(&self.held, self.delimiter.needle());
            if sure > 0 {
                return Ok(Some(self.held.split_to(sure)));
            }
            self.read().await?;
        }
        Ok(None)
    }

    /// Whether the delimiter before was the last.
    async fn is_last(&mut self) -> Result<bool, FormError> {
        self.hold(2).await?;
        Ok(self.held.starts_with(b"--"))
    }

    /// The rest of a delimiter's line, which is blank.
    async fn end_line(&mut self) -> Result<(), FormError> {
        loop {
            self.hold(1).await?;
            match self.held[0] {
                b' ' | b'\t' => drop(self.held.split_to(1)),
                _ => break,
            }
        }
        self.hold(2).await?;
        if self.held.split_to(2) != b"\r\n"[..] {
            return Err(FormError::Incomplete);
        }
        Ok(())
    }

    /// The lines in front of a part's content, the blank one included.
    async fn head(&mut self) -> Result<Bytes, FormError> {
        const END: &[u8] = b"\r\n\r\n";
        loop {
            if let Some(at) = memchr::memmem::find(&self.held, END) {
                return Ok(self.held.split_to(at + END.len()));
            }
            if self.held.len() > MAX_HEAD {
                return Err(FormError::LargeHead);
            }
            self.read().await?;
        }
    }

    async fn hold(&mut self, count: usize) -> Result<(), FormError> {
        while self.held.len() < count {
            self.read().await?;
        }
        Ok(())
    }

    /// Reads on. Only what is held still is copied together with what comes: a line or the beginning of a delimiter.
    async fn read(&mut self) -> Result<(), FormError> {
        let frame = self.body.frame().await.ok_or(FormError::Incomplete)?.map_err(FormError::Body)?;
        let Ok(bytes) = frame.into_data() else { return Ok(()) };
        if self.held.is_empty() {
            self.held = bytes;
        } else {
            let mut joined = BytesMut::with_capacity(self.held.len() + bytes.len());
            joined.extend_from_slice(&self.held);
            joined.extend_from_slice(&bytes);
            self.held = joined.freeze();
        }
        Ok(())
    }
}

/// How many of the last bytes may be the beginning of `whole`.
fn begun(bytes: &[u8], whole: &[u8]) -> usize {
    let longest = bytes.len().min(whole.len() - 1);
    let tail = &bytes[bytes.len() - longest..];
    memchr::memchr_iter(whole[0], tail).map(|at| &tail[at..]).find(|end| whole.starts_with(end)).map_or(0, <[u8]>::len)
}

/// What stands between the parts.
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
