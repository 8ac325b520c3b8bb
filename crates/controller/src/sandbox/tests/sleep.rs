//! Idle suspension and waking: which reports and requests change the mode, and what the Sandbox then says.

use agent_sandbox_api::{
    keys::annotations,
    sleep::{self as sleep_policy, format_time},
    v1beta1::OperatingMode,
};
use proptest::prelude::*;

use super::*;

/// A Sandbox that is suspended after a minute without activity, with a running Pod.
async fn awake(annotated: Value) -> SandboxFixture {
    let mut fixture = SandboxFixture::new();
    fixture.create(with(json!({ "metadata": { "annotations": { annotations::IDLE_TIMEOUT: "1m" } } })));
    fixture.api.edit(Kind::Sandbox, &key(), json!({ "metadata": { "annotations": annotated } }));
    fixture.converge().await;
    fixture.pod_runs(NAME);
    fixture.converge().await;
    assert_eq!(fixture.ready().0, "True");
    fixture
}

fn annotate(fixture: &SandboxFixture, key_: &str, value: Value) {
    fixture.api.edit(Kind::Sandbox, &key(), json!({ "metadata": { "annotations": { key_: value } } }));
}

fn report(fixture: &SandboxFixture) {
    annotate(fixture, annotations::IDLE_REPORTED_AT, format_time(fixture.clock.now()).into());
}

fn request_wake(fixture: &SandboxFixture) {
    annotate(fixture, annotations::WAKE_REQUESTED_AT, format_time(fixture.clock.now()).into());
}

fn mode(fixture: &SandboxFixture) -> OperatingMode {
    fixture.sandbox().operating_mode()
}

fn reasons(fixture: &mut SandboxFixture) -> Vec<&'static str> {
    std::iter::from_fn(|| fixture.events.try_recv().ok()).map(|event| event.reason).collect()
}

async fn asleep() -> SandboxFixture {
    let mut fixture = awake(json!({})).await;
    fixture.clock.advance(seconds(61));
    report(&fixture);
    fixture.converge().await;
    assert_eq!(mode(&fixture), OperatingMode::Suspended);
    fixture
}

#[tokio::test]
async fn a_reported_idle_sandbox_is_suspended_and_says_why() {
    let mut fixture = awake(json!({})).await;
    assert_eq!(
        fixture.condition(ConditionType::IdleSuspend),
        Some(words("False", "NotIdle", "Suspended after 1m without activity"))
    );
    assert_eq!(
        annotation_of(&fixture.pod(), annotations::IDLE_TIMEOUT).as_deref(),
        Some("1m"),
        "routers read it there"
    );
    fixture.clock.advance(seconds(61));
    fixture.converge().await;
    assert_eq!(mode(&fixture), OperatingMode::Running, "no router has looked whether it is idle");
    report(&fixture);
    fixture.converge().await;
    assert_eq!(mode(&fixture), OperatingMode::Suspended);
    assert!(fixture.pod_named(NAME).is_none());
    assert_eq!(
        fixture.condition(ConditionType::IdleSuspend),
        Some(words("True", "Idle", "Suspended after 1m without activity. A request wakes it"))
    );
    assert_eq!(reasons(&mut fixture), ["IdleSuspended"]);
}

#[tokio::test]
async fn activity_and_time_kept_awake_outweigh_a_report() {
    for (key_, after) in [(annotations::LAST_ACTIVITY_AT, 0), (annotations::KEEP_AWAKE_UNTIL, 30)] {
        let mut fixture = awake(json!({})).await;
        fixture.clock.advance(seconds(61));
        let at = fixture.clock.now() + seconds(after);
        annotate(&fixture, key_, format_time(at).into());
        report(&fixture);
        fixture.converge().await;
        assert_eq!(mode(&fixture), OperatingMode::Running, "{key_}");
        fixture.clock.advance(seconds(61));
        fixture.converge().await;
        assert_eq!(mode(&fixture), OperatingMode::Running, "the report is older than the new idle time");
        report(&fixture);
        fixture.converge().await;
        assert_eq!(mode(&fixture), OperatingMode::Suspended, "{key_}");
    }
}

/// The fence: the suspension is valid only for the version with the report. Activity that a router records between the
/// controller's decision and its write makes the write fail, and the new plan sees the activity.
#[tokio::test]
async fn activity_recorded_at_the_last_moment_prevents_the_suspension() {
    let mut fixture = awake(json!({})).await;
    fixture.clock.advance(seconds(61));
    report(&fixture);
    fixture.sync();
    // The controller's cache has the report; the record below has not reached it.
    annotate(&fixture, annotations::LAST_ACTIVITY_AT, format_time(fixture.clock.now()).into());
    fixture.reconciler.reconcile(&key()).await.expect("passes");
    assert_eq!(mode(&fixture), OperatingMode::Running);
    fixture.converge().await;
    assert_eq!(mode(&fixture), OperatingMode::Running);
    assert!(fixture.pod_named(NAME).is_some());
}

#[tokio::test]
async fn a_request_wakes_an_idle_sandbox_once() {
    let mut fixture = asleep().await;
    fixture.clock.advance(seconds(3600));
    request_wake(&fixture);
    fixture.converge().await;
    fixture.pod_runs(NAME);
    fixture.converge().await;
    assert_eq!(fixture.ready().0, "True");
    let sandbox = fixture.sandbox();
    for gone in [annotations::WAKE_REQUESTED_AT, annotations::SUSPENDED_BY, annotations::IDLE_REPORTED_AT] {
        assert_eq!(sandbox.annotation(gone), None, "{gone}");
    }
    assert_eq!(sandbox.annotation(annotations::LAST_ACTIVITY_AT), Some(&*format_time(fixture.clock.now())));
    assert_eq!(reasons(&mut fixture), ["IdleSuspended", "WokenByRequest"]);
}

/// One pass wakes the Sandbox and creates its Pod: a request waits for it.
#[tokio::test]
async fn waking_takes_one_pass() {
    let mut fixture = asleep().await;
    request_wake(&fixture);
    fixture.pass().await.expect("passes");
    assert!(fixture.pod_named(NAME).is_some());
}

#[tokio::test]
async fn what_a_user_suspended_stays_suspended_unless_its_policy_says_otherwise() {
    for (policy, expected) in [
        (json!(null), OperatingMode::Suspended),
        (json!("Never"), OperatingMode::Suspended),
        (json!("nonsense"), OperatingMode::Suspended),
        (json!("Always"), OperatingMode::Running),
    ] {
        let mut fixture = awake(json!({ annotations::WAKE: policy })).await;
        fixture.api.edit(Kind::Sandbox, &key(), json!({ "spec": { "operatingMode": "Suspended" } }));
        fixture.converge().await;
        request_wake(&fixture);
        fixture.converge().await;
        assert_eq!(mode(&fixture), expected, "{policy}");
        assert_eq!(
            fixture.sandbox().annotation(annotations::WAKE_REQUESTED_AT),
            None,
            "a request does not wake it later"
        );
    }
}

/// A user ends an idle suspension and suspends the Sandbox: that is the user's suspension.
#[tokio::test]
async fn the_mark_of_idleness_ends_with_the_suspension() {
    let mut fixture = asleep().await;
    for mode in ["Running", "Suspended"] {
        fixture.api.edit(Kind::Sandbox, &key(), json!({ "spec": { "operatingMode": mode } }));
        fixture.converge().await;
    }
    assert_eq!(fixture.sandbox().annotation(annotations::SUSPENDED_BY), None);
    request_wake(&fixture);
    fixture.converge().await;
    assert_eq!(mode(&fixture), OperatingMode::Suspended);
}

#[tokio::test]
async fn a_resumed_sandbox_has_its_whole_idle_time() {
    let mut fixture = asleep().await;
    fixture.clock.advance(seconds(3600));
    fixture.api.edit(Kind::Sandbox, &key(), json!({ "spec": { "operatingMode": "Running" } }));
    fixture.converge().await;
    fixture.pod_runs(NAME);
    fixture.converge().await;
    report(&fixture);
    fixture.converge().await;
    assert_eq!(mode(&fixture), OperatingMode::Running);
}

#[tokio::test]
async fn members_of_pools_neither_sleep_nor_wake() {
    let mut fixture = SandboxFixture::new();
    let pool = json!([{ "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "name": "p", "uid": "u", "controller": true }]);
    let annotated = json!({ annotations::IDLE_TIMEOUT: "1m", annotations::LAST_ACTIVITY_AT: "2020-01-01T00:00:00Z" });
    fixture.create(with(json!({ "metadata": { "ownerReferences": pool, "annotations": annotated } })));
    fixture.converge().await;
    fixture.pod_runs(NAME);
    fixture.clock.advance(seconds(600));
    report(&fixture);
    fixture.converge().await;
    assert_eq!(mode(&fixture), OperatingMode::Running);
    assert_eq!(annotation_of(&fixture.pod(), annotations::IDLE_TIMEOUT), None);
    assert_eq!(fixture.condition(ConditionType::IdleSuspend), None);
}

#[tokio::test]
async fn an_invalid_policy_is_a_condition_and_suspends_nothing() {
    let mut fixture = awake(json!({ annotations::IDLE_TIMEOUT: "soon" })).await;
    let (status, reason, message) = fixture.condition(ConditionType::IdleSuspend).expect("there");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "InvalidIdlePolicy"));
    assert!(message.contains("\"soon\"") && message.contains("15m"), "{message}");
    fixture.clock.advance(seconds(600));
    report(&fixture);
    fixture.converge().await;
    assert_eq!(mode(&fixture), OperatingMode::Running);
}

/// The first activity is recorded together with the Pod's name.
#[tokio::test]
async fn the_policy_costs_no_write() {
    let writes = |annotated: Value| async move {
        let mut fixture = SandboxFixture::new();
        fixture.create(with(json!({ "metadata": { "annotations": annotated } })));
        for _ in 0..3 {
            let _ = fixture.pass().await;
        }
        fixture.pod_runs(NAME);
        for _ in 0..3 {
            let _ = fixture.pass().await;
        }
        fixture.api.writes().len()
    };
    let without = writes(json!({ "other": "x" })).await;
    assert_eq!(writes(json!({ annotations::IDLE_TIMEOUT: "1m" })).await, without);
}

/// What can happen to a Sandbox that sleeps.
#[derive(Clone, Copy, Debug)]
enum Happening {
    /// A third of the idle time passes.
    Time,
    RequestBegins,
    RequestEnds,
    Report,
    Pass,
    /// A pass with what the controller's cache knew before.
    StalePass,
    ControllerRestarts,
    PodStarts,
    UserSuspends,
    UserResumes,
}

/// A router with at most one request, by the rules of `agent-sandbox-router`: use is recorded before a request is
/// forwarded and while it is open, and idleness is reported only without one.
#[derive(Default)]
struct ModelRouter {
    open: bool,
    waiting: bool,
}

impl ModelRouter {
    fn has_live_pod(fixture: &SandboxFixture) -> bool {
        fixture
            .pod_named(NAME)
            .is_some_and(|pod| pod.metadata.deletion_timestamp.is_none() && &*pod.status.phase == "Running")
    }

    fn record(fixture: &SandboxFixture) {
        annotate(fixture, annotations::LAST_ACTIVITY_AT, format_time(fixture.clock.now()).into());
    }

    fn begin(&mut self, fixture: &SandboxFixture) {
        if Self::has_live_pod(fixture) {
            Self::record(fixture);
        }
        let sandbox = fixture.sandbox();
        if sandbox.operating_mode() == OperatingMode::Suspended {
            if sleep_policy::wakes_on_request(|key| sandbox.annotation(key)) {
                request_wake(fixture);
                self.waiting = true;
            }
        } else if Self::has_live_pod(fixture) {
            self.open = true;
        }
    }

    fn report(&self, fixture: &SandboxFixture) {
        let sandbox = fixture.sandbox();
        let Ok(Some(policy)) = sleep_policy::IdlePolicy::read(|key| sandbox.annotation(key)) else { return };
        let due = policy.due_at(|key| sandbox.annotation(key), sandbox.conditions());
        let is_due = due.is_some_and(|due| due <= fixture.clock.now());
        if is_due && !self.open && sandbox.operating_mode() == OperatingMode::Running {
            report(fixture);
        }
    }
}

async fn play(happenings: &[Happening]) {
    let mut fixture = awake(json!({})).await;
    let mut router = ModelRouter::default();
    let mut user_suspended = false;
    for happening in happenings {
        match happening {
            Happening::Time => {
                fixture.clock.advance(seconds(20));
                if router.open {
                    ModelRouter::record(&fixture);
                }
            }
            Happening::RequestBegins if !router.open && !router.waiting => router.begin(&fixture),
            Happening::RequestBegins => {}
            Happening::RequestEnds => router.open = false,
            Happening::Report => router.report(&fixture),
            Happening::Pass => drop(fixture.pass().await),
            Happening::StalePass => drop(fixture.reconciler.reconcile(&key()).await),
            Happening::ControllerRestarts => {
                fixture = SandboxFixture::on(fixture.api.clone(), Settings::default(), Tracing::default());
            }
            Happening::PodStarts => {
                if fixture.pod_named(NAME).is_some() {
                    fixture.pod_runs(NAME);
                }
            }
            Happening::UserSuspends => {
                let forgotten = json!({ annotations::SUSPENDED_BY: null, annotations::WAKE_REQUESTED_AT: null });
                let change =
                    json!({ "metadata": { "annotations": forgotten }, "spec": { "operatingMode": "Suspended" } });
                fixture.api.edit(Kind::Sandbox, &key(), change);
                (user_suspended, router) = (true, ModelRouter::default());
            }
            Happening::UserResumes => {
                fixture.api.edit(Kind::Sandbox, &key(), json!({ "spec": { "operatingMode": "Running" } }));
                user_suspended = false;
            }
        }
        if router.open {
            assert!(ModelRouter::has_live_pod(&fixture), "a Pod with an open request was deleted");
        }
        if router.waiting && ModelRouter::has_live_pod(&fixture) && mode(&fixture) == OperatingMode::Running {
            (router.waiting, router.open) = (false, true);
            ModelRouter::record(&fixture);
        }
    }
    fixture.converge().await;
    if router.open || router.waiting {
        assert!(!user_suspended);
        assert_eq!(mode(&fixture), OperatingMode::Running, "a request waits or is open");
        assert!(fixture.pod_named(NAME).is_some());
    }
    let sandbox = fixture.sandbox();
    assert_eq!(sandbox.annotation(annotations::WAKE_REQUESTED_AT), None, "every request for a wake is decided about");
    if user_suspended {
        assert_eq!(mode(&fixture), OperatingMode::Suspended, "nothing resumes what a user suspended");
    }
    if mode(&fixture) == OperatingMode::Running {
        assert_eq!(sandbox.annotation(annotations::SUSPENDED_BY), None);
    }
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        4 => Just(Happening::Time),
        2 => Just(Happening::RequestBegins),
        2 => Just(Happening::RequestEnds),
        4 => Just(Happening::Report),
        4 => Just(Happening::Pass),
        2 => Just(Happening::StalePass),
        1 => Just(Happening::ControllerRestarts),
        3 => Just(Happening::PodStarts),
        1 => Just(Happening::UserSuspends),
        1 => Just(Happening::UserResumes),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// No accepted request is lost and none waits in vain, whatever the order of activity, reports, wakes, a user's
    /// decisions, stale caches and restarts.
    #[test]
    fn no_request_is_lost_to_idleness(happenings in proptest::collection::vec(happening(), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(play(&happenings));
    }
}

#[tokio::test]
async fn a_sandbox_is_suspended_at_its_time_and_has_another_one_after_a_wake() {
    let end = |fixture: &SandboxFixture, after| format_time(fixture.clock.now() + seconds(after));
    let mut fixture = awake(json!({ annotations::WAKE: "Always", annotations::AWAKE_FOR: "5m" })).await;
    annotate(&fixture, annotations::SUSPEND_AT, end(&fixture, 10).into());
    fixture.converge().await;
    assert_eq!(mode(&fixture), OperatingMode::Running);
    fixture.clock.advance(seconds(9));
    fixture.converge().await;
    assert_eq!(mode(&fixture), OperatingMode::Running);
    fixture.clock.advance(seconds(1));
    fixture.converge().await;
    assert_eq!(mode(&fixture), OperatingMode::Suspended, "used or not");
    assert_eq!(fixture.sandbox().annotation(annotations::SUSPEND_AT), None);
    request_wake(&fixture);
    let again = end(&fixture, 300);
    fixture.converge().await;
    assert_eq!(mode(&fixture), OperatingMode::Running);
    assert_eq!(fixture.sandbox().annotation(annotations::SUSPEND_AT), Some(again.as_str()));
    assert_eq!(reasons(&mut fixture), ["TimeOver", "WokenByRequest"]);
}

/// The time alone is enough: nothing else happens to the Sandbox when it comes.
#[tokio::test]
async fn the_time_of_a_suspension_is_waited_for() {
    let mut fixture = awake(json!({})).await;
    annotate(&fixture, annotations::SUSPEND_AT, format_time(fixture.clock.now() + seconds(40)).into());
    fixture.converge().await;
    let Next::After(left) = fixture.pass().await.expect("passes") else { panic!("a requeue is due") };
    assert_eq!(left, seconds(40));
    annotate(&fixture, annotations::SUSPEND_AT, "soon".into());
    fixture.converge().await;
    assert_eq!(mode(&fixture), OperatingMode::Running, "what is no time is ignored");
}
