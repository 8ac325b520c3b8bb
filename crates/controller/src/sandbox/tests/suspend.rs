//! Suspend and resume.

use super::*;

fn suspend(fixture: &SandboxFixture) {
    fixture.api.edit(Kind::Sandbox, &key(), json!({ "spec": { "operatingMode": "Suspended" } }));
}

fn resume(fixture: &SandboxFixture) {
    fixture.api.edit(Kind::Sandbox, &key(), json!({ "spec": { "operatingMode": "Running" } }));
}

/// S-080, S-088: two rounds keep Service, volumes and names; the transition time advances at each flip.
#[tokio::test]
async fn s_080_s_088_two_rounds_of_suspend_and_resume() {
    let mut fixture = SandboxFixture::new();
    fixture.create(with(json!({ "spec": { "service": true, "volumeClaimTemplates": [{ "metadata": { "name": "data" }, "spec": {} }] } })));
    fixture.converge().await;
    fixture.pod_runs(NAME);
    fixture.converge().await;
    let (service, volume) =
        (fixture.service().expect("there").metadata.uid, fixture.pvc("data-my-sandbox").expect("there").metadata.uid);
    let mut last = fixture.sandbox().condition(ConditionType::Suspended).expect("there").last_transition_time.0;
    for _ in 0..2 {
        for (change, flipped) in [(suspend as fn(&SandboxFixture), "True"), (resume, "False")] {
            fixture.clock.advance(seconds(5));
            change(&fixture);
            fixture.converge().await;
            let sandbox = fixture.sandbox();
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
            assert_eq!(fixture.pod_named(NAME).is_some(), flipped == "False");
            let status = fixture.status();
            assert_eq!((status.service.as_deref(), status.selector.is_some()), (Some(NAME), true));
            assert_eq!(fixture.service().expect("kept").metadata.uid, service);
            assert_eq!(fixture.pvc("data-my-sandbox").expect("kept").metadata.uid, volume);
        }
        let volumes = fixture.api.get(Kind::Pod, &key()).expect("there")["spec"]["volumes"].clone();
        assert_eq!(volumes, json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data-my-sandbox" } }]));
    }
    assert_eq!(fixture.sandbox().generation(), 5);
}

/// S-081, S-084, S-089, S-090: while the Pod terminates, the Sandbox is suspending and keeps its address; the Pod is
/// deleted only once.
#[tokio::test]
async fn s_081_s_084_s_089_s_090_suspending_takes_its_time() {
    let mut fixture = SandboxFixture::new();
    fixture.api.keep_terminating_pods();
    fixture.create(with(json!({ "metadata": { "annotations": { "user": "kept" } } })));
    fixture.converge().await;
    fixture.pod_runs(NAME);
    fixture.converge().await;
    let before = fixture.sandbox().condition(ConditionType::Suspended).expect("there").last_transition_time.clone();
    fixture.clock.advance(seconds(5));
    suspend(&fixture);
    fixture.api.take_writes();
    fixture.pass().await.expect("passes");
    fixture.pass().await.expect("passes");
    fixture.converge().await;
    let deletes = fixture.api.writes().iter().filter(|request| is_delete(Kind::Pod)(request)).count();
    assert_eq!(deletes, 0, "settling asks no second time");
    assert!(fixture.pod().metadata.deletion_timestamp.is_some());
    let sandbox = fixture.sandbox();
    let suspended = sandbox.condition(ConditionType::Suspended).expect("there");
    assert_eq!((suspended.reason.as_str(), &suspended.last_transition_time), ("PodTerminating", &before));
    assert_eq!(fixture.condition(ConditionType::PodScheduled).expect("there").0, "True");
    assert!(fixture.status().pod_ips.is_some());
    assert_eq!((sandbox.annotation(POD_NAME), sandbox.annotation("user")), (Some(NAME), Some("kept")));

    fixture.clock.advance(seconds(5));
    fixture.api.remove(Kind::Pod, &key());
    fixture.converge().await;
    let sandbox = fixture.sandbox();
    let suspended = sandbox.condition(ConditionType::Suspended).expect("there");
    assert_eq!((suspended.status.as_str(), suspended.reason.as_str()), ("True", "PodTerminated"));
    assert!(suspended.last_transition_time.0 > before.0);
    assert_eq!((fixture.status().pod_ips, sandbox.annotation(POD_NAME)), (None, None));
}

/// S-090: a terminating Pod is not deleted again.
#[tokio::test]
async fn s_090_one_delete_per_pod() {
    let mut fixture = SandboxFixture::new();
    fixture.api.keep_terminating_pods();
    fixture.create(minimal());
    fixture.converge().await;
    suspend(&fixture);
    for _ in 0..3 {
        fixture.pass().await.expect("passes");
    }
    assert_eq!(fixture.api.writes().iter().filter(|request| is_delete(Kind::Pod)(request)).count(), 1);
}

/// S-082: a foreign Pod survives, and everything else of the Sandbox is created.
#[tokio::test]
async fn s_082_born_suspended_beside_an_unrelated_pod() {
    let mut fixture = SandboxFixture::new();
    fixture.api.create(Kind::Pod, unowned_pod(NAME, json!({})));
    fixture.create(with(json!({ "spec": { "operatingMode": "Suspended", "service": true } })));
    let next = fixture.pass().await.expect("passes");
    assert!(matches!(next, Next::After(_)), "no event of that Pod may ever come");
    assert!(fixture.pod().metadata.deletion_timestamp.is_none());
    assert_eq!(fixture.condition(ConditionType::Suspended).expect("there").1, "PodNotOwned");
    assert_eq!(fixture.ready(), words("False", "SandboxSuspended", "Sandbox is suspending"));
    assert!(fixture.service().is_some());
    assert!(fixture.status().selector.is_some());
}

/// S-083: born suspended, nothing there.
#[tokio::test]
async fn s_083_born_suspended() {
    let mut fixture = SandboxFixture::new();
    fixture.create(with(json!({ "spec": { "operatingMode": "Suspended" } })));
    fixture.converge().await;
    assert_eq!(fixture.count(Kind::Pod), 0);
    assert_eq!(fixture.condition(ConditionType::Suspended).expect("there").1, "PodTerminated");
    assert_eq!(fixture.status().selector, None);
}

/// S-085, S-086: an annotated foreign Pod is left alone, and the annotation is removed.
#[tokio::test]
async fn s_085_s_086_suspended_with_a_foreign_pod() {
    for owners in [json!([]), foreign_owner()] {
        let mut fixture = SandboxFixture::new();
        let mut pod = unowned_pod("theirs", json!({}));
        pod["metadata"]["ownerReferences"] = owners;
        fixture.api.create(Kind::Pod, pod);
        let annotations = json!({ POD_NAME: "theirs", "user": "kept" });
        fixture.create(with(
            json!({ "metadata": { "annotations": annotations }, "spec": { "operatingMode": "Suspended" } }),
        ));
        fixture.pass().await.expect("no error");
        assert!(fixture.pod_named("theirs").expect("survives").metadata.deletion_timestamp.is_none());
        let sandbox = fixture.sandbox();
        assert_eq!((sandbox.annotation(POD_NAME), sandbox.annotation("user")), (None, Some("kept")));
    }
}

/// A Pod that is gone before the delete call is no error.
#[tokio::test]
async fn a_pod_already_gone_is_no_error() {
    let mut fixture = SandboxFixture::new();
    fixture.create(minimal());
    fixture.converge().await;
    suspend(&fixture);
    fixture.sync();
    fixture.api.remove(Kind::Pod, &key());
    fixture.reconciler.reconcile(&key()).await.expect("no error");
    assert_eq!(fixture.condition(ConditionType::Suspended).expect("there").1, "PodTerminated");
}
