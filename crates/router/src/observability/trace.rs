//! W3C trace context: read from the client, passed on to the sandbox, extended by the router's span if tracing is on.

use agent_sandbox_telemetry::TraceParent;
use http::header::{HeaderMap, HeaderName, HeaderValue};

pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The trace a request belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TraceContext {
    pub(crate) trace_id: Option<[u8; 16]>,
    /// The caller's span.
    pub(crate) parent: Option<[u8; 8]>,
    /// The router's span; `None` if tracing is off and the caller's span is passed on.
    pub(crate) span: Option<[u8; 8]>,
    pub(crate) sampled: bool,
}

impl TraceContext {
    /// Reads the caller's context; with `tracing`, starts a span, in a new trace if there is none.
    pub(crate) fn begin(headers: &HeaderMap, tracing: bool) -> Self {
        let mut context = headers
            .get(TRACEPARENT)
            .and_then(|value| value.to_str().ok()?.parse::<TraceParent>().ok())
            .map_or_else(|| Self { sampled: tracing, ..Self::default() }, Self::under);
        if tracing {
            context.trace_id.get_or_insert_with(rand::random);
            context.span = Some(rand::random());
        }
        context
    }

    /// The header to send to the sandbox, if it differs from the caller's.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        let span = TraceParent { trace_id: self.trace_id?, span_id: self.span?, sampled: self.sampled };
        HeaderValue::from_str(&span.to_string()).ok()
    }

    fn under(caller: TraceParent) -> Self {
        Self { trace_id: Some(caller.trace_id), parent: Some(caller.span_id), span: None, sampled: caller.sampled }
    }
}

#[cfg(test)]
mod tests {
    use agent_sandbox_telemetry::Hex;

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
        for bad in ["", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", "\u{e9}"] {
            assert_eq!(TraceContext::begin(&headers(bad), false).trace_id, None, "{bad}");
        }
    }
}
