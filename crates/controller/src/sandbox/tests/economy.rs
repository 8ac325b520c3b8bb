//! How much is written, and when.

use super::*;

fn write_behind(window: Duration) -> Settings {
    Settings { write_behind: window, ..Settings::default() }
}

fn relabel(bench: &Bench, value: &str) {
    let change = json!({ "spec": { "podTemplate": { "metadata": { "labels": { "team": value } } } } });
    bench.model.edit(Kind::Sandbox, &key(), change);
}

fn pod_patches(bench: &Bench) -> usize {
    bench.model.take_writes().iter().filter(|request| is_patch(Kind::Pod)(request)).count()
}

/// R59: a cold start costs one create per child, one annotation and one status; a settled Sandbox costs nothing.
#[tokio::test]
async fn a_cold_start_costs_few_writes_and_a_settled_sandbox_none() {
    let mut bench = Bench::new();
    bench.create(with(
        json!({ "spec": { "service": true, "volumeClaimTemplates": [{ "metadata": { "name": "d" }, "spec": {} }] } }),
    ));
    bench.pass().await.expect("passes");
    let kinds: Vec<_> = bench.model.take_writes().iter().map(|request| request.kind).collect();
    assert_eq!(kinds, [Kind::Pvc, Kind::Pod, Kind::Service, Kind::Sandbox, Kind::Sandbox]);
    bench.pod_runs(NAME);
    bench.pass().await.expect("passes");
    assert_eq!(bench.model.take_writes().len(), 1);
    for _ in 0..3 {
        bench.pass().await.expect("passes");
    }
    assert!(bench.model.take_writes().is_empty());
}

/// S-200: a node name alone waits for the next write.
#[tokio::test]
async fn s_200_node_name_rides_along() {
    let mut bench = Bench::new();
    bench.create(minimal());
    bench.settle().await;
    bench.model.edit(Kind::Pod, &key(), json!({ "spec": { "nodeName": "node-1" } }));
    bench.pass().await.expect("passes");
    assert!(bench.model.take_writes().is_empty());
    bench.pod_runs(NAME);
    bench.pass().await.expect("passes");
    assert_eq!(bench.model.take_writes().len(), 1);
    let status = bench.status();
    assert_eq!(
        (status.node_name.as_deref(), status.pod_ips.is_some(), bench.ready().0.as_str()),
        (Some("node-1"), true, "True")
    );
}

/// S-201: on a Ready Sandbox it is written at once.
#[tokio::test]
async fn s_201_node_name_of_a_ready_sandbox() {
    let mut bench = Bench::new();
    bench.create(minimal());
    bench.settle().await;
    bench.pod_runs(NAME);
    bench.settle().await;
    bench.model.edit(Kind::Pod, &key(), json!({ "spec": { "nodeName": "node-2" } }));
    bench.pass().await.expect("passes");
    assert_eq!(bench.status().node_name.as_deref(), Some("node-2"));
}

/// A pool's member does not report that its Pod was given a node; a user's Sandbox does. Either reports that it could not be.
#[tokio::test]
async fn a_pool_member_does_not_report_its_node_before_it_is_ready() {
    let pool = json!([{ "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "name": "p", "uid": "pool", "controller": true }]);
    for (owners, placed_writes) in [(json!(null), 1), (pool, 0)] {
        let mut bench = Bench::new();
        bench.create(with(json!({ "metadata": { "ownerReferences": owners } })));
        bench.settle().await;
        let condition = |status: &str, reason: &str| json!({ "status": { "conditions": [{ "type": "PodScheduled", "status": status, "reason": reason, "message": "" }] } });
        bench.model.edit(Kind::Pod, &key(), condition("True", ""));
        bench.model.take_writes();
        bench.pass().await.expect("passes");
        assert_eq!(bench.model.take_writes().len(), placed_writes);
        bench.model.edit(Kind::Pod, &key(), condition("False", "Unschedulable"));
        bench.pass().await.expect("passes");
        assert_eq!(bench.model.take_writes().len(), 1);
        bench.pod_runs(NAME);
        bench.settle().await;
        assert_eq!(bench.ready().0, "True");
    }
}

/// S-202: without write-behind the Pod follows at once, once.
#[tokio::test]
async fn s_202_synchronous_by_default() {
    let mut bench = Bench::new();
    bench.create(minimal());
    bench.settle().await;
    relabel(&bench, "a");
    bench.pass().await.expect("passes");
    assert_eq!(pod_patches(&bench), 1);
    bench.pass().await.expect("passes");
    assert_eq!(pod_patches(&bench), 0);
}

/// S-203: inside the window nothing is sent, the status is as if it had been; after it, one patch.
#[tokio::test]
async fn s_203_write_behind() {
    let mut bench = Bench::with(write_behind(seconds(3600)), Tracing::default());
    bench.create(minimal());
    bench.settle().await;
    bench.pod_runs(NAME);
    bench.settle().await;
    relabel(&bench, "a");
    let Next::After(first) = bench.pass().await.expect("passes") else { panic!("a requeue is due") };
    assert!(first > Duration::ZERO && first <= seconds(1));
    assert_eq!(pod_patches(&bench), 0);
    assert_eq!(bench.ready(), words("True", "DependenciesReady", "Pod is Ready"));
    assert_eq!(bench.sandbox().condition(ConditionType::Ready).expect("there").observed_generation, Some(2));
    bench.clock.advance(Duration::from_millis(300));
    relabel(&bench, "b");
    let Next::After(second) = bench.pass().await.expect("passes") else { panic!("a requeue is due") };
    assert!(second < first, "redelivery does not re-arm the window");
    assert_eq!((pod_patches(&bench), bench.reconciler.postponed()), (0, 1));
    bench.clock.advance(second);
    assert_eq!(bench.pass().await.expect("passes"), Next::Idle);
    assert_eq!((pod_patches(&bench), bench.reconciler.postponed()), (1, 0));
    assert_eq!(label_of(&bench.pod(), "team").as_deref(), Some("b"));
    bench.pass().await.expect("passes");
    assert_eq!(pod_patches(&bench), 0);
}

/// S-204: a new process starts the window anew, and then patches once.
#[tokio::test]
async fn s_204_write_behind_survives_a_restart() {
    let window = Duration::from_millis(250);
    let mut first = Bench::with(write_behind(window), Tracing::default());
    first.create(minimal());
    first.settle().await;
    relabel(&first, "a");
    first.pass().await.expect("passes");
    first.clock.advance(Duration::from_millis(200));
    let mut second = Bench::on(first.model.clone(), write_behind(window), Tracing::default());
    drop(first);
    second.model.take_writes();
    let Next::After(left) = second.pass().await.expect("passes") else { panic!("deferred once more") };
    assert!(left <= window);
    second.clock.advance(left);
    second.pass().await.expect("passes");
    assert_eq!(pod_patches(&second), 1);
}

/// S-205: a patch carries metadata only, and is the same whatever else the Pod holds.
#[tokio::test]
async fn s_205_patches_from_slim_pods() {
    let mut bench = Bench::new();
    bench.create(minimal());
    bench.settle().await;
    bench.model.edit(
        Kind::Pod,
        &key(),
        json!({ "metadata": { "managedFields": [{ "manager": "m" }], "finalizers": ["x/y"] }, "spec": { "containers": [{ "name": "main", "image": "big" }] } }),
    );
    relabel(&bench, "a");
    bench.model.take_writes();
    bench.pass().await.expect("passes");
    let writes = bench.model.take_writes();
    let patch = writes.iter().find(|request| is_patch(Kind::Pod)(request)).expect("patched");
    let Verb::Patch { body, .. } = &patch.verb else { unreachable!("a patch") };
    let expected = json!({ "metadata": { "labels": { "team": "a" }, "annotations": { "agents.x-k8s.io/propagated-labels": "team" } } });
    assert_eq!(*body, expected);
}

/// A failing Pod patch does not take the address away from clients.
#[tokio::test]
async fn a_failed_patch_keeps_the_address() {
    let mut bench = Bench::new();
    bench.create(minimal());
    bench.settle().await;
    bench.pod_runs(NAME);
    bench.settle().await;
    relabel(&bench, "a");
    bench.model.fail(is_patch(Kind::Pod), broken());
    bench.pass().await.expect_err("will be tried again");
    assert_eq!(bench.ready(), words("False", "ReconcilerError", "Error seen: failed to patch pod: quota exceeded"));
    assert!(bench.status().pod_ips.is_some());
}

/// The texts of transient errors do not vary, so that a retry does not cause the next one.
#[tokio::test]
async fn repeated_failures_write_the_status_once() {
    let mut bench = Bench::new();
    bench.create(minimal());
    for attempt in 0..3 {
        let message = format!("timed out after {attempt} ms");
        bench.model.fail(is_create(Kind::Pod), Fault::Refuse(ApiError::Unknown { message }));
        bench.pass().await.expect_err("fails");
    }
    assert_eq!(bench.model.writes().iter().filter(|request| is_status(request)).count(), 1);
}

/// A deadline outlives errors.
#[tokio::test]
async fn an_error_does_not_delay_the_shutdown() {
    let mut bench = Bench::new();
    let soon = bench.clock.now() + seconds(7);
    bench.create(with(json!({ "spec": { "shutdownTime": soon.to_string() } })));
    bench.model.fail(is_create(Kind::Pod), broken());
    let error = bench.pass().await.expect_err("fails");
    assert_eq!(error.at_most, Some(seconds(7)));
}

/// Answers that get lost cost time, never a second Pod or a lost status.
#[tokio::test]
async fn lost_answers_do_no_harm() {
    let mut bench = Bench::new();
    bench.create(with(json!({ "spec": { "service": true } })));
    bench.model.fail(is_create(Kind::Pod), Fault::LoseAnswer);
    bench.pass().await.expect_err("nobody knows what happened");
    bench.model.fail(is_patch(Kind::Sandbox), Fault::LoseAnswer);
    bench.model.fail(is_status, Fault::LoseAnswer);
    for _ in 0..3 {
        let _ = bench.pass().await;
    }
    bench.settle().await;
    assert_eq!((bench.count(Kind::Pod), bench.count(Kind::Service)), (1, 1));
    assert_eq!((bench.ready().1.as_str(), bench.sandbox().annotation(POD_NAME)), ("DependenciesNotReady", Some(NAME)));
}

/// A member of a pool whose Pod has just been made says nothing yet: mostly its first word is that it is Ready. If that takes long, it
/// says so after all; and a user's own Sandbox speaks at once.
#[tokio::test]
async fn a_pool_members_first_word_is_mostly_ready() {
    let pool = json!([{ "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "name": "p", "uid": "p", "controller": true }]);
    let member = with(json!({ "metadata": { "ownerReferences": pool } }));
    for fast in [true, false] {
        let mut bench = Bench::new();
        bench.create(member.clone());
        let next = bench.pass().await.expect("passes");
        assert!(matches!(next, Next::After(rest) if rest <= seconds(2)), "{next:?}");
        assert!(!bench.model.take_writes().iter().any(is_status));
        if fast {
            bench.pod_runs(NAME);
        } else {
            bench.clock.advance(seconds(2));
        }
        bench.pass().await.expect("passes");
        assert_eq!(bench.model.take_writes().iter().filter(|request| is_status(request)).count(), 1);
        assert_eq!(bench.ready().0, if fast { "True" } else { "False" });
    }
    let mut bench = Bench::new();
    bench.create(minimal());
    bench.pass().await.expect("passes");
    assert_eq!(bench.ready().1, "DependenciesNotReady");
}

/// Where Pods run at once, a user's Sandbox has its first status when its Pod runs, in one write; if that takes long, it says so after
/// all. Bad news do not wait.
#[tokio::test]
async fn where_pods_run_at_once_the_first_word_waits_for_them() {
    let settings = || Settings { first_word: Duration::from_millis(500), ..Settings::default() };
    let statuses = |bench: &Bench| bench.model.take_writes().iter().filter(|request| is_status(request)).count();
    for fast in [true, false] {
        let mut bench = Bench::with(settings(), Tracing::default());
        bench.create(minimal());
        assert_eq!(bench.pass().await.expect("passes"), Next::After(Duration::from_millis(500)));
        bench.clock.advance(Duration::from_millis(300));
        assert_eq!(bench.pass().await.expect("passes"), Next::After(Duration::from_millis(200)), "not armed anew");
        assert_eq!(statuses(&bench), 0);
        if fast {
            bench.pod_runs(NAME);
        } else {
            bench.clock.advance(Duration::from_millis(200));
        }
        assert_eq!(bench.pass().await.expect("passes"), Next::Idle);
        assert_eq!((statuses(&bench), bench.ready().0.as_str()), (1, if fast { "True" } else { "False" }));
        assert_eq!(bench.reconciler.silent(), 0);
    }
    let mut bench = Bench::with(settings(), Tracing::default());
    bench.create(minimal());
    bench.model.fail(is_create(Kind::Pod), broken());
    bench.pass().await.expect_err("will be tried again");
    assert_eq!(bench.ready().1, "ReconcilerError");
    let soon = bench.clock.now() + Duration::from_millis(1100);
    let mut bench = Bench::with(settings(), Tracing::default());
    bench.create(with(json!({ "spec": { "shutdownTime": soon.to_string() } })));
    bench.clock.advance(Duration::from_millis(700));
    let Next::After(rest) = bench.pass().await.expect("passes") else { panic!("its end is near") };
    assert!(rest <= Duration::from_millis(400), "{rest:?}");
}

/// That the scheduler cannot place a member's Pod is never held back.
#[tokio::test]
async fn bad_news_of_a_pool_member_do_not_wait() {
    let pool = json!([{ "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "name": "p", "uid": "p", "controller": true }]);
    let mut bench = Bench::new();
    bench.create(with(json!({ "metadata": { "ownerReferences": pool } })));
    bench.pass().await.expect("passes");
    let unplaced =
        json!([{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node" }]);
    bench.model.edit(Kind::Pod, &key(), json!({ "status": { "phase": "Pending", "conditions": unplaced } }));
    bench.pass().await.expect("passes");
    assert_eq!(bench.condition(ConditionType::PodScheduled).expect("said").0, "False");
}
