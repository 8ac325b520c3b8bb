//! The machine as the sandbox sees it: processors, and memory of its cgroup.

use std::path::Path;

/// cgroup v1 reports "no limit" as a number of this size or more.
const UNLIMITED: u64 = 1 << 62;

/// Memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// The cgroup's limit, or the memory of the machine.
    pub(crate) total: u64,
    /// In use, without the page cache.
    pub(crate) used: u64,
    /// The page cache of files.
    pub(crate) cache: u64,
}

/// A file of the sandbox's own cgroup, which a cgroup namespace shows as the root.
fn read_cgroup(file: &str) -> Option<String> {
    std::fs::read_to_string(Path::new("/sys/fs/cgroup").join(file)).ok()
}

/// A file with one number; `max` counts as none.
pub(crate) fn cgroup_number(file: &str) -> Option<u64> {
    read_cgroup(file)?.trim().parse().ok()
}

/// The value of a line `name value`.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}

/// Processor time that the sandbox has used. Reads cgroup version 2, else version 1.
pub(crate) fn cpu_microseconds() -> Option<u64> {
    let used = read_cgroup("cpu.stat").and_then(|stat| field(&stat, "usage_usec"));
    used.or_else(|| cgroup_number("cpuacct/cpuacct.usage").map(|nanoseconds| nanoseconds / 1000))
}

/// Memory that the sandbox uses, page cache included.
pub(crate) fn memory_in_use() -> Option<u64> {
    cgroup_number("memory.current").or_else(|| cgroup_number("memory/memory.usage_in_bytes"))
}

/// The limit of the sandbox's memory.
pub(crate) fn memory_limit() -> Option<u64> {
    let limit = cgroup_number("memory.max").or_else(|| cgroup_number("memory/memory.limit_in_bytes"));
    limit.filter(|limit| *limit < UNLIMITED)
}

/// The number of processors that the daemon may run on.
pub(crate) fn cpu_count() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Memory of the cgroup, or of the whole machine if the cgroup cannot be read.
pub(crate) fn memory() -> Memory {
    let machine = machine_memory(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default());
    let Some(in_use) = memory_in_use() else { return machine };
    let stat = read_cgroup("memory.stat").or_else(|| read_cgroup("memory/memory.stat")).unwrap_or_default();
    let cache = field(&stat, "file").or_else(|| field(&stat, "cache")).unwrap_or_default();
    Memory { total: memory_limit().unwrap_or(machine.total), used: in_use.saturating_sub(cache), cache }
}

fn machine_memory(meminfo: &str) -> Memory {
    let kibibytes = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|value| value.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or_default() * 1024
    };
    let (total, free, cache) = (kibibytes("MemTotal"), kibibytes("MemFree"), kibibytes("Cached"));
    Memory { total, used: total.saturating_sub(free).saturating_sub(cache), cache }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_their_whole_name() {
        assert_eq!(field("file_mapped 1\nfile 22\n", "file"), Some(22));
        assert_eq!(field("usage_usec x\n", "usage_usec"), None);
        let machine = machine_memory("MemTotal:  100 kB\nMemFree:  40 kB\nCached: 10 kB\nSwapCached: 3 kB\n");
        assert_eq!(machine, Memory { total: 102_400, used: 51_200, cache: 10_240 });
    }
}
