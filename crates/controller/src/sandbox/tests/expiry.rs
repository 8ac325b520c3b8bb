//! What happens at the shutdown time.

use super::*;

const EXPIRED: (&str, &str, &str) = ("False", "SandboxExpired", "Sandbox has expired");

fn expired() -> (String, String, String) {
    words(EXPIRED.0, EXPIRED.1, EXPIRED.2)
}

fn expire(bench: &Bench) {
    let past = bench.clock.now() - seconds(1);
    bench.model.edit(Kind::Sandbox, &key(), json!({ "spec": { "shutdownTime": past.to_string() } }));
}

/// S-180, S-188: the boundary is expired; before it a requeue is due exactly then.
#[test]
fn s_180_s_188_when_a_sandbox_expires() {
    let now = FakeClock::new().now();
    let due = |at: Option<jiff::Timestamp>| -> Sandbox {
        let mut sandbox: Sandbox = serde_json::from_value(minimal()).expect("valid");
        sandbox.spec.shutdown_time = at.map(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time);
        sandbox
    };
    assert_eq!((is_expired(&due(None), now), until_shutdown(&due(None), now)), (false, None));
    for ahead in [seconds(7200), Duration::from_millis(500)] {
        let sandbox = due(Some(now + ahead));
        assert_eq!((is_expired(&sandbox, now), until_shutdown(&sandbox, now)), (false, Some(ahead)));
    }
    assert!(is_expired(&due(Some(now)), now));
    assert!(is_expired(&due(Some(now - seconds(1))), now));
}

/// S-181, S-182, S-192: with Retain, Pod and Service go and the volume stays; the status keeps conditions only.
#[tokio::test]
async fn s_181_s_182_s_192_retain() {
    for adopted in [false, true] {
        let mut bench = Bench::new();
        let mut sandbox = with(
            json!({ "spec": { "service": true, "volumeClaimTemplates": [{ "metadata": { "name": "d" }, "spec": {} }] } }),
        );
        if adopted {
            bench.model.create(Kind::Pod, unowned_pod("prepared", json!({ "agents.x-k8s.io/adoptable": "true" })));
            sandbox["metadata"]["annotations"] = json!({ POD_NAME: "prepared" });
        }
        bench.create(sandbox);
        bench.settle().await;
        expire(&bench);
        assert_eq!(bench.pass().await.expect("passes"), Next::After(Duration::from_millis(1)));
        assert_eq!(
            (bench.count(Kind::Pod), bench.count(Kind::Service)),
            (1, 1),
            "nothing goes before the status says so"
        );
        assert_eq!(bench.ready(), expired());
        assert_eq!(bench.pass().await.expect("passes"), Next::Idle);
        assert_eq!((bench.count(Kind::Pod), bench.count(Kind::Service), bench.count(Kind::Pvc)), (0, 0, 1));
        let status = bench.status();
        assert_eq!(
            (status.service, status.service_fqdn, status.selector, status.pod_ips, status.node_name),
            (None, None, None, None, None)
        );
        assert_eq!(bench.ready(), expired());
        assert_eq!(bench.condition(ConditionType::PodScheduled), None);
        assert_eq!(bench.condition(ConditionType::Suspended).expect("kept").1, "NotSuspended");
        bench.settle().await;
        assert_eq!(bench.count(Kind::Pod), 0);
    }
}

/// S-183, S-192: with Delete everything goes.
#[tokio::test]
async fn s_183_delete() {
    let mut bench = Bench::new();
    bench.create(with(json!({ "spec": { "service": true, "shutdownPolicy": "Delete", "volumeClaimTemplates": [{ "metadata": { "name": "d" }, "spec": {} }] } })));
    bench.settle().await;
    expire(&bench);
    bench.pass().await.expect("marks");
    assert_eq!(bench.pass().await.expect("cleans up"), Next::Idle);
    assert!(bench.model.get(Kind::Sandbox, &key()).is_none());
    bench.model.collect_garbage();
    assert_eq!((bench.count(Kind::Pod), bench.count(Kind::Service), bench.count(Kind::Pvc)), (0, 0, 0));
}

/// S-184, S-185: what is not ours survives.
#[tokio::test]
async fn s_184_s_185_others_survive() {
    for owners in [json!([]), foreign_owner()] {
        let mut bench = Bench::new();
        let past = bench.clock.now() - seconds(1);
        bench.create(with(json!({ "spec": { "service": true, "shutdownTime": past.to_string() } })));
        let mut pod = unowned_pod(NAME, json!({}));
        pod["metadata"]["ownerReferences"] = owners;
        bench.model.create(Kind::Pod, pod);
        bench.model.create(
            Kind::Service,
            json!({ "metadata": { "name": NAME, "ownerReferences": [bench.sandbox().controller_reference()] }, "spec": { "clusterIP": "None" } }),
        );
        bench.settle().await;
        assert_eq!((bench.count(Kind::Pod), bench.count(Kind::Service)), (1, 0));
        assert_eq!(bench.ready(), expired());
    }
}

/// S-186: born expired.
#[tokio::test]
async fn s_186_born_expired() {
    let mut bench = Bench::new();
    let past = bench.clock.now() - seconds(1);
    bench.create(with(json!({ "spec": { "shutdownTime": past.to_string() } })));
    bench.settle().await;
    assert_eq!(bench.ready(), expired());
    assert!(!bench.model.writes().iter().any(|request| request.kind == Kind::Pod));
}

/// S-187, S-190: how the Pod ended is still known afterwards.
#[tokio::test]
async fn s_187_s_190_finished_survives_expiry() {
    for (phase, reason) in [("Succeeded", "PodSucceeded"), ("Failed", "PodFailed")] {
        let mut bench = Bench::new();
        bench.create(with(json!({ "spec": { "service": true } })));
        bench.settle().await;
        bench.model.edit(Kind::Pod, &key(), json!({ "status": { "phase": phase } }));
        bench.settle().await;
        assert_eq!(bench.condition(ConditionType::Finished).expect("there").1, reason);
        expire(&bench);
        assert_eq!(bench.pass().await.expect("marks"), Next::After(Duration::from_millis(1)));
        assert_eq!(
            (bench.condition(ConditionType::PodScheduled), bench.count(Kind::Pod), bench.count(Kind::Service)),
            (None, 1, 1)
        );
        assert_eq!(bench.pass().await.expect("cleans up"), Next::Idle);
        assert_eq!((bench.count(Kind::Pod), bench.count(Kind::Service)), (0, 0));
        assert_eq!(bench.condition(ConditionType::Finished).expect("kept").1, reason);
    }
}

/// S-188, S-189: a running Sandbox expires at its time, with the generation that set the time.
#[tokio::test]
async fn s_188_s_189_a_running_sandbox_expires() {
    let mut bench = Bench::new();
    bench.create(with(json!({ "spec": { "service": true } })));
    bench.settle().await;
    bench.pod_runs(NAME);
    bench.settle().await;
    let at = bench.clock.now() + seconds(10);
    bench.model.edit(Kind::Sandbox, &key(), json!({ "spec": { "shutdownTime": at.to_string() } }));
    let Next::After(left) = bench.pass().await.expect("passes") else { panic!("a requeue is due") };
    assert_eq!(left, seconds(10));
    bench.clock.advance(left);
    bench.settle().await;
    let sandbox = bench.sandbox();
    let ready = sandbox.condition(ConditionType::Ready).expect("there");
    assert_eq!((said(ready), ready.observed_generation), (expired(), Some(2)));
    assert_eq!(bench.condition(ConditionType::Suspended).expect("there").1, "NotSuspended");
    assert_eq!((bench.status().service, bench.status().service_fqdn), (None, None));
    assert_eq!((bench.count(Kind::Pod), bench.count(Kind::Service)), (0, 0));
}

/// S-191: a Sandbox whose time is moved forward lives again.
#[tokio::test]
async fn s_191_expiry_can_be_taken_back() {
    let mut bench = Bench::new();
    bench.create(minimal());
    bench.settle().await;
    bench.model.edit(Kind::Pod, &key(), json!({ "status": { "phase": "Succeeded" } }));
    bench.settle().await;
    expire(&bench);
    bench.settle().await;
    assert_eq!(bench.count(Kind::Pod), 0);
    bench.model.edit(Kind::Sandbox, &key(), json!({ "spec": { "shutdownTime": null } }));
    bench.settle().await;
    assert_eq!((bench.count(Kind::Pod), bench.condition(ConditionType::Finished)), (1, None));
    bench.pod_runs(NAME);
    bench.settle().await;
    assert_eq!(bench.ready().0, "True");
}

/// Every Pod of ours goes, also when there were several.
#[tokio::test]
async fn all_owned_pods_go() {
    let mut bench = Bench::new();
    bench.create(minimal());
    for name in ["one", "two"] {
        let mut pod = unowned_pod(name, json!({ TRACKING: HASH }));
        pod["metadata"]["ownerReferences"] = json!([bench.sandbox().controller_reference()]);
        bench.model.create(Kind::Pod, pod);
    }
    expire(&bench);
    bench.settle().await;
    assert_eq!(bench.count(Kind::Pod), 0);
}

/// A clean-up that fails is tried again, and the status is not reset before it succeeds.
#[tokio::test]
async fn a_failed_clean_up_is_repeated() {
    let mut bench = Bench::new();
    bench.create(with(json!({ "spec": { "service": true } })));
    bench.settle().await;
    expire(&bench);
    bench.pass().await.expect("marks");
    bench.model.fail(is_delete(Kind::Pod), broken());
    let error = bench.pass().await.expect_err("fails");
    assert_eq!(error.message, "failed to delete pod: quota exceeded");
    assert!(bench.status().selector.is_some());
    bench.settle().await;
    assert_eq!((bench.count(Kind::Pod), bench.status().selector), (0, None));
}
