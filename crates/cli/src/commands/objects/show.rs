//! Tables and pages about sandboxes.

use super::ports::PortsOf;
use crate::output::{Table, age, visible};
use agent_sandbox_api::{
    keys::annotations,
    sleep::{self, IdlePolicy},
    v1beta1::{OperatingMode, Sandbox, SandboxClaim},
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use std::fmt::Write as _;

/// State of a Sandbox in one word: Ready, Suspended, Asleep (suspended because it was idle), or the reason why it is
/// none of these.
pub(crate) fn state(sandbox: &Sandbox) -> String {
    let ready = sandbox.conditions().iter().find(|condition| condition.type_ == "Ready");
    match ready {
        Some(condition) if condition.status == "True" => "Ready".to_owned(),
        _ if sandbox.metadata.deletion_timestamp.is_some() => "Deleting".to_owned(),
        _ if sandbox.operating_mode() == OperatingMode::Suspended => {
            let by_idleness = sandbox.annotation(annotations::SUSPENDED_BY).is_some();
            if by_idleness { "Asleep" } else { "Suspended" }.to_owned()
        }
        Some(condition) => condition.reason.clone(),
        None => "Pending".to_owned(),
    }
}

/// Whether a Sandbox should run and is not ready.
pub(crate) fn starts(sandbox: &Sandbox) -> bool {
    let ready = sandbox.conditions().iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    !ready && sandbox.operating_mode() == OperatingMode::Running
}

/// A table of Sandboxes, each under its claim's name if it has one, and of claims without a Sandbox.
/// `ports`: those of the sandboxes, if they were asked.
pub(crate) fn table(
    sandboxes: &[Sandbox],
    claims: &[SandboxClaim],
    with_namespace: bool,
    ports: Option<&PortsOf>,
    now: Timestamp,
) -> String {
    if sandboxes.is_empty() && claims.is_empty() {
        return "no sandboxes; make one with `agent-sandbox create NAME`\n".to_owned();
    }
    let columns = ["NAMESPACE", "NAME", "STATE", "ADDRESS", "PORTS", "OWNER", "AGE"];
    let shown = |column: &&'static str| match *column {
        "NAMESPACE" => with_namespace,
        "PORTS" => ports.is_some(),
        _ => true,
    };
    let mut table = Table::new(&columns.into_iter().filter(shown).collect::<Vec<_>>());
    let mut row = |cells: [String; 7]| {
        let kept = columns.iter().zip(cells).filter(|(column, _)| shown(column));
        table.row(kept.map(|(_, cell)| cell).collect());
    };
    for sandbox in sandboxes {
        row([
            sandbox.namespace().to_owned(),
            claim_of(sandbox).unwrap_or_else(|| sandbox.name_any()),
            state(sandbox),
            sandbox.pod_ips().first().cloned().unwrap_or_else(|| "-".to_owned()),
            ports.and_then(|ports| ports.text(sandbox)).unwrap_or_else(|| "-".to_owned()),
            owner(sandbox).unwrap_or_else(|| "-".to_owned()),
            age_of(&sandbox.metadata, now),
        ]);
    }
    for claim in claims {
        let ready = claim.conditions().iter().find(|condition| condition.type_ == "Ready");
        let state = ready.map_or("Pending", |condition| condition.reason.as_str());
        let none = || "-".to_owned();
        let age = age_of(&claim.metadata, now);
        row([claim.namespace().to_owned(), claim.name_any(), state.to_owned(), none(), none(), none(), age]);
    }
    table.render()
}

/// Name of the claim that owns a Sandbox.
fn claim_of(sandbox: &Sandbox) -> Option<String> {
    let owner = sandbox.owner_references().iter().find(|owner| owner.controller == Some(true))?;
    (owner.kind == "SandboxClaim").then(|| owner.name.clone())
}

/// All details of one Sandbox, as a page of text.
/// `problem`: why its Pod does not run. `ports`: those on which its programs listen.
pub(crate) fn details(
    sandbox: &Sandbox,
    claim: Option<&SandboxClaim>,
    problem: Option<&str>,
    ports: Option<String>,
    now: Timestamp,
) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(text, "{label:<12} {}", visible(value));
        }
    };
    line("Name:", &sandbox.name_any());
    line("Namespace:", sandbox.namespace());
    line("Claim:", &claim.map(|claim| claim.name_any()).unwrap_or_default());
    line("State:", &state(sandbox));
    line("Reason:", problem.unwrap_or_default());
    line("Image:", &images(sandbox).join(", "));
    line("Address:", &sandbox.pod_ips().join(", "));
    line("Ports:", &ports.unwrap_or_default());
    line("Node:", sandbox.status.as_ref().and_then(|status| status.node_name.as_deref()).unwrap_or_default());
    line("Service:", sandbox.status.as_ref().and_then(|status| status.service_fqdn.as_deref()).unwrap_or_default());
    line("Owner:", &owner(sandbox).unwrap_or_default());
    line("Age:", &age_of(&sandbox.metadata, now));
    line("Sleeps:", &sleeps(sandbox).unwrap_or_default());
    if let Some(time) = &sandbox.spec.shutdown_time {
        line("Expires:", &time.0.to_string());
    }
    if !sandbox.conditions().is_empty() {
        let mut table = Table::new(&["  CONDITION", "STATUS", "REASON", "MESSAGE"]);
        for condition in sandbox.conditions() {
            table.row(vec![
                format!("  {}", condition.type_),
                condition.status.clone(),
                condition.reason.clone(),
                condition.message.clone(),
            ]);
        }
        let _ = write!(text, "Conditions:\n{}", table.render());
    }
    text
}

/// When a running Sandbox with an idle time is suspended, if it is not used before, in whole seconds.
pub(crate) fn asleep_at(sandbox: &Sandbox) -> Option<Timestamp> {
    let annotation = |key| sandbox.annotation(key);
    let due = IdlePolicy::read(annotation).ok()??.due_at(annotation, sandbox.conditions())?;
    Timestamp::from_second(due.as_second()).ok()
}

/// When the Sandbox sleeps, or why it does.
fn sleeps(sandbox: &Sandbox) -> Option<String> {
    let policy = IdlePolicy::read(|key| sandbox.annotation(key)).ok()??;
    let after = sleep::format_duration(policy.after);
    let by_idleness = sandbox.annotation(annotations::SUSPENDED_BY).is_some();
    Some(match (sandbox.operating_mode(), asleep_at(sandbox)) {
        (OperatingMode::Suspended, _) if by_idleness => format!("since it was not used for {after}"),
        (OperatingMode::Running, Some(at)) => format!("after {after} without use, not before {at}"),
        _ => format!("after {after} without use"),
    })
}

fn images(sandbox: &Sandbox) -> Vec<String> {
    let spec = serde_json::to_value(&sandbox.spec.pod_template.spec).unwrap_or_default();
    let containers = spec["containers"].as_array().cloned().unwrap_or_default();
    containers.iter().filter_map(|container| container["image"].as_str().map(str::to_owned)).collect()
}

fn owner(sandbox: &Sandbox) -> Option<String> {
    let owner = sandbox.owner_references().iter().find(|owner| owner.controller == Some(true))?;
    let kind = match owner.kind.as_str() {
        "SandboxClaim" => "claim",
        "SandboxWarmPool" => "pool",
        other => other,
    };
    Some(format!("{kind}/{}", owner.name))
}

fn age_of(metadata: &ObjectMeta, now: Timestamp) -> String {
    match &metadata.creation_timestamp {
        Some(created) => age(now.as_second() - created.0.as_second()),
        None => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sandbox(value: serde_json::Value) -> Sandbox {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_table_shows_state_address_and_owner() {
        let now: Timestamp = "2030-01-01T00:01:00Z".parse().unwrap();
        let ready = sandbox(json!({
            "metadata": {"name": "a", "namespace": "n", "creationTimestamp": "2030-01-01T00:00:00Z",
                "ownerReferences": [{"apiVersion": "v", "kind": "SandboxWarmPool", "name": "p", "uid": "u", "controller": true}]},
            "spec": {"podTemplate": {"spec": {"containers": [{"name": "c", "image": "host"}]}}},
            "status": {"podIPs": ["10.0.0.1"], "conditions": [{"type": "Ready", "status": "True", "reason": "R", "message": "m", "lastTransitionTime": "2030-01-01T00:00:00Z"}]}
        }));
        let asleep = sandbox(json!({"metadata": {"name": "b"}, "spec": {"operatingMode": "Suspended"}}));
        let claimed = sandbox(json!({
            "metadata": {"name": "p-x2x4x", "ownerReferences": [{"apiVersion": "v", "kind": "SandboxClaim", "name": "mine", "uid": "u", "controller": true}]},
            "spec": {}
        }));
        let waiting: SandboxClaim = serde_json::from_value(json!({
            "metadata": {"name": "w"}, "spec": {"warmPoolRef": {"name": "p"}},
            "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "TemplateNotFound", "message": "m", "lastTransitionTime": "2030-01-01T00:00:00Z"}]}
        }))
        .unwrap();
        insta::assert_snapshot!(table(&[ready.clone(), asleep.clone(), claimed], &[waiting], false, None, now), @r"
        NAME   STATE              ADDRESS    OWNER        AGE
        a      Ready              10.0.0.1   pool/p       60s
        b      Suspended          -          -            -
        mine   Pending            -          claim/mine   -
        w      TemplateNotFound   -          -            -
        ");
        let ports = PortsOf::for_test("n", "a", [3000, 5173]);
        insta::assert_snapshot!(table(&[ready.clone(), asleep], &[], true, Some(&ports), now), @r"
        NAMESPACE   NAME   STATE       ADDRESS    PORTS       OWNER    AGE
        n           a      Ready       10.0.0.1   3000,5173   pool/p   60s
                    b      Suspended   -          -           -        -
        ");
        let many = PortsOf::for_test("n", "a", 3001..3009);
        assert_eq!(many.text(&ready).unwrap(), "3001,3002,3003,3004,3005,3006,…");
        insta::assert_snapshot!(details(&ready, None, None, ports.text(&ready), now), @r"
        Name:        a
        Namespace:   n
        State:       Ready
        Image:       host
        Address:     10.0.0.1
        Ports:       3000,5173
        Owner:       pool/p
        Age:         60s
        Conditions:
          CONDITION   STATUS   REASON   MESSAGE
          Ready       True     R        m
        ");
    }

    #[test]
    fn an_empty_list_prints_the_next_step() {
        assert!(table(&[], &[], true, None, Timestamp::UNIX_EPOCH).contains("agent-sandbox create"));
    }
}
