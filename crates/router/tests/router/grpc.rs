//! A real gRPC service behind the router: unary, server streaming, bidirectional, and its errors.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::{Stream, StreamExt};
use http::{Request, Response};
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::client::Grpc as Client;
use tonic::server::{Grpc as Server, NamedService, StreamingService, UnaryService};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::sleeping::{Api, asleep_before, by_idleness, when_asked};
use crate::support::*;

#[derive(Clone, PartialEq, prost::Message)]
struct Text {
    #[prost(string, tag = "1")]
    text: String,
}

/// `/echo.Echo/Unary` and `/echo.Echo/Chat`.
#[derive(Clone)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "echo.Echo";
}

type Answer<T> = Pin<Box<dyn Future<Output = Result<tonic::Response<T>, Status>> + Send>>;
type Texts = Pin<Box<dyn Stream<Item = Result<Text, Status>> + Send>>;

impl UnaryService<Text> for Echo {
    type Response = Text;
    type Future = Answer<Text>;

    fn call(&mut self, request: tonic::Request<Text>) -> Self::Future {
        Box::pin(async move {
            let fail = request.metadata().get("fail").is_some();
            if fail {
                Err(Status::failed_precondition("as you wish"))
            } else {
                Ok(tonic::Response::new(request.into_inner()))
            }
        })
    }
}

impl StreamingService<Text> for Echo {
    type Response = Text;
    type ResponseStream = Texts;
    type Future = Answer<Texts>;

    fn call(&mut self, request: tonic::Request<Streaming<Text>>) -> Self::Future {
        Box::pin(async move { Ok(tonic::Response::new(request.into_inner().boxed() as Texts)) })
    }
}

impl tower::Service<Request<Body>> for Echo {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(async move {
            let mut server = Server::new(ProstCodec::<Text, Text>::default());
            Ok(match request.uri().path() {
                "/echo.Echo/Unary" => server.unary(Echo, request).await,
                _ => server.streaming(Echo, request).await,
            })
        })
    }
}

async fn service() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let incoming = futures::stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    });
    tokio::spawn(tonic::transport::Server::builder().add_service(Echo).serve_with_incoming(incoming));
    addr
}

#[allow(clippy::result_large_err, reason = "the signature is tonic's")]
fn to_box(mut request: tonic::Request<()>) -> Result<tonic::Request<()>, Status> {
    request.metadata_mut().insert("x-sandbox-id", "box".parse().unwrap());
    Ok(request)
}

type ViaRouter = Client<InterceptedService<Channel, fn(tonic::Request<()>) -> Result<tonic::Request<()>, Status>>>;

async fn client(router: &TestRouter) -> ViaRouter {
    let channel = Endpoint::from_shared(format!("http://{}", router.addr)).unwrap().connect().await.unwrap();
    let mut client: ViaRouter = Client::new(InterceptedService::new(channel, to_box));
    client.ready().await.unwrap();
    client
}

fn codec() -> ProstCodec<Text, Text> {
    ProstCodec::default()
}

#[tokio::test]
async fn unary_calls_and_their_errors_pass() {
    let router = TestRouter::before(service().await).await;
    let mut client = client(&router).await;
    for size in [0, 5, 100_000] {
        let message = Text { text: "x".repeat(size) };
        let path = http::uri::PathAndQuery::from_static("/echo.Echo/Unary");
        let reply = client.unary(tonic::Request::new(message.clone()), path, codec()).await.unwrap();
        assert_eq!(reply.into_inner(), message);
        client.ready().await.unwrap();
    }
    let mut failing = tonic::Request::new(Text { text: String::new() });
    failing.metadata_mut().insert("fail", "1".parse().unwrap());
    let path = http::uri::PathAndQuery::from_static("/echo.Echo/Unary");
    let status: Status = client.unary(failing, path, codec()).await.map(|_: tonic::Response<Text>| ()).unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "as you wish"));
    assert_eq!(router.dialled().len(), 1, "calls share one connection to the sandbox");
}

#[tokio::test]
async fn a_call_wakes_a_sandbox() {
    let api = Api::with("Suspended", by_idleness());
    let router = asleep_before(quiet(), &api, service().await).await;
    let mut client = client(&router).await;
    let message = Text { text: "awake".to_owned() };
    let path = http::uri::PathAndQuery::from_static("/echo.Echo/Unary");
    let call = client.unary(tonic::Request::new(message.clone()), path, codec());
    let (reply, ()) = futures::future::join(call, when_asked(&api, &router)).await;
    assert_eq!(reply.unwrap().into_inner(), message);
}

#[tokio::test]
async fn bidirectional_streams_are_not_buffered() {
    let router = TestRouter::before(service().await).await;
    let mut client = client(&router).await;
    let (sender, receiver) = tokio::sync::mpsc::channel::<Text>(1);
    let outgoing =
        futures::stream::unfold(
            receiver,
            |mut receiver| async move { receiver.recv().await.map(|text| (text, receiver)) },
        );
    let path = http::uri::PathAndQuery::from_static("/echo.Echo/Chat");
    let call = client.streaming(tonic::Request::new(outgoing), path, codec());
    let first = async { sender.send(Text { text: "0".into() }).await.unwrap() };
    let (reply, ()) = tokio::time::timeout(TIMEOUT, futures::future::join(call, first)).await.unwrap();
    let mut incoming: Streaming<Text> = reply.unwrap().into_inner();
    for number in 1..50 {
        // Each response must arrive before the next request is sent.
        let echoed = tokio::time::timeout(TIMEOUT, incoming.message()).await.unwrap().unwrap().unwrap();
        assert_eq!(echoed.text, (number - 1).to_string());
        sender.send(Text { text: number.to_string() }).await.unwrap();
    }
    drop(sender);
    let rest: Vec<_> = tokio::time::timeout(TIMEOUT, incoming.collect()).await.unwrap();
    assert!(rest.iter().all(Result::is_ok), "{rest:?}");
}
