//! Limits of Pods and containers as the cgroups get them: the specification's, and the node's defaults for Pods.

use super::KernelRuntime;
use crate::kernel::config::NodeDefaults;
use crate::kernel::host::cgroup::{HardLimits, Setting};
use crate::kernel::host::resources::no_limits;
use crate::runtime::Limits;

/// On v1 memory with swap may not be limited below memory alone, so it is lifted while that changes.
const MEMORY_V1: &str = "memory.limit_in_bytes";
const MEMORY_AND_SWAP_V1: &str = "memory.memsw.limit_in_bytes";

impl KernelRuntime {
    /// The limits of a Pod's cgroup.
    pub(super) fn pod_limits(&self, limits: &Limits) -> HardLimits {
        if !self.config.isolation.limits {
            return no_limits();
        }
        with_defaults(limits, &self.config.defaults)
    }

    /// The limits of a container's cgroup: the Pod's hold for what it does not set.
    pub(super) fn container_limits(&self, limits: &Limits) -> HardLimits {
        if !self.config.isolation.limits {
            return no_limits();
        }
        HardLimits {
            memory_bytes: limits.memory_bytes,
            cpu_millis: limits.cpu_millis,
            cpu_request_millis: limits.cpu_request_millis,
            pids: limits.pids,
        }
    }
}

fn with_defaults(limits: &Limits, defaults: &NodeDefaults) -> HardLimits {
    HardLimits {
        memory_bytes: limits.memory_bytes.or(defaults.memory_bytes.map(|bytes| bytes.max(limits.memory_asked_bytes))),
        cpu_millis: limits.cpu_millis.or(defaults.cpu_millis.map(|millis| millis.max(limits.cpu_asked_millis))),
        cpu_request_millis: Some(limits.cpu_request_millis.unwrap_or(defaults.cpu_request_millis)),
        pids: limits.pids.or(defaults.pids),
    }
}

/// What is left to write of `wanted` in a cgroup that has the settings `present`.
pub(super) fn changes(present: &[Setting], wanted: Vec<Setting>) -> Vec<Setting> {
    let mut left: Vec<Setting> = wanted.into_iter().filter(|setting| !present.contains(setting)).collect();
    let memory = left.iter().position(|setting| setting.file.file_name().is_some_and(|name| name == MEMORY_V1));
    if let Some(at) = memory {
        let file = left[at].file.with_file_name(MEMORY_AND_SWAP_V1);
        left.insert(at, Setting { file, value: "-1".to_owned(), optional: true });
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULTS: NodeDefaults =
        NodeDefaults { memory_bytes: Some(1_000), cpu_millis: Some(1_500), cpu_request_millis: 100, pids: Some(7) };

    #[test]
    fn a_default_limit_is_not_below_what_containers_ask_for() {
        let none = with_defaults(&Limits::default(), &DEFAULTS);
        let expected = HardLimits {
            memory_bytes: Some(1_000),
            cpu_millis: Some(1_500),
            cpu_request_millis: Some(100),
            pids: Some(7),
        };
        assert_eq!(none, expected);
        let asking = Limits { memory_asked_bytes: 2_000, cpu_asked_millis: 3_000, ..Limits::default() };
        let raised = with_defaults(&asking, &DEFAULTS);
        assert_eq!((raised.memory_bytes, raised.cpu_millis), (Some(2_000), Some(3_000)));
        let own = Limits { memory_bytes: Some(10), cpu_millis: Some(20), ..asking };
        let kept = with_defaults(&own, &DEFAULTS);
        assert_eq!((kept.memory_bytes, kept.cpu_millis), (Some(10), Some(20)));
        let off = NodeDefaults { memory_bytes: None, cpu_millis: None, pids: None, ..DEFAULTS };
        assert_eq!(with_defaults(&asking, &off).memory_bytes, None);
    }

    #[test]
    fn only_differing_settings_are_written_and_memory_can_be_raised() {
        let setting = |name: &str, value: &str| Setting {
            file: format!("/g/{name}").into(),
            value: value.to_owned(),
            optional: false,
        };
        let present = [setting(MEMORY_V1, "5"), setting(MEMORY_AND_SWAP_V1, "5"), setting("pids.max", "7")];
        assert_eq!(changes(&present, present.to_vec()), []);
        let wanted = vec![setting(MEMORY_V1, "9"), setting(MEMORY_AND_SWAP_V1, "9"), setting("pids.max", "7")];
        let values: Vec<_> = changes(&present, wanted).into_iter().map(|setting| setting.value).collect();
        assert_eq!(values, ["-1", "9", "9"]);
    }
}
