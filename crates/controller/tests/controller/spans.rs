//! Spans of a real controller reach a collector.

use agent_sandbox_api::{keys::annotations, v1beta1::Sandbox};
use agent_sandbox_controller::{Config, serving::tracing_context};
use agent_sandbox_telemetry::{
    ExportSettings,
    messages::{ExportTraceRequest, Span},
    receiver::collect,
};
use agent_sandbox_testkit::from_json;
use kube::api::PostParams;
use serde_json::json;

use crate::fixture::Fixture;

/// S-221, S-224: a claim that brings a trace: its passes, its Sandbox's passes and their parts are all spans of that
/// trace, and what is queued when the controller stops is still exported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s_221_a_claims_trace_is_followed_to_its_sandbox() {
    let (endpoint, mut received) = collect::<ExportTraceRequest>().await.expect("listens");
    let settings = tracing_context::export_settings(|_| None).expect("defaults");
    let tracing = Some(ExportSettings { endpoint, ..settings });
    let bench = Fixture::with(Config { tracing, ..Config::default() }).await;
    bench.template("t").await;
    bench.pool("p", "t", 1).await;
    bench.pool_ready("p", 1).await;
    let context = r#"{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}"#;
    let claim = json!({ "metadata": { "name": "c", "annotations": { annotations::TRACE_CONTEXT: context } }, "spec": { "warmPoolRef": { "name": "p" } } });
    bench
        .api()
        .create(&PostParams::default(), &from_json::<agent_sandbox_api::v1beta1::SandboxClaim>(claim))
        .await
        .expect("created");
    let sandbox = bench.ready("c").await.bound_sandbox().expect("bound").to_owned();
    let adopted: Sandbox = bench.api().get(&sandbox).await.expect("there");
    assert_eq!(adopted.annotation(annotations::TRACE_CONTEXT), Some(context));

    // A claim without a trace begins one, and hands it on.
    bench.pool_ready("p", 1).await;
    bench.claim("d", "p").await;
    let begun = bench.ready("d").await;
    let handed_on: Sandbox = bench.api().get(begun.bound_sandbox().expect("bound")).await.expect("there");
    assert!(begun.annotation(annotations::TRACE_CONTEXT).is_some());
    assert_eq!(handed_on.annotation(annotations::TRACE_CONTEXT), begun.annotation(annotations::TRACE_CONTEXT));
    bench.stop().await;

    let mut spans: Vec<Span> = Vec::new();
    while let Ok(request) = received.try_recv() {
        spans.extend(request.resource_spans.into_iter().flat_map(|all| all.scope_spans).flat_map(|scope| scope.spans));
    }
    let trace = tracing_context::trace_parent(context).expect("valid");
    let ours: Vec<&Span> = spans.iter().filter(|span| span.trace_id == trace.trace_id).collect();
    let pass = ours.iter().find(|span| span.name == "ReconcileSandboxClaim").expect("the claim's pass");
    assert_eq!(pass.parent_span_id, trace.span_id);
    let pass = ours.iter().find(|span| span.name == "ReconcileSandbox").expect("the Sandbox's pass");
    for part in ["reconcilePVCs", "reconcilePod"] {
        assert!(ours.iter().any(|span| span.name == part && span.parent_span_id == pass.span_id), "{part}");
    }
    assert!(spans.iter().all(|span| span.end_time_unix_nano >= span.start_time_unix_nano));
}
