//! The spans of passes.

use agent_sandbox_telemetry::{Sampler, messages::ExportTraceRequest, receiver::collect};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::cache::Meta;

const CALLER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn object(context: Option<&str>) -> Meta {
    let annotations = context.map(|context| json!({ annotations::TRACE_CONTEXT: context }));
    serde_json::from_value(json!({ "name": "a", "namespace": "ns", "labels": { labels::CREATED_BY: "invalid-value" }, "annotations": annotations }))
        .expect("valid")
}

/// Runs `passes` with tracing on and returns what a collector received.
async fn exported(sampler: Sampler, passes: impl FnOnce(&Tracing)) -> Vec<Span> {
    let (endpoint, mut received) = collect::<ExportTraceRequest>().await.expect("listens");
    let settings = export_settings(|_| None).expect("defaults");
    let spans = Arc::new(Spans::new(ExportSettings { endpoint, sampler, ..settings }).expect("usable"));
    let end = CancellationToken::new();
    let exporter = spans.start(end.clone()).expect("first start");
    passes(&Tracing::to(spans));
    end.cancel();
    exporter.await.expect("ends");
    let mut all = Vec::new();
    while let Ok(request) = received.try_recv() {
        for resource in request.resource_spans {
            let name = KeyValue::text("service.name", "agent-sandbox-controller");
            assert_eq!(resource.resource.expect("said").attributes, [name]);
            all.extend(resource.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
    }
    all
}

/// S-221: a span ends with its pass, so it is exported; parts of a pass are its children.
#[tokio::test]
async fn s_221_spans_end_and_are_exported() {
    let spans = exported(Sampler::default(), |tracing| {
        let mut pass = tracing.start("ReconcileSandbox", "sandbox", &object(None));
        let mut part = pass.child("reconcilePod");
        part.pod_observed(
            "NewPodStatusObserved",
            &serde_json::from_value(json!({ "metadata": { "name": "p" }, "status": { "phase": "Pending" } }))
                .expect("valid"),
        );
        drop(part);
        pass.failed("no luck");
        let stored = pass.annotation().expect("a new context").to_owned();
        drop(pass);
        let again = tracing.start("ReconcileSandbox", "sandbox", &object(Some(&stored)));
        assert_eq!(again.annotation(), None, "stored once");
    })
    .await;
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["reconcilePod", "ReconcileSandbox", "ReconcileSandbox"]);
    let (part, pass, again) = (&spans[0], &spans[1], &spans[2]);
    assert_eq!((&part.trace_id, &part.parent_span_id), (&pass.trace_id, &pass.span_id));
    assert_eq!((&again.trace_id, &again.parent_span_id), (&pass.trace_id, &pass.span_id), "the stored context");
    assert!(pass.parent_span_id.is_empty());
    assert!(pass.end_time_unix_nano >= pass.start_time_unix_nano && pass.start_time_unix_nano > 0);
    assert_eq!(
        pass.status.as_ref().map(|status| (status.code, status.message.as_str())),
        Some((STATUS_ERROR, "no luck"))
    );
    let expected = [("sandbox.name", "a"), ("sandbox.namespace", "ns"), (labels::CREATED_BY, "unknown")];
    assert_eq!(pass.attributes, expected.map(|(key, value)| KeyValue::text(key, value)));
    assert_eq!(part.events[0].name, "NewPodStatusObserved");
    assert_eq!(part.events[0].attributes, [KeyValue::text("pod.Name", "p"), KeyValue::text("pod.Phase", "Pending")]);
}

#[tokio::test]
async fn a_callers_trace_is_joined_and_its_sampling_followed() {
    let context = |parent: &str| format!("{{\"traceparent\":\"{parent}\"}}");
    let spans = exported(Sampler::default(), |tracing| {
        drop(tracing.start("ReconcileSandbox", "sandbox", &object(Some(&context(CALLER)))));
        let unsampled = object(Some(&context(&CALLER.replace("-01", "-00"))));
        drop(tracing.start("ReconcileSandbox", "sandbox", &unsampled));
    })
    .await;
    let caller: TraceParent = CALLER.parse().expect("valid");
    assert_eq!(spans.len(), 1, "the caller decides what is sampled");
    assert_eq!(
        (spans[0].trace_id.as_slice(), spans[0].parent_span_id.as_slice()),
        (&caller.trace_id[..], &caller.span_id[..])
    );
}

#[tokio::test]
async fn an_unreadable_context_is_ignored_and_kept() {
    let spans = exported(Sampler::default(), |tracing| {
        for bad in ["no json", "{}", "{\"traceparent\":\"1-2-3\"}"] {
            let span = tracing.start("ReconcileSandbox", "sandbox", &object(Some(bad)));
            assert_eq!(span.annotation(), None, "a foreign annotation is not rewritten");
        }
    })
    .await;
    assert_eq!(spans.len(), 3);
    assert!(spans.iter().all(|span| span.parent_span_id.is_empty()));
}

#[tokio::test]
async fn what_is_not_sampled_is_still_passed_on() {
    let spans = exported(Sampler { follow_parent: true, ratio: 0.0 }, |tracing| {
        let span = tracing.start("ReconcileSandbox", "sandbox", &object(None));
        assert!(span.annotation().expect("stored").ends_with("-00\"}"));
    })
    .await;
    assert!(spans.is_empty());
}

#[test]
fn without_tracing_there_is_nothing() {
    let tracing = Tracing::default();
    let span = tracing.start("ReconcileSandbox", "sandbox", &object(None));
    assert!(!tracing.is_on() && span.annotation().is_none() && span.child("reconcilePod").open.is_none());
}
