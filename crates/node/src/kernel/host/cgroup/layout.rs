//! Which cgroup hierarchies this host has, and where our cgroups are in them: pure, given the text of two proc files.

use std::path::{Path, PathBuf};

use super::{CgroupPlan, HardLimits, Setting};

/// The controllers that the node uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Controller {
    Memory,
    Cpu,
    Pids,
}

impl Controller {
    const ALL: [Self; 3] = [Self::Memory, Self::Cpu, Self::Pids];

    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Pids => "pids",
        }
    }
}

/// Where each controller can be used. Paths are those of the cgroup that holds all cgroups of this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CgroupLayout {
    pub(crate) unified: Option<PathBuf>,
    /// Controllers bound to the unified hierarchy.
    pub(crate) unified_controllers: Vec<Controller>,
    /// Controllers bound to v1 hierarchies, with the folder there.
    pub(crate) v1: Vec<(Controller, PathBuf)>,
}

impl CgroupLayout {
    /// Reads a layout from `/proc/self/mountinfo`, `/proc/self/cgroup` and the unified hierarchy's
    /// `cgroup.controllers`.
    ///
    /// `node` names our parent cgroup. It is placed below this process's own cgroup in a delegated hierarchy
    /// (rootless), and at the top otherwise. `controllers_of` reads the `cgroup.controllers` file of a folder.
    pub(crate) fn detect(
        mountinfo: &str,
        own_groups: &str,
        node: &str,
        below_own_group: bool,
        controllers_of: impl Fn(&Path) -> String,
    ) -> Self {
        let mut layout = Self::default();
        for (mount_point, kind, options) in mountinfo.lines().filter_map(parse_mount) {
            let own = |controller: &str| if below_own_group { own_group(own_groups, controller) } else { "" };
            match kind {
                "cgroup2" if layout.unified.is_none() => {
                    let parent = join_group(Path::new(mount_point), own(""));
                    let names = controllers_of(&parent);
                    layout.unified_controllers = Controller::ALL
                        .into_iter()
                        .filter(|c| names.split_whitespace().any(|n| n == c.name()))
                        .collect();
                    layout.unified = Some(parent.join(node));
                }
                "cgroup" => {
                    for controller in Controller::ALL {
                        let bound = options.split(',').any(|option| option == controller.name());
                        if bound && !layout.v1.iter().any(|(known, _)| *known == controller) {
                            let parent = join_group(Path::new(mount_point), own(controller.name()));
                            layout.v1.push((controller, parent.join(node)));
                        }
                    }
                }
                _ => {}
            }
        }
        layout
    }

    /// Whether limits of this controller can be enforced here.
    pub(crate) fn supports(&self, controller: Controller) -> bool {
        self.unified_controllers.contains(&controller) || self.v1.iter().any(|(known, _)| *known == controller)
    }

    /// The cgroup `path` (relative to our parent cgroup) with these limits.
    pub(crate) fn plan(&self, path: &str, limits: HardLimits) -> CgroupPlan {
        let mut plan =
            CgroupPlan { unified: self.unified.as_ref().map(|base| base.join(path)), ..CgroupPlan::default() };
        if let Some(folder) = &plan.unified {
            for controller in &self.unified_controllers {
                settings_v2(*controller, folder, limits, &mut plan.settings);
            }
            if self.unified_controllers.contains(&Controller::Memory) {
                plan.oom_counter = Some(folder.join("memory.events"));
            }
        }
        for (controller, base) in &self.v1 {
            let folder = base.join(path);
            settings_v1(*controller, &folder, limits, &mut plan.settings);
            if *controller == Controller::Memory {
                plan.oom_counter = Some(folder.join("memory.oom_control"));
            }
            if !plan.v1.contains(&folder) {
                plan.v1.push(folder);
            }
        }
        plan
    }

    /// Our parent cgroup. Its CPU weight against the rest of the host is that of one task for each processor, as with
    /// kubelets: by default all Pods together would weigh as much as one task, and wait for other busy processes.
    pub(crate) fn plan_parent(&self, limits: HardLimits, processors: u64) -> CgroupPlan {
        let mut plan = self.plan("", limits);
        let weigh = |folder: &Path, name: &str, value: u64| Setting {
            file: folder.join(name),
            value: value.to_string(),
            optional: true,
        };
        if let Some(folder) = plan.unified.as_deref().filter(|_| self.unified_controllers.contains(&Controller::Cpu)) {
            plan.settings.push(weigh(folder, "cpu.weight", (DEFAULT_WEIGHT * processors).min(MOST_WEIGHT)));
        } else if let Some((_, folder)) = self.v1.iter().find(|(controller, _)| *controller == Controller::Cpu) {
            plan.settings.push(weigh(folder, "cpu.shares", (DEFAULT_SHARES * processors).min(MOST_SHARES)));
        }
        plan
    }

    /// The cgroup of a Pod's supervisor in the unified hierarchy: a sibling of its containers' cgroups, because a
    /// cgroup whose children use controllers may not hold processes. Without controllers there, it is the Pod's own
    /// cgroup.
    pub(crate) fn supervisor_group(&self, pod: &CgroupPlan) -> Option<PathBuf> {
        let pod = pod.unified.as_ref()?;
        Some(if self.unified_controllers.is_empty() { pod.clone() } else { pod.join("supervisor") })
    }

    /// A container's cgroup below its Pod's. Where controllers are bound to v1, the container has a cgroup of its own
    /// only when its limits differ from the Pod's: its process is already in the Pod's cgroup, and moving it waits for
    /// the whole machine. In the unified hierarchy it needs one for controllers, or to be killed by if its processes
    /// are not all in a pid namespace of its own.
    pub(crate) fn plan_below(
        &self,
        pod: &CgroupPlan,
        path: &str,
        own: HardLimits,
        of_pod: HardLimits,
        own_processes: bool,
    ) -> CgroupPlan {
        let mut plan = self.plan(path, own);
        if self.unified_controllers.is_empty() && own_processes {
            plan.unified = None;
        }
        let covered = |own: Option<u64>, pod: Option<u64>| own.is_none() || own == pod;
        if covered(own.memory_bytes, of_pod.memory_bytes)
            && covered(own.cpu_millis, of_pod.cpu_millis)
            && covered(own.cpu_request_millis, of_pod.cpu_request_millis)
            && covered(own.pids, of_pod.pids)
        {
            plan.settings.retain(|setting| !plan.v1.iter().any(|folder| setting.file.starts_with(folder)));
            plan.v1.clear();
            if !self.unified_controllers.contains(&Controller::Memory) {
                plan.oom_counter.clone_from(&pod.oom_counter);
            }
        }
        plan
    }

    /// The line for `cgroup.subtree_control` of a cgroup whose children use the controllers.
    pub(crate) fn subtree_control(&self) -> String {
        self.unified_controllers.iter().map(|c| format!("+{}", c.name())).collect::<Vec<_>>().join(" ")
    }
}

/// The kernel's default CPU weight of a cgroup, which is that of one task, and the maximum.
const DEFAULT_WEIGHT: u64 = 100;
const MOST_WEIGHT: u64 = 10_000;
const DEFAULT_SHARES: u64 = 1_024;
const MOST_SHARES: u64 = 262_144;

fn settings_v2(controller: Controller, folder: &Path, limits: HardLimits, settings: &mut Vec<Setting>) {
    let mut push = |name: &str, value: String, optional| {
        settings.push(Setting { file: folder.join(name), value, optional });
    };
    match controller {
        Controller::Memory => {
            if let Some(bytes) = limits.memory_bytes {
                push("memory.max", bytes.to_string(), false);
                push("memory.swap.max", "0".to_owned(), true);
            }
        }
        Controller::Cpu => {
            if let Some(millis) = limits.cpu_millis {
                push("cpu.max", format!("{} 100000", quota(millis)), false);
            }
            if let Some(request) = limits.cpu_request_millis {
                push("cpu.weight", weight(request).to_string(), true);
            }
        }
        Controller::Pids => {
            if let Some(pids) = limits.pids {
                push("pids.max", pids.to_string(), false);
            }
        }
    }
}

fn settings_v1(controller: Controller, folder: &Path, limits: HardLimits, settings: &mut Vec<Setting>) {
    let mut push = |name: &str, value: String, optional| {
        settings.push(Setting { file: folder.join(name), value, optional });
    };
    match controller {
        Controller::Memory => {
            if let Some(bytes) = limits.memory_bytes {
                push("memory.limit_in_bytes", bytes.to_string(), false);
                push("memory.memsw.limit_in_bytes", bytes.to_string(), true);
            }
        }
        Controller::Cpu => {
            if let Some(millis) = limits.cpu_millis {
                push("cpu.cfs_quota_us", quota(millis).to_string(), false);
            }
            if let Some(request) = limits.cpu_request_millis {
                push("cpu.shares", shares(request).to_string(), true);
            }
        }
        Controller::Pids => {
            if let Some(pids) = limits.pids {
                push("pids.max", pids.to_string(), false);
            }
        }
    }
}

/// Microseconds of CPU per 100 ms period; the kernel refuses less than 1 ms.
fn quota(millis: u64) -> u64 {
    (millis * 100).max(1_000)
}

/// v1 shares of a request, as kubelets compute them.
fn shares(request_millis: u64) -> u64 {
    (request_millis * DEFAULT_SHARES / 1_000).clamp(2, MOST_SHARES)
}

/// v2 weight of a request: shares scaled onto 1 to 10,000.
fn weight(request_millis: u64) -> u64 {
    1 + (shares(request_millis) - 2) * (MOST_WEIGHT - 1) / (MOST_SHARES - 2)
}

/// Mount point, file system type and super options of a mountinfo line.
fn parse_mount(line: &str) -> Option<(&str, &str, &str)> {
    let (before, after) = line.split_once(" - ")?;
    let mount_point = before.split(' ').nth(4)?;
    let mut fields = after.split(' ');
    let kind = fields.next()?;
    let options = fields.nth(1)?;
    Some((mount_point, kind, options))
}

/// This process's cgroup for a v1 controller, or (empty name) in the unified hierarchy.
fn own_group<'a>(own_groups: &'a str, controller: &str) -> &'a str {
    own_groups
        .lines()
        .find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            controllers.split(',').any(|name| name == controller).then_some(path)
        })
        .unwrap_or("")
}

fn join_group(mount_point: &Path, group: &str) -> PathBuf {
    mount_point.join(group.trim_start_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
30 20 0:25 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
32 30 0:27 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
33 30 0:28 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
34 30 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
    const LIMITS: HardLimits = HardLimits {
        memory_bytes: Some(1 << 20),
        cpu_millis: Some(500),
        cpu_request_millis: Some(250),
        pids: Some(64),
    };

    #[test]
    fn hybrid_host_takes_limits_from_v1_and_identity_from_v2() {
        let layout = CgroupLayout::detect(HYBRID, "", "node", false, |_| "hugetlb".to_owned());
        assert!(
            layout.supports(Controller::Memory)
                && layout.supports(Controller::Pids)
                && layout.supports(Controller::Cpu)
        );
        let plan = layout.plan("pod", LIMITS);
        assert_eq!(plan.unified.as_deref(), Some(Path::new("/sys/fs/cgroup/unified/node/pod")));
        assert_eq!(plan.v1.len(), 3);
        let value = |file: &str| {
            plan.settings.iter().find(|s| s.file == Path::new(file)).map(|s| s.value.clone()).unwrap_or_default()
        };
        assert_eq!(value("/sys/fs/cgroup/memory/node/pod/memory.limit_in_bytes"), "1048576");
        assert_eq!(value("/sys/fs/cgroup/cpu/node/pod/cpu.cfs_quota_us"), "50000");
        assert_eq!(value("/sys/fs/cgroup/cpu/node/pod/cpu.shares"), "256");
        assert_eq!(value("/sys/fs/cgroup/pids/node/pod/pids.max"), "64");
        assert!(plan.settings.iter().all(|s| !s.file.starts_with("/sys/fs/cgroup/unified")));
    }

    #[test]
    fn all_pods_together_weigh_a_task_for_each_processor() {
        let none = HardLimits { memory_bytes: None, cpu_millis: None, cpu_request_millis: None, pids: None };
        let weights = |mounts: &str, processors| {
            let layout = CgroupLayout::detect(mounts, "", "node", false, |_| "cpu".to_owned());
            let settings = layout.plan_parent(none, processors).settings;
            settings.into_iter().map(|set| (set.file.display().to_string(), set.value)).collect::<Vec<_>>()
        };
        let unified = "25 20 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(weights(unified, 4), [("/sys/fs/cgroup/node/cpu.weight".to_owned(), "400".to_owned())]);
        assert_eq!(weights(unified, 1_000), [("/sys/fs/cgroup/node/cpu.weight".to_owned(), "10000".to_owned())]);
        let bound_to_v1 = "31 30 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n";
        assert_eq!(weights(bound_to_v1, 4), [("/sys/fs/cgroup/cpu/node/cpu.shares".to_owned(), "4096".to_owned())]);
        assert_eq!(weights("", 4), []);
    }

    #[test]
    fn a_container_has_v1_groups_of_its_own_only_for_limits_of_its_own() {
        let layout = CgroupLayout::detect(HYBRID, "", "node", false, |_| "hugetlb".to_owned());
        let pod = layout.plan("pod", LIMITS);
        let below = |own| layout.plan_below(&pod, "pod/c", own, LIMITS, false);
        let none = HardLimits { memory_bytes: None, cpu_millis: None, cpu_request_millis: None, pids: None };
        for same in [none, LIMITS, HardLimits { pids: None, ..LIMITS }] {
            let plan = below(same);
            assert!(plan.v1.is_empty() && plan.settings.is_empty(), "{same:?}");
            assert_eq!(plan.oom_counter, pod.oom_counter);
            assert!(plan.unified.is_some());
        }
        for other in [HardLimits { memory_bytes: Some(1), ..none }, HardLimits { pids: Some(3), ..LIMITS }] {
            let plan = below(other);
            assert_eq!(plan.v1.len(), 3, "{other:?}");
            assert!(plan.oom_counter.is_some_and(|file| file.starts_with("/sys/fs/cgroup/memory/node/pod/c")));
        }
    }

    #[test]
    fn groups_of_the_unified_tree_are_made_for_controllers_or_to_kill_by() {
        let none = HardLimits { memory_bytes: None, cpu_millis: None, cpu_request_millis: None, pids: None };
        for (controllers, is_used) in [("hugetlb", false), ("memory pids", true)] {
            let layout = CgroupLayout::detect(HYBRID, "", "node", false, |_| controllers.to_owned());
            let pod = layout.plan("pod", LIMITS);
            let group = |own_processes| layout.plan_below(&pod, "pod/c", none, LIMITS, own_processes).unified;
            assert_eq!(group(true).is_some(), is_used, "{controllers}");
            assert!(group(false).is_some(), "{controllers}");
            let beside = layout.supervisor_group(&pod) != pod.unified;
            assert_eq!(beside, is_used, "{controllers}");
        }
    }

    #[test]
    fn pure_v2_host_uses_one_tree_for_everything() {
        let mounts = "25 20 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        let layout = CgroupLayout::detect(mounts, "", "node", false, |_| "cpuset cpu io memory pids".to_owned());
        let plan = layout.plan("pod", LIMITS);
        assert!(plan.v1.is_empty());
        assert_eq!(layout.subtree_control(), "+memory +cpu +pids");
        assert_eq!(plan.oom_counter.as_deref(), Some(Path::new("/sys/fs/cgroup/node/pod/memory.events")));
        let names: Vec<_> = plan.settings.iter().filter_map(|s| s.file.file_name()?.to_str()).collect();
        assert_eq!(names, ["memory.max", "memory.swap.max", "cpu.max", "cpu.weight", "pids.max"]);
    }

    #[test]
    fn rootless_groups_go_below_the_callers_own_group() {
        let mounts = "25 20 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let layout = CgroupLayout::detect(mounts, "0::/user.slice/me.scope\n", "node", true, |_| "memory".to_owned());
        assert_eq!(layout.unified.as_deref(), Some(Path::new("/sys/fs/cgroup/user.slice/me.scope/node")));
        assert!(!layout.supports(Controller::Pids));
    }

    #[test]
    fn without_a_hierarchy_no_controller_is_supported() {
        let layout = CgroupLayout::detect("", "", "node", false, |_| String::new());
        assert!(!layout.supports(Controller::Memory));
        assert_eq!(layout.plan("pod", LIMITS), CgroupPlan::default());
    }
}
