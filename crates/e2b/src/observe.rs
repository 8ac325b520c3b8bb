//! What a sandbox uses, and what it wrote to its log.

use agent_sandbox_protocol::e2b::ENVD_PORT;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::LogParams;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::Error;
use crate::record::State;
use crate::routes::Generation;
use crate::server::Call;

/// Number of lines unless a client asks for another one.
const LINES: usize = 1000;
/// Maximum size of the log that is read for a request.
const MAX_LOG_BYTES: i64 = 1 << 20;

/// What the daemon in the sandbox reports.
#[derive(Debug, Deserialize)]
struct Sample {
    ts: i64,
    cpu_count: u64,
    cpu_used_pct: f64,
    mem_total: u64,
    mem_used: u64,
    #[serde(default)]
    mem_cache: u64,
    disk_used: u64,
    disk_total: u64,
}

impl Call<'_> {
    /// The current use: nothing is recorded, so that a list has at most one entry.
    pub(crate) async fn metrics(&self, id: &str) -> Result<Value, Error> {
        let record = self.find(id).await?;
        if record.state(Timestamp::now()) == State::Paused {
            return Ok(json!([]));
        }
        let (namespace, name) = (self.account.namespace.as_str(), record.name());
        let body = self.account.sandboxes.get(namespace, name, ENVD_PORT, "/metrics").await.map_err(Error::Internal)?;
        let sample: Sample = serde_json::from_slice(&body)
            .map_err(|error| Error::Internal(format!("the sandbox reported its use in another form: {error}")))?;
        let time = Timestamp::from_second(sample.ts).unwrap_or_default();
        let limit = |name: &str| self.parameter(name).and_then(|text| text.parse::<i64>().ok());
        if limit("start").is_some_and(|start| sample.ts < start) || limit("end").is_some_and(|end| sample.ts > end) {
            return Ok(json!([]));
        }
        Ok(json!([{
            "timestamp": time.to_string(),
            "timestampUnix": sample.ts,
            "cpuCount": sample.cpu_count,
            "cpuUsedPct": sample.cpu_used_pct,
            "memUsed": sample.mem_used,
            "memTotal": sample.mem_total,
            "memCache": sample.mem_cache,
            "diskUsed": sample.disk_used,
            "diskTotal": sample.disk_total,
        }]))
    }

    /// Lines of the container's log.
    pub(crate) async fn logs(&self, generation: Generation, id: &str) -> Result<Value, Error> {
        let record = self.find(id).await?;
        let limit = self.parameter("limit").and_then(|text| text.parse().ok()).unwrap_or(LINES).min(LINES);
        let start = self.parameter("start").or_else(|| self.parameter("cursor"));
        let start = start.and_then(|text| Timestamp::from_millisecond(text.parse().ok()?).ok());
        let lines = match record.state(Timestamp::now()) {
            State::Paused => String::new(),
            State::Running => {
                let pods: Api<Pod> = Api::namespaced(self.account.client.clone(), &self.account.namespace);
                let pod = agent_sandbox_client::pod_name(&record.sandbox);
                let params = LogParams {
                    timestamps: true,
                    since_time: start,
                    limit_bytes: Some(MAX_LOG_BYTES),
                    ..LogParams::default()
                };
                pods.logs(&pod, &params).await?
            }
        };
        let entries = lines.lines().filter_map(entry).take(limit);
        let lines: Vec<Value> = entries
            .map(|(time, text)| json!({ "timestamp": time, "message": text, "level": "info", "fields": {} }))
            .collect();
        Ok(match generation {
            Generation::V2 => json!({ "logs": lines }),
            Generation::V1 => {
                let line = |entry: &Value| {
                    let line = json!({ "message": entry["message"], "level": "info" }).to_string();
                    json!({ "timestamp": entry["timestamp"], "line": line })
                };
                json!({ "logs": lines.iter().map(line).collect::<Vec<_>>(), "logEntries": lines })
            }
        })
    }
}

/// Time and text of a line.
fn entry(line: &str) -> Option<(&str, &str)> {
    let (time, text) = line.split_once(' ').unwrap_or((line, ""));
    time.parse::<Timestamp>().ok().map(|_| (time, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// E-042
    #[test]
    fn lines_have_a_time() {
        assert_eq!(entry("2026-01-01T00:00:00Z a b"), Some(("2026-01-01T00:00:00Z", "a b")));
        assert_eq!(entry("2026-01-01T00:00:00Z"), Some(("2026-01-01T00:00:00Z", "")));
        assert_eq!(entry("no time"), None);
    }
}
