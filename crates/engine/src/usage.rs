//! Reads what the resource metrics API serves: the counters of the node and of its Pods.

use agent_sandbox_apiserver::{ContainerCounters, Counters, UsageSample, UsageSource};
use agent_sandbox_node::kernel::{KernelRuntime, PodUsage, machine_usage};
use std::sync::Arc;

/// The counters of the embedded node.
pub(crate) struct NodeUsage {
    pub(crate) kernel: Arc<KernelRuntime>,
    pub(crate) node_name: String,
}

impl UsageSource for NodeUsage {
    fn sample(&self) -> UsageSample {
        let counters = |(cpu_micros, memory_bytes)| Counters { cpu_micros, memory_bytes };
        let node = machine_usage().map(|used| (self.node_name.clone(), counters(used)));
        let containers = |pod: PodUsage| {
            pod.containers.into_iter().map(move |used| ContainerCounters {
                namespace: pod.namespace.clone(),
                pod: pod.name.clone(),
                container: used.name,
                counters: counters((used.cpu_micros, used.memory_bytes)),
            })
        };
        let containers = self.kernel.usage().into_iter().flat_map(containers).collect();
        UsageSample { nodes: node.into_iter().collect(), containers }
    }
}
