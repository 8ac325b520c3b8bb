//! The daemon releases memory a while after its start and after work; probes do not count as work.

use std::time::{Duration, Instant};

use crate::fixture::{Daemon, daemon, read, wait_for};

/// Kilobytes of the program's own file in memory.
fn resident_program_kib(daemon: &Daemon) -> u64 {
    let status = read(format!("/proc/{}/status", daemon.pid()));
    let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).expect("the kernel tells");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn memory_is_released_after_start_and_after_work_but_not_after_probes() {
    let daemon = daemon().start();
    let started = resident_program_kib(&daemon);
    wait_for(|| (resident_program_kib(&daemon) < started * 4 / 5).then_some(()), "what the start needed goes back");
    // Longer than the idle time after which the daemon releases memory.
    let (until, mut most) = (Instant::now() + Duration::from_secs(7), 0);
    while Instant::now() < until {
        assert_eq!(daemon.get("/").status, 200);
        let now = resident_program_kib(&daemon);
        assert!(now * 10 >= most * 9, "given back while only probes came: {now} kB after {most}");
        most = most.max(now);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(daemon.execute("true")["exit_code"], 0);
    let worked = resident_program_kib(&daemon);
    assert!(worked > most, "control: work needs more of the program than probes do");
    wait_for(|| (resident_program_kib(&daemon) < worked * 4 / 5).then_some(()), "what work needed goes back");
}
