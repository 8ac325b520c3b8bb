//! CPU, memory and processes of Pods, read from their cgroups.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::CgroupPlan;

/// Usage of one Pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodUsage {
    pub namespace: String,
    pub name: String,
    /// CPU time since the Pod was created; `None` where no cgroup counts it.
    pub cpu_micros: Option<u64>,
    /// Memory in use, without what the kernel could reclaim at once (inactive file pages).
    pub memory_bytes: Option<u64>,
    pub processes: u64,
    /// Its running containers.
    pub containers: Vec<ContainerUsage>,
}

/// Usage of one container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerUsage {
    pub name: String,
    pub cpu_micros: u64,
    pub memory_bytes: u64,
}

impl PodUsage {
    /// Reads the cgroups of a Pod and of its running containers.
    pub(crate) fn read(namespace: &str, name: &str, group: &CgroupPlan, containers: &[(String, CgroupPlan)]) -> Self {
        let used = Usage::read(group);
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            containers: used.divide(containers),
            cpu_micros: used.cpu_micros,
            memory_bytes: used.memory_bytes,
            processes: group.processes().len() as u64,
        }
    }
}

/// What one cgroup counts.
struct Usage {
    cpu_micros: Option<u64>,
    memory_bytes: Option<u64>,
}

impl Usage {
    /// Reads v1 and v2 hierarchies.
    fn read(group: &CgroupPlan) -> Self {
        let file = |folder: &Path, name: &str| fs::read_to_string(folder.join(name)).ok();
        let cpu = group.folders().find_map(|folder| {
            let counted = file(folder, "cpu.stat").and_then(|text| value_of(&text, "usage_usec"));
            counted.or_else(|| Some(file(folder, "cpuacct.usage")?.trim().parse::<u64>().ok()? / 1_000))
        });
        let memory = group.folders().find_map(|folder| {
            let used = file(folder, "memory.current").or_else(|| file(folder, "memory.usage_in_bytes"))?;
            let detail = file(folder, "memory.stat").unwrap_or_default();
            // On v1 `inactive_file` does not include child cgroups, `total_inactive_file` does.
            let spare = value_of(&detail, "total_inactive_file").or_else(|| value_of(&detail, "inactive_file"));
            Some(used.trim().parse::<u64>().ok()?.saturating_sub(spare.unwrap_or_default()))
        });
        Self { cpu_micros: cpu, memory_bytes: memory }
    }

    /// Divides the usage of a Pod among its containers. A container without a cgroup of its own runs in the Pod's: the
    /// first such container gets what the others did not use.
    fn divide(&self, containers: &[(String, CgroupPlan)]) -> Vec<ContainerUsage> {
        let (Some(mut cpu), Some(mut memory)) = (self.cpu_micros, self.memory_bytes) else { return Vec::new() };
        let mut found = Vec::new();
        let mut rest = None;
        for (name, group) in containers {
            match Self::read(group) {
                Self { cpu_micros: Some(own_cpu), memory_bytes: Some(own_memory) } => {
                    (cpu, memory) = (cpu.saturating_sub(own_cpu), memory.saturating_sub(own_memory));
                    let usage = ContainerUsage { name: name.clone(), cpu_micros: own_cpu, memory_bytes: own_memory };
                    found.push(usage);
                }
                _ => rest = rest.or(Some(name)),
            }
        }
        found.extend(rest.map(|name| ContainerUsage { name: name.clone(), cpu_micros: cpu, memory_bytes: memory }));
        found
    }
}

/// The number after a word at the beginning of a line.
fn value_of(text: &str, word: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(word)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(files: &[(&str, &str)]) -> (tempfile::TempDir, CgroupPlan) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let plan = CgroupPlan { unified: Some(folder.path().to_owned()), ..CgroupPlan::default() };
        (folder, plan)
    }

    #[test]
    fn both_kinds_of_groups_are_read() {
        let (_v2, plan) = group(&[
            ("cpu.stat", "usage_usec 1500\nuser_usec 1000\n"),
            ("memory.current", "1000\n"),
            ("memory.stat", "anon 10\ninactive_file 400\n"),
            ("cgroup.procs", "12\n13\n"),
        ]);
        let containers = [("main".to_owned(), CgroupPlan::default())];
        let used = PodUsage::read("default", "p", &plan, &containers);
        assert_eq!((used.cpu_micros, used.memory_bytes, used.processes), (Some(1_500), Some(600), 2));
        let main = ContainerUsage { name: "main".to_owned(), cpu_micros: 1_500, memory_bytes: 600 };
        assert_eq!(used.containers, [main], "a container in the Pod's own cgroup");
        let (_own, side) = group(&[("cpu.stat", "usage_usec 500\n"), ("memory.current", "200\n")]);
        let used = PodUsage::read("default", "p", &plan, &[containers[0].clone(), ("side".to_owned(), side)]);
        let rest = ContainerUsage { name: "main".to_owned(), cpu_micros: 1_000, memory_bytes: 400 };
        let side = ContainerUsage { name: "side".to_owned(), cpu_micros: 500, memory_bytes: 200 };
        assert_eq!(used.containers, [side, rest]);
        let (_v1, plan) = group(&[
            ("cpuacct.usage", "7000000\n"),
            ("memory.usage_in_bytes", "1000\n"),
            ("memory.stat", "inactive_file 1\ntotal_inactive_file 300\n"),
        ]);
        let used = PodUsage::read("default", "p", &plan, &[]);
        assert_eq!((used.cpu_micros, used.memory_bytes, used.processes), (Some(7_000), Some(700), 0));
        let (_none, plan) = group(&[]);
        assert_eq!(PodUsage::read("default", "p", &plan, &[]).memory_bytes, None);
    }
}
