//! `top`: what the local engine's sandboxes use, again and again on a terminal, under a line on pools and one on claims.

mod claims;

use super::objects::show;
use crate::{
    args::{GlobalArgs, OutputFormat, TopArgs},
    data::DataDir,
    engine::{EngineReply, EngineRequest, ask_engine},
    output::{self, Table},
    target::Target,
};
use agent_sandbox_api::v1beta1::{Sandbox, SandboxWarmPool};
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
use tokio::signal::unix::{SignalKind, signal};

/// Shorter looks would measure themselves.
const SHORTEST: Duration = Duration::from_millis(100);
/// Cursor to the corner, and everything behind it away.
const CLEAR: &str = "\x1b[H\x1b[J";

/// One sandbox and what it uses.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    namespace: String,
    name: String,
    state: String,
    /// Thousandths of a processor between the two looks; absent where nothing runs or counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_millis: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_bytes: Option<u64>,
    processes: u64,
}

/// Everything seen at one moment.
struct Look {
    at: Instant,
    sandboxes: Vec<Sandbox>,
    /// Which Sandbox a Pod is of, by namespace and name.
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
    let target = Target::find(&local).await?;
    let interval = args.interval.max(SHORTEST);
    let live = !args.once && args.output.output == OutputFormat::Table && std::io::stdout().is_terminal();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut before = look(&data, &target).await?;
    let mut history = History::default();
    loop {
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            _ = interrupt.recv() => return Ok(()),
        }
        let now = look(&data, &target).await?;
        let mut lines = compare(&before, &now);
        if !live {
            return output::emit(args.output.output, &lines, || names(&lines), || table(&lines));
        }
        // The busiest first; the order of names stays among equals.
        lines.sort_by_key(|line| std::cmp::Reverse(line.cpu_millis));
        history.note(before.claims, now.claims);
        output::print(&format!("{CLEAR}{}\n{history}\n\n{}", pools(&now), table(&lines)))?;
        before = now;
    }
}

async fn look(data: &DataDir, target: &Target) -> Result<Look> {
    let everything = ListParams::default();
    let sandboxes = Api::<Sandbox>::all(target.client.clone());
    let pods = Api::<Pod>::all(target.client.clone());
    let pools = Api::<SandboxWarmPool>::all(target.client.clone());
    let (sandboxes, pods, pools) =
        tokio::try_join!(sandboxes.list(&everything), pods.list(&everything), pools.list(&everything))?;
    let control = data.control();
    let usage = ask_engine(&control, &EngineRequest::Usage, |_| {}).await?;
    let metrics = ask_engine(&control, &EngineRequest::Metrics, |_| {}).await?;
    let (EngineReply::Usage(usage), EngineReply::Metrics(metrics)) = (usage, metrics) else {
        bail!("the running engine is of another version; restart it with `agent-sandbox down` and `up`");
    };
    let owner = |pod: &Pod| {
        let owner = pod.owner_references().iter().find(|owner| owner.kind == "Sandbox")?.name.clone();
        Some(((pod.namespace()?, pod.name_any()), owner))
    };
    let owners = pods.items.iter().filter_map(owner).collect();
    let claims = Claims::read(&metrics);
    Ok(Look { at: Instant::now(), sandboxes: sandboxes.items, owners, usage, pools: pools.items, claims })
}

/// What each Sandbox used between two looks, by name.
fn compare(before: &Look, now: &Look) -> Vec<Line> {
    let elapsed = now.at.saturating_duration_since(before.at).as_micros().max(1);
    let find = |look: &Look, sandbox: &Sandbox| {
        let owned = |usage: &&PodUsage| {
            let owner = look.owners.get(&(usage.namespace.clone(), usage.name.clone()));
            usage.namespace == sandbox.namespace() && owner.is_some_and(|owner| *owner == sandbox.name_any())
        };
        look.usage.iter().find(owned).cloned()
    };
    let line = |sandbox: &Sandbox| {
        let (earlier, used) = (find(before, sandbox), find(now, sandbox));
        let total = used.as_ref().and_then(|used| used.cpu_micros);
        // A Pod that was not there before has used all of it since.
        let start = earlier.and_then(|used| used.cpu_micros).unwrap_or_default();
        let cpu = total.map(|total| u128::from(total.saturating_sub(start)) * 1_000 / elapsed);
        Line {
            namespace: sandbox.namespace().to_owned(),
            name: sandbox.name_any(),
            state: show::state(sandbox),
            cpu_millis: cpu.and_then(|cpu| u64::try_from(cpu).ok()),
            memory_bytes: used.as_ref().and_then(|used| used.memory_bytes),
            processes: used.map_or(0, |used| used.processes),
        }
    };
    let mut lines: Vec<Line> = now.sandboxes.iter().map(line).collect();
    lines.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    lines
}

/// One line: how many sandboxes, and how full each pool is.
fn pools(now: &Look) -> String {
    let full = |pool: &SandboxWarmPool| {
        let ready = pool.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or_default();
        format!("{} {ready}/{}", pool.name_any(), pool.replicas())
    };
    let sandboxes = match now.sandboxes.len() {
        1 => "1 sandbox".to_owned(),
        count => format!("{count} sandboxes"),
    };
    match &now.pools[..] {
        [] => format!("{sandboxes}, no pools"),
        pools => format!("{sandboxes}; ready in pools: {}", pools.iter().map(full).collect::<Vec<_>>().join(", ")),
    }
}

fn names(lines: &[Line]) -> String {
    lines.iter().map(|line| format!("{}/{}\n", line.namespace, line.name)).collect()
}

fn table(lines: &[Line]) -> String {
    if lines.is_empty() {
        return "no sandboxes; make one with `agent-sandbox create NAME`\n".to_owned();
    }
    let mut table = Table::new(&["NAMESPACE", "NAME", "STATE", "CPU", "MEMORY", "PROCESSES"]);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    for line in lines {
        table.row(vec![
            line.namespace.clone(),
            line.name.clone(),
            line.state.clone(),
            or_dash(line.cpu_millis.map(|millis| format!("{}.{}%", millis / 10, millis % 10))),
            or_dash(line.memory_bytes.map(|bytes| format!("{}Mi", bytes.div_ceil(1 << 20)))),
            line.processes.to_string(),
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
        }
    }

    fn seen(at: Instant, usage: Vec<PodUsage>) -> Look {
        let owners = [("pod-a", "a"), ("pod-b", "b")];
        let owners = owners.map(|(pod, owner)| (("default".to_owned(), pod.to_owned()), owner.to_owned())).into();
        let sandboxes = vec![sandbox("a"), sandbox("b"), sandbox("asleep")];
        Look { at, sandboxes, owners, usage, pools: Vec::new(), claims: Claims::default() }
    }

    #[test]
    fn pools_are_shown_by_how_full_they_are() {
        let mut now = seen(Instant::now(), Vec::new());
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
    fn processor_use_is_what_was_used_between_two_looks() {
        let start = Instant::now();
        let before = seen(start, vec![used("pod-a", 1_000_000)]);
        let later = start + Duration::from_secs(2);
        let now = seen(later, vec![used("pod-a", 1_100_000), used("pod-b", 3_000_000), used("somebody-else", 9)]);
        insta::assert_snapshot!(table(&compare(&before, &now)), @r"
        NAMESPACE   NAME     STATE     CPU      MEMORY   PROCESSES
        default     a        Pending   5.0%     5Mi      3
        default     asleep   Pending   -        -        0
        default     b        Pending   150.0%   5Mi      3
        ");
    }
}
