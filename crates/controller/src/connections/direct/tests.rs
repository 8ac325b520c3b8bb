//! Which connection a request travels on, against a server that counts.

use std::{collections::BTreeMap, convert::Infallible};

use agent_sandbox_testkit::eventually;
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::{super::connect, *};

/// How many requests each connection has brought, in the order in which they were opened.
type Counts = Arc<Mutex<BTreeMap<usize, usize>>>;

/// A server that answers everything; its connections end after so many requests each.
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
            let answer = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
                let mut counted = counted.lock();
                let count = counted.entry(number).or_default();
                *count += 1;
                let last = *count >= most;
                let body = format!("{} {}", request.uri(), request.headers().contains_key(http::header::HOST));
                let answer = http::Response::builder();
                let answer = if last { answer.header(http::header::CONNECTION, "close") } else { answer };
                let answer = answer.body(Full::new(Bytes::from(body))).expect("valid");
                std::future::ready(Ok::<_, Infallible>(answer))
            });
            tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
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
async fn one_after_the_other_they_have_a_connection_to_themselves() {
    let (config, counts) = server(usize::MAX).await;
    let clients = connect(&config, 1).expect("connects");
    ask(&clients.claims).await;
    opened(&counts, 2).await;
    // The connection that was opened beside the first request may take a moment to be ready.
    eventually("the second is used", || async {
        ask(&clients.claims).await;
        if counts.lock()[&1] >= 10 { Ok(()) } else { Err(counts.lock().clone()) }
    })
    .await;
    assert!(counts.lock().len() <= 1 + MOST);
    ask(&clients.core).await;
    ask(&clients.core).await;
    let last = *counts.lock().last_key_value().expect("some").0;
    assert_eq!(counts.lock()[&last], 2, "other lanes share theirs");
}

#[tokio::test]
async fn a_burst_opens_a_few_and_no_more() {
    let (config, counts) = server(usize::MAX).await;
    let direct = Direct::new(super::super::connector(&config, super::super::Versions::One).expect("a connector"));
    let request = || http::Request::get(config.cluster_url.clone()).body(Body::empty()).expect("valid");
    for _ in 0..10 * MOST {
        assert!(matches!(direct.send(request()).await, Sent::Not(_)) || direct.open.load(Ordering::Relaxed) > 0);
        assert!(direct.open.load(Ordering::Relaxed) <= MOST);
    }
    opened(&counts, 1).await;
    let answers = futures::future::join_all((0..100).map(|_| direct.send(request()))).await;
    assert!(answers.iter().any(|sent| matches!(sent, Sent::Not(_))), "there are not enough for all");
    assert!(counts.lock().len() <= MOST);
    drop((answers, direct));
}

/// A server may end a connection after any answer: the next request goes another way, and none is lost.
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
