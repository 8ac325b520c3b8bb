//! The parts of the benchmark, one control plane each.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    environment::{Environment, LIMIT},
    load::{self, Latencies, cold_sandboxes, poisson},
    objects::{self, POOL, api},
    replay::Replay,
    report::Report,
    subject::Subject,
};

const BURST: usize = 300;
const COLD: usize = 2000;
const COLD_CLIENTS: usize = 40;
/// Limit in milliseconds for the 99th percentile of claim latency; a rate is sustained when it stays within it.
const HELD: f64 = 500.0;

/// Starts a control plane with a full pool, and the replay when that is the subject.
async fn with_pool(subject: &Subject, size: usize) -> anyhow::Result<(Environment, Option<Arc<Replay>>, Duration)> {
    let environment = Environment::new(subject, false).await?;
    if *subject != Subject::Replay {
        let filled = environment.fill_pool(size).await?;
        return Ok((environment, None, filled));
    }
    let replay = Replay::new(environment.client.clone()).await?;
    let started = Instant::now();
    replay.fill(size).await?;
    Ok((environment, Some(replay), started.elapsed()))
}

fn note(report: &mut Report, subject: &Subject, name: &str, latencies: &Latencies) {
    report.note(subject, &format!("{name}, p50"), "ms", latencies.percentile(50));
    report.note(subject, &format!("{name}, p99"), "ms", latencies.percentile(99));
}

/// Warm claims at 5/s and 20/s; for the replay, also the latency of single writes.
pub(crate) async fn latency(subject: &Subject, report: &mut Report) -> anyhow::Result<()> {
    let (environment, replay, _) = with_pool(subject, 120).await?;
    if *subject == Subject::Replay {
        single_writes(&environment, subject, report).await?;
    }
    for (rate, seconds) in [(5.0, 25), (20.0, 15)] {
        let arrivals = poisson(rate, Duration::from_secs(seconds));
        let latencies = load::claims(&environment.client, &format!("at-{rate}"), arrivals, replay.clone()).await?;
        note(report, subject, &format!("warm claim at {rate}/s"), &latencies);
    }
    Ok(())
}

/// Creates a claim, patches a Sandbox and patches a claim's status, one after the other, without other load.
async fn single_writes(environment: &Environment, subject: &Subject, report: &mut Report) -> anyhow::Result<()> {
    let (claims, sandboxes) = (api(&environment.client, "SandboxClaim"), api(&environment.client, "Sandbox"));
    let (mut create, mut patch, mut status) = (Vec::new(), Vec::new(), Vec::new());
    let timed = |into: &mut Vec<Duration>, from: Instant| into.push(from.elapsed());
    for number in 0..60 {
        let name = format!("single-{number}");
        let from = Instant::now();
        claims.create(&PostParams::default(), &objects::claim(&name)).await?;
        timed(&mut create, from);
        let from = Instant::now();
        let body = json!({ "metadata": { "annotations": { "a": number.to_string() } } });
        sandboxes.patch(&format!("{POOL}-0"), &PatchParams::default(), &Patch::Merge(body)).await?;
        timed(&mut patch, from);
        let from = Instant::now();
        let body = json!({ "status": { "sandbox": { "name": "x", "podIPs": ["10.0.0.1"] } } });
        claims.patch_status(&name, &PatchParams::default(), &Patch::Merge(body)).await?;
        timed(&mut status, from);
        claims.delete(&name, &DeleteParams::default()).await?;
    }
    let medians = [create, patch, status].map(|all| Latencies::new(all).percentile(50));
    report.note(subject, "create of a claim alone, p50", "ms", medians[0]);
    report.note(subject, "create + Sandbox patch + status patch, p50", "ms", medians.iter().sum());
    Ok(())
}

/// The highest rate at which claims are still served promptly.
pub(crate) async fn hold(subject: &Subject, report: &mut Report) -> anyhow::Result<()> {
    let (environment, _, _) = with_pool(subject, 200).await?;
    let mut held = 0.0;
    for rate in [10.0, 15.0, 20.0, 25.0, 30.0, 40.0] {
        let arrivals = poisson(rate, Duration::from_secs(12));
        let latencies = load::claims(&environment.client, &format!("hold-{rate}"), arrivals, None).await?;
        report.note(subject, &format!("p99 while claims come at {rate}/s"), "ms", latencies.percentile(99));
        if latencies.percentile(99) > HELD {
            break;
        }
        held = rate;
        environment.wait_for_pool(200).await?;
    }
    report.note(subject, &format!("highest rate held (p99 within {HELD} ms)"), "/s", held);
    Ok(())
}

/// Fills a pool of 300, then creates 300 claims at once.
pub(crate) async fn burst(subject: &Subject, report: &mut Report) -> anyhow::Result<()> {
    let (environment, replay, filled) = with_pool(subject, BURST).await?;
    report.note(subject, "pool of 300 filled", "s", filled.as_secs_f64());
    let latencies = load::claims(&environment.client, "burst", vec![Duration::ZERO; BURST], replay).await?;
    note(report, subject, "burst of 300", &latencies);
    report.note(subject, "burst of 300, all Ready", "s", latencies.longest() / 1000.0);
    Ok(())
}

/// 50 claims a second for half a minute, while the pool refills.
pub(crate) async fn sustained(subject: &Subject, report: &mut Report) -> anyhow::Result<()> {
    let (environment, replay, _) = with_pool(subject, BURST).await?;
    // The replay's pool is not refilled by a controller, so it must be large enough from the start.
    let seconds = if replay.is_some() { 6 } else { 30 };
    let arrivals = poisson(50.0, Duration::from_secs(seconds));
    let arrivals = if replay.is_some() { arrivals.into_iter().take(BURST).collect() } else { arrivals };
    let before = environment.process.as_ref().map(|process| process.cpu()).transpose()?;
    let latencies = load::claims(&environment.client, "sustained", arrivals, replay).await?;
    note(report, subject, "50 claims/s sustained", &latencies);
    if let (Some(before), Ok(process)) = (before, environment.process()) {
        let used = process.cpu()?.saturating_sub(before).as_secs_f64();
        report.note(subject, "50 claims/s sustained, controller CPU", "s", used);
        report.note(subject, "50 claims/s sustained, controller memory", "MB", process.memory()?);
    }
    Ok(())
}

/// 2,000 Sandboxes without a pool.
pub(crate) async fn cold(subject: &Subject, report: &mut Report) -> anyhow::Result<()> {
    let environment = Environment::new(subject, false).await?;
    let replay = match subject {
        Subject::Replay => Some(Replay::new(environment.client.clone()).await?),
        Subject::Command { .. } => None,
    };
    let took = cold_sandboxes(&environment.client, "cold", COLD, COLD_CLIENTS, replay).await?;
    report.note(subject, "2,000 cold Sandboxes Ready", "s", took.as_secs_f64());
    Ok(())
}

/// All writes per claim, from the audit log: those of the client, of the controller and of Kubernetes itself.
pub(crate) async fn writes(subject: &Subject, report: &mut Report) -> anyhow::Result<()> {
    const CLAIMS: usize = 40;
    let mut environment = Environment::new(subject, true).await?;
    let account = own_account(&environment).await?;
    environment.process = None;
    environment.process = subject.start(&account, environment.plane.folder())?;
    environment.fill_pool(20).await?;
    wait_until_idle(&environment).await?;
    let from = std::fs::metadata(environment.plane.audit_log())?.len() as usize;
    let arrivals = poisson(2.0, Duration::from_secs(60)).into_iter().take(CLAIMS).collect();
    load::claims(&environment.client, "life", arrivals, None).await?;
    let claims = api(&environment.client, "SandboxClaim");
    for number in 0..CLAIMS {
        match claims.delete(&format!("life-{number}"), &DeleteParams::default()).await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            Err(kube::Error::Api(status)) if status.code == 404 => break,
            Err(error) => return Err(error.into()),
        }
    }
    wait_until_idle(&environment).await?;
    let log = std::fs::read(environment.plane.audit_log())?;
    count_writes(&log[from..], CLAIMS as f64, subject, report)
}

/// Runs the controller with a ServiceAccount of its own, so that the audit log distinguishes its writes from others.
async fn own_account(environment: &Environment) -> anyhow::Result<std::path::PathBuf> {
    let objects = [
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "measured", "namespace": "default" }
        }),
        json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": "measured" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
            "subjects": [{ "kind": "ServiceAccount", "name": "measured", "namespace": "default" }] }),
    ];
    for (path, object) in
        ["/api/v1/namespaces/default/serviceaccounts", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"]
            .iter()
            .zip(objects)
    {
        let request = http::Request::post(*path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(serde_json::to_vec(&object)?)?;
        environment.client.request_text(request).await?;
    }
    environment.plane.service_account_kubeconfig("default", "measured").await
}

/// Waits until the pool's Pods exist and no writes happen any more.
async fn wait_until_idle(environment: &Environment) -> anyhow::Result<()> {
    let deadline = Instant::now() + LIMIT;
    let mut last = 0;
    while Instant::now() < deadline {
        tokio::time::sleep(Duration::from_secs(3)).await;
        let sandboxes = api(&environment.client, "Sandbox").list_metadata(&kube::api::ListParams::default()).await?;
        let versions = sandboxes.items.iter().filter_map(|item| item.resource_version()?.parse::<u64>().ok());
        let newest = versions.max().unwrap_or(0);
        if newest == last {
            return Ok(());
        }
        last = newest;
    }
    Ok(())
}

fn count_writes(log: &[u8], claims: f64, subject: &Subject, report: &mut Report) -> anyhow::Result<()> {
    let (mut all, mut ours, mut failed) = (0.0, 0.0, 0.0);
    let mut lines: BTreeMap<String, f64> = BTreeMap::new();
    for line in log.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let entry: Value = serde_json::from_slice(line)?;
        let verb = entry["verb"].as_str().unwrap_or_default();
        let target = &entry["objectRef"];
        let resource = target["resource"].as_str().unwrap_or_default();
        let wanted = ["create", "update", "patch", "delete", "deletecollection"].contains(&verb)
            && !["leases", "nodes", "tokenreviews", "subjectaccessreviews", "endpointslices"].contains(&resource);
        if !wanted || target["subresource"] == "token" {
            continue;
        }
        let user = entry["user"]["username"].as_str().unwrap_or_default();
        let is_ours = user.ends_with(":measured");
        let code = entry["responseStatus"]["code"].as_u64().unwrap_or(0);
        if !(200..300).contains(&code) {
            failed += if is_ours { 1.0 } else { 0.0 };
            continue;
        }
        all += 1.0;
        ours += if is_ours { 1.0 } else { 0.0 };
        let subresource = target["subresource"].as_str().map(|name| format!("/{name}")).unwrap_or_default();
        let who = if is_ours { "controller" } else { "others" };
        *lines.entry(format!("writes per claim: {who}, {verb} {resource}{subresource}")).or_default() += 1.0;
    }
    report.note(subject, "successful writes per claim over its life, all", "", all / claims);
    report.note(subject, "successful writes per claim over its life, the controller's", "", ours / claims);
    report.note(subject, "failed writes of the controller in that run", "", failed);
    for (name, count) in lines {
        report.note(subject, &name, "", count / claims);
    }
    Ok(())
}

/// Memory and idle CPU at several numbers of Sandboxes, and the start time with the largest number.
pub(crate) async fn size(subject: &Subject, sizes: &[usize], report: &mut Report) -> anyhow::Result<()> {
    let mut environment = Environment::new(subject, false).await?;
    let mut there = 0;
    for size in sizes {
        if *size > there {
            cold_sandboxes(&environment.client, &format!("size-{there}"), size - there, COLD_CLIENTS, None).await?;
            there = *size;
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        let before = environment.process()?.cpu()?;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let process = environment.process()?;
        let idle = (process.cpu()?.saturating_sub(before)).as_secs_f64() / 5.0 * 100.0;
        report.note(subject, &format!("controller memory at {size} Sandboxes"), "MB", process.memory()?);
        report.note(subject, &format!("controller CPU when idle at {size} Sandboxes"), "%", idle);
    }
    if there > 0 {
        environment.process = None;
        let took = environment.start(subject).await?;
        report.note(subject, &format!("start of the controller with {there} Sandboxes"), "s", took.as_secs_f64());
        report.note(
            subject,
            &format!("controller memory after a start with {there} Sandboxes"),
            "MB",
            environment.process()?.memory()?,
        );
    }
    Ok(())
}
