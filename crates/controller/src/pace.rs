//! A client-side limit on requests per second, by client-go's rules: a bucket that fills steadily and holds a burst.

use std::time::Duration;

use tokio::{sync::Mutex, time::Instant};

/// What a rate of 0 means, as in client-go.
const DEFAULT_RATE: f64 = 5.0;

#[derive(Debug)]
pub struct Pace {
    rate: f64,
    burst: f64,
    bucket: Mutex<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled_at: Instant,
}

impl Pace {
    /// `None` for a negative rate: no limit.
    pub fn new(rate: f64, burst: usize) -> Option<Self> {
        if rate < 0.0 {
            return None;
        }
        let rate = if rate == 0.0 { DEFAULT_RATE } else { rate };
        #[expect(clippy::cast_precision_loss, reason = "bursts are small numbers")]
        let burst = burst as f64;
        Some(Self { rate, burst, bucket: Mutex::new(Bucket { tokens: burst, filled_at: Instant::now() }) })
    }

    /// Waits for this request's turn.
    pub async fn turn(&self) {
        let wait = {
            let mut bucket = self.bucket.lock().await;
            let now = Instant::now();
            let filled = bucket.tokens + now.duration_since(bucket.filled_at).as_secs_f64() * self.rate;
            bucket.tokens = filled.min(self.burst) - 1.0;
            bucket.filled_at = now;
            Duration::from_secs_f64((-bucket.tokens / self.rate).max(0.0))
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_burst_passes_at_once_and_the_rest_at_the_rate() {
        let pace = Pace::new(50.0, 3).expect("limited");
        let start = Instant::now();
        for _ in 0..3 {
            pace.turn().await;
        }
        assert!(start.elapsed() < Duration::from_millis(15));
        for _ in 0..2 {
            pace.turn().await;
        }
        assert!(start.elapsed() >= Duration::from_millis(39), "{:?}", start.elapsed());
    }

    #[test]
    fn negative_means_unlimited_and_zero_the_usual() {
        assert!(Pace::new(-1.0, 10).is_none());
        assert!((Pace::new(0.0, 10).expect("limited").rate - DEFAULT_RATE).abs() < f64::EPSILON);
    }
}
