//! An API server that throttles, fails or disappears: nothing is lost, and the request rate stays bounded.

use std::time::Duration;

use agent_sandbox_api::v1beta1::SandboxClaim;
use agent_sandbox_testkit::{ApiFault, BURST_TIMEOUT, eventually, eventually_within};

use crate::fixture::Fixture;

const CLAIMS: usize = 10;
const MEMBERS: usize = 4;

async fn start() -> Fixture {
    let bench = Fixture::start().await;
    bench.template("t").await;
    bench.pool("p", "t", 4).await;
    bench.pool_ready("p", 4).await;
    bench
}

/// Creates claims during the failure; returns how many requests were rejected.
async fn endure(bench: &Fixture, fault: ApiFault, time: Duration) -> usize {
    let before = bench.faults.rejected_requests();
    bench.faults.set(fault);
    bench.claims("c", CLAIMS, "p").await;
    eventually("the failure is noticed", || async {
        if bench.faults.rejected_requests() > before { Ok(()) } else { Err("not yet") }
    })
    .await;
    tokio::time::sleep(time).await;
    let during = bench.faults.rejected_requests() - before;
    bench.faults.set(ApiFault::None);
    during
}

async fn all_is_well(bench: &Fixture, within: Duration) {
    eventually_within(within, "one Sandbox for every claim, and a full pool", || async {
        let claims = bench.list::<SandboxClaim>().await.len();
        if claims == CLAIMS {
            bench.check_one_sandbox_per_claim(MEMBERS).await
        } else {
            Err(format!("{claims} claims"))
        }
    })
    .await;
}

/// After a 429 with `Retry-After` the request is repeated then, and not before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_after_is_obeyed() {
    let bench = start().await;
    let turned_away =
        endure(&bench, ApiFault::Throttling { retry_after_seconds: Some(1) }, Duration::from_secs(3)).await;
    // Each claim has at most two writes in flight, each repeated once a second; the pool and its members add a few.
    let most = (2 * CLAIMS + MEMBERS + 2) * 5;
    assert!(turned_away <= most, "{turned_away} requests, at most {most} were due");
    all_is_well(&bench, BURST_TIMEOUT).await;
    bench.stop().await;
}

/// Without `Retry-After`: backoff bounds the requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn throttling_and_failures_are_survived() {
    for fault in [ApiFault::Throttling { retry_after_seconds: None }, ApiFault::Failing(500)] {
        let bench = start().await;
        let turned_away = endure(&bench, fault, Duration::from_secs(2)).await;
        assert!(turned_away < 1000, "{fault:?}: {turned_away} requests in two seconds");
        all_is_well(&bench, BURST_TIMEOUT).await;
        bench.stop().await;
    }
}

/// Gone for a while (for minutes with `AGENT_SANDBOX_SOAK`): bounded backoff meanwhile, and when it returns no key
/// waits for a backoff that has grown to minutes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_loses_nothing() {
    let minutes = std::env::var_os("AGENT_SANDBOX_SOAK").is_some();
    let bench = start().await;
    let outage = if minutes { Duration::from_secs(240) } else { Duration::from_secs(4) };
    let turned_away = endure(&bench, ApiFault::Unreachable, outage).await;
    assert!(turned_away < 1000, "{turned_away} requests to an API server that is not there");
    all_is_well(&bench, Duration::from_secs(60)).await;
    bench.stop().await;
}
