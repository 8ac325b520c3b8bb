//! Load generators: claims that arrive at random times, or all at once.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use kube::{Client, api::PostParams};
use tokio::{sync::Semaphore, task::JoinSet};

use crate::{
    environment::{Ready, within},
    objects::{self, api},
    replay::Replay,
};

/// Latency of each request, sorted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latencies(Vec<Duration>);

impl Latencies {
    pub(crate) fn new(mut all: Vec<Duration>) -> Self {
        all.sort_unstable();
        Self(all)
    }

    /// In milliseconds.
    pub(crate) fn percentile(&self, percent: usize) -> f64 {
        let index = (self.0.len().saturating_sub(1) * percent).div_ceil(100);
        self.0.get(index).map_or(f64::NAN, |latency| latency.as_secs_f64() * 1000.0)
    }

    pub(crate) fn longest(&self) -> f64 {
        self.percentile(100)
    }
}

/// Arrival times of a Poisson process: arrivals are independent of each other and of earlier responses.
pub(crate) fn poisson(rate: f64, length: Duration) -> Vec<Duration> {
    let mut at = 0.0;
    let mut arrivals = Vec::new();
    loop {
        at += -(1.0 - rand::random::<f64>()).ln() / rate;
        if at >= length.as_secs_f64() {
            return arrivals;
        }
        arrivals.push(Duration::from_secs_f64(at));
    }
}

/// Creates a claim at each arrival time and waits until each is Ready with a Sandbox. A replay, if given, serves them.
pub(crate) async fn claims(
    client: &Client,
    prefix: &str,
    arrivals: Vec<Duration>,
    replay: Option<Arc<Replay>>,
) -> anyhow::Result<Latencies> {
    let ready = Ready::follow(client, "SandboxClaim").await?;
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for (number, arrival) in arrivals.into_iter().enumerate() {
        let (client, ready, replay, name) =
            (client.clone(), ready.clone(), replay.clone(), format!("{prefix}-{number}"));
        tasks.spawn(async move {
            tokio::time::sleep_until((start + arrival).into()).await;
            let waiter = ready.expect(&name).await;
            let sent = Instant::now();
            let claim = api(&client, "SandboxClaim").create(&PostParams::default(), &objects::claim(&name)).await?;
            if let Some(replay) = replay {
                replay.serve(&claim).await?;
            }
            anyhow::Ok(within(waiter).await?.saturating_duration_since(sent))
        });
    }
    let mut latencies = Vec::new();
    while let Some(latency) = tasks.join_next().await {
        latencies.push(latency??);
    }
    Ok(Latencies::new(latencies))
}

/// Creates Sandboxes with at most `concurrency` requests at a time, waits until all are Ready, and returns how long
/// that took.
pub(crate) async fn cold_sandboxes(
    client: &Client,
    prefix: &str,
    count: usize,
    concurrency: usize,
    replay: Option<Arc<Replay>>,
) -> anyhow::Result<Duration> {
    let ready = Ready::follow(client, "Sandbox").await?;
    let permits = Arc::new(Semaphore::new(concurrency));
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for number in 0..count {
        let (client, ready, permits, replay) = (client.clone(), ready.clone(), permits.clone(), replay.clone());
        let name = format!("{prefix}-{number}");
        tasks.spawn(async move {
            let waiter = ready.expect(&name).await;
            let permit = permits.acquire_owned().await?;
            let sandbox = api(&client, "Sandbox").create(&PostParams::default(), &objects::sandbox(&name)).await?;
            drop(permit);
            if let Some(replay) = replay {
                replay.bring_up(&sandbox).await?;
            }
            within(waiter).await
        });
    }
    let mut last = start;
    while let Some(at) = tasks.join_next().await {
        last = last.max(at??);
    }
    Ok(last - start)
}
