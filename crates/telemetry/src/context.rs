//! The W3C `traceparent`: `version-traceid-parentid-flags`, all in lower-case hexadecimal digits.

use std::{fmt, str::FromStr};

/// The trace context of a span, as passed to its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceParent {
    pub trace_id: [u8; 16],
    pub span_id: [u8; 8],
    pub sampled: bool,
}

impl TraceParent {
    /// A new span in the trace of `parent`, or in a new trace.
    pub fn span_under(parent: Option<&TraceParent>, sampled: bool) -> Self {
        let trace_id = parent.map_or_else(random_id, |parent| parent.trace_id);
        Self { trace_id, span_id: random_id(), sampled }
    }
}

/// A random id that is not all zeroes, which would mean "no id".
fn random_id<const N: usize>() -> [u8; N] {
    let mut id = [0; N];
    while id == [0; N] {
        rand::Rng::fill_bytes(&mut rand::rng(), &mut id);
    }
    id
}

/// The text is not a valid `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a traceparent of the form 00-<32 hex digits>-<16 hex digits>-<2 hex digits>")]
pub struct Malformed;

impl FromStr for TraceParent {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        parse(text).ok_or(Malformed)
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{}-{:02x}", Hex(&self.trace_id), Hex(&self.span_id), u8::from(self.sampled))
    }
}

/// Bytes as lower-case hexadecimal digits.
pub struct Hex<'a>(pub &'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn parse(text: &str) -> Option<TraceParent> {
    let mut parts = text.split('-');
    let version = hex::<1>(parts.next()?)?;
    let trace_id = hex::<16>(parts.next()?)?;
    let span_id = hex::<8>(parts.next()?)?;
    let [flags] = hex::<1>(parts.next()?)?;
    let known_version = version != [0xff] && (version != [0] || parts.next().is_none());
    let valid = known_version && trace_id != [0; 16] && span_id != [0; 8];
    valid.then_some(TraceParent { trace_id, span_id, sampled: flags & 1 == 1 })
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
        *byte = u8::try_from(high << 4 | low).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_context_survives_reading_and_writing() {
        let context: TraceParent = CALLER.parse().unwrap();
        assert!(context.sampled);
        assert_eq!(context.to_string(), CALLER);
        let unsampled = CALLER.replace("-01", "-00");
        assert_eq!(unsampled.parse::<TraceParent>().unwrap().to_string(), unsampled);
        assert_eq!(CALLER.replace("00-0a", "cc-0a").parse::<TraceParent>().unwrap(), context, "a later version");
    }

    #[test]
    fn a_new_span_joins_its_parents_trace() {
        let parent: TraceParent = CALLER.parse().unwrap();
        let child = TraceParent::span_under(Some(&parent), true);
        assert_eq!(child.trace_id, parent.trace_id);
        assert_ne!(child.span_id, parent.span_id);
        let root = TraceParent::span_under(None, false);
        assert_ne!(root.trace_id, parent.trace_id);
        assert_eq!(root.to_string().parse(), Ok(root));
    }

    #[test]
    fn malformed_contexts_are_refused() {
        for bad in [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-zzzzzzzzzzzzzzzz-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-extra",
        ] {
            assert_eq!(bad.parse::<TraceParent>(), Err(Malformed), "{bad}");
        }
    }
}
