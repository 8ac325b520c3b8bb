//! Whether an engine is in use: by processes in its sandboxes, or by clients.
//!
//! Both are read from /proc. Connections are found in the kernel's socket table, where the client's end of a closed one
//! stays for a minute: a request that began and ended between two looks is seen as well.

use std::{
    collections::HashMap,
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

/// Longest interval between two looks; less than the time that closed connections stay visible.
const MAX_INTERVAL: Duration = Duration::from_secs(20);
/// Time that the kernel keeps a closed connection (TCP_TIMEWAIT_LEN).
const TIME_WAIT: Duration = Duration::from_secs(60);
/// Clock ticks per second in /proc.
const TICKS: u64 = 100;
/// Names of processes that are the engine's own: helpers, daemons in sandboxes, rootless networking.
const OWN_PROCESSES: [&str; 4] = ["asb-spawner", "asb-supervisor", "sandboxd", "pasta"];

/// Waits until the engine of this process has not been used for `limit`. `pods` returns the number of running Pods.
pub(crate) async fn wait_until_idle(addresses: Vec<SocketAddr>, limit: Duration, pods: impl Fn() -> usize) {
    let mut last_use = Instant::now();
    loop {
        tokio::time::sleep(MAX_INTERVAL.min(limit / 4)).await;
        let now = Instant::now();
        let used = match processes_run(std::process::id(), pods()) {
            true => Some(now),
            false => connection_age(&addresses).and_then(|age| now.checked_sub(age)),
        };
        last_use = used.map_or(last_use, |used| last_use.max(used));
        if now.duration_since(last_use) >= limit {
            return;
        }
    }
}

/// A process: its parent and its name.
struct Process {
    parent: u32,
    name: String,
}

/// Whether a process other than the engine's own runs in a sandbox. Pods that are not below the engine's process, which
/// is so after a crash, count as used.
fn processes_run(engine: u32, pods: usize) -> bool {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let processes: HashMap<u32, Process> = pids.filter_map(|pid| Some((pid, read_process(pid)?))).collect();
    in_use(&processes, engine, pods)
}

fn read_process(pid: u32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (start, rest) = stat.rsplit_once(')')?;
    let name = start.split_once('(')?.1.to_owned();
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    // A zombie does nothing any more.
    (state != "Z").then_some(Process { parent, name })
}

fn in_use(processes: &HashMap<u32, Process>, engine: u32, pods: usize) -> bool {
    let is_below = |mut pid: u32| {
        // The depth is bounded: a table that is read while processes end may hold a circle.
        for _ in 0..processes.len() {
            match processes.get(&pid) {
                Some(process) if process.parent == engine => return true,
                Some(process) => pid = process.parent,
                None => return false,
            }
        }
        false
    };
    let below: Vec<&str> =
        processes.iter().filter(|(pid, _)| is_below(**pid)).map(|(_, process)| process.name.as_str()).collect();
    let daemons = below.iter().filter(|name| **name == "sandboxd").count();
    let is_own = |name: &str| OWN_PROCESSES.iter().any(|own| name == *own || name.starts_with(&format!("{own}.")));
    daemons < pods || below.iter().any(|name| !is_own(name))
}

/// Time since a client was last connected to one of the addresses; `None` if that is longer ago than the kernel knows.
fn connection_age(addresses: &[SocketAddr]) -> Option<Duration> {
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines().skip(1)).filter_map(|line| age_in(line, addresses)).min()
}

/// The same for one line of the kernel's table.
fn age_in(line: &str, addresses: &[SocketAddr]) -> Option<Duration> {
    const LISTENING: &str = "0A";
    const CLOSED: &str = "06";
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, local, remote, state, _, timer, ..] = fields.as_slice() else { return None };
    let concerned = [local, remote].into_iter().any(|end| addresses.iter().any(|address| is_end(end, *address)));
    match *state {
        _ if !concerned => None,
        LISTENING => None,
        CLOSED => {
            let left = u64::from_str_radix(timer.split_once(':')?.1, 16).ok()? * 1000 / TICKS;
            Some(TIME_WAIT.saturating_sub(Duration::from_millis(left)))
        }
        _ => Some(Duration::ZERO),
    }
}

/// Whether an end of a connection (hexadecimal address and port) is this address. IPv6 ends are compared by port alone.
fn is_end(text: &str, address: SocketAddr) -> bool {
    let Some((ip, port)) = text.split_once(':') else { return false };
    if u16::from_str_radix(port, 16) != Ok(address.port()) {
        return false;
    }
    match (address.ip(), u32::from_str_radix(ip, 16)) {
        // The kernel prints the address as a number of this machine's byte order.
        (IpAddr::V4(own), Ok(number)) => own.is_unspecified() || Ipv4Addr::from(number.to_ne_bytes()) == own,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn processes(list: &[(u32, u32, &str)]) -> HashMap<u32, Process> {
        list.iter().map(|(pid, parent, name)| (*pid, Process { parent: *parent, name: (*name).to_owned() })).collect()
    }

    #[test]
    fn only_the_engines_own_processes_leave_it_idle() {
        let own = [
            (1, 0, "init"),
            (9, 1, "agent-sandbox"),
            (10, 9, "asb-spawner"),
            (11, 10, "asb-supervisor"),
            (12, 11, "sandboxd"),
        ];
        assert!(!in_use(&processes(&own), 9, 1));
        assert!(in_use(&processes(&own), 9, 2), "a Pod that is not below the engine");
        let busy: Vec<_> = own.iter().copied().chain([(13, 12, "sleep")]).collect();
        assert!(in_use(&processes(&busy), 9, 1));
        let elsewhere: Vec<_> = own.iter().copied().chain([(13, 1, "sleep")]).collect();
        assert!(!in_use(&processes(&elsewhere), 9, 1));
        assert!(!in_use(&processes(&[(5, 6, "a"), (6, 5, "b")]), 9, 0), "a circle ends");
    }

    #[test]
    fn connections_are_found_in_the_kernels_table() {
        let api: SocketAddr = "127.0.0.1:41975".parse().unwrap();
        let listening = "4: 0100007F:A3F7 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 3228503 1";
        let closed = "137: 0100007F:E3C8 0100007F:A3F7 06 00000000:00000000 03:00001653 00000000 0 0 0 3 0";
        let open = "138: 0100007F:A3F7 0100007F:E3D4 01 00000000:00000000 00:00000000 00000000 0 0 1 1 0";
        let other = "139: 0100007F:A3F8 0100007F:E3D4 01 00000000:00000000 00:00000000 00000000 0 0 1 1 0";
        let elsewhere = "140: 0100007F:E3D4 08080808:A3F7 01 00000000:00000000 00:00000000 00000000 0 0 1 1 0";
        assert_eq!(age_in(listening, &[api]), None);
        assert_eq!(age_in(other, &[api]), None);
        assert_eq!(age_in(elsewhere, &[api]), None);
        assert_eq!(age_in(open, &[api]), Some(Duration::ZERO));
        assert_eq!(age_in(closed, &[api]), Some(Duration::from_millis(60_000 - 57_150)));
        assert_eq!(age_in("", &[api]), None);
    }
}
