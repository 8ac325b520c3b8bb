//! Startup latency of claims for each sample, from the controller's metrics, drawn as bars.

use std::{collections::VecDeque, fmt};

/// Histogram of the time from the controller's first observation of a claim until the claim is ready, in milliseconds.
const FAMILY: &str = "agent_sandbox_claim_controller_startup_latency_ms";
/// Number of samples that are drawn: a minute at one per second.
const MAX_SAMPLES: usize = 60;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Number and summed latency of all claims since the engine started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Claims {
    count: f64,
    milliseconds: f64,
}

impl Claims {
    /// Reads the sums over all labels from a page of metrics.
    pub(super) fn read(page: &str) -> Self {
        let total = |suffix: &str| {
            let values = page.lines().filter_map(|line| {
                let rest = line.strip_prefix(FAMILY)?.strip_prefix(suffix)?;
                rest.starts_with(['{', ' ']).then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
            });
            values.sum()
        };
        Self { count: total("_count"), milliseconds: total("_sum") }
    }
}

/// Mean latency of each sample; `None` where no claim became ready.
#[derive(Debug, Default)]
pub(super) struct History {
    means: VecDeque<Option<f64>>,
    served: f64,
}

impl History {
    pub(super) fn record(&mut self, before: Claims, now: Claims) {
        let served = (now.count - before.count).max(0.0);
        let mean = (served > 0.0).then(|| (now.milliseconds - before.milliseconds).max(0.0) / served);
        if self.means.len() == MAX_SAMPLES {
            self.means.pop_front();
        }
        self.means.push_back(mean);
        self.served = served;
    }
}

impl fmt::Display for History {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = || self.means.iter().copied().flatten();
        let Some(longest) = known().reduce(f64::max) else {
            return formatter.write_str("no claims while looking");
        };
        let last = self.means.iter().rev().copied().flatten().next().unwrap_or_default();
        write!(formatter, "claims: {} just now, ready after {last:.0} ms (longest {longest:.0}) ", self.served)?;
        for mean in &self.means {
            // Truncated on purpose: only the longest gets the highest bar.
            let bar = mean.map_or(' ', |mean| BARS[((mean / longest.max(1.0) * 7.0) as usize).min(7)]);
            fmt::Write::write_char(formatter, bar)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(count: u32, sum: f64) -> String {
        format!(
            "# TYPE {FAMILY} histogram\n{FAMILY}_sum{{launch_type=\"warm\"}} {sum}\n{FAMILY}_count{{launch_type=\"warm\"}} {count}\n\
             {FAMILY}_sum{{launch_type=\"cold\"}} 100.5\n{FAMILY}_count{{launch_type=\"cold\"}} 1\n\
             {FAMILY}_bucket{{le=\"+Inf\"}} 7\n{FAMILY}_summary 9\n"
        )
    }

    #[test]
    fn a_page_is_summed_over_its_labels() {
        assert_eq!(Claims::read(&page(3, 9.5)), Claims { count: 4.0, milliseconds: 110.0 });
        assert_eq!(Claims::read(""), Claims::default());
    }

    #[test]
    fn each_sample_has_a_bar_and_gaps_stay_empty() {
        let mut history = History::default();
        assert_eq!(history.to_string(), "no claims while looking");
        let samples =
            [(0, 0.0), (1, 10.0), (1, 10.0), (3, 90.0), (4, 170.0)].map(|(n, sum)| Claims::read(&page(n, sum)));
        for pair in samples.windows(2) {
            history.record(pair[0], pair[1]);
        }
        assert_eq!(history.to_string(), "claims: 1 just now, ready after 80 ms (longest 80) ▁ ▄█");
        for _ in 0..MAX_SAMPLES {
            history.record(samples[4], samples[4]);
        }
        assert_eq!(history.to_string(), "no claims while looking", "old samples are dropped");
    }
}
