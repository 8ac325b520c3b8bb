//! OTLP export: a span per request, and the metrics once a minute.

mod metrics;

use std::sync::Arc;
use std::time::Duration;

use agent_sandbox_protocol::router_headers::SandboxRequest;
use agent_sandbox_telemetry::messages::{KeyValue, SERVER_SPAN, STATUS_ERROR, Span, Status};
use agent_sandbox_telemetry::{Collector, ExportSettings, METRICS_METHOD, Service, Spans, unix_nanos};
use tokio_util::sync::CancellationToken;

use crate::observability::metrics::{MethodLabel, Metrics};
use crate::observability::trace::TraceContext;

pub use agent_sandbox_telemetry::EndpointError as OtlpError;

/// Maximum number of spans that wait for the exporter; more are dropped.
const QUEUE: usize = 4096;
const METRICS_INTERVAL: Duration = Duration::from_secs(60);

/// The exporting service.
fn service() -> Service {
    Service {
        name: "sandbox-router".to_owned(),
        scope: env!("CARGO_PKG_NAME"),
        version: env!("CARGO_PKG_VERSION"),
        attributes: Vec::new(),
    }
}

/// Exports spans of finished requests.
pub(crate) struct Traces(Spans);

impl Traces {
    pub(crate) fn new(endpoint: &str) -> Result<Self, OtlpError> {
        Spans::new(ExportSettings { queue: QUEUE, ..ExportSettings::new(endpoint, service()) }).map(Self)
    }

    /// Records the end of a request.
    pub(crate) fn finish(
        &self,
        context: &TraceContext,
        method: MethodLabel,
        path: &str,
        status: u16,
        duration: Duration,
        sandbox: Option<&SandboxRequest>,
    ) {
        let (true, Some(trace_id), Some(span_id)) = (context.sampled, context.trace_id, context.span) else { return };
        let end = unix_nanos();
        let mut attributes = vec![
            KeyValue::text("http.method", method.as_str()),
            KeyValue::text("http.target", path),
            KeyValue::number("http.status_code", i64::from(status)),
        ];
        if let Some(sandbox) = sandbox {
            attributes.push(KeyValue::text("sandbox.id", sandbox.id.as_str()));
            attributes.push(KeyValue::text("sandbox.namespace", sandbox.namespace.as_str()));
        }
        self.0.submit(Span {
            trace_id: trace_id.to_vec(),
            span_id: span_id.to_vec(),
            parent_span_id: context.parent.map_or_else(Vec::new, |parent| parent.to_vec()),
            name: format!("HTTP {}", method.as_str()),
            kind: SERVER_SPAN,
            start_time_unix_nano: end.saturating_sub(duration.as_nanos() as u64),
            end_time_unix_nano: end,
            attributes,
            status: (status >= 500).then(|| Status { code: STATUS_ERROR, ..Status::default() }),
            ..Span::default()
        });
    }

    /// Starts exporting until `end`; queued spans are still sent then. Call it once.
    pub(crate) fn start(&self, end: CancellationToken) {
        self.0.start(end);
    }
}

/// Exports the metrics once a minute until `end`, and a last time then.
pub(crate) fn start_metrics(
    endpoint: &str,
    metrics: Arc<impl AsRef<Metrics> + Send + Sync + 'static>,
    end: CancellationToken,
) -> Result<(), OtlpError> {
    let collector = Collector::new(endpoint)?;
    let started = unix_nanos();
    tokio::spawn(async move {
        let mut last = false;
        while !last {
            last = tokio::time::timeout(METRICS_INTERVAL, end.cancelled()).await.is_ok();
            let request = metrics::request(&(*metrics).as_ref().render(), started, unix_nanos());
            collector.send(METRICS_METHOD, request).await;
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests;
