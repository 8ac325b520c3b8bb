//! Families computed at each scrape from what the store holds.

use std::{collections::BTreeMap, fmt};

use agent_sandbox_api::{
    conditions::{self, ConditionType, Reason},
    keys::{self, annotations, labels},
    owners,
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};

use super::{
    WeakStore,
    lifecycle::{owner_label, template_label},
};
use crate::cache::{Cached, ReconcilerKind, Sandbox};

/// `agent_sandboxes`: how many Sandboxes of each description there are.
pub(super) struct Sandboxes(pub(super) WeakStore);

/// `agent_sandbox_warmpool_size`: how many members of each state a pool has.
pub(super) struct Pools(pub(super) WeakStore);

/// `workqueue_*`.
pub(super) struct Queues(pub(super) WeakStore);

impl fmt::Debug for Sandboxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sandboxes")
    }
}

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pools")
    }
}

impl fmt::Debug for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Queues")
    }
}

/// The labels under which a Sandbox is counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
pub(super) struct Description {
    namespace: String,
    ready_condition: &'static str,
    expired: &'static str,
    launch_type: &'static str,
    sandbox_template: String,
    owned_by: &'static str,
    created_by: &'static str,
}

impl Description {
    pub(super) fn of(sandbox: &Sandbox) -> Self {
        let word = |holds: bool| if holds { "true" } else { "false" };
        let ready = sandbox.condition(ConditionType::Ready);
        Self {
            namespace: sandbox.namespace().to_owned(),
            ready_condition: word(conditions::is_true(ready)),
            expired: word(ready.is_some_and(|ready| ready.reason == Reason::SandboxExpired.as_str())),
            launch_type: if sandbox.label(labels::LAUNCH_TYPE) == Some(keys::LAUNCH_WARM) {
                keys::LAUNCH_WARM
            } else {
                keys::LAUNCH_COLD
            },
            sandbox_template: template_label(sandbox).to_owned(),
            owned_by: owner_label(sandbox),
            created_by: keys::normalised_created_by(sandbox.label(labels::CREATED_BY).unwrap_or_default()),
        }
    }
}

impl Collector for Sandboxes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(store) = self.0.upgrade() else { return Ok(()) };
        let mut counts: BTreeMap<Description, u64> = BTreeMap::new();
        for sandbox in store.read().sandboxes.iter() {
            *counts.entry(Description::of(sandbox)).or_default() += 1;
        }
        let mut family =
            encoder.encode_descriptor("agent_sandboxes", "Sandboxes by description", None, MetricType::Gauge)?;
        for (description, count) in &counts {
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            ConstGauge::new(count).encode(family.encode_family(description)?)?;
        }
        Ok(())
    }
}

/// States of pool members, as label values.
const MEMBER_STATES: [&str; 4] = ["ready", "pending", "succeeded", "failed"];

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
struct PoolLabels {
    namespace: String,
    warmpool_name: String,
    sandbox_template: String,
    sandbox_status: &'static str,
}

fn member_state(sandbox: &Sandbox) -> &'static str {
    let finished = sandbox.condition(ConditionType::Finished).filter(|finished| conditions::is_true(Some(finished)));
    match finished.map(|finished| finished.reason.as_str()) {
        Some(reason) if reason == Reason::PodSucceeded.as_str() => "succeeded",
        Some(reason) if reason == Reason::PodFailed.as_str() => "failed",
        _ if conditions::is_true(sandbox.condition(ConditionType::Ready)) => "ready",
        _ => "pending",
    }
}

impl Collector for Pools {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(store) = self.0.upgrade() else { return Ok(()) };
        let world = store.read();
        let mut counts: BTreeMap<PoolLabels, u64> = BTreeMap::new();
        // A pool without members shows zeros, so that an alert on an empty pool has a series to read.
        for pool in world.pools.iter() {
            for sandbox_status in MEMBER_STATES {
                let labels = PoolLabels {
                    namespace: pool.namespace().to_owned(),
                    warmpool_name: pool.name().to_owned(),
                    sandbox_template: pool.spec.sandbox_template_ref.name.clone(),
                    sandbox_status,
                };
                counts.insert(labels, 0);
            }
        }
        for sandbox in world.sandboxes.iter() {
            if sandbox.label(labels::WARM_POOL_SANDBOX).is_none() {
                continue;
            }
            let Some(owner) = owners::owning_pool(&sandbox.metadata) else { continue };
            let Some(pool) = world.pools.get(&Cached::key(&**sandbox).sibling(owner.name.as_str())) else { continue };
            let template = sandbox.annotation(annotations::TEMPLATE_REF).filter(|name| !name.is_empty());
            let labels = PoolLabels {
                namespace: pool.namespace().to_owned(),
                warmpool_name: pool.name().to_owned(),
                sandbox_template: template.unwrap_or(&pool.spec.sandbox_template_ref.name).to_owned(),
                sandbox_status: member_state(sandbox),
            };
            *counts.entry(labels).or_default() += 1;
        }
        drop(world);
        let mut family = encoder.encode_descriptor(
            "agent_sandbox_warmpool_size",
            "Members of each warm pool by state",
            None,
            MetricType::Gauge,
        )?;
        for (labels, count) in &counts {
            let count = i64::try_from(*count).unwrap_or(i64::MAX);
            ConstGauge::new(count).encode(family.encode_family(labels)?)?;
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabels {
    name: &'static str,
    controller: &'static str,
}

impl Collector for Queues {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(store) = self.0.upgrade() else { return Ok(()) };
        let stats = ReconcilerKind::ALL.map(|reconciler| {
            let name = reconciler.controller_name();
            (QueueLabels { name, controller: name }, store.queues.of(reconciler).stats())
        });
        let mut depth = encoder.encode_descriptor("workqueue_depth", "Keys that wait", None, MetricType::Gauge)?;
        for (of, stats) in &stats {
            ConstGauge::new(i64::try_from(stats.depth).unwrap_or(i64::MAX)).encode(depth.encode_family(of)?)?;
        }
        let mut adds = encoder.encode_descriptor("workqueue_adds", "Keys added", None, MetricType::Counter)?;
        for (of, stats) in &stats {
            ConstCounter::new(stats.added).encode(adds.encode_family(of)?)?;
        }
        let mut retries = encoder.encode_descriptor(
            "workqueue_retries",
            "Keys added again after an error",
            None,
            MetricType::Counter,
        )?;
        for (of, stats) in &stats {
            ConstCounter::new(stats.retries).encode(retries.encode_family(of)?)?;
        }
        Ok(())
    }
}
