//! A client-side limit on requests per second, by client-go's rules: a token bucket that fills at a rate and holds a
//! burst.

use std::time::Duration;

use tokio::{sync::Mutex, time::Instant};

/// Requests per second that a rate of 0 stands for, as in client-go.
const DEFAULT_RATE: f64 = 5.0;

#[derive(Debug)]
pub struct RateLimiter {
    rate: f64,
    burst: f64,
    bucket: Mutex<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled_at: Instant,
}

impl RateLimiter {
    /// A limiter; `None` for a negative rate: no limit.
    pub fn new(rate: f64, burst: usize) -> Option<Self> {
        if rate < 0.0 {
            return None;
        }
        let rate = if rate == 0.0 { DEFAULT_RATE } else { rate };
        #[expect(clippy::cast_precision_loss, reason = "bursts are small numbers")]
        let burst = burst as f64;
        Some(Self { rate, burst, bucket: Mutex::new(Bucket { tokens: burst, filled_at: Instant::now() }) })
    }

    /// Waits until this request may be sent.
    pub async fn acquire(&self) {
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
        let rate_limiter = RateLimiter::new(50.0, 3).expect("limited");
        let start = Instant::now();
        for _ in 0..3 {
            rate_limiter.acquire().await;
        }
        assert!(start.elapsed() < Duration::from_millis(15));
        for _ in 0..2 {
            rate_limiter.acquire().await;
        }
        assert!(start.elapsed() >= Duration::from_millis(39), "{:?}", start.elapsed());
    }

    #[test]
    fn negative_means_unlimited_and_zero_the_default() {
        assert!(RateLimiter::new(-1.0, 10).is_none());
        assert!((RateLimiter::new(0.0, 10).expect("limited").rate - DEFAULT_RATE).abs() < f64::EPSILON);
    }
}
