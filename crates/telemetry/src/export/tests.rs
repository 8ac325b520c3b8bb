//! What a collector receives.

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
async fn batches_have_the_size_asked_for_and_a_full_queue_loses_spans() {
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
async fn a_collector_that_is_not_there_loses_spans_and_holds_nobody_up() {
    let spans = Spans::new(settings("http://127.0.0.1:9")).unwrap();
    let end = CancellationToken::new();
    let exporter = spans.start(end.clone()).unwrap();
    spans.submit(span("a"));
    end.cancel();
    tokio::time::timeout(PATIENCE, exporter).await.expect("ends").unwrap();
}

#[tokio::test]
async fn endpoints_that_cannot_work_are_refused() {
    for bad in ["", "collector:4317", "https://collector:4317", "http://"] {
        assert_eq!(Spans::new(settings(bad)).unwrap_err(), EndpointError { endpoint: bad.to_owned() });
    }
}
