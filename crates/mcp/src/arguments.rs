//! Arguments of the tools: defaults and validation, before any request to the cluster.

use rmcp::model::JsonObject;
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use serde_json::Value;
use std::{collections::BTreeMap, ops::RangeInclusive, time::Duration};

/// Allowed timeouts of a call in seconds.
const TIMEOUT_SECONDS: RangeInclusive<u64> = 1..=600;
const FORK_COUNT: RangeInclusive<usize> = 1..=10;
/// Default time after which a snapshot is deleted: a day.
pub(crate) const SNAPSHOT_SECONDS: u64 = 86_400;
/// Default time without a call after which a sandbox made from a snapshot is deleted.
pub(crate) const FORK_IDLE_SECONDS: u64 = 3_600;
/// Default number of bytes of a file that a result holds. Larger files are read in parts.
pub(crate) const DOWNLOAD_BYTES: u64 = 256 << 10;
const MAX_ENTRIES_RANGE: RangeInclusive<usize> = 1..=10_000;

#[derive(Debug, Deserialize)]
pub(crate) struct Create {
    pub(crate) warmpool: Option<String>,
    pub(crate) namespace: Option<String>,
    #[serde(default = "ready_timeout")]
    pub(crate) sandbox_ready_timeout: u64,
    pub(crate) labels: Option<BTreeMap<String, String>>,
    /// Time without a call after which the sandbox is deleted. Default five minutes; null means never.
    #[serde(default = "shutdown_after")]
    pub(crate) shutdown_after_seconds: Option<u64>,
    pub(crate) pod_labels: Option<BTreeMap<String, String>>,
    pub(crate) pod_annotations: Option<BTreeMap<String, String>>,
}

/// The sandbox that a call refers to. Without a name it is the session's newest, which is created if there is none.
#[derive(Debug, Deserialize)]
pub(crate) struct SandboxRef {
    pub(crate) sandbox_claim_name: Option<String>,
    pub(crate) namespace: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Delete {
    pub(crate) sandbox_claim_name: String,
    pub(crate) namespace: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Execute {
    #[serde(flatten)]
    pub(crate) sandbox: SandboxRef,
    pub(crate) command: String,
    #[serde(default)]
    pub(crate) timeout: CallTimeout,
}

#[derive(Debug, Deserialize)]
pub(crate) struct RunPython {
    #[serde(flatten)]
    pub(crate) sandbox: SandboxRef,
    pub(crate) code: String,
    #[serde(default)]
    pub(crate) timeout: CallTimeout,
}

#[derive(Debug, Deserialize)]
pub(crate) struct RunCode {
    #[serde(flatten)]
    pub(crate) sandbox: SandboxRef,
    pub(crate) code: String,
    /// Forget all variables first.
    #[serde(default)]
    pub(crate) restart: bool,
    #[serde(default)]
    pub(crate) timeout: CallTimeout,
}

#[derive(Debug, Deserialize)]
pub(crate) struct StartCommand {
    #[serde(flatten)]
    pub(crate) sandbox: SandboxRef,
    pub(crate) command: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct CommandOutput {
    #[serde(flatten)]
    pub(crate) sandbox: SandboxRef,
    pub(crate) command_id: i32,
    #[serde(default)]
    pub(crate) offset: u64,
    #[serde(default)]
    pub(crate) wait_seconds: WaitSeconds,
}

#[derive(Debug, Deserialize)]
pub(crate) struct StopCommand {
    #[serde(flatten)]
    pub(crate) sandbox: SandboxRef,
    pub(crate) command_id: i32,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ListPorts {
    #[serde(flatten)]
    pub(crate) sandbox: SandboxRef,
}

#[derive(Debug, Deserialize)]
pub(crate) struct OpenPort {
    #[serde(flatten)]
    pub(crate) sandbox: SandboxRef,
    pub(crate) port: u16,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Snapshot {
    #[serde(flatten)]
    pub(crate) sandbox: SandboxRef,
    #[serde(default = "snapshot_life")]
    pub(crate) expires_after_seconds: u64,
    #[serde(default)]
    pub(crate) timeout: CallTimeout,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Fork {
    #[serde(flatten)]
    pub(crate) sandbox: SandboxRef,
    /// Absent means the files that the sandbox has now.
    pub(crate) snapshot_name: Option<String>,
    #[serde(default)]
    pub(crate) count: ForkCount,
    /// Time without a call after which each new sandbox is deleted. Default an hour; null means never.
    #[serde(default = "fork_shutdown_after")]
    pub(crate) shutdown_after_seconds: Option<u64>,
    #[serde(default)]
    pub(crate) timeout: CallTimeout,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Rollback {
    #[serde(flatten)]
    pub(crate) sandbox: SandboxRef,
    pub(crate) snapshot_name: String,
    #[serde(default)]
    pub(crate) timeout: CallTimeout,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Upload {
    #[serde(flatten)]
    pub(crate) sandbox: SandboxRef,
    pub(crate) path: String,
    pub(crate) content: String,
    #[serde(default)]
    pub(crate) binary: bool,
    #[serde(default)]
    pub(crate) timeout: CallTimeout,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Download {
    #[serde(flatten)]
    pub(crate) sandbox: SandboxRef,
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) binary: bool,
    /// First byte to return, and number of bytes.
    #[serde(default)]
    pub(crate) offset: u64,
    #[serde(default)]
    pub(crate) max_bytes: MaxBytes,
    #[serde(default)]
    pub(crate) timeout: CallTimeout,
}

#[derive(Debug, Deserialize)]
pub(crate) struct List {
    #[serde(flatten)]
    pub(crate) sandbox: SandboxRef,
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) timeout: CallTimeout,
    #[serde(default)]
    pub(crate) max_entries: MaxEntries,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Exists {
    #[serde(flatten)]
    pub(crate) sandbox: SandboxRef,
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) timeout: CallTimeout,
}

/// Timeout of a call in whole seconds: 1 to 600, default 60.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallTimeout(pub(crate) Duration);

impl Default for CallTimeout {
    fn default() -> Self {
        Self(Duration::from_secs(60))
    }
}

impl<'de> Deserialize<'de> for CallTimeout {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let seconds = u64::deserialize(deserializer)?;
        if TIMEOUT_SECONDS.contains(&seconds) {
            return Ok(Self(Duration::from_secs(seconds)));
        }
        Err(serde::de::Error::custom(format!("timeout is {seconds}; it must be from 1 to 600 seconds")))
    }
}

/// Time to wait for the end of a background command: 0 to 600 seconds, default 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaitSeconds(pub(crate) Duration);

impl<'de> Deserialize<'de> for WaitSeconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let seconds = u64::deserialize(deserializer)?;
        if seconds <= *TIMEOUT_SECONDS.end() {
            return Ok(Self(Duration::from_secs(seconds)));
        }
        Err(serde::de::Error::custom(format!("wait_seconds is {seconds}; it must be from 0 to 600")))
    }
}

/// Maximum number of entries of a listing: 1 to 10000, default 1000.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MaxEntries(pub(crate) usize);

impl Default for MaxEntries {
    fn default() -> Self {
        Self(1000)
    }
}

impl<'de> Deserialize<'de> for MaxEntries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let count = usize::deserialize(deserializer)?;
        if MAX_ENTRIES_RANGE.contains(&count) {
            return Ok(Self(count));
        }
        Err(serde::de::Error::custom(format!("max_entries is {count}; it must be from 1 to 10000")))
    }
}

/// Number of sandboxes that one call makes: 1 to 10, default 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForkCount(pub(crate) usize);

impl Default for ForkCount {
    fn default() -> Self {
        Self(1)
    }
}

impl<'de> Deserialize<'de> for ForkCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let count = usize::deserialize(deserializer)?;
        if FORK_COUNT.contains(&count) {
            return Ok(Self(count));
        }
        Err(serde::de::Error::custom(format!("count is {count}; it must be from 1 to 10")))
    }
}

/// Number of bytes of a file that a result holds at most: null means all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct MaxBytes(pub(crate) Option<u64>);

impl Default for MaxBytes {
    fn default() -> Self {
        Self(Some(DOWNLOAD_BYTES))
    }
}

/// No tool deletes snapshots, so each has an end.
fn snapshot_life() -> u64 {
    SNAPSHOT_SECONDS
}

#[expect(clippy::unnecessary_wraps, reason = "null and absent are different values")]
fn fork_shutdown_after() -> Option<u64> {
    Some(FORK_IDLE_SECONDS)
}

fn ready_timeout() -> u64 {
    180
}

#[expect(clippy::unnecessary_wraps, reason = "null and absent are different values")]
fn shutdown_after() -> Option<u64> {
    Some(300)
}

/// Parses the arguments of a tool. The error message is for the caller.
pub(crate) fn parse<T: DeserializeOwned>(given: Option<JsonObject>) -> Result<T, String> {
    let given = Value::Object(given.unwrap_or_default());
    serde_json::from_value(given).map_err(|error| format!("invalid arguments: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn given<T: DeserializeOwned>(value: Value) -> Result<T, String> {
        parse(value.as_object().cloned())
    }

    #[test]
    fn absent_arguments_have_defaults_and_null_overrides_them() {
        let create = |extra: Value| {
            let mut value = json!({"warmpool": "p", "namespace": "n"});
            value.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            given::<Create>(value).unwrap()
        };
        assert_eq!(create(json!({})).shutdown_after_seconds, Some(300));
        assert_eq!(create(json!({"shutdown_after_seconds": null})).shutdown_after_seconds, None);
        assert_eq!(create(json!({})).sandbox_ready_timeout, 180);
        let fork = |value: Value| given::<Fork>(value).unwrap();
        assert_eq!(fork(json!({})).shutdown_after_seconds, Some(3600));
        assert_eq!(fork(json!({"shutdown_after_seconds": null})).shutdown_after_seconds, None);
        assert_eq!(given::<Snapshot>(json!({})).unwrap().expires_after_seconds, 86_400);
    }

    #[test]
    fn values_out_of_range_are_refused() {
        let execute = |timeout: Value| {
            given::<Execute>(json!({"sandbox_claim_name": "c", "namespace": "n", "command": "x", "timeout": timeout}))
        };
        assert_eq!(execute(json!(600)).unwrap().timeout.0.as_secs(), 600);
        assert!(execute(json!(0)).unwrap_err().contains("1 to 600"));
        assert!(execute(json!(601)).unwrap_err().contains("1 to 600"));
        let list = |count: u64| {
            given::<List>(json!({"sandbox_claim_name": "c", "namespace": "n", "path": ".", "max_entries": count}))
        };
        assert_eq!(list(10_000).unwrap().max_entries.0, 10_000);
        assert!(list(10_001).is_err() && list(0).is_err());
        let fork = |count: u64| given::<Fork>(json!({"count": count}));
        assert_eq!(fork(10).unwrap().count.0, 10);
        assert!(fork(11).unwrap_err().contains("1 to 10") && fork(0).is_err());
    }

    #[test]
    fn a_download_has_a_limit_unless_it_is_lifted() {
        let limit = |extra: Value| {
            let mut value = json!({"path": "x"});
            value.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            given::<Download>(value).unwrap().max_bytes.0
        };
        assert_eq!(limit(json!({})), Some(DOWNLOAD_BYTES));
        assert_eq!(limit(json!({"max_bytes": null})), None);
        assert_eq!(limit(json!({"max_bytes": 7})), Some(7));
    }

    #[test]
    fn only_what_has_no_default_is_required() {
        assert!(given::<Execute>(json!({"namespace": "n"})).unwrap_err().contains("command"));
        let execute: Execute = given(json!({"command": "x"})).unwrap();
        assert_eq!((execute.sandbox.sandbox_claim_name, execute.sandbox.namespace), (None, None));
        assert!(given::<Create>(json!({})).unwrap().warmpool.is_none());
        assert!(given::<CommandOutput>(json!({"command_id": 1, "wait_seconds": 601})).unwrap_err().contains("600"));
    }
}
