//! Plain HTTP: each request of a connection is decided for itself. A denied one gets a 403 with the reason, so that the
//! program in the sandbox can tell its user.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::net::TcpStream;

use super::pump::{Traffic, pump};
use super::{CONNECT_TIMEOUT, Diverted, FIRST_BYTES_TIMEOUT};
use crate::gateway::Gateway;
use crate::http as request;
use crate::log::{Outcome, Protocol, Record};
use crate::name::Name;

/// Timeout for the head of a response: programs poll for minutes.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(600);
/// Header of responses of the proxy itself.
const DENIED: &str = "x-agent-sandbox-egress";

type ProxyBody = BoxBody<Bytes, hyper::Error>;

/// Serves the requests of one connection.
pub(super) async fn serve(diverted: Diverted, client: TcpStream) {
    let service = {
        let diverted = diverted.clone();
        service_fn(move |request| {
            let diverted = diverted.clone();
            async move { Ok::<_, Infallible>(exchange(diverted, request).await) }
        })
    };
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(FIRST_BYTES_TIMEOUT)
        .max_buf_size(request::MAX_HEAD)
        .max_headers(request::MAX_HEADERS)
        .serve_connection(TokioIo::new(client), service)
        .with_upgrades()
        .await;
    if let Err(error) = served
        && error.is_parse()
    {
        let mut record = diverted.record(Protocol::Tcp);
        record.reason = format!("not an HTTP/1 request: {error}");
        diverted.gateway.write(&record);
    }
}

async fn exchange(diverted: Diverted, incoming: Request<Incoming>) -> Response<ProxyBody> {
    let mut record = diverted.record(Protocol::Http);
    record.method = incoming.method().as_str().chars().take(32).collect();
    record.path = request::logged_path(incoming.uri().path());
    let name = match request::host(&incoming, diverted.target.port()) {
        Ok(name) => name,
        Err(error) => {
            record.reason = error.to_string();
            return refuse(&diverted, StatusCode::FORBIDDEN, &record);
        }
    };
    if !diverted.decide(&name, &mut record).await {
        return refuse(&diverted, StatusCode::FORBIDDEN, &record);
    }
    let (gateway, record) = (Arc::clone(&diverted.gateway), Mutex::new(record));
    let written = Arc::new(Written { gateway, record, traffic: Traffic::default() });
    match forward(&diverted, incoming, &name, &written).await {
        Ok(response) => response,
        Err(reason) => answer(StatusCode::BAD_GATEWAY, &written.fail(reason)),
    }
}

/// Writes the record of a request once its response has ended.
struct Written {
    gateway: Arc<Gateway>,
    record: Mutex<Record>,
    traffic: Traffic,
}

impl Written {
    /// Notes a failure; returns the record.
    fn fail(&self, reason: String) -> Record {
        let mut record = self.record.lock();
        record.decision = Outcome::Fail;
        record.reason = reason;
        record.clone()
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let record = self.record.get_mut();
        (record.bytes_sent, record.bytes_received) = self.traffic.bytes();
        record.time = Timestamp::now();
        self.gateway.write(record);
    }
}

/// Sends the request over a connection of its own, and returns the response.
async fn forward(
    diverted: &Diverted,
    mut incoming: Request<Incoming>,
    name: &Name,
    written: &Arc<Written>,
) -> Result<Response<ProxyBody>, String> {
    let wants_upgrade = incoming.headers().contains_key(UPGRADE);
    let client_upgrade = wants_upgrade.then(|| hyper::upgrade::on(&mut incoming));
    let (mut head, body) = incoming.into_parts();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    head.uri = Uri::try_from(path).map_err(|error| error.to_string())?;
    head.version = http::Version::HTTP_11;
    remove_connection_headers(&mut head.headers, wants_upgrade);
    let host = HeaderValue::from_str(name.as_str()).map_err(|error| error.to_string())?;
    head.headers.insert(http::header::HOST, host);
    let body = Counted { body, written: Arc::clone(written), count: Traffic::add_sent, guard: None };
    let stream = diverted.connect().await.map_err(|error| format!("cannot connect to {}: {error}", diverted.target))?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let handshake = tokio::time::timeout(CONNECT_TIMEOUT, handshake).await.map_err(|late| late.to_string())?;
    let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
    let (alive, dropped) = tokio::sync::oneshot::channel::<Infallible>();
    let (watched, watched_name) = (diverted.clone(), name.clone());
    // Owned by the response's body, or by the upgraded connection: ends with it, and when the rules no longer allow it.
    tokio::spawn(async move {
        tokio::select! {
            _ = connection.with_upgrades() => {}
            () = watched.until_denied(&watched_name) => {}
            _ = dropped => {}
        }
    });
    let sent = tokio::time::timeout(RESPONSE_TIMEOUT, sender.send_request(Request::from_parts(head, body))).await;
    let mut response = sent.map_err(|late| late.to_string())?.map_err(|error| error.to_string())?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let Some(client) = client_upgrade else { return Err("the server switched protocols unasked".to_owned()) };
        let outside = hyper::upgrade::on(&mut response);
        let (written, diverted, name) = (Arc::clone(written), diverted.clone(), name.clone());
        tokio::spawn(async move {
            let (Ok(client), Ok(outside)) = tokio::join!(client, outside) else { return };
            let (mut client, mut outside) = (TokioIo::new(client), TokioIo::new(outside));
            tokio::select! {
                _ = pump(&mut client, &mut outside, &written.traffic) => {}
                () = diverted.until_denied(&name) => {}
            }
            drop(alive);
        });
        return Ok(response.map(|_| Full::default().map_err(|never| match never {}).boxed()));
    }
    remove_connection_headers(response.headers_mut(), false);
    let written = Arc::clone(written);
    Ok(response.map(|body| Counted { body, written, count: Traffic::add_received, guard: Some(alive) }.boxed()))
}

/// Headers that are about one connection, not about the request.
fn remove_connection_headers(headers: &mut HeaderMap, keep_upgrade: bool) {
    let listed: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::try_from(name.trim()).ok())
        .collect();
    let fixed =
        ["connection", "keep-alive", "proxy-connection", "proxy-authorization", "te"].map(HeaderName::from_static);
    for name in listed.into_iter().chain(fixed).filter(|name| *name != UPGRADE || !keep_upgrade) {
        headers.remove(name);
    }
    match keep_upgrade {
        true => drop(headers.insert(CONNECTION, HeaderValue::from_static("upgrade"))),
        false => drop(headers.remove(UPGRADE)),
    }
}

fn refuse(diverted: &Diverted, status: StatusCode, record: &Record) -> Response<ProxyBody> {
    diverted.gateway.write(record);
    answer(status, record)
}

/// The response that tells the program why.
fn answer(status: StatusCode, record: &Record) -> Response<ProxyBody> {
    let (word, reason) = match record.decision {
        Outcome::Fail => ("failed", &record.reason),
        _ => ("denied", &record.reason),
    };
    let of = if record.name.is_empty() { String::new() } else { format!("{}: ", record.name) };
    let text = format!("The egress rules of this sandbox: {word}: {of}{reason}\n");
    let mut response = Response::new(Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response.headers_mut().insert(HeaderName::from_static(DENIED), HeaderValue::from_static(word));
    response
}

/// A body whose bytes are counted.
struct Counted<B> {
    body: B,
    written: Arc<Written>,
    count: fn(&Traffic, usize),
    /// Keeps the connection to the destination.
    guard: Option<tokio::sync::oneshot::Sender<Infallible>>,
}

impl<B: Body<Data = Bytes> + Unpin> Body for Counted<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            (self.count)(&self.written.traffic, data.len());
        }
        if frame.is_none() {
            self.guard = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
