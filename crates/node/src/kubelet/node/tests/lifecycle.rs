//! Tests of a Pod's lifecycle from creation to removal.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_without_a_node_is_bound_started_and_ready() {
    let fixture = Fixture::open().await;
    fixture.create("p", app()).await;
    let pod = fixture.until_ready("p").await;
    let status = pod.status.unwrap();
    assert_eq!(pod.spec.unwrap().node_name.as_deref(), Some("n1"));
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(condition(&status, "PodScheduled").unwrap().status, "True");
    assert!(status.pod_ip.is_some() && status.start_time.is_some());
    let container = &status.container_statuses.unwrap()[0];
    assert_eq!(container.image_id, "app:1@sha256:fake");
    assert!(container.container_id.as_deref().unwrap().starts_with("agent-sandbox://"));
    assert!(fixture.until_event("Scheduled").await.contains("default/p to n1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_signals_waits_and_removes_everything() {
    let fixture = Fixture::open().await;
    let pod = fixture.create("p", app()).await;
    fixture.until_ready("p").await;
    fixture.pods().delete("p", &DeleteParams::default()).await.unwrap();
    fixture.until_gone("p").await;
    fixture.until_called(&format!("forget pod-{}", uid(&pod))).await;
    let calls = fixture.runtime.calls();
    let order: Vec<&str> = calls.iter().map(String::as_str).filter(|c| !c.starts_with("forget")).collect();
    assert_eq!(order, ["create p", "start main#0", "signal main 15", "remove p"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_ignores_its_signal_is_killed_after_the_grace_period() {
    let fixture = Fixture::open().await;
    fixture.runtime.behave("serve", Behaviour::Stubborn);
    fixture.create("p", app()).await;
    fixture.until_ready("p").await;
    fixture
        .pods()
        .delete("p", &DeleteParams { grace_period_seconds: Some(1), ..DeleteParams::default() })
        .await
        .unwrap();
    fixture.until_gone("p").await;
    assert!(fixture.runtime.calls().iter().any(|c| c == "kill main"), "{:?}", fixture.runtime.calls());
}

#[tokio::test(flavor = "multi_thread")]
async fn forced_deletion_kills_at_once() {
    let fixture = Fixture::open().await;
    fixture.runtime.behave("serve", Behaviour::Stubborn);
    fixture.create("p", app()).await;
    fixture.until_ready("p").await;
    fixture
        .pods()
        .delete("p", &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() })
        .await
        .unwrap();
    fixture.until_called("remove p").await;
    fixture.until_gone("p").await;
    assert!(fixture.runtime.calls().iter().any(|c| c == "kill main"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_ends_has_its_final_phase_and_its_sandbox_removed() {
    let fixture = Fixture::open().await;
    for (name, code, phase) in [("good", 0, "Succeeded"), ("bad", 4, "Failed")] {
        fixture.runtime.behave(name, Behaviour::Exits(code));
        let spec =
            json!({"restartPolicy": "Never", "containers": [{"name": "main", "image": "app:1", "command": [name]}]});
        fixture.create(name, spec).await;
        let pod = fixture.until_phase(name, phase).await;
        let ended = pod.status.unwrap().container_statuses.unwrap()[0].state.clone().unwrap().terminated.unwrap();
        assert_eq!(ended.exit_code, code);
        fixture.until_called(&format!("remove {name}")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crashing_container_backs_off_and_counts_its_restarts() {
    let fixture = Fixture::open().await;
    fixture.runtime.behave("serve", Behaviour::Exits(1));
    fixture.create("p", app()).await;
    fixture.until_waiting("p", "CrashLoopBackOff").await;
    let pod = fixture.until("p", "restarted twice", |p| {
        p.status.as_ref().and_then(|s| s.container_statuses.as_ref()).is_some_and(|c| c[0].restart_count >= 2)
    });
    let last = pod.await.status.unwrap().container_statuses.unwrap()[0].last_state.clone().unwrap().terminated.unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (1, Some("Error")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_does_not_exist_is_a_start_error() {
    let fixture = Fixture::open().await;
    fixture.runtime.behave("nope", Behaviour::CannotRun);
    let spec =
        json!({"restartPolicy": "Never", "containers": [{"name": "main", "image": "app:1", "command": ["nope"]}]});
    fixture.create("p", spec).await;
    let pod = fixture.until_phase("p", "Failed").await;
    let ended = pod.status.unwrap().container_statuses.unwrap()[0].state.clone().unwrap().terminated.unwrap();
    assert_eq!((ended.exit_code, ended.reason.as_deref()), (128, Some("StartError")));
}

#[tokio::test(flavor = "multi_thread")]
async fn init_containers_run_first_and_sidecars_stop_last() {
    let fixture = Fixture::open().await;
    fixture.runtime.behave("setup", Behaviour::Exits(0));
    let spec = json!({
        "initContainers": [{"name": "setup", "image": "app:1", "command": ["setup"]},
                           {"name": "side", "image": "app:1", "restartPolicy": "Always"}],
        "containers": [{"name": "main", "image": "app:1"}]});
    fixture.create("p", spec).await;
    fixture.until_ready("p").await;
    fixture.pods().delete("p", &DeleteParams::default()).await.unwrap();
    fixture.until_gone("p").await;
    let calls: Vec<String> =
        fixture.runtime.calls().into_iter().filter(|c| c.starts_with("start") || c.starts_with("signal")).collect();
    assert_eq!(calls, ["start setup#0", "start side#0", "start main#0", "signal main 15", "signal side 15"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_pod_fails_with_the_reason_and_starts_nothing() {
    let fixture = Fixture::open().await;
    let mut spec = app();
    spec["hostNetwork"] = true.into();
    fixture.create("p", spec).await;
    let pod = fixture.until_phase("p", "Failed").await;
    let status = pod.status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("PodRefused"));
    assert!(status.message.unwrap().contains("hostNetwork"));
    assert!(fixture.until_event("PodRefused").await.contains("hostNetwork"));
    assert_eq!(fixture.runtime.calls(), Vec::<String>::new());
    fixture.pods().delete("p", &DeleteParams::default()).await.unwrap();
    fixture.until_gone("p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_cannot_be_pulled_is_reported_and_retried() {
    let fixture = Fixture::open().await;
    fixture.create("p", json!({"containers": [{"name": "main", "image": "late:1"}]})).await;
    fixture
        .until("p", "not pulling", |p| {
            matches!(waiting_reason(p).as_deref(), Some("ErrImagePull" | "ImagePullBackOff"))
        })
        .await;
    fixture.runtime.image("late:1", ImageConfig { entrypoint: vec!["serve".into()], ..ImageConfig::default() });
    fixture.until_ready("p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_supervisor_ends_the_containers_and_the_pod_starts_again() {
    let fixture = Fixture::open().await;
    let pod = fixture.create("p", app()).await;
    fixture.until_ready("p").await;
    fixture.runtime.lose(&uid(&pod));
    let again = fixture.until("p", "restarted", |p| is_ready(p) && restarts(p) == 1).await;
    let last = again.status.unwrap().container_statuses.unwrap()[0].last_state.clone().unwrap().terminated.unwrap();
    assert_eq!((last.exit_code, last.reason.as_deref()), (137, Some("ContainerStatusUnknown")));
    assert!(fixture.runtime.calls().iter().any(|c| c == "remove p"), "the dead sandbox is removed");
    assert!(fixture.until_event("SupervisorLost").await.contains("supervisor"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_node_finds_its_pods_running_and_leaves_them_alone() {
    let mut fixture = Fixture::open().await;
    let pod = fixture.create("p", app()).await;
    let before = fixture.until_ready("p").await;
    let ended = fixture.create("q", app()).await;
    fixture.until_ready("q").await;
    fixture.node.shutdown().await;
    fixture.runtime.end(&uid(&ended), "main", 5);
    fixture.restart().await;
    let restarted = fixture.until("q", "restarted", |p| is_ready(p) && restarts(p) == 1).await;
    let last = restarted.status.unwrap().container_statuses.unwrap()[0].last_state.clone().unwrap();
    assert_eq!(last.terminated.unwrap().exit_code, 5, "an exit while the node was down keeps its code");
    let after = fixture.pods().get("p").await.unwrap();
    assert_eq!(after.status, before.status, "nothing changed for the Pod that ran on");
    let starts = fixture.runtime.calls().iter().filter(|c| c.as_str() == "create p").count();
    assert_eq!((starts, uid(&pod)), (1, uid(&after)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_deleted_while_the_node_was_away_is_removed() {
    let mut fixture = Fixture::open().await;
    fixture.create("p", app()).await;
    fixture.until_ready("p").await;
    fixture.node.shutdown().await;
    fixture
        .pods()
        .delete("p", &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() })
        .await
        .unwrap();
    fixture.until_gone("p").await;
    fixture.restart().await;
    fixture.until_called("remove p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_stopped_on_purpose_start_again_even_when_they_never_restart() {
    let mut fixture = Fixture::open().await;
    let mut spec = app();
    spec["restartPolicy"] = "Never".into();
    fixture.create("p", spec).await;
    fixture.until_ready("p").await;
    fixture.node.stop_all().await.unwrap();
    fixture.until_called("remove p").await;
    fixture.node = start(&fixture.client, &fixture.runtime, fixture.storage).await;
    fixture.until_called("start main#1").await;
    fixture.until_ready("p").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_the_same_name_waits_for_the_one_before_it() {
    let fixture = Fixture::open().await;
    fixture.runtime.behave("serve", Behaviour::Stubborn);
    fixture.create("p", app()).await;
    fixture.until_ready("p").await;
    fixture
        .pods()
        .delete("p", &DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() })
        .await
        .unwrap();
    fixture.until_gone("p").await;
    fixture.create("p", app()).await;
    fixture.until_ready("p").await;
    let calls = fixture.runtime.calls();
    let removed = calls.iter().position(|c| c == "remove p").expect("removed");
    let created = calls.iter().rposition(|c| c == "create p").expect("created");
    assert!(removed < created, "{calls:?}");
}
