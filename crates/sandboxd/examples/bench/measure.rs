//! Timing: medians of repeated calls, and rates of concurrent calls.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WARM_UP: usize = 30;
const SAMPLES: usize = 300;
const RATE_TIME: Duration = Duration::from_secs(2);

/// Number of turns. The contestants measure in turn and the best turn of each counts, so that a busy moment of the
/// machine does not affect one of them alone.
pub(crate) const TURNS: usize = 4;

/// The result of a series of measurements.
#[derive(Clone, Copy)]
pub(crate) struct Latency {
    pub(crate) median: Duration,
    pub(crate) late: Duration,
}

pub(crate) fn latency(work: impl FnMut()) -> Latency {
    latency_of(WARM_UP, SAMPLES, work)
}

/// The median of `samples` after a warm-up.
pub(crate) fn latency_of(warm_up: usize, samples: usize, mut work: impl FnMut()) -> Latency {
    let mut times: Vec<Duration> = Vec::with_capacity(samples);
    for round in 0..warm_up + samples {
        let started = Instant::now();
        work();
        if round >= warm_up {
            times.push(started.elapsed());
        }
    }
    times.sort_unstable();
    Latency { median: times[samples / 2], late: times[samples * 95 / 100] }
}

/// How often per second `threads` threads together run `work`.
pub(crate) fn rate<S>(threads: usize, prepare: impl Fn() -> S + Sync, work: impl Fn(&mut S) + Sync) -> f64 {
    let done = AtomicU64::new(0);
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut state = prepare();
                while started.elapsed() < RATE_TIME {
                    work(&mut state);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    done.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64()
}

/// Lets every contestant measure in turn; `better` reports whether a new result is better than the best so far.
pub(crate) fn in_turns<T: Copy>(contestants: &mut [&mut dyn FnMut() -> T], better: impl Fn(&T, &T) -> bool) -> Vec<T> {
    let mut best: Vec<T> = contestants.iter_mut().map(|measure| measure()).collect();
    for _ in 1..TURNS {
        for (measure, best) in contestants.iter_mut().zip(&mut best) {
            let result = measure();
            if better(&result, best) {
                *best = result;
            }
        }
    }
    best
}

/// Runs the same program without a daemon and collects its output as the daemons do.
pub(crate) fn spawn_bare(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().expect("the program runs");
    assert!(output.status.success());
}
