//! What happens at the shutdown time.

use super::*;

const EXPIRED: (&str, &str, &str) = ("False", "SandboxExpired", "Sandbox has expired");

fn expired() -> (String, String, String) {
    words(EXPIRED.0, EXPIRED.1, EXPIRED.2)
}

fn expire(fixture: &SandboxFixture) {
    let past = fixture.clock.now() - seconds(1);
    fixture.api.edit(Kind::Sandbox, &key(), json!({ "spec": { "shutdownTime": past.to_string() } }));
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
        let mut fixture = SandboxFixture::new();
        let mut sandbox = with(
            json!({ "spec": { "service": true, "volumeClaimTemplates": [{ "metadata": { "name": "d" }, "spec": {} }] } }),
        );
        if adopted {
            fixture.api.create(Kind::Pod, unowned_pod("prepared", json!({ "agents.x-k8s.io/adoptable": "true" })));
            sandbox["metadata"]["annotations"] = json!({ POD_NAME: "prepared" });
        }
        fixture.create(sandbox);
        fixture.converge().await;
        expire(&fixture);
        assert_eq!(fixture.pass().await.expect("passes"), Next::After(Duration::from_millis(1)));
        assert_eq!(
            (fixture.count(Kind::Pod), fixture.count(Kind::Service)),
            (1, 1),
            "nothing goes before the status says so"
        );
        assert_eq!(fixture.ready(), expired());
        assert_eq!(fixture.pass().await.expect("passes"), Next::Idle);
        assert_eq!((fixture.count(Kind::Pod), fixture.count(Kind::Service), fixture.count(Kind::Pvc)), (0, 0, 1));
        let status = fixture.status();
        assert_eq!(
            (status.service, status.service_fqdn, status.selector, status.pod_ips, status.node_name),
            (None, None, None, None, None)
        );
        assert_eq!(fixture.ready(), expired());
        assert_eq!(fixture.condition(ConditionType::PodScheduled), None);
        assert_eq!(fixture.condition(ConditionType::Suspended).expect("kept").1, "NotSuspended");
        fixture.converge().await;
        assert_eq!(fixture.count(Kind::Pod), 0);
    }
}

/// S-183, S-192: with Delete everything is deleted.
#[tokio::test]
async fn s_183_delete() {
    let mut fixture = SandboxFixture::new();
    fixture.create(with(json!({ "spec": { "service": true, "shutdownPolicy": "Delete", "volumeClaimTemplates": [{ "metadata": { "name": "d" }, "spec": {} }] } })));
    fixture.converge().await;
    expire(&fixture);
    fixture.pass().await.expect("marks");
    assert_eq!(fixture.pass().await.expect("cleans up"), Next::Idle);
    assert!(fixture.api.get(Kind::Sandbox, &key()).is_none());
    fixture.api.collect_garbage();
    assert_eq!((fixture.count(Kind::Pod), fixture.count(Kind::Service), fixture.count(Kind::Pvc)), (0, 0, 0));
}

/// S-184, S-185: what is not ours survives.
#[tokio::test]
async fn s_184_s_185_others_survive() {
    for owners in [json!([]), foreign_owner()] {
        let mut fixture = SandboxFixture::new();
        let past = fixture.clock.now() - seconds(1);
        fixture.create(with(json!({ "spec": { "service": true, "shutdownTime": past.to_string() } })));
        let mut pod = unowned_pod(NAME, json!({}));
        pod["metadata"]["ownerReferences"] = owners;
        fixture.api.create(Kind::Pod, pod);
        fixture.api.create(
            Kind::Service,
            json!({ "metadata": { "name": NAME, "ownerReferences": [fixture.sandbox().controller_reference()] }, "spec": { "clusterIP": "None" } }),
        );
        fixture.converge().await;
        assert_eq!((fixture.count(Kind::Pod), fixture.count(Kind::Service)), (1, 0));
        assert_eq!(fixture.ready(), expired());
    }
}

/// S-186: born expired.
#[tokio::test]
async fn s_186_born_expired() {
    let mut fixture = SandboxFixture::new();
    let past = fixture.clock.now() - seconds(1);
    fixture.create(with(json!({ "spec": { "shutdownTime": past.to_string() } })));
    fixture.converge().await;
    assert_eq!(fixture.ready(), expired());
    assert!(!fixture.api.writes().iter().any(|request| request.kind == Kind::Pod));
}

/// S-187, S-190: the Finished condition survives the expiry.
#[tokio::test]
async fn s_187_s_190_finished_survives_expiry() {
    for (phase, reason) in [("Succeeded", "PodSucceeded"), ("Failed", "PodFailed")] {
        let mut fixture = SandboxFixture::new();
        fixture.create(with(json!({ "spec": { "service": true } })));
        fixture.converge().await;
        fixture.api.edit(Kind::Pod, &key(), json!({ "status": { "phase": phase } }));
        fixture.converge().await;
        assert_eq!(fixture.condition(ConditionType::Finished).expect("there").1, reason);
        expire(&fixture);
        assert_eq!(fixture.pass().await.expect("marks"), Next::After(Duration::from_millis(1)));
        assert_eq!(
            (fixture.condition(ConditionType::PodScheduled), fixture.count(Kind::Pod), fixture.count(Kind::Service)),
            (None, 1, 1)
        );
        assert_eq!(fixture.pass().await.expect("cleans up"), Next::Idle);
        assert_eq!((fixture.count(Kind::Pod), fixture.count(Kind::Service)), (0, 0));
        assert_eq!(fixture.condition(ConditionType::Finished).expect("kept").1, reason);
    }
}

/// A Sandbox whose command runs once goes when its Pod has finished, however it ended, and not before.
#[tokio::test]
async fn a_sandbox_that_runs_once_expires_when_its_pod_has_finished() {
    for phase in ["Succeeded", "Failed"] {
        let mut fixture = SandboxFixture::new();
        let once = json!({ "agent-sandbox.github.io/shutdown-when-finished": "true" });
        fixture.create(with(json!({ "metadata": { "annotations": once }, "spec": { "shutdownPolicy": "Delete" } })));
        fixture.converge().await;
        fixture.pod_runs(NAME);
        fixture.converge().await;
        assert_eq!((fixture.ready().0.as_str(), fixture.count(Kind::Sandbox)), ("True", 1));
        fixture.api.edit(Kind::Pod, &key(), json!({ "status": { "phase": phase } }));
        assert_eq!(fixture.pass().await.expect("passes"), Next::After(Duration::from_millis(1)), "no event follows");
        fixture.converge().await;
        assert_eq!(fixture.count(Kind::Sandbox), 0, "{phase}");
    }
}

/// S-188, S-189: a running Sandbox expires at its time, with the generation that set the time.
#[tokio::test]
async fn s_188_s_189_a_running_sandbox_expires() {
    let mut fixture = SandboxFixture::new();
    fixture.create(with(json!({ "spec": { "service": true } })));
    fixture.converge().await;
    fixture.pod_runs(NAME);
    fixture.converge().await;
    let at = fixture.clock.now() + seconds(10);
    fixture.api.edit(Kind::Sandbox, &key(), json!({ "spec": { "shutdownTime": at.to_string() } }));
    let Next::After(left) = fixture.pass().await.expect("passes") else { panic!("a requeue is due") };
    assert_eq!(left, seconds(10));
    fixture.clock.advance(left);
    fixture.converge().await;
    let sandbox = fixture.sandbox();
    let ready = sandbox.condition(ConditionType::Ready).expect("there");
    assert_eq!((said(ready), ready.observed_generation), (expired(), Some(2)));
    assert_eq!(fixture.condition(ConditionType::Suspended).expect("there").1, "NotSuspended");
    assert_eq!((fixture.status().service, fixture.status().service_fqdn), (None, None));
    assert_eq!((fixture.count(Kind::Pod), fixture.count(Kind::Service)), (0, 0));
}

/// S-191: a Sandbox whose shutdown time is moved to the future runs again.
#[tokio::test]
async fn s_191_expiry_can_be_taken_back() {
    let mut fixture = SandboxFixture::new();
    fixture.create(minimal());
    fixture.converge().await;
    fixture.api.edit(Kind::Pod, &key(), json!({ "status": { "phase": "Succeeded" } }));
    fixture.converge().await;
    expire(&fixture);
    fixture.converge().await;
    assert_eq!(fixture.count(Kind::Pod), 0);
    fixture.api.edit(Kind::Sandbox, &key(), json!({ "spec": { "shutdownTime": null } }));
    fixture.converge().await;
    assert_eq!((fixture.count(Kind::Pod), fixture.condition(ConditionType::Finished)), (1, None));
    fixture.pod_runs(NAME);
    fixture.converge().await;
    assert_eq!(fixture.ready().0, "True");
}

/// Every owned Pod is deleted, also when there are several.
#[tokio::test]
async fn all_owned_pods_go() {
    let mut fixture = SandboxFixture::new();
    fixture.create(minimal());
    for name in ["one", "two"] {
        let mut pod = unowned_pod(name, json!({ TRACKING: HASH }));
        pod["metadata"]["ownerReferences"] = json!([fixture.sandbox().controller_reference()]);
        fixture.api.create(Kind::Pod, pod);
    }
    expire(&fixture);
    fixture.converge().await;
    assert_eq!(fixture.count(Kind::Pod), 0);
}

/// A clean-up that fails is tried again, and the status is not reset before it succeeds.
#[tokio::test]
async fn a_failed_clean_up_is_repeated() {
    let mut fixture = SandboxFixture::new();
    fixture.create(with(json!({ "spec": { "service": true } })));
    fixture.converge().await;
    expire(&fixture);
    fixture.pass().await.expect("marks");
    fixture.api.fail(is_delete(Kind::Pod), broken());
    let error = fixture.pass().await.expect_err("fails");
    assert_eq!(error.message, "failed to delete pod: quota exceeded");
    assert!(fixture.status().selector.is_some());
    fixture.converge().await;
    assert_eq!((fixture.count(Kind::Pod), fixture.status().selector), (0, None));
}
