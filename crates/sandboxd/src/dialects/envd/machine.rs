//! `/metrics` and `/init`: the sandbox as a machine, and what the control side tells it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::{Request, Response, StatusCode};
use serde_json::json;

use super::access::Caller;
use super::settings::Init;
use super::{Envd, plain_error, unauthorized};
use crate::core::files::blocking;
use crate::core::machine;
use crate::http_io::body::{self, Body};

/// Time over which the first processor usage is measured; later ones cover the time since the request before.
const FIRST_SAMPLE: Duration = Duration::from_millis(100);

/// Requests that follow each other faster share a measurement.
const SHORTEST_SAMPLE: Duration = Duration::from_millis(50);

const MIB: u64 = 1 << 20;
const MAX_INIT: usize = 1 << 20;

/// The processor time that the last request saw.
#[derive(Debug, Default)]
pub(super) struct CpuSample {
    last: Mutex<Option<(Instant, u64)>>,
}

impl CpuSample {
    /// Percentage of one processor that was in use since the last call.
    async fn used_percent(&self) -> f64 {
        let mut last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|(at, _)| at.elapsed() < SHORTEST_SAMPLE) {
            last = machine::cpu_microseconds().map(|used| (Instant::now(), used));
            tokio::time::sleep(FIRST_SAMPLE).await;
        }
        let (Some((at, before)), Some(now)) = (last, machine::cpu_microseconds()) else { return 0.0 };
        let passed = at.elapsed().as_secs_f64() * 1_000_000.0;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), now));
        // Far below 2^52 microseconds.
        let used = now.saturating_sub(before) as f64;
        (used / passed * 10_000.0).round() / 100.0
    }
}

impl Envd {
    pub(super) async fn metrics(&self) -> Response<Body> {
        let cpu_used_pct = self.cpu.used_percent().await;
        let base = self.sandbox.paths.open_base();
        let read = blocking(move || Ok((machine::memory(), rustix::fs::fstatvfs(&base?)?))).await;
        let (memory, disk) = match read {
            Ok(read) => read,
            Err(error) => return plain_error(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        };
        let disk_total = disk.f_blocks.saturating_mul(disk.f_frsize);
        let metrics = json!({
            "ts": jiff::Timestamp::now().as_second(),
            "cpu_count": machine::cpu_count(),
            "cpu_used_pct": cpu_used_pct,
            "mem_total": memory.total,
            "mem_used": memory.used,
            "mem_cache": memory.cache,
            "mem_total_mib": memory.total / MIB,
            "mem_used_mib": memory.used / MIB,
            "disk_used": disk_total.saturating_sub(disk.f_bfree.saturating_mul(disk.f_frsize)),
            "disk_total": disk_total,
        });
        body::json(StatusCode::OK, &metrics)
    }

    /// Sets token, variables, user and directory. Who knows the daemon's token may do so, or the access token that is
    /// set already; without any token the first caller.
    pub(super) async fn init(&self, request: Request<Body>, caller: Caller) -> Response<Body> {
        let allowed = caller != Caller::Unproven && self.settings.allows(caller, request.headers());
        if !allowed {
            body::discard(request.into_body()).await;
            return unauthorized();
        }
        let invalid = |message: String| plain_error(StatusCode::BAD_REQUEST, message);
        let bytes = match body::collect(request.into_body(), MAX_INIT).await {
            Ok(bytes) => bytes,
            Err(error) => return invalid(error.to_string()),
        };
        let init = if bytes.is_empty() { Ok(Init::default()) } else { serde_json::from_slice::<Init>(&bytes) };
        match init.map_err(|error| error.to_string()).and_then(|init| self.settings.apply(init)) {
            Ok(()) => body::empty(StatusCode::NO_CONTENT),
            Err(message) => invalid(message),
        }
    }
}
