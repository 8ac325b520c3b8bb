//! Sends spans to a collector in batches, from a background task.

mod tls;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::uri::PathAndQuery;
use parking_lot::Mutex;
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use tonic::{
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use crate::{
    environment::{ExportSettings, Service},
    messages::{ExportTraceRequest, Ignored, KeyValue, Resource, ResourceSpans, Scope, ScopeSpans, Span},
};

pub const TRACE_METHOD: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
pub const METRICS_METHOD: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";
/// Timeout for one export request.
const CALL_DEADLINE: Duration = Duration::from_secs(10);

/// The endpoint cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("OTLP endpoint '{endpoint}' cannot be used; write it like http://collector:4317 or https://collector:4317")]
pub struct EndpointError {
    pub endpoint: String,
}

impl Service {
    pub fn resource(&self) -> Resource {
        let name = KeyValue::text("service.name", &self.name);
        let more = self.attributes.iter().map(|(key, value)| KeyValue::text(key, value));
        Resource { attributes: std::iter::once(name).chain(more).collect() }
    }

    pub fn scope(&self) -> Scope {
        Scope { name: self.scope.to_owned(), version: self.version.to_owned() }
    }
}

/// A connection to a collector, opened by the first request.
#[derive(Clone, Debug)]
pub struct Collector(Channel);

impl Collector {
    /// Must be called inside a Tokio runtime, which opens the connection later.
    pub fn new(endpoint: &str) -> Result<Self, EndpointError> {
        let parsed = parse(endpoint)?;
        if !is_tls(&parsed) {
            return Ok(Self(parsed.connect_lazy()));
        }
        let tls = tls::with_system_roots().map_err(|error| {
            tracing::warn!(%error, "No certificate authority was found; set SSL_CERT_FILE");
            EndpointError { endpoint: endpoint.to_owned() }
        })?;
        Ok(Self(parsed.connect_with_connector_lazy(tls)))
    }

    /// Validates an endpoint without connecting.
    pub fn check(endpoint: &str) -> Result<(), EndpointError> {
        parse(endpoint).map(|_| ())
    }

    /// Sends one request. When the collector cannot be reached, the message is dropped; it is not retried.
    pub async fn send<M: prost::Message + 'static>(&self, method: &'static str, message: M) {
        let mut client = Grpc::new(self.0.clone());
        let call = async {
            client.ready().await.map_err(|error| error.to_string())?;
            let codec = ProstCodec::<M, Ignored>::default();
            let path = PathAndQuery::from_static(method);
            client.unary(tonic::Request::new(message), path, codec).await.map_err(|status| status.to_string())
        };
        match tokio::time::timeout(CALL_DEADLINE, call).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(error, "OTLP export failed"),
            Err(_) => tracing::debug!("OTLP export timed out"),
        }
    }
}

fn parse(endpoint: &str) -> Result<Endpoint, EndpointError> {
    let invalid = || EndpointError { endpoint: endpoint.to_owned() };
    if !["http://", "https://"].iter().any(|scheme| endpoint.starts_with(scheme)) {
        return Err(invalid());
    }
    Endpoint::from_shared(endpoint.to_owned()).map_err(|_| invalid())
}

fn is_tls(endpoint: &Endpoint) -> bool {
    endpoint.uri().scheme_str() == Some("https")
}

/// Queues finished spans and exports them.
#[derive(Debug)]
pub struct Spans {
    queue: mpsc::Sender<Span>,
    receiver: Mutex<Option<mpsc::Receiver<Span>>>,
    collector: Collector,
    settings: ExportSettings,
}

impl Spans {
    pub fn new(settings: ExportSettings) -> Result<Self, EndpointError> {
        let (queue, receiver) = mpsc::channel(settings.queue);
        let collector = Collector::new(&settings.endpoint)?;
        Ok(Self { queue, receiver: Mutex::new(Some(receiver)), collector, settings })
    }

    pub fn settings(&self) -> &ExportSettings {
        &self.settings
    }

    /// Queues a finished span. It never blocks: when the queue is full because the collector is slow, the span is
    /// dropped.
    pub fn submit(&self, span: Span) {
        let _ = self.queue.try_send(span);
    }

    /// Starts the exporter, which runs until `end` and then still sends the queued spans. Returns `None` when it was
    /// already started.
    pub fn start(&self, end: CancellationToken) -> Option<JoinHandle<()>> {
        let mut receiver = self.receiver.lock().take()?;
        let (collector, settings) = (self.collector.clone(), self.settings.clone());
        Some(tokio::spawn(async move {
            let mut batch = Vec::new();
            loop {
                tokio::select! {
                    () = end.cancelled(), if !receiver.is_closed() => receiver.close(),
                    count = receiver.recv_many(&mut batch, settings.batch) => if count == 0 { return },
                }
                if batch.len() < settings.batch && !end.is_cancelled() {
                    tokio::select! {
                        () = end.cancelled() => {}
                        _ = tokio::time::timeout(
                            settings.delay,
                            fill_batch(&mut receiver, &mut batch, settings.batch),
                        ) => {}
                    }
                }
                let spans = std::mem::take(&mut batch);
                if !spans.is_empty() {
                    collector.send(TRACE_METHOD, request(&settings.service, spans)).await;
                }
            }
        }))
    }
}

async fn fill_batch(receiver: &mut mpsc::Receiver<Span>, batch: &mut Vec<Span>, size: usize) {
    while batch.len() < size && receiver.recv_many(batch, size - batch.len()).await > 0 {}
}

fn request(service: &Service, spans: Vec<Span>) -> ExportTraceRequest {
    let scope_spans = vec![ScopeSpans { scope: Some(service.scope()), spans }];
    ExportTraceRequest { resource_spans: vec![ResourceSpans { resource: Some(service.resource()), scope_spans }] }
}

/// The current time in nanoseconds since the Unix epoch, as in OTLP.
pub fn unix_nanos() -> u64 {
    let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
