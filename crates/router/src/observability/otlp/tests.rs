//! The requests that a collector receives.

use agent_sandbox_telemetry::messages::{AnyValue, ExportMetricsRequest, ExportTraceRequest, Value};
use agent_sandbox_telemetry::receiver::collect;
use http::HeaderMap;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn spans_reach_the_collector() {
    let (endpoint, mut received) = collect::<ExportTraceRequest>().await.unwrap();
    let (traces, end) = (Traces::new(&endpoint).unwrap(), CancellationToken::new());
    let caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = HeaderMap::from_iter([(crate::observability::trace::TRACEPARENT, caller.parse().unwrap())]);
    let context = TraceContext::begin(&headers, true);
    traces.finish(&context, MethodLabel::Post, "/execute", 502, Duration::from_millis(5), None);
    let unsampled = TraceContext { sampled: false, ..context };
    traces.finish(&unsampled, MethodLabel::Get, "/", 200, Duration::ZERO, None);
    traces.start(end.clone());
    end.cancel();
    let request =
        tokio::time::timeout(TIMEOUT, received.recv()).await.expect("queued spans are sent at the end").unwrap();
    let spans = &request.resource_spans[0].scope_spans[0].spans;
    assert_eq!(spans.len(), 1, "callers decide what is sampled");
    let span = &spans[0];
    assert_eq!((span.name.as_str(), span.kind), ("HTTP POST", SERVER_SPAN));
    assert_eq!(span.trace_id, context.trace_id.unwrap());
    assert_eq!(span.parent_span_id, context.parent.unwrap());
    assert_eq!(span.span_id, context.span.unwrap());
    assert_eq!(span.end_time_unix_nano - span.start_time_unix_nano, 5_000_000);
    let status = span.attributes.iter().find(|attribute| attribute.key == "http.status_code").unwrap();
    assert_eq!(status.value, Some(AnyValue { value: Some(Value::Number(502)) }));
    assert!(span.status.is_some());
}

struct Owned(Metrics);

impl AsRef<Metrics> for Owned {
    fn as_ref(&self) -> &Metrics {
        &self.0
    }
}

#[tokio::test]
async fn metrics_reach_the_collector() {
    let (endpoint, mut received) = collect::<ExportMetricsRequest>().await.unwrap();
    let end = CancellationToken::new();
    start_metrics(&endpoint, Arc::new(Owned(Metrics::default())), end.clone()).unwrap();
    end.cancel();
    let request = tokio::time::timeout(TIMEOUT, received.recv()).await.expect("one last export is sent").unwrap();
    let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
    assert!(metrics.iter().any(|metric| metric.name == "sandbox_router_build_info"));
}
