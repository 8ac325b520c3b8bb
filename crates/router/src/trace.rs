//! W3C trace context: read from the client, passed on to the sandbox, extended by a span of ours when tracing is on.

use std::fmt;

use http::header::{HeaderMap, HeaderName, HeaderValue};

pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The trace a request belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TraceContext {
    pub(crate) trace_id: Option<[u8; 16]>,
    /// The caller's span.
    pub(crate) parent: Option<[u8; 8]>,
    /// Our span; `None` when tracing is off and the caller's span is passed on.
    pub(crate) span: Option<[u8; 8]>,
    pub(crate) sampled: bool,
}

impl TraceContext {
    /// Reads the caller's context; with `tracing`, starts a span (in a new trace if there was none).
    pub(crate) fn begin(headers: &HeaderMap, tracing: bool) -> Self {
        let mut context = headers
            .get(TRACEPARENT)
            .and_then(|value| parse(value.as_bytes()))
            .unwrap_or_else(|| Self { sampled: tracing, ..Self::default() });
        if tracing {
            context.trace_id.get_or_insert_with(rand::random);
            context.span = Some(rand::random());
        }
        context
    }

    /// The header the sandbox should see, when it differs from the caller's.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        let (trace_id, span) = (self.trace_id?, self.span?);
        let flags = u8::from(self.sampled);
        HeaderValue::from_str(&format!("00-{}-{}-{flags:02x}", Hex(&trace_id), Hex(&span))).ok()
    }
}

/// Bytes as lower-case hexadecimal digits.
pub(crate) struct Hex<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// `version-traceid-parentid-flags`; anything malformed is no context.
fn parse(value: &[u8]) -> Option<TraceContext> {
    let text = std::str::from_utf8(value).ok()?;
    let mut parts = text.split('-');
    let version = hex::<1>(parts.next()?)?;
    let trace_id = hex::<16>(parts.next()?)?;
    let parent = hex::<8>(parts.next()?)?;
    let [flags] = hex::<1>(parts.next()?)?;
    let known_version = version != [0xff] && (version != [0] || parts.next().is_none());
    let valid = known_version && trace_id != [0; 16] && parent != [0; 8];
    valid.then_some(TraceContext {
        trace_id: Some(trace_id),
        parent: Some(parent),
        span: None,
        sampled: flags & 1 == 1,
    })
}

fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N || digits.iter().any(u8::is_ascii_uppercase) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = (high << 4 | low) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(TRACEPARENT, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn without_tracing_the_callers_header_is_left_alone() {
        let context = TraceContext::begin(&headers(CALLER), false);
        assert_eq!(Hex(&context.trace_id.unwrap()).to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(context.header(), None);
        assert_eq!(TraceContext::begin(&HeaderMap::new(), false), TraceContext::default());
    }

    #[test]
    fn with_tracing_our_span_joins_the_callers_trace() {
        let context = TraceContext::begin(&headers(CALLER), true);
        let sent = context.header().unwrap();
        let sent = sent.to_str().unwrap();
        assert!(sent.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && sent.ends_with("-01"), "{sent}");
        assert_ne!(sent, CALLER);
        assert!(TraceContext::begin(&HeaderMap::new(), true).header().is_some());
    }

    #[test]
    fn malformed_contexts_are_ignored() {
        for bad in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-extra",
        ] {
            assert_eq!(TraceContext::begin(&headers(bad), false).trace_id, None, "{bad}");
        }
    }
}
