//! Timing: medians of many, rates of many at once.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WARM_UP: usize = 30;
const SAMPLES: usize = 300;
const RATE_TIME: Duration = Duration::from_secs(2);

/// Contestants take turns; the best of so many turns counts, so that a busy moment of the machine hurts nobody alone.
pub(crate) const TURNS: usize = 4;

/// What a series of measurements says.
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

/// How often `work` is done per second by `threads` at once.
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

/// Lets every contestant measure in turn; `better` says whether a new result beats the best one so far.
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

/// The same program without any daemon, with its output collected as the daemons do.
pub(crate) fn spawn_bare(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().expect("the program runs");
    assert!(output.status.success());
}
