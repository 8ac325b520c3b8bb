//! Suspend and resume.

use super::*;

fn suspend(bench: &Bench) {
    bench.model.edit(Kind::Sandbox, &key(), json!({ "spec": { "operatingMode": "Suspended" } }));
}

fn resume(bench: &Bench) {
    bench.model.edit(Kind::Sandbox, &key(), json!({ "spec": { "operatingMode": "Running" } }));
}

/// S-080, S-088: two rounds keep Service, volumes and names; the transition time advances at each flip.
#[tokio::test]
async fn s_080_s_088_two_rounds_of_suspend_and_resume() {
    let mut bench = Bench::new();
    bench.create(with(json!({ "spec": { "service": true, "volumeClaimTemplates": [{ "metadata": { "name": "data" }, "spec": {} }] } })));
    bench.settle().await;
    bench.pod_runs(NAME);
    bench.settle().await;
    let (service, volume) =
        (bench.service().expect("there").metadata.uid, bench.pvc("data-my-sandbox").expect("there").metadata.uid);
    let mut last = bench.sandbox().condition(ConditionType::Suspended).expect("there").last_transition_time.0;
    for _ in 0..2 {
        for (change, flipped) in [(suspend as fn(&Bench), "True"), (resume, "False")] {
            bench.clock.advance(seconds(5));
            change(&bench);
            bench.settle().await;
            let sandbox = bench.sandbox();
            let condition = sandbox.condition(ConditionType::Suspended).expect("there");
            assert_eq!(condition.status, flipped);
            assert!(condition.last_transition_time.0 > last);
            last = condition.last_transition_time.0;
            assert!(
                sandbox
                    .conditions()
                    .iter()
                    .all(|condition| condition.observed_generation == Some(sandbox.generation()))
            );
            assert_eq!(bench.pod_named(NAME).is_some(), flipped == "False");
            let status = bench.status();
            assert_eq!((status.service.as_deref(), status.selector.is_some()), (Some(NAME), true));
            assert_eq!(bench.service().expect("kept").metadata.uid, service);
            assert_eq!(bench.pvc("data-my-sandbox").expect("kept").metadata.uid, volume);
        }
        let volumes = bench.model.get(Kind::Pod, &key()).expect("there")["spec"]["volumes"].clone();
        assert_eq!(volumes, json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data-my-sandbox" } }]));
    }
    assert_eq!(bench.sandbox().generation(), 5);
}

/// S-081, S-084, S-089, S-090: while the Pod terminates, the Sandbox is suspending and keeps its address; the Pod is asked only once.
#[tokio::test]
async fn s_081_s_084_s_089_s_090_suspending_takes_its_time() {
    let mut bench = Bench::new();
    bench.model.keep_terminating_pods();
    bench.create(with(json!({ "metadata": { "annotations": { "user": "kept" } } })));
    bench.settle().await;
    bench.pod_runs(NAME);
    bench.settle().await;
    let before = bench.sandbox().condition(ConditionType::Suspended).expect("there").last_transition_time.clone();
    bench.clock.advance(seconds(5));
    suspend(&bench);
    bench.model.take_writes();
    bench.pass().await.expect("passes");
    bench.pass().await.expect("passes");
    bench.settle().await;
    let deletes = bench.model.writes().iter().filter(|request| is_delete(Kind::Pod)(request)).count();
    assert_eq!(deletes, 0, "settling asks no second time");
    assert!(bench.pod().metadata.deletion_timestamp.is_some());
    let sandbox = bench.sandbox();
    let suspended = sandbox.condition(ConditionType::Suspended).expect("there");
    assert_eq!((suspended.reason.as_str(), &suspended.last_transition_time), ("PodTerminating", &before));
    assert_eq!(bench.condition(ConditionType::PodScheduled).expect("there").0, "True");
    assert!(bench.status().pod_ips.is_some());
    assert_eq!((sandbox.annotation(POD_NAME), sandbox.annotation("user")), (Some(NAME), Some("kept")));

    bench.clock.advance(seconds(5));
    bench.model.remove(Kind::Pod, &key());
    bench.settle().await;
    let sandbox = bench.sandbox();
    let suspended = sandbox.condition(ConditionType::Suspended).expect("there");
    assert_eq!((suspended.status.as_str(), suspended.reason.as_str()), ("True", "PodTerminated"));
    assert!(suspended.last_transition_time.0 > before.0);
    assert_eq!((bench.status().pod_ips, sandbox.annotation(POD_NAME)), (None, None));
}

/// S-090: a Pod on its way out is not deleted again.
#[tokio::test]
async fn s_090_one_delete_per_pod() {
    let mut bench = Bench::new();
    bench.model.keep_terminating_pods();
    bench.create(minimal());
    bench.settle().await;
    suspend(&bench);
    for _ in 0..3 {
        bench.pass().await.expect("passes");
    }
    assert_eq!(bench.model.writes().iter().filter(|request| is_delete(Kind::Pod)(request)).count(), 1);
}

/// S-082: a Pod that is not ours survives, and everything else of the Sandbox is made.
#[tokio::test]
async fn s_082_born_suspended_beside_an_unrelated_pod() {
    let mut bench = Bench::new();
    bench.model.create(Kind::Pod, unowned_pod(NAME, json!({})));
    bench.create(with(json!({ "spec": { "operatingMode": "Suspended", "service": true } })));
    let next = bench.pass().await.expect("passes");
    assert!(matches!(next, Next::After(_)), "no event of that Pod may ever come");
    assert!(bench.pod().metadata.deletion_timestamp.is_none());
    assert_eq!(bench.condition(ConditionType::Suspended).expect("there").1, "PodNotOwned");
    assert_eq!(bench.ready(), words("False", "SandboxSuspended", "Sandbox is suspending"));
    assert!(bench.service().is_some());
    assert!(bench.status().selector.is_some());
}

/// S-083: born suspended, nothing there.
#[tokio::test]
async fn s_083_born_suspended() {
    let mut bench = Bench::new();
    bench.create(with(json!({ "spec": { "operatingMode": "Suspended" } })));
    bench.settle().await;
    assert_eq!(bench.count(Kind::Pod), 0);
    assert_eq!(bench.condition(ConditionType::Suspended).expect("there").1, "PodTerminated");
    assert_eq!(bench.status().selector, None);
}

/// S-085, S-086: an annotated Pod that is not ours is left alone, and the annotation goes.
#[tokio::test]
async fn s_085_s_086_suspended_with_somebody_elses_pod() {
    for owners in [json!([]), foreign_owner()] {
        let mut bench = Bench::new();
        let mut pod = unowned_pod("theirs", json!({}));
        pod["metadata"]["ownerReferences"] = owners;
        bench.model.create(Kind::Pod, pod);
        let annotations = json!({ POD_NAME: "theirs", "user": "kept" });
        bench.create(with(
            json!({ "metadata": { "annotations": annotations }, "spec": { "operatingMode": "Suspended" } }),
        ));
        bench.pass().await.expect("no error");
        assert!(bench.pod_named("theirs").expect("survives").metadata.deletion_timestamp.is_none());
        let sandbox = bench.sandbox();
        assert_eq!((sandbox.annotation(POD_NAME), sandbox.annotation("user")), (None, Some("kept")));
    }
}

/// A Pod that vanishes under the delete call is simply gone.
#[tokio::test]
async fn a_pod_already_gone_is_no_error() {
    let mut bench = Bench::new();
    bench.create(minimal());
    bench.settle().await;
    suspend(&bench);
    bench.sync();
    bench.model.remove(Kind::Pod, &key());
    bench.reconciler.reconcile(&key()).await.expect("no error");
    assert_eq!(bench.condition(ConditionType::Suspended).expect("there").1, "PodTerminated");
}
