//! Responses with a file: validators, a single range, headers only for HEAD.

use std::fmt::Write as _;
use std::os::fd::OwnedFd;

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use rustix::fs::Stat;

use super::body::{Body, empty};
use super::file_body::FileBody;

/// The requested range of a file.
#[derive(Debug, PartialEq, Eq)]
enum ByteRange {
    Whole,
    Slice { start: u64, end: u64 },
    Unsatisfiable,
}

/// The response to GET or HEAD of an opened file. `name` adds a Content-Disposition header.
pub fn respond<B>(request: &Request<B>, file: OwnedFd, stat: &Stat, name: Option<&str>) -> Response<Body> {
    let size = u64::try_from(stat.st_size).unwrap_or_default();
    let etag = format!("\"{:x}-{:x}-{size:x}\"", stat.st_mtime, stat.st_mtime_nsec);
    let headers = request.headers();
    let if_range_matches = headers.get(header::IF_RANGE).is_none_or(|value| value.as_bytes() == etag.as_bytes());
    let unchanged = is_unchanged(headers, &etag, stat.st_mtime);
    let range = match headers.get(header::RANGE).filter(|_| if_range_matches) {
        Some(range) => parse_range(range.to_str().unwrap_or_default(), size),
        None => ByteRange::Whole,
    };
    let (status, start, length) = match range {
        _ if unchanged => (StatusCode::NOT_MODIFIED, 0, 0),
        ByteRange::Whole => (StatusCode::OK, 0, size),
        ByteRange::Slice { start, end } => (StatusCode::PARTIAL_CONTENT, start, end - start),
        ByteRange::Unsatisfiable => (StatusCode::RANGE_NOT_SATISFIABLE, 0, 0),
    };
    let has_body = request.method() != Method::HEAD && length > 0;
    let mut response =
        if has_body { Response::new(Body::new(FileBody::new(file, start, length))) } else { empty(status) };
    *response.status_mut() = status;
    let out = response.headers_mut();
    insert(out, header::ETAG, etag);
    insert(out, header::LAST_MODIFIED, http_date(stat.st_mtime));
    out.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if status == StatusCode::NOT_MODIFIED {
        return response;
    }
    out.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    insert(out, header::CONTENT_LENGTH, length.to_string());
    match status {
        StatusCode::PARTIAL_CONTENT => {
            insert(out, header::CONTENT_RANGE, format!("bytes {start}-{}/{size}", start + length - 1));
        }
        StatusCode::RANGE_NOT_SATISFIABLE => insert(out, header::CONTENT_RANGE, format!("bytes */{size}")),
        _ => {}
    }
    if let Some(name) = name {
        insert(out, header::CONTENT_DISPOSITION, disposition(name));
    }
    response
}

fn insert(headers: &mut HeaderMap, name: header::HeaderName, value: String) {
    if let Ok(value) = HeaderValue::try_from(value) {
        headers.insert(name, value);
    }
}

fn is_unchanged(headers: &HeaderMap, etag: &str, modified: i64) -> bool {
    if let Some(tags) = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok()) {
        return tags.split(',').any(|tag| matches!(tag.trim(), tag if tag == etag || tag == "*"));
    }
    let since = headers.get(header::IF_MODIFIED_SINCE).and_then(|value| value.to_str().ok());
    since.and_then(parse_http_date).is_some_and(|since| modified <= since)
}

/// Parses one range. Several ranges, other units and malformed values select the whole file, as HTTP allows.
fn parse_range(range: &str, size: u64) -> ByteRange {
    let Some(spec) = range.trim().strip_prefix("bytes=").filter(|spec| !spec.contains(',')) else {
        return ByteRange::Whole;
    };
    let Some((first, last)) = spec.trim().split_once('-') else { return ByteRange::Whole };
    match (first.trim().parse::<u64>(), last.trim().parse::<u64>()) {
        (Ok(start), _) if start >= size => ByteRange::Unsatisfiable,
        (Ok(start), Ok(last)) if last >= start => ByteRange::Slice { start, end: size.min(last.saturating_add(1)) },
        (Ok(start), Err(_)) if last.trim().is_empty() => ByteRange::Slice { start, end: size },
        (Err(_), Ok(0)) if first.trim().is_empty() => ByteRange::Unsatisfiable,
        (Err(_), Ok(_)) if first.trim().is_empty() && size == 0 => ByteRange::Unsatisfiable,
        (Err(_), Ok(suffix)) if first.trim().is_empty() => {
            ByteRange::Slice { start: size.saturating_sub(suffix), end: size }
        }
        _ => ByteRange::Whole,
    }
}

/// `attachment; filename="…"`, or the form of RFC 5987 if the name is not plain ASCII.
fn disposition(name: &str) -> String {
    if name.bytes().all(|byte| (b' '..0x7f).contains(&byte) && byte != b'"' && byte != b'\\') {
        return format!("attachment; filename=\"{name}\"");
    }
    let mut encoded = String::from("attachment; filename*=utf-8''");
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

const HTTP_DATE: &str = "%a, %d %b %Y %H:%M:%S GMT";

fn http_date(seconds: i64) -> String {
    let time = jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    jiff::fmt::strtime::format(HTTP_DATE, time).unwrap_or_default()
}

fn parse_http_date(text: &str) -> Option<i64> {
    let civil = jiff::civil::DateTime::strptime(HTTP_DATE, text).ok()?;
    Some(civil.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second())
}

/// Fuzz target: ranges, dates and names.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(request: &Request<crate::http_io::body::Body>) {
    let headers = request.headers();
    let _ = is_unchanged(headers, "\"etag\"", 0);
    for value in headers.values().filter_map(|value| value.to_str().ok()) {
        for size in [0, 1, 1000, u64::MAX] {
            if let ByteRange::Slice { start, end } = parse_range(value, size) {
                assert!(start < end && end <= size, "{value:?} of {size} bytes selects {start}..{end}");
            }
        }
        if let Some(date) = parse_http_date(value) {
            let _ = http_date(date);
        }
        assert!(HeaderValue::try_from(disposition(value)).is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// D-053
    #[test]
    fn one_range_is_understood() {
        for (header, range) in [
            ("bytes=0-0", ByteRange::Slice { start: 0, end: 1 }),
            ("bytes=2-", ByteRange::Slice { start: 2, end: 10 }),
            ("bytes=-3", ByteRange::Slice { start: 7, end: 10 }),
            ("bytes=-30", ByteRange::Slice { start: 0, end: 10 }),
            ("bytes=4-99", ByteRange::Slice { start: 4, end: 10 }),
            ("bytes=10-", ByteRange::Unsatisfiable),
            ("bytes=-0", ByteRange::Unsatisfiable),
            ("bytes=5-2", ByteRange::Whole),
            ("bytes=0-1,3-4", ByteRange::Whole),
            ("lines=1-2", ByteRange::Whole),
            ("bytes=x-y", ByteRange::Whole),
            ("bytes=18446744073709551615-", ByteRange::Unsatisfiable),
            ("bytes=0-18446744073709551615", ByteRange::Slice { start: 0, end: 10 }),
        ] {
            assert_eq!(parse_range(header, 10), range, "{header}");
        }
    }

    #[test]
    fn dates_round_trip() {
        assert_eq!(http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(parse_http_date("nonsense"), None);
    }

    #[test]
    fn names_that_are_not_ascii_use_the_extended_form() {
        assert_eq!(disposition("a/b.txt"), "attachment; filename=\"a/b.txt\"");
        assert_eq!(disposition("ü\n"), "attachment; filename*=utf-8''%C3%BC%0A");
    }
}
