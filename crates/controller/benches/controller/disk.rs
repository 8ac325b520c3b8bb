//! The speed of the API's disk: one durable write after another, and as many concurrent ones as it commits.

use std::time::{Duration, Instant};

use agent_sandbox_api::v1beta1::SandboxClaim;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, api::PostParams};
use serde_json::json;

use crate::{api, milliseconds, open, percentile, say};

pub(crate) struct Disk {
    /// The median of one ConfigMap, written alone.
    pub(crate) write: Duration,
    /// ConfigMaps, 64 in flight.
    pub(crate) writes_per_second: f64,
}

/// One durable write alone, and as many as the API commits side by side.
pub(crate) async fn measure() -> Disk {
    let bench = open().await;
    let client = bench.cluster.client();
    let maps: Api<ConfigMap> = api(&client);
    let write = |number: usize| {
        let maps = maps.clone();
        async move {
            let map =
                serde_json::from_value(json!({ "metadata": { "name": format!("m-{number}") }, "data": { "a": "b" } }))
                    .expect("valid");
            maps.create(&PostParams::default(), &map).await.expect("written");
        }
    };
    let mut alone = Vec::new();
    for number in 0..300 {
        let start = Instant::now();
        write(number).await;
        alone.push(start.elapsed());
    }
    alone.sort_unstable();
    let claims: Api<SandboxClaim> = api(&client);
    let mut ours = Vec::new();
    for number in 0..300 {
        let claim =
            json!({ "metadata": { "name": format!("c-{number}") }, "spec": { "warmPoolRef": { "name": "none" } } });
        let claim = serde_json::from_value(claim).expect("valid");
        let start = Instant::now();
        claims.create(&PostParams::default(), &claim).await.expect("written");
        ours.push(start.elapsed());
    }
    ours.sort_unstable();
    let start = Instant::now();
    let many = 6000;
    stream::iter(1000..1000 + many).for_each_concurrent(64, write).await;
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let writes_per_second = many as f64 / start.elapsed().as_secs_f64();
    let disk = Disk { write: percentile(&alone, 50), writes_per_second };
    say("one durable write, median: ConfigMap", format!("{:.2} ms", milliseconds(disk.write)));
    say("one durable write, median: SandboxClaim", format!("{:.2} ms", milliseconds(percentile(&ours, 50))));
    say("durable writes per second, 64 in flight", format!("{:.0}", disk.writes_per_second));
    disk
}
