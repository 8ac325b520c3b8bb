//! The number of writes, and their timing.

use super::*;

fn write_behind(window: Duration) -> Settings {
    Settings { write_behind: window, ..Settings::default() }
}

fn relabel(fixture: &SandboxFixture, value: &str) {
    let change = json!({ "spec": { "podTemplate": { "metadata": { "labels": { "team": value } } } } });
    fixture.api.edit(Kind::Sandbox, &key(), change);
}

fn pod_patches(fixture: &SandboxFixture) -> usize {
    fixture.api.take_writes().iter().filter(|request| is_patch(Kind::Pod)(request)).count()
}

/// R59: a cold start costs one create per child, one annotation and one status; a settled Sandbox costs nothing.
#[tokio::test]
async fn a_cold_start_costs_few_writes_and_a_converged_sandbox_none() {
    let mut fixture = SandboxFixture::new();
    fixture.create(with(
        json!({ "spec": { "service": true, "volumeClaimTemplates": [{ "metadata": { "name": "d" }, "spec": {} }] } }),
    ));
    fixture.pass().await.expect("passes");
    let kinds: Vec<_> = fixture.api.take_writes().iter().map(|request| request.kind).collect();
    assert_eq!(kinds, [Kind::Pvc, Kind::Pod, Kind::Service, Kind::Sandbox, Kind::Sandbox]);
    fixture.pod_runs(NAME);
    fixture.pass().await.expect("passes");
    assert_eq!(fixture.api.take_writes().len(), 1);
    for _ in 0..3 {
        fixture.pass().await.expect("passes");
    }
    assert!(fixture.api.take_writes().is_empty());
}

/// S-200: a node name alone waits for the next write.
#[tokio::test]
async fn s_200_node_name_rides_along() {
    let mut fixture = SandboxFixture::new();
    fixture.create(minimal());
    fixture.converge().await;
    fixture.api.edit(Kind::Pod, &key(), json!({ "spec": { "nodeName": "node-1" } }));
    fixture.pass().await.expect("passes");
    assert!(fixture.api.take_writes().is_empty());
    fixture.pod_runs(NAME);
    fixture.pass().await.expect("passes");
    assert_eq!(fixture.api.take_writes().len(), 1);
    let status = fixture.status();
    assert_eq!(
        (status.node_name.as_deref(), status.pod_ips.is_some(), fixture.ready().0.as_str()),
        (Some("node-1"), true, "True")
    );
}

/// S-201: on a Ready Sandbox it is written at once.
#[tokio::test]
async fn s_201_node_name_of_a_ready_sandbox() {
    let mut fixture = SandboxFixture::new();
    fixture.create(minimal());
    fixture.converge().await;
    fixture.pod_runs(NAME);
    fixture.converge().await;
    fixture.api.edit(Kind::Pod, &key(), json!({ "spec": { "nodeName": "node-2" } }));
    fixture.pass().await.expect("passes");
    assert_eq!(fixture.status().node_name.as_deref(), Some("node-2"));
}

/// A pool member does not report that its Pod was scheduled; a user's Sandbox does. Both report that it could not be.
#[tokio::test]
async fn a_pool_member_does_not_report_its_node_before_it_is_ready() {
    let pool = json!([{ "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "name": "p", "uid": "pool", "controller": true }]);
    for (owners, placed_writes) in [(json!(null), 1), (pool, 0)] {
        let mut fixture = SandboxFixture::new();
        fixture.create(with(json!({ "metadata": { "ownerReferences": owners } })));
        fixture.converge().await;
        let condition = |status: &str, reason: &str| json!({ "status": { "conditions": [{ "type": "PodScheduled", "status": status, "reason": reason, "message": "" }] } });
        fixture.api.edit(Kind::Pod, &key(), condition("True", ""));
        fixture.api.take_writes();
        fixture.pass().await.expect("passes");
        assert_eq!(fixture.api.take_writes().len(), placed_writes);
        fixture.api.edit(Kind::Pod, &key(), condition("False", "Unschedulable"));
        fixture.pass().await.expect("passes");
        assert_eq!(fixture.api.take_writes().len(), 1);
        fixture.pod_runs(NAME);
        fixture.converge().await;
        assert_eq!(fixture.ready().0, "True");
    }
}

/// S-202: without write-behind the Pod follows at once, once.
#[tokio::test]
async fn s_202_synchronous_by_default() {
    let mut fixture = SandboxFixture::new();
    fixture.create(minimal());
    fixture.converge().await;
    relabel(&fixture, "a");
    fixture.pass().await.expect("passes");
    assert_eq!(pod_patches(&fixture), 1);
    fixture.pass().await.expect("passes");
    assert_eq!(pod_patches(&fixture), 0);
}

/// S-203: inside the window nothing is sent, the status is as if it had been; after it, one patch.
#[tokio::test]
async fn s_203_write_behind() {
    let mut fixture = SandboxFixture::with(write_behind(seconds(3600)), Tracing::default());
    fixture.create(minimal());
    fixture.converge().await;
    fixture.pod_runs(NAME);
    fixture.converge().await;
    relabel(&fixture, "a");
    let Next::After(first) = fixture.pass().await.expect("passes") else { panic!("a requeue is due") };
    assert!(first > Duration::ZERO && first <= seconds(1));
    assert_eq!(pod_patches(&fixture), 0);
    assert_eq!(fixture.ready(), words("True", "DependenciesReady", "Pod is Ready"));
    assert_eq!(fixture.sandbox().condition(ConditionType::Ready).expect("there").observed_generation, Some(2));
    fixture.clock.advance(Duration::from_millis(300));
    relabel(&fixture, "b");
    let Next::After(second) = fixture.pass().await.expect("passes") else { panic!("a requeue is due") };
    assert!(second < first, "redelivery does not re-arm the window");
    assert_eq!((pod_patches(&fixture), fixture.reconciler.postponed()), (0, 1));
    fixture.clock.advance(second);
    assert_eq!(fixture.pass().await.expect("passes"), Next::Idle);
    assert_eq!((pod_patches(&fixture), fixture.reconciler.postponed()), (1, 0));
    assert_eq!(label_of(&fixture.pod(), "team").as_deref(), Some("b"));
    fixture.pass().await.expect("passes");
    assert_eq!(pod_patches(&fixture), 0);
}

/// S-204: a new process starts the window anew, and then patches once.
#[tokio::test]
async fn s_204_write_behind_survives_a_restart() {
    let window = Duration::from_millis(250);
    let mut first = SandboxFixture::with(write_behind(window), Tracing::default());
    first.create(minimal());
    first.converge().await;
    relabel(&first, "a");
    first.pass().await.expect("passes");
    first.clock.advance(Duration::from_millis(200));
    let mut second = SandboxFixture::on(first.api.clone(), write_behind(window), Tracing::default());
    drop(first);
    second.api.take_writes();
    let Next::After(left) = second.pass().await.expect("passes") else { panic!("deferred once more") };
    assert!(left <= window);
    second.clock.advance(left);
    second.pass().await.expect("passes");
    assert_eq!(pod_patches(&second), 1);
}

/// S-205: a patch carries metadata only, and is the same whatever else the Pod holds.
#[tokio::test]
async fn s_205_patches_from_compact_pods() {
    let mut fixture = SandboxFixture::new();
    fixture.create(minimal());
    fixture.converge().await;
    fixture.api.edit(
        Kind::Pod,
        &key(),
        json!({ "metadata": { "managedFields": [{ "manager": "m" }], "finalizers": ["x/y"] }, "spec": { "containers": [{ "name": "main", "image": "big" }] } }),
    );
    relabel(&fixture, "a");
    fixture.api.take_writes();
    fixture.pass().await.expect("passes");
    let writes = fixture.api.take_writes();
    let patch = writes.iter().find(|request| is_patch(Kind::Pod)(request)).expect("patched");
    let Verb::Patch { body, .. } = &patch.verb else { unreachable!("a patch") };
    let expected = json!({ "metadata": { "labels": { "team": "a" }, "annotations": { "agents.x-k8s.io/propagated-labels": "team" } } });
    assert_eq!(*body, expected);
}

/// A failing Pod patch does not take the address away from clients.
#[tokio::test]
async fn a_failed_patch_keeps_the_address() {
    let mut fixture = SandboxFixture::new();
    fixture.create(minimal());
    fixture.converge().await;
    fixture.pod_runs(NAME);
    fixture.converge().await;
    relabel(&fixture, "a");
    fixture.api.fail(is_patch(Kind::Pod), broken());
    fixture.pass().await.expect_err("will be tried again");
    assert_eq!(fixture.ready(), words("False", "ReconcilerError", "Error seen: failed to patch pod: quota exceeded"));
    assert!(fixture.status().pod_ips.is_some());
}

/// The texts of transient errors do not vary, so that a retry does not cause the next one.
#[tokio::test]
async fn repeated_failures_write_the_status_once() {
    let mut fixture = SandboxFixture::new();
    fixture.create(minimal());
    for attempt in 0..3 {
        let message = format!("timed out after {attempt} ms");
        fixture.api.fail(is_create(Kind::Pod), Fault::Refuse(ApiError::Unknown { message }));
        fixture.pass().await.expect_err("fails");
    }
    assert_eq!(fixture.api.writes().iter().filter(|request| is_status(request)).count(), 1);
}

/// Errors do not delay a deadline.
#[tokio::test]
async fn an_error_does_not_delay_the_shutdown() {
    let mut fixture = SandboxFixture::new();
    let soon = fixture.clock.now() + seconds(7);
    fixture.create(with(json!({ "spec": { "shutdownTime": soon.to_string() } })));
    fixture.api.fail(is_create(Kind::Pod), broken());
    let error = fixture.pass().await.expect_err("fails");
    assert_eq!(error.at_most, Some(seconds(7)));
}

/// Lost responses cost time, but cause no second Pod and no lost status.
#[tokio::test]
async fn lost_responses_do_no_harm() {
    let mut fixture = SandboxFixture::new();
    fixture.create(with(json!({ "spec": { "service": true } })));
    fixture.api.fail(is_create(Kind::Pod), Fault::LoseResponse);
    fixture.pass().await.expect_err("the outcome is unknown");
    fixture.api.fail(is_patch(Kind::Sandbox), Fault::LoseResponse);
    fixture.api.fail(is_status, Fault::LoseResponse);
    for _ in 0..3 {
        let _ = fixture.pass().await;
    }
    fixture.converge().await;
    assert_eq!((fixture.count(Kind::Pod), fixture.count(Kind::Service)), (1, 1));
    assert_eq!(
        (fixture.ready().1.as_str(), fixture.sandbox().annotation(POD_NAME)),
        ("DependenciesNotReady", Some(NAME))
    );
}

/// The first status of a pool member whose Pod was just created is deferred, because mostly it is Ready soon. If that
/// takes long, the status is written; a user's own Sandbox gets its status at once.
#[tokio::test]
async fn the_first_status_of_a_pool_member_is_deferred() {
    let pool = json!([{ "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "name": "p", "uid": "p", "controller": true }]);
    let member = with(json!({ "metadata": { "ownerReferences": pool } }));
    for fast in [true, false] {
        let mut fixture = SandboxFixture::new();
        fixture.create(member.clone());
        let next = fixture.pass().await.expect("passes");
        assert!(matches!(next, Next::After(rest) if rest <= seconds(2)), "{next:?}");
        assert!(!fixture.api.take_writes().iter().any(is_status));
        if fast {
            fixture.pod_runs(NAME);
        } else {
            fixture.clock.advance(seconds(2));
        }
        fixture.pass().await.expect("passes");
        assert_eq!(fixture.api.take_writes().iter().filter(|request| is_status(request)).count(), 1);
        assert_eq!(fixture.ready().0, if fast { "True" } else { "False" });
    }
    let mut fixture = SandboxFixture::new();
    fixture.create(minimal());
    fixture.pass().await.expect("passes");
    assert_eq!(fixture.ready().1, "DependenciesNotReady");
}

/// With a first-status delay, a user's Sandbox gets its first status when its Pod runs, in one write. If that takes
/// long, the status is written before; errors are written at once.
#[tokio::test]
async fn with_a_first_status_delay_the_first_status_waits_for_the_pod() {
    let settings = || Settings { first_status_delay: Duration::from_millis(500), ..Settings::default() };
    let statuses =
        |fixture: &SandboxFixture| fixture.api.take_writes().iter().filter(|request| is_status(request)).count();
    for fast in [true, false] {
        let mut fixture = SandboxFixture::with(settings(), Tracing::default());
        fixture.create(minimal());
        assert_eq!(fixture.pass().await.expect("passes"), Next::After(Duration::from_millis(500)));
        fixture.clock.advance(Duration::from_millis(300));
        assert_eq!(fixture.pass().await.expect("passes"), Next::After(Duration::from_millis(200)), "not armed anew");
        assert_eq!(statuses(&fixture), 0);
        if fast {
            fixture.pod_runs(NAME);
        } else {
            fixture.clock.advance(Duration::from_millis(200));
        }
        assert_eq!(fixture.pass().await.expect("passes"), Next::Idle);
        assert_eq!((statuses(&fixture), fixture.ready().0.as_str()), (1, if fast { "True" } else { "False" }));
        assert_eq!(fixture.reconciler.without_status(), 0);
    }
    let mut fixture = SandboxFixture::with(settings(), Tracing::default());
    fixture.create(minimal());
    fixture.api.fail(is_create(Kind::Pod), broken());
    fixture.pass().await.expect_err("will be tried again");
    assert_eq!(fixture.ready().1, "ReconcilerError");
    let soon = fixture.clock.now() + Duration::from_millis(1100);
    let mut fixture = SandboxFixture::with(settings(), Tracing::default());
    fixture.create(with(json!({ "spec": { "shutdownTime": soon.to_string() } })));
    fixture.clock.advance(Duration::from_millis(700));
    let Next::After(rest) = fixture.pass().await.expect("passes") else { panic!("its end is near") };
    assert!(rest <= Duration::from_millis(400), "{rest:?}");
}

/// An unschedulable Pod of a member is reported at once.
#[tokio::test]
async fn an_unschedulable_pool_member_is_reported_at_once() {
    let pool = json!([{ "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "name": "p", "uid": "p", "controller": true }]);
    let mut fixture = SandboxFixture::new();
    fixture.create(with(json!({ "metadata": { "ownerReferences": pool } })));
    fixture.pass().await.expect("passes");
    let unplaced =
        json!([{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node" }]);
    fixture.api.edit(Kind::Pod, &key(), json!({ "status": { "phase": "Pending", "conditions": unplaced } }));
    fixture.pass().await.expect("passes");
    assert_eq!(fixture.condition(ConditionType::PodScheduled).expect("said").0, "False");
}
