//! From creation to readiness, and what survives afterwards.

use agent_sandbox_api::v1beta1::SandboxClaim;

use super::*;

/// S-030: the minimal Sandbox gets a Pod and three conditions, and no Service.
#[tokio::test]
async fn s_030_minimal_spec_makes_a_pod_and_no_service() {
    let mut fixture = SandboxFixture::new();
    fixture.create(minimal());
    assert_eq!(fixture.pass().await.expect("passes"), Next::Idle);

    let (sandbox, pod) = (fixture.sandbox(), fixture.pod());
    assert_eq!(label_of(&pod, TRACKING).as_deref(), Some(HASH));
    let owner = &pod.metadata.owner_references[0];
    assert_eq!((owner.api_version.as_str(), owner.kind.as_str()), ("agents.x-k8s.io/v1beta1", "Sandbox"));
    assert_eq!((owner.controller, owner.block_owner_deletion), (Some(true), Some(true)));
    assert_eq!(owner.uid, sandbox.uid());
    assert!(fixture.service().is_none());
    let status = fixture.status();
    assert_eq!(status.selector.as_deref(), Some("agents.x-k8s.io/sandbox-name-hash=374de8f5"));
    let conditions: Vec<_> =
        sandbox.conditions().iter().map(|condition| (condition.type_.as_str(), said(condition))).collect();
    assert_eq!(
        conditions,
        [
            ("Suspended", words("False", "NotSuspended", "Sandbox is not suspended")),
            (
                "PodScheduled",
                words("Unknown", "PodSchedulingUnknown", "Pod has not reported a PodScheduled condition yet")
            ),
            ("Ready", words("False", "DependenciesNotReady", "Pod exists with phase: Pending")),
        ]
    );
    assert!(sandbox.conditions().iter().all(|condition| condition.observed_generation == Some(1)));
}

/// S-031, S-162: a Service on request, named in the status by the cluster's domain.
#[tokio::test]
async fn s_031_s_162_service_on_request() {
    for domain in ["cluster.local", "corp.example"] {
        let mut fixture =
            SandboxFixture::with(Settings { cluster_domain: domain.into(), ..Settings::default() }, Tracing::default());
        fixture.create(with(json!({ "spec": { "service": true } })));
        fixture.pass().await.expect("passes");
        let service = fixture.service().expect("created");
        assert_eq!(service.spec.cluster_ip.as_deref(), Some("None"));
        assert_eq!(service.spec.selector.get(TRACKING).map(String::as_str), Some(HASH));
        assert_eq!(service.spec.selector.len(), 1);
        assert_eq!(Cached::label(&service, TRACKING), Some(HASH));
        assert!(is_owned(&service.metadata, &fixture.sandbox()));
        let status = fixture.status();
        assert_eq!(status.service.as_deref(), Some(NAME));
        assert_eq!(status.service_fqdn, Some(format!("{NAME}.default.svc.{domain}")));
        assert!(fixture.ready().2.ends_with("; Service Exists"));
    }
}

/// S-033, S-034: once the Pod runs, the Sandbox is Ready, with and without a Service.
#[tokio::test]
async fn s_033_s_034_ready_once_the_pod_is() {
    for (service, message) in [(json!(true), "Pod is Ready; Service Exists"), (Value::Null, "Pod is Ready")] {
        let mut fixture = SandboxFixture::new();
        fixture.create(with(json!({ "spec": { "service": service } })));
        fixture.pass().await.expect("passes");
        fixture.pod_runs(NAME);
        fixture.pass().await.expect("passes");
        assert_eq!(fixture.ready(), words("True", "DependenciesReady", message));
        assert_eq!(fixture.condition(ConditionType::PodScheduled), Some(words("True", "PodScheduled", "")));
        let status = fixture.status();
        assert_eq!(status.pod_ips, Some(vec!["10.0.0.5".to_owned(), "fd00::5".to_owned()]));
        assert_eq!(status.node_name.as_deref(), Some("node-1"));
        assert!(fixture.sandbox().conditions().iter().all(|condition| condition.observed_generation == Some(1)));
    }
}

/// S-036: a Pod deleted by hand comes back; nothing else about the Sandbox changes.
#[tokio::test]
async fn s_036_a_deleted_pod_is_replaced() {
    let mut fixture = SandboxFixture::new();
    fixture.create(minimal());
    fixture.converge().await;
    fixture.pod_runs(NAME);
    fixture.converge().await;
    let (before, old_pod) = (fixture.sandbox(), fixture.pod());
    fixture.clock.advance(seconds(60));
    fixture.api.remove(Kind::Pod, &key());
    fixture.converge().await;
    let after = fixture.sandbox();
    assert_ne!(fixture.pod().metadata.uid, old_pod.metadata.uid);
    assert_eq!(after.generation(), before.generation());
    assert_eq!(after.condition(ConditionType::Suspended), before.condition(ConditionType::Suspended));
    fixture.pod_runs(NAME);
    fixture.converge().await;
    assert_eq!(fixture.ready().0, "True");
}

/// S-042: the garbage collector deletes a Sandbox and then its Pod. A cache that has seen only the Pod's deletion
/// creates no new one.
#[tokio::test]
async fn s_042_no_pod_for_a_sandbox_that_went_before_it() {
    let mut fixture = SandboxFixture::new();
    fixture.create(minimal());
    fixture.converge().await;
    fixture.pod_runs(NAME);
    fixture.converge().await;
    let pod = fixture.pod();
    fixture.api.remove(Kind::Sandbox, &key());
    fixture.api.collect_garbage();
    assert!(fixture.pod_named(NAME).is_none(), "the collector took it");
    fixture.store.apply_update(crate::cache::CacheUpdate::Deleted(pod));
    fixture.api.take_writes();
    let next = fixture.reconciler.reconcile(&key()).await.expect("nothing to fail");
    assert_eq!((next, fixture.api.take_writes()), (Next::Idle, Vec::new()));
    assert!(fixture.pod_named(NAME).is_none());
}

/// A Sandbox whose claim is gone, or is being deleted in the foreground, is left to the garbage collector.
#[tokio::test]
async fn a_sandbox_whose_claim_goes_gets_no_new_pod() {
    let claim = json!({ "metadata": { "name": "c" }, "spec": { "warmPoolRef": { "name": "p" } } });
    let deleting = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    let foreground = json!({ "metadata": { "finalizers": ["foregroundDeletion"] } });
    for (what, edits, expected) in [
        ("the claim is there", vec![], 1),
        ("its user's finalizer holds it", vec![&deleting], 1),
        ("it waits for what it owns", vec![&foreground, &deleting], 0),
    ] {
        let mut fixture = SandboxFixture::new();
        fixture.api.create(Kind::Claim, claim.clone());
        let found: SandboxClaim = fixture.api.typed(&key().sibling("c")).expect("there");
        fixture.create(with(json!({ "metadata": { "ownerReferences": [found.controller_reference()] } })));
        for edit in edits {
            fixture.api.edit(Kind::Claim, &key().sibling("c"), edit.clone());
        }
        fixture.pass().await.expect("passes");
        assert_eq!(fixture.count(Kind::Pod), expected, "{what}");
    }
    let mut fixture = SandboxFixture::new();
    fixture.api.create(Kind::Claim, claim);
    let found: SandboxClaim = fixture.api.typed(&key().sibling("c")).expect("there");
    fixture.create(with(json!({ "metadata": { "ownerReferences": [found.controller_reference()] } })));
    fixture.sync();
    fixture.api.remove(Kind::Claim, &key().sibling("c"));
    fixture.pass().await.expect("passes");
    assert_eq!(fixture.count(Kind::Pod), 0, "the claim is gone");
}

/// S-037: passes never grow the list of conditions.
#[tokio::test]
async fn s_037_twenty_passes_leave_three_conditions() {
    let mut fixture = SandboxFixture::new();
    fixture.create(minimal());
    fixture.converge().await;
    fixture.pod_runs(NAME);
    for _ in 0..20 {
        fixture.pass().await.expect("passes");
    }
    assert_eq!(fixture.sandbox().conditions().len(), 3);
}

/// S-042: a Sandbox that is being deleted is left to the garbage collector.
#[tokio::test]
async fn s_042_nothing_is_written_for_a_deleting_sandbox() {
    let mut fixture = SandboxFixture::new();
    fixture.create(with(json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/y"] } })));
    assert_eq!(fixture.pass().await.expect("passes"), Next::Idle);
    assert!(fixture.api.writes().is_empty());
}

/// S-043: a Sandbox that is gone is no error.
#[tokio::test]
async fn s_043_a_missing_sandbox_is_fine() {
    let mut fixture = SandboxFixture::new();
    assert_eq!(fixture.pass().await.expect("passes"), Next::Idle);
}

/// S-044: a running Pod keeps its image; the next one has the new one.
#[tokio::test]
async fn s_044_template_changes_wait_for_the_next_pod() {
    let mut fixture = SandboxFixture::new();
    fixture.create(minimal());
    fixture.converge().await;
    let image = |fixture: &SandboxFixture| {
        fixture.api.get(Kind::Pod, &key()).expect("there")["spec"]["containers"][0]["image"].clone()
    };
    fixture.api.edit(
        Kind::Sandbox,
        &key(),
        json!({ "spec": { "podTemplate": { "spec": { "containers": [{ "name": "main", "image": "newer" }] } } } }),
    );
    fixture.converge().await;
    assert_eq!(image(&fixture), "busybox");
    fixture.api.remove(Kind::Pod, &key());
    fixture.converge().await;
    assert_eq!(image(&fixture), "newer");
}

/// S-041, S-224: with tracing the context is stored once and kept; without, never.
#[tokio::test]
async fn s_041_s_224_trace_context_is_stored_once() {
    const TRACE: &str = "opentelemetry.io/trace-context";
    // No collector receives these spans, which must not matter.
    let settings = crate::serving::tracing_context::export_settings(|_| None).expect("defaults");
    let spans = agent_sandbox_telemetry::Spans::new(settings).expect("usable");
    let mut fixture = SandboxFixture::with(Settings::default(), Tracing::to(std::sync::Arc::new(spans)));
    fixture.create(with(json!({ "metadata": { "labels": { "agents.x-k8s.io/created-by": "invalid-value" } } })));
    fixture.converge().await;
    let stored = fixture.sandbox().annotation(TRACE).map(str::to_owned).expect("stored");
    let parent = crate::serving::tracing_context::trace_parent(&stored).expect("has a parent");
    assert!(parent.sampled);
    fixture.pod_runs(NAME);
    fixture.converge().await;
    assert_eq!(fixture.sandbox().annotation(TRACE), Some(stored.as_str()));
    assert_eq!(label_of(&fixture.pod(), "agents.x-k8s.io/created-by").as_deref(), Some("unknown"));

    let mut quiet = SandboxFixture::new();
    quiet.create(minimal());
    quiet.converge().await;
    assert_eq!(quiet.sandbox().annotation(TRACE), None);
}

/// A child that the API rejects as invalid is a condition, not an endless retry; a change of the spec is a new attempt.
#[tokio::test]
async fn an_invalid_child_is_reported_and_not_retried_in_a_loop() {
    let mut fixture = SandboxFixture::new();
    fixture.create(minimal());
    let invalid =
        || Fault::Refuse(ApiError::Invalid { message: "Pod \"my-sandbox\" is invalid: spec.containers[0]".into() });
    fixture.api.fail(is_create(Kind::Pod), invalid());
    assert_eq!(fixture.pass().await.expect("not an error"), Next::Idle);
    assert_eq!(
        fixture.ready(),
        words("False", "InvalidConfiguration", "Pod \"my-sandbox\" is invalid: spec.containers[0]")
    );
    fixture.api.edit(Kind::Sandbox, &key(), json!({ "spec": { "podTemplate": { "spec": { "hostname": "h" } } } }));
    fixture.converge().await;
    assert_eq!(fixture.ready().1, "DependenciesNotReady");
}

/// The older of two Sandboxes whose names hash alike keeps working; the younger is refused, until the older is gone.
#[tokio::test]
async fn a_colliding_name_is_refused() {
    let mut fixture = SandboxFixture::new();
    let named = |name: &str| with(json!({ "metadata": { "name": name }, "spec": { "service": true } }));
    fixture.api.create(Kind::Sandbox, named("costarring"));
    fixture.clock.advance(seconds(5));
    fixture.api.create(Kind::Sandbox, named("liquid"));
    let (older, younger) = (key().sibling("costarring"), key().sibling("liquid"));
    fixture.sync();
    fixture.reconciler.reconcile(&older).await.expect("passes");
    fixture.reconciler.reconcile(&younger).await.expect_err("refused");
    assert!(fixture.pod_named("costarring").is_some());
    assert!(fixture.pod_named("liquid").is_none());
    assert_eq!(fixture.count(Kind::Service), 1);
    let refused: Sandbox = fixture.api.typed(&younger).expect("there");
    let ready = refused.condition(ConditionType::Ready).expect("said");
    assert_eq!(
        (ready.reason.as_str(), ready.message.contains("older sandbox \"costarring\"")),
        ("ReconcilerError", true)
    );

    fixture.api.remove(Kind::Sandbox, &older);
    fixture.api.collect_garbage();
    while let Some(Some(work)) = futures::FutureExt::now_or_never(fixture.store.queues.sandbox.next()) {
        drop(work);
    }
    fixture.sync();
    let mut woken = Vec::new();
    while let Some(Some(work)) = futures::FutureExt::now_or_never(fixture.store.queues.sandbox.next()) {
        woken.push(work.key.clone());
    }
    assert!(woken.contains(&younger), "the younger Sandbox is woken: {woken:?}");
    fixture.reconciler.reconcile(&younger).await.expect("passes");
    assert!(fixture.pod_named("liquid").is_some());
}
