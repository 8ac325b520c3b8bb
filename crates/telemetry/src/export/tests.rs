//! Tests of what a collector receives.

use super::*;
use crate::receiver::collect;

const PATIENCE: Duration = Duration::from_secs(20);

fn settings(endpoint: &str) -> ExportSettings {
    let attributes = vec![("k8s.pod.name".to_owned(), "me".to_owned())];
    let service = Service { name: "service".to_owned(), scope: "scope", version: "1", attributes };
    ExportSettings::new(endpoint, service)
}

fn span(name: &str) -> Span {
    Span { name: name.to_owned(), ..Span::default() }
}

fn names(request: &ExportTraceRequest) -> Vec<&str> {
    request.resource_spans[0].scope_spans[0].spans.iter().map(|span| span.name.as_str()).collect()
}

#[tokio::test]
async fn queued_spans_are_sent_at_the_end() {
    let (endpoint, mut received) = collect::<ExportTraceRequest>().await.unwrap();
    let spans = Spans::new(settings(&endpoint)).unwrap();
    let end = CancellationToken::new();
    let exporter = spans.start(end.clone()).unwrap();
    assert!(spans.start(end.clone()).is_none(), "one exporter only");
    spans.submit(span("a"));
    end.cancel();
    tokio::time::timeout(PATIENCE, exporter).await.expect("ends").unwrap();
    let request = received.recv().await.unwrap();
    assert_eq!(names(&request), ["a"]);
    let resource = request.resource_spans[0].resource.as_ref().unwrap();
    assert_eq!(resource.attributes, [KeyValue::text("service.name", "service"), KeyValue::text("k8s.pod.name", "me")]);
    assert_eq!(request.resource_spans[0].scope_spans[0].scope.as_ref().unwrap().name, "scope");
}

#[tokio::test]
async fn batches_have_the_configured_size_and_a_full_queue_drops_spans() {
    let (endpoint, mut received) = collect::<ExportTraceRequest>().await.unwrap();
    let spans = Spans::new(ExportSettings { queue: 4, batch: 2, ..settings(&endpoint) }).unwrap();
    for name in ["a", "b", "c", "d", "lost"] {
        spans.submit(span(name));
    }
    let end = CancellationToken::new();
    spans.start(end.clone()).unwrap();
    for expected in [["a", "b"], ["c", "d"]] {
        let request = tokio::time::timeout(PATIENCE, received.recv()).await.expect("a batch is sent").unwrap();
        assert_eq!(names(&request), expected);
    }
}

#[tokio::test]
async fn an_unreachable_collector_loses_spans_and_blocks_nothing() {
    let spans = Spans::new(settings("http://127.0.0.1:9")).unwrap();
    let end = CancellationToken::new();
    let exporter = spans.start(end.clone()).unwrap();
    spans.submit(span("a"));
    end.cancel();
    tokio::time::timeout(PATIENCE, exporter).await.expect("ends").unwrap();
}

#[tokio::test]
async fn invalid_endpoints_are_rejected() {
    for bad in ["", "collector:4317", "ftp://collector:4317", "http://", "https://"] {
        assert_eq!(Spans::new(settings(bad)).unwrap_err(), EndpointError { endpoint: bad.to_owned() });
    }
}

/// Starts a proxy that terminates TLS in front of a collector.
async fn behind_tls(collector: &str) -> (String, rustls::RootCertStore) {
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let certificate = certified.cert.der().clone();
    let key = rustls::pki_types::PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    let behind = collector.trim_start_matches("http://").to_owned();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut decrypted) = acceptor.accept(stream).await else { continue };
            let mut plain = tokio::net::TcpStream::connect(&behind).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut decrypted, &mut plain).await });
        }
    });
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    (endpoint, roots)
}

#[tokio::test]
async fn spans_reach_a_collector_over_tls_only_when_its_certificate_is_trusted() {
    let (plain, mut received) = collect::<ExportTraceRequest>().await.unwrap();
    let (endpoint, roots) = behind_tls(&plain).await;
    let through = |roots| Collector(parse(&endpoint).unwrap().connect_with_connector_lazy(tls::with_roots(roots)));
    let service = settings(&endpoint).service;
    through(rustls::RootCertStore::empty()).send(TRACE_METHOD, request(&service, vec![span("untrusted")])).await;
    through(roots).send(TRACE_METHOD, request(&service, vec![span("trusted")])).await;
    let request = tokio::time::timeout(PATIENCE, received.recv()).await.expect("a batch is sent").unwrap();
    assert_eq!(names(&request), ["trusted"]);
    assert!(received.try_recv().is_err());
}
