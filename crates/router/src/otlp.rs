//! Exports spans and metrics over OTLP/gRPC. The few messages needed are written out by hand: the OpenTelemetry SDK
//! would bring a second HTTP client and a dozen crates for what is one unary call.

mod messages;
mod metrics;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agent_sandbox_protocol::router_headers::SandboxRequest;
use http::uri::PathAndQuery;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use crate::metrics::{MethodLabel, Metrics};
use crate::trace::TraceContext;
use messages::{ExportTraceRequest, KeyValue, Resource, ResourceSpans, Scope, ScopeSpans, Span, Status};

/// Spans that may wait for the exporter; more are dropped, never waited for.
const QUEUE: usize = 4096;
const BATCH: usize = 512;
/// A span waits at most so long for company.
const GATHER: Duration = Duration::from_secs(5);
const METRICS_INTERVAL: Duration = Duration::from_secs(60);
const CALL_DEADLINE: Duration = Duration::from_secs(10);
const TRACE_METHOD: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
const METRICS_METHOD: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";
const SERVER_SPAN: i32 = 2;
const STATUS_ERROR: i32 = 2;

/// Why nothing can be exported.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    #[error("OTLP endpoint '{endpoint}' cannot be used; write it like http://collector:4317")]
    Endpoint { endpoint: String },
}

/// Takes finished spans.
pub(crate) struct Traces {
    queue: mpsc::Sender<Span>,
    receiver: parking_lot::Mutex<Option<mpsc::Receiver<Span>>>,
    channel: Channel,
}

impl Traces {
    pub(crate) fn new(endpoint: &str) -> Result<Self, OtlpError> {
        let (queue, receiver) = mpsc::channel(QUEUE);
        Ok(Self { queue, receiver: parking_lot::Mutex::new(Some(receiver)), channel: connect(endpoint)? })
    }

    /// Records the end of a request.
    pub(crate) fn finish(
        &self,
        context: &TraceContext,
        method: MethodLabel,
        path: &str,
        status: u16,
        duration: Duration,
        target: Option<&SandboxRequest>,
    ) {
        let (true, Some(trace_id), Some(span_id)) = (context.sampled, context.trace_id, context.span) else { return };
        let end = unix_nanos();
        let mut attributes = vec![
            KeyValue::text("http.method", method.as_str()),
            KeyValue::text("http.target", path),
            KeyValue::number("http.status_code", i64::from(status)),
        ];
        if let Some(target) = target {
            attributes.push(KeyValue::text("sandbox.id", target.id.as_str()));
            attributes.push(KeyValue::text("sandbox.namespace", target.namespace.as_str()));
        }
        let span = Span {
            trace_id: trace_id.to_vec(),
            span_id: span_id.to_vec(),
            parent_span_id: context.parent.map_or_else(Vec::new, |parent| parent.to_vec()),
            name: format!("HTTP {}", method.as_str()),
            kind: SERVER_SPAN,
            start_time_unix_nano: end.saturating_sub(duration.as_nanos() as u64),
            end_time_unix_nano: end,
            attributes,
            status: (status >= 500).then_some(Status { code: STATUS_ERROR }),
        };
        // A full queue means the collector is slow; requests do not wait for it.
        let _ = self.queue.try_send(span);
    }

    /// Starts exporting, once, until `end`; what is queued then is still sent.
    pub(crate) fn start(&self, end: CancellationToken) {
        let Some(mut receiver) = self.receiver.lock().take() else { return };
        let channel = self.channel.clone();
        tokio::spawn(async move {
            let mut batch = Vec::new();
            loop {
                tokio::select! {
                    () = end.cancelled() => receiver.close(),
                    count = receiver.recv_many(&mut batch, BATCH) => if count == 0 { return },
                }
                if batch.len() < BATCH && !end.is_cancelled() {
                    let _ = tokio::time::timeout(GATHER, gather(&mut receiver, &mut batch)).await;
                }
                let spans = std::mem::take(&mut batch);
                if !spans.is_empty() {
                    send(&channel, TRACE_METHOD, trace_request(spans)).await;
                }
            }
        });
    }
}

async fn gather(receiver: &mut mpsc::Receiver<Span>, batch: &mut Vec<Span>) {
    while batch.len() < BATCH && receiver.recv_many(batch, BATCH - batch.len()).await > 0 {}
}

/// Exports the metrics once a minute until `end`, and once more then.
pub(crate) fn start_metrics(
    endpoint: &str,
    metrics: Arc<impl AsRef<Metrics> + Send + Sync + 'static>,
    end: CancellationToken,
) -> Result<(), OtlpError> {
    let channel = connect(endpoint)?;
    let started = unix_nanos();
    tokio::spawn(async move {
        let mut last = false;
        while !last {
            last = tokio::time::timeout(METRICS_INTERVAL, end.cancelled()).await.is_ok();
            let request = metrics::request(&(*metrics).as_ref().render(), started, unix_nanos());
            send(&channel, METRICS_METHOD, request).await;
        }
    });
    Ok(())
}

fn connect(endpoint: &str) -> Result<Channel, OtlpError> {
    let wrong = || OtlpError::Endpoint { endpoint: endpoint.to_owned() };
    if !endpoint.starts_with("http://") {
        return Err(wrong());
    }
    Ok(Endpoint::from_shared(endpoint.to_owned()).map_err(|_| wrong())?.connect_lazy())
}

async fn send<M: prost::Message + 'static>(channel: &Channel, method: &'static str, message: M) {
    let mut client = Grpc::new(channel.clone());
    let call = async {
        client.ready().await.map_err(|error| error.to_string())?;
        let codec = ProstCodec::<M, messages::Ignored>::default();
        let path = PathAndQuery::from_static(method);
        client.unary(tonic::Request::new(message), path, codec).await.map_err(|status| status.to_string())
    };
    match tokio::time::timeout(CALL_DEADLINE, call).await {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => tracing::debug!(error, "OTLP export failed"),
        Err(_) => tracing::debug!("OTLP export timed out"),
    }
}

fn trace_request(spans: Vec<Span>) -> ExportTraceRequest {
    ExportTraceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(Resource::router()),
            scope_spans: vec![ScopeSpans { scope: Some(Scope::router()), spans }],
        }],
    }
}

fn unix_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_nanos() as u64)
}

#[cfg(test)]
mod tests;
