//! What a collector receives.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::HeaderMap;
use tonic::body::Body;
use tonic::server::{Grpc as Server, NamedService, UnaryService};
use tonic::{Request, Response, Status};

use super::messages::{AnyValue, ExportMetricsRequest, Value};
use super::*;

const PATIENCE: Duration = Duration::from_secs(20);

/// A collector of one kind of message.
struct Collector<M>(mpsc::UnboundedSender<M>);

impl<M> Clone for Collector<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl NamedService for Collector<ExportTraceRequest> {
    const NAME: &'static str = "opentelemetry.proto.collector.trace.v1.TraceService";
}

impl NamedService for Collector<ExportMetricsRequest> {
    const NAME: &'static str = "opentelemetry.proto.collector.metrics.v1.MetricsService";
}

type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl<M: prost::Message + 'static> UnaryService<M> for Collector<M> {
    type Response = messages::Ignored;
    type Future = Answer<Result<Response<messages::Ignored>, Status>>;

    fn call(&mut self, request: Request<M>) -> Self::Future {
        let sent = self.0.send(request.into_inner());
        Box::pin(async move { sent.map(|()| Response::new(messages::Ignored {})).map_err(|_| Status::cancelled("")) })
    }
}

impl<M: prost::Message + Default + 'static> tower::Service<http::Request<Body>> for Collector<M> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            let mut server = Server::new(ProstCodec::<messages::Ignored, M>::default());
            Ok(server.unary(service, request).await)
        })
    }
}

/// Starts a collector; returns its endpoint and what it receives.
async fn collect<M>() -> (String, mpsc::UnboundedReceiver<M>)
where
    M: prost::Message + Default + 'static,
    Collector<M>: NamedService,
{
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (sender, receiver) = mpsc::unbounded_channel();
    let incoming = futures::stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    });
    tokio::spawn(tonic::transport::Server::builder().add_service(Collector(sender)).serve_with_incoming(incoming));
    (endpoint, receiver)
}

#[tokio::test]
async fn spans_reach_the_collector() {
    let (endpoint, mut received) = collect::<ExportTraceRequest>().await;
    let (traces, end) = (Traces::new(&endpoint).unwrap(), CancellationToken::new());
    let caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = HeaderMap::from_iter([(crate::trace::TRACEPARENT, caller.parse().unwrap())]);
    let context = TraceContext::begin(&headers, true);
    traces.finish(&context, MethodLabel::Post, "/execute", 502, Duration::from_millis(5), None);
    let unsampled = TraceContext { sampled: false, ..context };
    traces.finish(&unsampled, MethodLabel::Get, "/", 200, Duration::ZERO, None);
    traces.start(end.clone());
    end.cancel();
    let request =
        tokio::time::timeout(PATIENCE, received.recv()).await.expect("queued spans are sent at the end").unwrap();
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
    let (endpoint, mut received) = collect::<ExportMetricsRequest>().await;
    let end = CancellationToken::new();
    start_metrics(&endpoint, Arc::new(Owned(Metrics::default())), end.clone()).unwrap();
    end.cancel();
    let request = tokio::time::timeout(PATIENCE, received.recv()).await.expect("one last export is sent").unwrap();
    let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
    assert!(metrics.iter().any(|metric| metric.name == "sandbox_router_build_info"));
}

#[tokio::test]
async fn endpoints_that_cannot_work_are_refused() {
    for bad in ["", "collector:4317", "https://collector:4317", "http://"] {
        assert!(Traces::new(bad).is_err(), "{bad}");
    }
}
