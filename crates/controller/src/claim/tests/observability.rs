//! Annotations and metrics of claims.

use std::time::Duration;

use agent_sandbox_api::keys::{annotations, labels};
use serde_json::Value;

use super::*;
use crate::{
    api_client::{ApiError, Request, Verb},
    cache::Kind,
    claim::ClaimSettings,
    clock::Clock,
    pool::PoolSettings,
    testing::fake_api::Fault,
};

/// The value of a series on the metrics page; 0 when it is not there.
fn series(fixture: &Fixture, name: &str, parts: &[&str]) -> u64 {
    let page = fixture.metrics.render();
    let line = page.lines().find(|line| line.starts_with(name) && parts.iter().all(|part| line.contains(part)));
    line.and_then(|line| line.rsplit(' ').next()).map_or(0, |value| value.parse::<f64>().expect("a number") as u64)
}

const CONTROLLER: &str = "agent_sandbox_claim_controller_startup_latency_ms_count";
const WEBHOOK: &str = "agent_sandbox_claim_startup_latency_ms_count";
const CLIENT: &str = "agent_sandbox_client_claim_startup_latency_ms_count";
const CREATED: &str = "agent_sandbox_claim_creation_total";

async fn cold(fixture: &Fixture, metadata: Value) {
    fixture.template("t", json!({}));
    fixture.pool_of("p", "t", 0);
    fixture.claim_with("c", metadata, json!({"warmPoolRef": {"name": "p"}}));
    fixture.claim("c").await.expect("no error");
    fixture.ready("c");
}

#[tokio::test]
async fn x_240_the_first_observation_is_recorded() {
    let fixture = Fixture::new();
    fixture.clock.advance(Duration::from_millis(123));
    let seen = fixture.clock.now();
    cold(&fixture, json!({})).await;
    let stamp =
        fixture.stored_claim("c").annotation(annotations::CONTROLLER_FIRST_OBSERVED_AT).expect("stamped").to_owned();
    assert_eq!(stamp.parse::<jiff::Timestamp>().expect("RFC 3339"), seen);
    assert!(stamp.contains('.'), "with a fraction: {stamp}");
}

/// without the annotation; the metric is still counted.
#[tokio::test]
async fn x_241_the_annotation_can_be_turned_off() {
    let settings = ClaimSettings { observability_annotations: false, ..ClaimSettings::default() };
    let fixture = Fixture::with(settings, PoolSettings::default());
    cold(&fixture, json!({})).await;
    fixture.claim("c").await.expect("no error");
    let claim = fixture.stored_claim("c");
    assert_eq!(claim.annotation(annotations::CONTROLLER_FIRST_OBSERVED_AT), None);
    assert!(claim.annotation(annotations::CLAIM_FIRST_READY_AT).is_some(), "other writes are unchanged");
    assert_eq!(series(&fixture, CONTROLLER, &["cold"]), 1);
}

#[tokio::test]
async fn x_242_the_first_readiness_is_counted_once() {
    let fixture = Fixture::new();
    cold(&fixture, json!({})).await;
    fixture.claim("c").await.expect("no error");
    let stamp = fixture.stored_claim("c").annotation(annotations::CLAIM_FIRST_READY_AT).map(str::to_owned);
    assert!(stamp.as_deref().is_some_and(|stamp| stamp.parse::<jiff::Timestamp>().is_ok()));
    for ready in [false, true] {
        if ready {
            fixture.ready("c")
        } else {
            fixture.networked("c")
        }
        fixture.clock.advance(Duration::from_secs(1));
        fixture.claim("c").await.expect("no error");
    }
    assert_eq!(fixture.ready_of("c").0, "True");
    assert_eq!(series(&fixture, CONTROLLER, &["cold", "sandbox_template=\"t\""]), 1);
    assert_eq!(fixture.stored_claim("c").annotation(annotations::CLAIM_FIRST_READY_AT).map(str::to_owned), stamp);
}

#[tokio::test]
async fn x_243_a_failed_annotation_is_recorded_as_unknown_later() {
    let fixture = Fixture::new();
    cold(&fixture, json!({})).await;
    let stamp = |request: &Request| {
        let Verb::Patch { body, .. } = &request.verb else { return false };
        body["metadata"]["annotations"].get(annotations::CLAIM_FIRST_READY_AT).is_some()
    };
    fixture.api.fail(stamp, Fault::Refuse(ApiError::Unknown { message: "reset".into() }));
    fixture.claim("c").await.expect_err("surfaced");
    assert_eq!(series(&fixture, CONTROLLER, &["cold"]), 1);
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.stored_claim("c").annotation(annotations::CLAIM_FIRST_READY_AT), Some("unknown"));
    assert_eq!(series(&fixture, CONTROLLER, &["cold"]), 1, "counted once");
}

/// start points that are missing, unreadable or in the future are not observed.
#[tokio::test]
async fn x_244_x_245_only_believable_start_points_are_observed() {
    for (webhook, client, seen) in [
        (None, None, (0, 0)),
        (Some("2020-01-01T00:00:00.5Z"), Some("2020-01-01T00:00:00Z"), (1, 1)),
        (Some("2200-01-01T00:00:00Z"), Some("2200-01-01T00:00:00Z"), (0, 0)),
        (Some("yesterday"), Some("1713689880"), (0, 0)),
    ] {
        let fixture = Fixture::new();
        let mut annotations = json!({});
        for (name, value) in
            [(annotations::WEBHOOK_FIRST_OBSERVED_AT, webhook), (annotations::CLIENT_FIRST_REQUESTED_AT, client)]
        {
            if let Some(value) = value {
                annotations[name] = value.into();
            }
        }
        cold(&fixture, json!({"annotations": annotations})).await;
        fixture.claim("c").await.expect("no error");
        assert_eq!((series(&fixture, WEBHOOK, &[]), series(&fixture, CLIENT, &[])), seen, "{webhook:?} {client:?}");
        assert_eq!(series(&fixture, CONTROLLER, &[]), 1);
    }
}

/// what is counted when a claim gets its Sandbox.
#[tokio::test]
async fn x_246_x_247_creations_are_counted_with_their_circumstances() {
    let fixture = Fixture::new();
    cold(&fixture, json!({})).await;
    let cold = [
        "namespace=\"ns\"",
        "sandbox_template=\"t\"",
        "launch_type=\"cold\"",
        "warmpool_name=\"p\"",
        "pod_condition=\"not_ready\"",
        "created_by=\"unknown\"",
    ];
    assert_eq!(series(&fixture, CREATED, &cold), 1);

    for (label, counted) in [("python-client", "python-client"), ("curl", "unknown")] {
        let fixture = Fixture::new();
        fixture.warm_pool(1).await;
        fixture.claim_with("c", json!({"labels": {labels::CREATED_BY: label}}), json!({"warmPoolRef": {"name": "p"}}));
        fixture.claim("c").await.expect("no error");
        let created_by = format!("created_by=\"{counted}\"");
        let warm = ["launch_type=\"warm\"", "warmpool_name=\"p\"", "pod_condition=\"ready\"", created_by.as_str()];
        assert_eq!(series(&fixture, CREATED, &warm), 1);
        assert_eq!(series(&fixture, CONTROLLER, &["warm"]), 1);
        assert_eq!(series(&fixture, "agent_sandbox_creation_latency_ms_count", &["warm", "namespace=\"ns\""]), 1);
    }
}

/// the in-memory state of a claim is dropped with it.
#[tokio::test]
async fn x_249_in_memory_state_does_not_leak() {
    let fixture = Fixture::new();
    cold(&fixture, json!({})).await;
    assert_eq!(fixture.claims.tracked(), 1);
    fixture.claim("c").await.expect("no error");
    assert_eq!(fixture.claims.tracked(), 0, "Ready");
    fixture.claim_on("gone", "p");
    fixture.claim("gone").await.expect("no error");
    fixture.api.remove(Kind::Claim, &key("gone"));
    fixture.claim("gone").await.expect("no error");
    assert_eq!(fixture.claims.tracked(), 0, "deleted");
    fixture.claim_on("twice", "q");
    fixture.claim("twice").await.expect("no error");
    fixture.api.remove(Kind::Claim, &key("twice"));
    fixture.clock.advance(Duration::from_secs(5));
    fixture.pool_of("q", "t", 0);
    fixture.claim_on("twice", "q");
    fixture.claim("twice").await.expect("no error");
    let stamp = fixture
        .stored_claim("twice")
        .annotation(annotations::CONTROLLER_FIRST_OBSERVED_AT)
        .expect("stamped")
        .parse::<jiff::Timestamp>()
        .expect("time");
    assert_eq!(stamp, fixture.clock.now(), "another uid is another claim");
}

/// Events of claims can be turned off.
#[tokio::test]
async fn events_can_be_turned_off() {
    let fixture = Fixture::with(ClaimSettings { events: false, ..ClaimSettings::default() }, PoolSettings::default());
    cold(&fixture, json!({})).await;
    assert_eq!(fixture.events(), []);
}
