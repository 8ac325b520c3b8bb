//! Which connection a request uses, against a server that counts.

use std::{collections::BTreeMap, convert::Infallible};

use agent_sandbox_testkit::eventually;
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::*;
use crate::api_client::connections::{Versions, connect, connector};

/// Number of requests per connection, in the order in which they were opened.
type Counts = Arc<Mutex<BTreeMap<usize, usize>>>;

/// A server that answers everything and closes each connection after `most` requests.
async fn server(most: usize) -> (kube::Config, Counts) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("bound");
    let counts = Counts::default();
    let counted = counts.clone();
    tokio::spawn(async move {
        for number in 0.. {
            let Ok((stream, _)) = listener.accept().await else { return };
            counted.lock().insert(number, 0);
            let counted = counted.clone();
            let service = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
                let mut counted = counted.lock();
                let count = counted.entry(number).or_default();
                *count += 1;
                let last = *count >= most;
                let body = format!("{} {}", request.uri(), request.headers().contains_key(http::header::HOST));
                let response = http::Response::builder();
                let response = if last { response.header(http::header::CONNECTION, "close") } else { response };
                let response = response.body(Full::new(Bytes::from(body))).expect("valid");
                std::future::ready(Ok::<_, Infallible>(response))
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    (kube::Config::new(format!("http://{address}").parse().expect("a URL")), counts)
}

async fn ask(client: &kube::Client) {
    let request = http::Request::get("/where?to=go").body(Vec::new()).expect("valid");
    assert_eq!(client.request_text(request).await.expect("answers"), "/where?to=go true");
}

async fn opened(counts: &Counts, connections: usize) {
    eventually("connections", || async {
        let open = counts.lock().len();
        if open < connections { Err(open) } else { Ok(()) }
    })
    .await;
}

#[tokio::test]
async fn sequential_requests_use_a_direct_connection() {
    let (config, counts) = server(usize::MAX).await;
    let clients = connect(&config, 1).expect("connects");
    ask(&clients.claims).await;
    opened(&counts, 2).await;
    // The connection that was opened in the background of the first request may take a moment to be ready.
    eventually("the second is used", || async {
        ask(&clients.claims).await;
        if counts.lock()[&1] >= 10 { Ok(()) } else { Err(counts.lock().clone()) }
    })
    .await;
    assert!(counts.lock().len() <= 1 + MAX_CONNECTIONS);
    ask(&clients.core).await;
    ask(&clients.core).await;
    let last = *counts.lock().last_key_value().expect("some").0;
    assert_eq!(counts.lock()[&last], 2, "other lanes share theirs");
}

#[tokio::test]
async fn a_burst_opens_only_a_few_connections() {
    let (config, counts) = server(usize::MAX).await;
    let direct = DirectConnections::new(connector(&config, Versions::One).expect("a connector"));
    let request = || http::Request::get(config.cluster_url.clone()).body(Body::empty()).expect("valid");
    for _ in 0..10 * MAX_CONNECTIONS {
        assert!(
            matches!(direct.send(request()).await, SendOutcome::NotSent(_)) || direct.open.load(Ordering::Relaxed) > 0
        );
        assert!(direct.open.load(Ordering::Relaxed) <= MAX_CONNECTIONS);
    }
    opened(&counts, 1).await;
    let responses = futures::future::join_all((0..100).map(|_| direct.send(request()))).await;
    assert!(responses.iter().any(|sent| matches!(sent, SendOutcome::NotSent(_))), "there are not enough for all");
    assert!(counts.lock().len() <= MAX_CONNECTIONS);
    drop((responses, direct));
}

/// A server may close a connection after any response: the next request uses another one, and none is lost.
#[tokio::test]
async fn a_connection_that_ends_is_replaced() {
    let (config, counts) = server(3).await;
    let clients = connect(&config, 1).expect("connects");
    for _ in 0..30 {
        ask(&clients.claims).await;
    }
    let counts = counts.lock();
    assert!(counts.len() >= 10 && counts.values().all(|count| *count <= 3), "{counts:?}");
    assert_eq!(counts.values().sum::<usize>(), 30);
}
