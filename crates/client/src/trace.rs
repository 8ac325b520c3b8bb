//! W3C trace context: the two headers that link a request to the caller's trace.

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::json;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// A trace context: `traceparent` and `tracestate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    parent: HeaderValue,
    state: Option<HeaderValue>,
}

impl TraceContext {
    /// `None` unless `traceparent` has the W3C format. A `tracestate` that is not a valid header value is ignored.
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        is_traceparent(traceparent).then_some(())?;
        let state = tracestate.filter(|state| !state.is_empty()).and_then(|state| HeaderValue::from_str(state).ok());
        Some(Self { parent: HeaderValue::from_str(traceparent).ok()?, state })
    }

    /// A new trace, sampled.
    pub fn new_root() -> Self {
        let trace: u128 = rand::random::<u128>().max(1);
        let span: u64 = rand::random::<u64>().max(1);
        let parent = format!("00-{trace:032x}-{span:016x}-01");
        Self { parent: HeaderValue::try_from(parent).expect("hexadecimal digits and dashes"), state: None }
    }

    pub fn traceparent(&self) -> &str {
        self.parent.to_str().expect("checked on construction")
    }

    /// The value of the claim's annotation `opentelemetry.io/trace-context`.
    pub fn to_json(&self) -> String {
        let mut carrier = json!({"traceparent": self.traceparent()});
        if let Some(state) = self.state.as_ref().and_then(|state| state.to_str().ok()) {
            carrier["tracestate"] = json!(state);
        }
        carrier.to_string()
    }

    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        headers.insert(TRACEPARENT, self.parent.clone());
        if let Some(state) = &self.state {
            headers.insert(TRACESTATE, state.clone());
        }
    }
}

fn is_traceparent(text: &str) -> bool {
    let hex = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    let parts: Vec<&str> = text.split('-').collect();
    let [version, trace, span, flags] = parts.as_slice() else { return false };
    hex(version, 2) && *version != "ff" && hex(trace, 32) && hex(span, 16) && hex(flags, 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_w3c_form_is_a_trace_context() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = TraceContext::parse(good, Some("vendor=1")).unwrap();
        assert_eq!(context.to_json(), format!(r#"{{"traceparent":"{good}","tracestate":"vendor=1"}}"#));
        for bad in ["", "00-1-2-01", &good.to_uppercase(), &good.replace("00-0a", "ff-0a"), &format!("{good}-1")] {
            assert_eq!(TraceContext::parse(bad, None), None, "{bad}");
        }
        assert!(is_traceparent(TraceContext::new_root().traceparent()));
    }
}
