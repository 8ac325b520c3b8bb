//! Memory goes back a while after the start and after work, and probes are no work.

use std::time::{Duration, Instant};

use crate::fixture::{Daemon, daemon, read, wait_for};

/// Kilobytes of the program's own file in memory.
fn of_the_program(daemon: &Daemon) -> u64 {
    let status = read(format!("/proc/{}/status", daemon.pid()));
    let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).expect("the kernel tells");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn memory_goes_back_after_the_start_and_after_work_and_probes_are_no_work() {
    let daemon = daemon().start();
    let started = of_the_program(&daemon);
    wait_for(|| (of_the_program(&daemon) < started * 4 / 5).then_some(()), "what the start needed goes back");
    // Longer than the daemon is quiet for before it gives memory back.
    let (until, mut most) = (Instant::now() + Duration::from_secs(7), 0);
    while Instant::now() < until {
        assert_eq!(daemon.get("/").status, 200);
        let now = of_the_program(&daemon);
        assert!(now * 10 >= most * 9, "given back while only probes came: {now} kB after {most}");
        most = most.max(now);
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(daemon.execute("true")["exit_code"], 0);
    let worked = of_the_program(&daemon);
    assert!(worked > most, "control: work needs more of the program than probes do");
    wait_for(|| (of_the_program(&daemon) < worked * 4 / 5).then_some(()), "what work needed goes back");
}
