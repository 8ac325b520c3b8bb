//! `top`: resource usage of the local engine's sandboxes, refreshed on a terminal, below a line about pools and one
//! about claims.

mod claims;

use super::objects::show;
use crate::{
    args::{GlobalArgs, OutputFormat, TopArgs},
    cluster::ClusterClient,
    output::{self, Table},
    terminal::RawMode,
};
use agent_sandbox_api::v1beta1::{Sandbox, SandboxWarmPool};
use agent_sandbox_engine::{DataDir, EngineReply, EngineRequest, send_request};
use agent_sandbox_node::kernel::PodUsage;
use anyhow::{Result, bail};
use claims::{Claims, History};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _, api::ListParams};
use serde::Serialize;
use std::{
    collections::HashMap,
    io::IsTerminal as _,
    time::{Duration, Instant},
};
use tokio::{
    io::AsyncReadExt as _,
    signal::unix::{SignalKind, signal},
};

/// Minimum interval between samples. With a shorter one, `top` would mostly measure its own requests.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Resource usage of one sandbox.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    namespace: String,
    name: String,
    state: String,
    /// Thousandths of a processor between the two samples; absent where no process runs or no cgroup counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_millis: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
    processes: u64,
}

/// The state of the engine at one moment.
struct Sample {
    at: Instant,
    sandboxes: Vec<Sandbox>,
    /// Names of Sandboxes by namespace and name of their Pod.
    owners: HashMap<(String, String), String>,
    usage: Vec<PodUsage>,
    pools: Vec<SandboxWarmPool>,
    claims: Claims,
}

pub(crate) async fn top(global: &GlobalArgs, args: &TopArgs) -> Result<()> {
    let data = DataDir::locate(global.data_dir.as_deref())?;
    if data.running().is_none() {
        bail!(
            "no engine runs here; start one with `agent-sandbox up --detach` (on a cluster, `kubectl top pod` tells)"
        );
    }
    let mut local = global.clone();
    (local.kubeconfig, local.context) = (Some(data.kubeconfig().display().to_string()), None);
    let cluster = ClusterClient::open(&local).await?;
    let interval = args.interval.max(MIN_INTERVAL);
    let live = !args.once && args.output.output == OutputFormat::Table && std::io::stdout().is_terminal();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let _keys = if live { RawMode::single_keys() } else { None };
    let mut quit = std::pin::pin!(quit_key(_keys.is_some()));
    let mut before = take_sample(&data, &cluster).await?;
    let mut history = History::default();
    loop {
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            _ = interrupt.recv() => return Ok(()),
            () = &mut quit => return Ok(()),
        }
        let now = take_sample(&data, &cluster).await?;
        let mut rows = usage_between(&before, &now);
        if !live {
            if args.output.output == OutputFormat::Table
                && let Some(note) = missing_note(&rows)
            {
                eprint!("{note}");
            }
            return output::emit(args.output.output, &rows, || names(&rows), || table(&rows));
        }
        // The busiest first. The sort is stable: rows with equal usage stay ordered by name.
        rows.sort_by_key(|row| std::cmp::Reverse(row.cpu_millis));
        history.record(before.claims, now.claims);
        let (clear, note) = (output::CLEAR_SCREEN, missing_note(&rows).unwrap_or_default());
        output::print(&format!("{clear}{}\n{history}\n\n{}{note}q quits\n", pools(&now), table(&rows)))?;
        before = now;
    }
}

/// Completes when `q` is typed; never without a terminal.
async fn quit_key(terminal: bool) {
    if !terminal {
        return std::future::pending().await;
    }
    let mut input = tokio::io::stdin();
    loop {
        match input.read_u8().await {
            Ok(b'q' | b'Q') => return,
            Ok(_) => {}
            Err(_) => return std::future::pending().await,
        }
    }
}

/// Explains dashes in the table: nothing is measured without a cgroup of each sandbox's own.
fn missing_note(rows: &[Row]) -> Option<&'static str> {
    let unmeasured = |row: &Row| row.processes > 0 && row.cpu_millis.is_none() && row.memory_bytes.is_none();
    rows.iter().any(unmeasured).then_some(
        "note: `-`: this engine cannot measure CPU and memory, which needs cgroups; \
         run it as root, or let systemd delegate them (`agent-sandbox doctor` says more)\n",
    )
}

async fn take_sample(data: &DataDir, cluster: &ClusterClient) -> Result<Sample> {
    let all = ListParams::default();
    let sandboxes = Api::<Sandbox>::all(cluster.client.clone());
    let pods = Api::<Pod>::all(cluster.client.clone());
    let pools = Api::<SandboxWarmPool>::all(cluster.client.clone());
    let (sandboxes, pods, pools) = tokio::try_join!(sandboxes.list(&all), pods.list(&all), pools.list(&all))?;
    let control = data.control();
    let usage = send_request(&control, &EngineRequest::Usage, |_| {}).await?;
    let metrics = send_request(&control, &EngineRequest::Metrics, |_| {}).await?;
    let (EngineReply::Usage(usage), EngineReply::Metrics(metrics)) = (usage, metrics) else {
        bail!("the running engine is of another version; restart it with `agent-sandbox down` and `up`");
    };
    let owner = |pod: &Pod| {
        let owner = pod.owner_references().iter().find(|owner| owner.kind == "Sandbox")?.name.clone();
        Some(((pod.namespace()?, pod.name_any()), owner))
    };
    let owners = pods.items.iter().filter_map(owner).collect();
    let claims = Claims::read(&metrics);
    Ok(Sample { at: Instant::now(), sandboxes: sandboxes.items, owners, usage, pools: pools.items, claims })
}

/// Resource usage of each Sandbox between two samples, ordered by name.
fn usage_between(before: &Sample, now: &Sample) -> Vec<Row> {
    let elapsed = now.at.saturating_duration_since(before.at).as_micros().max(1);
    let find = |sample: &Sample, sandbox: &Sandbox| {
        let owned = |usage: &&PodUsage| {
            let owner = sample.owners.get(&(usage.namespace.clone(), usage.name.clone()));
            usage.namespace == sandbox.namespace() && owner.is_some_and(|owner| *owner == sandbox.name_any())
        };
        sample.usage.iter().find(owned).cloned()
    };
    let row = |sandbox: &Sandbox| {
        let (earlier, used) = (find(before, sandbox), find(now, sandbox));
        let total = used.as_ref().and_then(|used| used.cpu_micros);
        // A Pod that did not exist at the first sample has used all of its time since.
        let start = earlier.and_then(|used| used.cpu_micros).unwrap_or_default();
        let cpu = total.map(|total| u128::from(total.saturating_sub(start)) * 1_000 / elapsed);
        Row {
            namespace: sandbox.namespace().to_owned(),
            name: sandbox.name_any(),
            state: show::state(sandbox),
            cpu_millis: cpu.and_then(|cpu| u64::try_from(cpu).ok()),
            memory_bytes: used.as_ref().and_then(|used| used.memory_bytes),
            processes: used.map_or(0, |used| used.processes),
        }
    };
    let mut rows: Vec<Row> = now.sandboxes.iter().map(row).collect();
    rows.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    rows
}

/// One line: the number of sandboxes, and ready and wanted sandboxes of each pool.
fn pools(now: &Sample) -> String {
    let fill = |pool: &SandboxWarmPool| {
        let ready = pool.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or_default();
        format!("{} {ready}/{}", pool.name_any(), pool.replicas())
    };
    let sandboxes = match now.sandboxes.len() {
        1 => "1 sandbox".to_owned(),
        count => format!("{count} sandboxes"),
    };
    match &now.pools[..] {
        [] => format!("{sandboxes}, no pools"),
        pools => format!("{sandboxes}; ready in pools: {}", pools.iter().map(fill).collect::<Vec<_>>().join(", ")),
    }
}

fn names(rows: &[Row]) -> String {
    rows.iter().map(|row| format!("{}/{}\n", row.namespace, row.name)).collect()
}

fn table(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "no sandboxes; make one with `agent-sandbox create NAME`\n".to_owned();
    }
    let mut table = Table::new(&["NAMESPACE", "NAME", "STATE", "CPU", "MEMORY", "PROCESSES"]);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    for row in rows {
        table.row(vec![
            row.namespace.clone(),
            row.name.clone(),
            row.state.clone(),
            or_dash(row.cpu_millis.map(|millis| format!("{}.{}%", millis / 10, millis % 10))),
            or_dash(row.memory_bytes.map(|bytes| format!("{}Mi", bytes.div_ceil(1 << 20)))),
            row.processes.to_string(),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sandbox(name: &str) -> Sandbox {
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "default"}, "spec": {}})).unwrap()
    }

    fn used(name: &str, cpu_micros: u64) -> PodUsage {
        PodUsage {
            namespace: "default".into(),
            name: name.into(),
            cpu_micros: Some(cpu_micros),
            memory_bytes: Some(5 << 20),
            processes: 3,
            containers: Vec::new(),
        }
    }

    fn sample(at: Instant, usage: Vec<PodUsage>) -> Sample {
        let owners = [("pod-a", "a"), ("pod-b", "b")];
        let owners = owners.map(|(pod, owner)| (("default".to_owned(), pod.to_owned()), owner.to_owned())).into();
        let sandboxes = vec![sandbox("a"), sandbox("b"), sandbox("asleep")];
        Sample { at, sandboxes, owners, usage, pools: Vec::new(), claims: Claims::default() }
    }

    #[test]
    fn pools_are_shown_with_ready_and_wanted_sandboxes() {
        let mut now = sample(Instant::now(), Vec::new());
        assert_eq!(pools(&now), "3 sandboxes, no pools");
        let pool = |name: &str, replicas: u32, ready: Option<u32>| {
            serde_json::from_value(json!({"metadata": {"name": name, "namespace": "default"},
                "spec": {"replicas": replicas, "sandboxTemplateRef": {"name": "t"}}, "status": {"readyReplicas": ready}}))
            .unwrap()
        };
        now.pools = vec![pool("quick", 3, Some(2)), pool("new", 5, None)];
        now.sandboxes.truncate(1);
        assert_eq!(pools(&now), "1 sandbox; ready in pools: quick 2/3, new 0/5");
    }

    #[test]
    fn values_that_cannot_be_measured_are_explained() {
        let start = Instant::now();
        let later = start + Duration::from_secs(1);
        let measured = sample(later, vec![used("pod-a", 1)]);
        assert_eq!(
            missing_note(&usage_between(&sample(start, Vec::new()), &measured)),
            None,
            "nothing runs in the others"
        );
        let unmeasured = PodUsage { cpu_micros: None, memory_bytes: None, ..used("pod-b", 0) };
        let rows = usage_between(&sample(start, Vec::new()), &sample(later, vec![used("pod-a", 1), unmeasured]));
        let note = missing_note(&rows).unwrap();
        assert!(note.contains("cannot measure CPU and memory") && note.contains("run it as root"), "{note}");
        assert!(table(&rows).lines().any(|line| line.starts_with("default     b") && line.contains("-   ")));
    }

    #[test]
    fn cpu_usage_is_measured_between_two_samples() {
        let start = Instant::now();
        let before = sample(start, vec![used("pod-a", 1_000_000)]);
        let later = start + Duration::from_secs(2);
        let now = sample(later, vec![used("pod-a", 1_100_000), used("pod-b", 3_000_000), used("other-pod", 9)]);
        insta::assert_snapshot!(table(&usage_between(&before, &now)), @r"
        NAMESPACE   NAME     STATE     CPU      MEMORY   PROCESSES
        default     a        Pending   5.0%     5Mi      3
        default     asleep   Pending   -        -        0
        default     b        Pending   150.0%   5Mi      3
        ");
    }
}
