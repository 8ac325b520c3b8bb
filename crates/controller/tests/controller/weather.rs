//! An API server that throttles, fails or disappears: nothing is lost, and nobody hammers it.

use std::time::Duration;

use agent_sandbox_api::v1beta1::SandboxClaim;
use agent_sandbox_testkit::{BURST, Sky, eventually, eventually_within};

use crate::bench::Bench;

const CLAIMS: usize = 10;
const MEMBERS: usize = 4;

async fn start() -> Bench {
    let bench = Bench::start().await;
    bench.template("t").await;
    bench.pool("p", "t", 4).await;
    bench.pool_ready("p", 4).await;
    bench
}

/// Waits out the weather and returns how many requests it turned away.
async fn endure(bench: &Bench, sky: Sky, time: Duration) -> usize {
    let before = bench.weather.turned_away();
    bench.weather.becomes(sky);
    bench.claims("c", CLAIMS, "p").await;
    eventually("the weather is noticed", || async {
        if bench.weather.turned_away() > before { Ok(()) } else { Err("not yet") }
    })
    .await;
    tokio::time::sleep(time).await;
    let during = bench.weather.turned_away() - before;
    bench.weather.becomes(Sky::Clear);
    during
}

async fn all_is_well(bench: &Bench, within: Duration) {
    eventually_within(within, "one Sandbox for every claim, and a full pool", || async {
        let claims = bench.list::<SandboxClaim>().await.len();
        if claims == CLAIMS { bench.one_each(MEMBERS).await } else { Err(format!("{claims} claims")) }
    })
    .await;
}

/// An API server that says when to come back is asked again then, and not before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_after_is_obeyed() {
    let bench = start().await;
    let turned_away = endure(&bench, Sky::Throttling { retry_after_seconds: Some(1) }, Duration::from_secs(3)).await;
    // Each claim has at most two writes in flight, each asked anew once a second; the pool and its members add a few.
    let most = (2 * CLAIMS + MEMBERS + 2) * 5;
    assert!(turned_away <= most, "{turned_away} requests, at most {most} were due");
    all_is_well(&bench, BURST).await;
    bench.stop().await;
}

/// The same without a word about when: back-off bounds the requests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn throttling_and_failures_are_survived() {
    for sky in [Sky::Throttling { retry_after_seconds: None }, Sky::Failing(500)] {
        let bench = start().await;
        let turned_away = endure(&bench, sky, Duration::from_secs(2)).await;
        assert!(turned_away < 1000, "{sky:?}: {turned_away} requests in two seconds");
        all_is_well(&bench, BURST).await;
        bench.stop().await;
    }
}

/// Gone for a while (for minutes with `AGENT_SANDBOX_SOAK`): bounded back-off meanwhile, and when it returns nobody waits out a back-off
/// that has grown to minutes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_loses_nothing() {
    let minutes = std::env::var_os("AGENT_SANDBOX_SOAK").is_some();
    let bench = start().await;
    let outage = if minutes { Duration::from_secs(240) } else { Duration::from_secs(4) };
    let turned_away = endure(&bench, Sky::Gone, outage).await;
    assert!(turned_away < 1000, "{turned_away} requests to an API server that is not there");
    all_is_well(&bench, Duration::from_secs(60)).await;
    bench.stop().await;
}
