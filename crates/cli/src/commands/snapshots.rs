//! `snapshot`, `fork`, `rollback`, and `create --snapshot`.

use super::objects::{NewSandbox, create_and_wait, waiting};
use crate::{
    args::{ForkArgs, Network, RollbackArgs, SnapshotArgs, SnapshotCommand, WaitArgs},
    cluster::ClusterClient,
    output::{self, Table, age},
};
use agent_sandbox_api::{keys::annotations, snapshot::SandboxSnapshot, v1beta1::Sandbox};
use agent_sandbox_client::{self as sdk, SnapshotRequest};
use anyhow::{Context as _, Result};
use jiff::Timestamp;
use kube::{Api, ResourceExt};
use std::{collections::BTreeMap, time::Duration};

/// Time for a step that a command needs although it does not wait for the sandbox (`--wait 0`).
const STEP_LIMIT: Duration = Duration::from_secs(180);

/// Time after which the snapshot of a fork expires, beyond the command's own waiting: the command may be killed.
const FORK_SNAPSHOT_LIFE: Duration = Duration::from_secs(3_600);

pub(crate) async fn snapshot(cluster: &ClusterClient, args: SnapshotArgs) -> Result<()> {
    let (client, namespace) = (&cluster.client, cluster.namespace.as_str());
    match args.command {
        SnapshotCommand::Create { sandbox, name, label, expires_in, wait, output } => {
            cluster.announce_change();
            let labels = label.into_iter().collect();
            let request = SnapshotRequest { sandbox, name, labels, expires_after: expires_in };
            let taken = sdk::take_snapshot(client, namespace, request, wait.wait).await?;
            let text = summary(&taken);
            output::emit(output.output, &taken, || format!("sandboxsnapshot/{}\n", taken.name()), || text)
        }
        SnapshotCommand::List { sandbox, output } => {
            let mut found = sdk::list_snapshots(client, namespace).await?;
            found.retain(|snapshot| sandbox.as_ref().is_none_or(|name| *name == snapshot.spec.sandbox_name));
            let names = || found.iter().map(|snapshot| format!("sandboxsnapshot/{}\n", snapshot.name())).collect();
            output::emit(output.output, &found, names, || table(&found, Timestamp::now()))
        }
        SnapshotCommand::Delete { names } => {
            cluster.announce_change();
            for name in names {
                sdk::delete_snapshot(client, namespace, &name).await?;
                output::print(&format!("snapshot {name} deleted\n"))?;
            }
            Ok(())
        }
    }
}

pub(crate) async fn fork(cluster: &ClusterClient, args: ForkArgs) -> Result<()> {
    let (client, namespace) = (&cluster.client, cluster.namespace.as_str());
    cluster.announce_change();
    let kept = args.keep_snapshot.is_some();
    let waits = !args.wait.wait.is_zero();
    let request = SnapshotRequest {
        sandbox: args.sandbox.clone(),
        name: args.keep_snapshot,
        expires_after: (!kept).then(|| args.wait.wait.saturating_mul(2).saturating_add(FORK_SNAPSHOT_LIFE)),
        ..SnapshotRequest::default()
    };
    let taken = sdk::take_snapshot(client, namespace, request, step_limit(&args.wait)).await?;
    let names = match args.names.is_empty() {
        false => args.names,
        true => {
            // The snapshot's name is unique in the namespace, so that of each fork is, too.
            (1..=args.count).map(|number| format!("{}-{number}", fork_prefix(&taken, &args.sandbox))).collect()
        }
    };
    let made = futures::future::join_all(
        names.iter().map(|name| create_from(cluster, &taken, name, args.network, &args.wait)),
    )
    .await;
    if !kept {
        let unready = names.iter().zip(&made).filter(|(_, made)| !waits || made.is_err()).map(|(name, _)| name);
        match is_needed(cluster, &taken, unready).await? {
            true => eprintln!(
                "snapshot {} is kept for the sandboxes that have not started; it expires in an hour",
                taken.name()
            ),
            // The new sandboxes keep the layers.
            false => sdk::delete_snapshot(client, namespace, taken.name()).await?,
        }
    }
    for (name, made) in names.iter().zip(made) {
        made.with_context(|| format!("cannot make sandbox {name} from sandbox {}", args.sandbox))?;
        let verb = if waits { "has" } else { "starts with" };
        output::print(&format!("sandbox {name} {verb} the files of {}\n", args.sandbox))?;
    }
    Ok(())
}

/// Whether a sandbox that is not ready still has to find the snapshot when it starts.
async fn is_needed(
    cluster: &ClusterClient,
    taken: &SandboxSnapshot,
    unready: impl Iterator<Item = &String>,
) -> Result<bool> {
    let api: Api<Sandbox> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    for name in unready {
        let found = api.get_opt(name).await.with_context(|| format!("cannot read sandbox {name}"))?;
        if found.is_some_and(|found| found.annotation(annotations::SNAPSHOT) == Some(taken.name())) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn step_limit(args: &WaitArgs) -> Duration {
    if args.wait.is_zero() { STEP_LIMIT } else { args.wait }
}

/// What the names of forks begin with: the generated name of their snapshot, or the sandbox's.
fn fork_prefix(taken: &SandboxSnapshot, sandbox: &str) -> String {
    match taken.metadata.generate_name {
        Some(_) => taken.name().to_owned(),
        None => format!("{sandbox}-fork"),
    }
}

/// Creates a sandbox from a snapshot and waits until it is ready.
async fn create_from(
    cluster: &ClusterClient,
    snapshot: &SandboxSnapshot,
    name: &str,
    network: Option<Network>,
    wait: &WaitArgs,
) -> Result<Sandbox> {
    let new = NewSandbox { network, wait: wait.wait, keep: false };
    create_and_wait(cluster, sdk::sandbox_from(snapshot, name)?, new).await
}

pub(crate) async fn rollback(cluster: &ClusterClient, args: RollbackArgs) -> Result<()> {
    let (client, namespace) = (&cluster.client, cluster.namespace.as_str());
    let snapshot = sdk::find_snapshot(client, namespace, &args.snapshot).await?;
    cluster.announce_change();
    let sandbox = sdk::roll_back(client, namespace, &args.sandbox, &snapshot, step_limit(&args.wait)).await?;
    let name = sandbox.name_any();
    let runs = sandbox.operating_mode() == agent_sandbox_api::v1beta1::OperatingMode::Running;
    if runs && !args.wait.wait.is_zero() {
        waiting::resumed(cluster, &sandbox, args.wait.wait).await?;
    }
    let state = if runs { "" } else { " when it is resumed" };
    output::print(&format!("sandbox {name} has the files of snapshot {}{state}\n", args.snapshot))
}

fn summary(taken: &SandboxSnapshot) -> String {
    let status = taken.status.as_ref();
    let size = status.and_then(|status| status.size_bytes).map(size).unwrap_or_default();
    let frozen = status.and_then(|status| status.frozen_milliseconds);
    let frozen = frozen.map(|time| format!(", frozen for {time} ms")).unwrap_or_default();
    let (name, sandbox) = (taken.name(), &taken.spec.sandbox_name);
    if !taken.is_ready() {
        return format!("snapshot {name} of sandbox {sandbox} is being taken\n");
    }
    format!(
        "snapshot {name} of sandbox {sandbox}: {size}{frozen}\n  a sandbox from it:  agent-sandbox create NAME --snapshot {name}\n  go back to it:      agent-sandbox rollback {sandbox} {name}\n"
    )
}

/// Bytes in the largest unit that leaves at least one.
fn size(bytes: i64) -> String {
    let mut left = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if left < 1024.0 {
            return if unit == "B" { format!("{left} B") } else { format!("{left:.1} {unit}") };
        }
        left /= 1024.0;
    }
    format!("{left:.1} TiB")
}

/// Snapshots as a tree: each below its parent, if that still exists.
fn table(snapshots: &[SandboxSnapshot], now: Timestamp) -> String {
    if snapshots.is_empty() {
        return "no snapshots; take one with `agent-sandbox snapshot create SANDBOX`\n".to_owned();
    }
    let mut table = Table::new(&["NAME", "SANDBOX", "READY", "SIZE", "AGE"]);
    let names: BTreeMap<&str, &SandboxSnapshot> = snapshots.iter().map(|found| (found.name(), found)).collect();
    let parent = |found: &SandboxSnapshot| found.status.as_ref().and_then(|status| status.parent.clone());
    let top = |found: &&SandboxSnapshot| parent(found).is_none_or(|name| !names.contains_key(name.as_str()));
    let mut waiting: Vec<(usize, &SandboxSnapshot)> =
        snapshots.iter().filter(top).map(|found| (0, found)).rev().collect();
    while let Some((depth, found)) = waiting.pop() {
        let status = found.status.as_ref();
        let created = found.metadata.creation_timestamp.as_ref();
        let ready = found.ready().map_or("", |ready| if found.is_ready() { "yes" } else { ready.reason.as_str() });
        table.row(vec![
            format!("{}{}", "  ".repeat(depth), found.name()),
            found.spec.sandbox_name.clone(),
            ready.to_owned(),
            status.and_then(|status| status.size_bytes).map(size).unwrap_or_default(),
            created.map(|created| age(now.as_second() - created.0.as_second())).unwrap_or_default(),
        ]);
        let children = snapshots.iter().filter(|child| parent(child).as_deref() == Some(found.name()));
        waiting.extend(children.map(|child| (depth + 1, child)).rev());
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_sandbox_api::snapshot::SandboxSnapshotStatus;

    fn snapshot(name: &str, parent: Option<&str>) -> SandboxSnapshot {
        let mut made = SandboxSnapshot::default();
        made.metadata.name = Some(name.to_owned());
        made.spec.sandbox_name = "box".to_owned();
        made.status = Some(SandboxSnapshotStatus {
            parent: parent.map(str::to_owned),
            size_bytes: Some(3 << 20),
            ..SandboxSnapshotStatus::default()
        });
        made
    }

    #[test]
    fn snapshots_are_shown_below_the_ones_they_were_made_from() {
        let list =
            [snapshot("a", None), snapshot("b", Some("a")), snapshot("c", Some("gone")), snapshot("d", Some("b"))];
        let text = table(&list, Timestamp::UNIX_EPOCH);
        let names: Vec<&str> = text.lines().skip(1).map(|line| line.split("box").next().unwrap().trim_end()).collect();
        assert_eq!(names, ["a", "  b", "    d", "c"]);
        assert!(text.contains("3.0 MiB"), "{text}");
    }

    #[test]
    fn sizes_have_the_largest_unit() {
        assert_eq!([0, 1023, 1024, 5 << 30].map(size), ["0 B", "1023 B", "1.0 KiB", "5.0 GiB"]);
    }
}
