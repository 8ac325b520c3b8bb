//! Warm claims: latency at several loads, claims per second while the pool refills, and silence afterwards.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use agent_sandbox_api::{
    conditions::{ConditionType, is_true},
    v1beta1::SandboxClaim,
};
use agent_sandbox_controller::{Config, Controller};
use agent_sandbox_testkit::{Recorder, Sent};
use futures::{StreamExt, stream};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams, WatchEvent, WatchParams},
};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::{
    api, disk::Disk, make_pool, met_or_missed, milliseconds, newest_version, open, percentile, replay, resize, say,
    until_ready,
};

/// Number of concurrent claims in the sustained part.
const IN_FLIGHT: usize = 20;

/// Tells when claims become Ready, from one watch.
#[derive(Clone, Default)]
struct Arrivals(Arc<Mutex<HashMap<String, oneshot::Sender<Instant>>>>);

impl Arrivals {
    fn follow(client: &Client) -> Self {
        let arrivals = Self::default();
        let seen = arrivals.clone();
        let claims: Api<SandboxClaim> = api(client);
        tokio::spawn(async move {
            let params = WatchParams { timeout: Some(290), ..WatchParams::default() };
            let events = claims.watch(&params, "0").await.expect("watches");
            futures::pin_mut!(events);
            while let Some(Ok(event)) = events.next().await {
                if let WatchEvent::Added(claim) | WatchEvent::Modified(claim) = event
                    && is_true(claim.condition(ConditionType::Ready))
                    && let Some(waiter) = seen.0.lock().remove(claim.name())
                {
                    let _ = waiter.send(Instant::now());
                }
            }
        });
        arrivals
    }

    /// From the POST to the event that says Ready.
    async fn claim(&self, claims: &Api<SandboxClaim>, name: String) -> Duration {
        let (sender, ready) = oneshot::channel();
        self.0.lock().insert(name.clone(), sender);
        let claim =
            serde_json::from_value(json!({ "metadata": { "name": name }, "spec": { "warmPoolRef": { "name": "p" } } }))
                .expect("valid");
        let start = Instant::now();
        claims.create(&PostParams::default(), &claim).await.expect("created");
        ready.await.expect("becomes Ready") - start
    }
}

pub(crate) async fn measure(disk: &Disk) {
    let mut bench = open().await;
    bench.start_kubelet();
    let client = bench.cluster.client();
    let (controllers, writes) = bench.cluster.recorded_client();
    let shutdown = CancellationToken::new();
    let controller = Controller::start(controllers, Config::default(), shutdown.clone());
    make_pool(&client, 0).await;
    let start = Instant::now();
    resize(&client, 300).await;
    say(
        "refill 0 to 300 Ready",
        format!("{:.2} s ({:.0}/s)", start.elapsed().as_secs_f64(), 300.0 / start.elapsed().as_secs_f64()),
    );
    let arrivals = Arrivals::follow(&client);
    let claims: Api<SandboxClaim> = api(&client);
    for (in_flight, total) in [(1, 100), (20, 200), (300, 300)] {
        until_ready(&client, 300).await;
        let names = (0..total).map(|number| format!("c{in_flight}-{number}"));
        let mut took: Vec<Duration> =
            stream::iter(names).map(|name| arrivals.claim(&claims, name)).buffer_unordered(in_flight).collect().await;
        took.sort_unstable();
        let (half, most) = (percentile(&took, 50), percentile(&took, 99));
        say(
            &format!("warm claim, {in_flight} in flight: p50 / p99"),
            format!("{:.2} ms / {:.2} ms", milliseconds(half), milliseconds(most)),
        );
        if in_flight == 1 {
            let target = disk.write * 3 + Duration::from_millis(1);
            say(
                "  target: three durable writes and 1 ms",
                format!("{:.2} ms ({})", milliseconds(target), met_or_missed(half <= target)),
            );
        }
    }
    until_ready(&client, 300).await;
    let sustained = sustain(&client, &arrivals, &writes).await;
    idle(&writes).await;
    shutdown.cancel();
    let _ = controller.wait().await;
    drop(bench);
    let replayed = replay::writes_per_second().await;
    for (whose, writes_per_second) in [("ConfigMaps", disk.writes_per_second), ("such writes, replayed", replayed)] {
        let possible = writes_per_second / sustained.writes_per_claim;
        let reached = sustained.claims_per_second / possible;
        say(
            &format!("  of what {writes_per_second:.0} {whose}/s allow"),
            format!("{:.0} % of {possible:.0} (target 60 %: {})", reached * 100.0, met_or_missed(reached >= 0.6)),
        );
    }
}

struct Sustained {
    claims_per_second: f64,
    /// Writes of all clients.
    writes_per_claim: f64,
}

/// Claims come and go for ten seconds while the pool refills.
async fn sustain(client: &Client, arrivals: &Arrivals, writes: &Recorder) -> Sustained {
    let claims: Api<SandboxClaim> = api(client);
    writes.clear();
    let before = newest_version(client).await;
    let until = Instant::now() + Duration::from_secs(10);
    let start = Instant::now();
    let workers = (0..IN_FLIGHT).map(|worker| {
        let (arrivals, claims) = (arrivals.clone(), claims.clone());
        async move {
            let mut took = Vec::new();
            while Instant::now() < until {
                let name = format!("s{worker}-{}", took.len());
                let claim = arrivals.claim(&claims, name.clone()).await;
                let start = Instant::now();
                claims.delete(&name, &DeleteParams::background()).await.expect("deleted");
                took.push((claim, start.elapsed()));
            }
            took
        }
    });
    let took: Vec<(Duration, Duration)> = futures::future::join_all(workers).await.into_iter().flatten().collect();
    let done = u32::try_from(took.len()).unwrap_or(u32::MAX);
    let rate = f64::from(done) / start.elapsed().as_secs_f64();
    let (mut claimed, mut deleted): (Vec<Duration>, Vec<Duration>) = took.into_iter().unzip();
    claimed.sort_unstable();
    deleted.sort_unstable();
    for (what, sorted) in [("a claim", &claimed), ("its deletion", &deleted)] {
        let (half, most) = (percentile(sorted, 50), percentile(sorted, 99));
        say(&format!("  {what}: p50 / p99"), format!("{:.2} ms / {:.2} ms", milliseconds(half), milliseconds(most)));
    }
    let per_claim = (newest_version(client).await - before) / f64::from(done);
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let ours = writes.writes().len() as f64 / f64::from(done);
    say("claims per second with refill, 20 in flight", format!("{rate:.0}"));
    say("writes per claim, refill included: everyone's / ours", format!("{per_claim:.1} / {ours:.1}"));
    for (what, chosen) in [("  of ours, per claim", true), ("  of ours refused, all in all", false)] {
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        for write in writes.writes().iter().filter(|write| (write.status < 300) == chosen) {
            *counts.entry(kind_of_write(write, chosen)).or_default() += 1;
        }
        let listed = counts.iter().map(|(kind, count)| match chosen {
            true => format!("{:.2} {kind}", f64::from(*count) / f64::from(done)),
            false => format!("{count} {kind}"),
        });
        say(what, listed.collect::<Vec<_>>().join(", "));
    }
    Sustained { claims_per_second: rate, writes_per_claim: per_claim }
}

/// Such as `PATCH sandboxes/status`, with the response's code when it was a refusal.
fn kind_of_write(write: &Sent, carried_out: bool) -> String {
    let kind = write.path.split('/').find(|part| part.ends_with('s') && !["", "apis", "namespaces"].contains(part));
    let status = if write.path.ends_with("/status") { "/status" } else { "" };
    let kind = format!("{} {}{status}", write.method, kind.unwrap_or_default());
    if carried_out { kind } else { format!("{kind} ({})", write.status) }
}

async fn idle(writes: &Recorder) {
    tokio::time::sleep(Duration::from_secs(5)).await;
    writes.clear();
    tokio::time::sleep(Duration::from_secs(10)).await;
    say("writes in 10 idle seconds", writes.writes().len().to_string());
}
