//! What the metrics say about suspend, resume, end and expiry.

use super::*;

fn set_mode(fixture: &SandboxFixture, mode: &str) {
    fixture.api.edit(Kind::Sandbox, &key(), json!({ "spec": { "operatingMode": mode } }));
}

/// The value of a series of this Sandbox; `None` when there is none.
fn value(fixture: &SandboxFixture, name: &str, last_label: &str) -> Option<String> {
    let labels = r#"namespace="default",sandbox_template="t",owned_by="None""#;
    let series = match last_label {
        "" => format!("{name}{{{labels}}} "),
        label => format!("{name}{{{labels},{label}}} "),
    };
    fixture.metrics.render().lines().find_map(|line| line.strip_prefix(&series).map(str::to_owned))
}

async fn ready(changes: Value) -> SandboxFixture {
    let mut fixture = SandboxFixture::new();
    let mut object = with(json!({ "metadata": { "annotations": { "agents.x-k8s.io/sandbox-template-ref": "t" } } }));
    crate::testing::fake_api::merge(&mut object, &changes);
    fixture.create(object);
    fixture.converge().await;
    fixture.pod_runs(NAME);
    fixture.converge().await;
    fixture
}

#[tokio::test]
async fn suspend_and_resume_are_counted_once_with_their_latency() {
    let mut fixture = ready(json!({})).await;
    assert_eq!(
        value(&fixture, "agent_sandbox_resume_total", r#"result="requested""#),
        None,
        "a start is no resumption"
    );
    fixture.api.keep_terminating_pods();
    set_mode(&fixture, "Suspended");
    fixture.converge().await;
    assert_eq!(value(&fixture, "agent_sandbox_suspend_total", r#"result="requested""#).as_deref(), Some("1"));
    assert_eq!(value(&fixture, "agent_sandbox_suspend_total", r#"result="pod_terminated""#), None);
    fixture.clock.advance(seconds(3));
    fixture.api.remove(Kind::Pod, &key());
    fixture.converge().await;
    fixture.converge().await;
    assert_eq!(value(&fixture, "agent_sandbox_suspend_total", r#"result="requested""#).as_deref(), Some("1"));
    assert_eq!(value(&fixture, "agent_sandbox_suspend_total", r#"result="pod_terminated""#).as_deref(), Some("1"));
    assert_eq!(value(&fixture, "agent_sandbox_suspend_latency_ms_sum", "").as_deref(), Some("3000.0"));

    set_mode(&fixture, "Running");
    fixture.converge().await;
    assert_eq!(value(&fixture, "agent_sandbox_resume_total", r#"result="requested""#).as_deref(), Some("1"));
    fixture.clock.advance(seconds(2));
    fixture.pod_runs(NAME);
    fixture.converge().await;
    assert_eq!(value(&fixture, "agent_sandbox_resume_total", r#"result="ready""#).as_deref(), Some("1"));
    assert_eq!(value(&fixture, "agent_sandbox_resume_latency_ms_sum", "").as_deref(), Some("2000.0"));
}

#[tokio::test]
async fn a_suspension_that_is_taken_back_is_no_resumption() {
    let mut fixture = ready(json!({})).await;
    fixture.api.keep_terminating_pods();
    set_mode(&fixture, "Suspended");
    fixture.converge().await;
    set_mode(&fixture, "Running");
    fixture.converge().await;
    fixture.api.remove(Kind::Pod, &key());
    fixture.converge().await;
    fixture.pod_runs(NAME);
    fixture.converge().await;
    assert_eq!(fixture.ready().0, "True");
    for result in ["requested", "ready"] {
        assert_eq!(value(&fixture, "agent_sandbox_resume_total", &format!("result=\"{result}\"")), None);
    }
}

#[tokio::test]
async fn ends_and_expiry_are_counted_once() {
    let mut fixture = ready(json!({ "spec": { "shutdownTime": "2100-01-01T00:00:00Z" } })).await;
    fixture.api.edit(Kind::Pod, &key(), json!({ "status": { "phase": "Failed" } }));
    fixture.converge().await;
    fixture.converge().await;
    assert_eq!(value(&fixture, "agent_sandbox_finished_total", r#"reason="PodFailed""#).as_deref(), Some("1"));
    assert_eq!(value(&fixture, "agent_sandbox_expired_total", r#"shutdown_policy="Retain""#), None);
    fixture.api.edit(Kind::Sandbox, &key(), json!({ "spec": { "shutdownTime": "2020-01-01T00:00:00Z" } }));
    fixture.converge().await;
    fixture.converge().await;
    assert_eq!(value(&fixture, "agent_sandbox_expired_total", r#"shutdown_policy="Retain""#).as_deref(), Some("1"));
    assert_eq!(value(&fixture, "agent_sandbox_finished_total", r#"reason="PodFailed""#).as_deref(), Some("1"));
}
