//! A collector on loopback that keeps the messages it receives, for tests of exporters.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::sync::mpsc;
use tonic::{
    Request, Response, Status,
    body::Body,
    server::{Grpc as Server, NamedService, UnaryService},
};
use tonic_prost::ProstCodec;

use crate::messages::{ExportMetricsRequest, ExportTraceRequest, Ignored};

/// A collector of one kind of message.
pub struct Receiver<M>(mpsc::UnboundedSender<M>);

impl<M> Clone for Receiver<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl NamedService for Receiver<ExportTraceRequest> {
    const NAME: &'static str = "opentelemetry.proto.collector.trace.v1.TraceService";
}

impl NamedService for Receiver<ExportMetricsRequest> {
    const NAME: &'static str = "opentelemetry.proto.collector.metrics.v1.MetricsService";
}

type ResponseFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl<M: prost::Message + 'static> UnaryService<M> for Receiver<M> {
    type Response = Ignored;
    type Future = ResponseFuture<Result<Response<Ignored>, Status>>;

    fn call(&mut self, request: Request<M>) -> Self::Future {
        let sent = self.0.send(request.into_inner());
        Box::pin(async move { sent.map(|()| Response::new(Ignored {})).map_err(|_| Status::cancelled("")) })
    }
}

impl<M: prost::Message + Default + 'static> tower::Service<http::Request<Body>> for Receiver<M> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            let mut server = Server::new(ProstCodec::<Ignored, M>::default());
            Ok(server.unary(service, request).await)
        })
    }
}

/// Starts a collector; returns its endpoint and a channel with the messages it receives.
pub async fn collect<M>() -> std::io::Result<(String, mpsc::UnboundedReceiver<M>)>
where
    M: prost::Message + Default + 'static,
    Receiver<M>: NamedService,
{
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = format!("http://{}", listener.local_addr()?);
    let (sender, receiver) = mpsc::unbounded_channel();
    let incoming = futures::stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    });
    tokio::spawn(tonic::transport::Server::builder().add_service(Receiver(sender)).serve_with_incoming(incoming));
    Ok((endpoint, receiver))
}
