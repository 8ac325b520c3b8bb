//! Kill, connect, pause, and the time after which a sandbox ends.

use std::time::Duration;

use agent_sandbox_api::keys::annotations;
use agent_sandbox_client as sdk;
use jiff::{SignedDuration, Timestamp};
use kube::api::{Patch, PatchParams};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::Error;
use crate::record::{Record, State};
use crate::server::Call;

/// Clients wait 60 s for an answer.
pub(crate) const WAIT: Duration = Duration::from_secs(50);
/// Longest time that a sandbox may be given at once.
const MAX_TIMEOUT: i64 = 365 * 24 * 3600;
/// Default of connect, in seconds.
const DEFAULT_TIMEOUT: i64 = 300;

/// What a pause that would keep processes is told.
const MEMORY: &str = "processes cannot be kept while a sandbox is paused: ask for mode \"filesystem\", which keeps its files \
                      only, or use a key of `agent-sandbox token e2b --pause-without-memory`";

/// What a client wants at the end of a sandbox's time, and for requests to a paused one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Lifecycle {
    /// The end pauses the sandbox instead of deleting it.
    pub(crate) pauses: bool,
    /// Requests resume the paused sandbox.
    pub(crate) resumes: bool,
}

impl Lifecycle {
    /// What is stored with the sandbox, if it differs from the default.
    pub(crate) fn annotation(self) -> Option<String> {
        (self != Self::default()).then(|| json!(self).to_string())
    }
}

/// The body of connect, in both generations.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Connect {
    timeout: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Pause {
    memory: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Timeout {
    timeout: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Refresh {
    duration: Option<i64>,
}

/// The time `seconds` from now, rounded up to a whole second, which is what objects store.
pub(crate) fn end_after(seconds: i64) -> Result<Timestamp, Error> {
    if !(0..=MAX_TIMEOUT).contains(&seconds) {
        return Err(Error::Invalid(format!("timeout {seconds} is not between 0 and {MAX_TIMEOUT} seconds")));
    }
    let end = Timestamp::now() + SignedDuration::from_secs(seconds) + SignedDuration::from_millis(999);
    Timestamp::from_second(end.as_second()).map_err(|error| Error::Invalid(error.to_string()))
}

impl Call<'_> {
    pub(crate) async fn kill(&self, id: &str) -> Result<(), Error> {
        let record = self.find(id).await?;
        match sdk::delete(&self.account.client, &self.account.namespace, record.name()).await {
            Ok(_) => Ok(()),
            Err(sdk::ClientError::NotFound { .. }) => Err(Error::sandbox(id)),
            Err(error) => Err(error.into()),
        }
    }

    /// Lengthens the time of a running sandbox, or resumes a paused one. Returns whether it was resumed.
    pub(crate) async fn connect(&self, id: &str) -> Result<(bool, Value), Error> {
        let wanted: Connect = self.json()?;
        let end = end_after(wanted.timeout.unwrap_or(DEFAULT_TIMEOUT))?;
        let record = self.find(id).await?;
        let paused = record.state(Timestamp::now()) == State::Paused;
        if paused {
            self.resume(&record, end).await?;
        } else if record.end().is_some_and(|current| current < end) {
            self.set_end(&record, Some(end), json!({})).await?;
        }
        Ok((paused, record.connection(self.settings)))
    }

    async fn resume(&self, record: &Record, end: Timestamp) -> Result<(), Error> {
        // Together, so that the time that is over does not stop it at once.
        let mut marks = json!({ annotations::SUSPENDED_BY: null, annotations::WAKE_REQUESTED_AT: null });
        if record.lifecycle().resumes {
            marks[annotations::WAKE] = "Always".into();
        }
        let running = json!({ "metadata": { "annotations": marks }, "spec": { "operatingMode": "Running" } });
        self.set_end(record, Some(end), running).await?;
        let (client, namespace) = (&self.account.client, &self.account.namespace);
        sdk::sandbox_ready(client, namespace, record.name(), WAIT).await?;
        Ok(())
    }

    pub(crate) async fn pause(&self, id: &str) -> Result<(), Error> {
        let wanted: Pause = self.json()?;
        let record = self.find(id).await?;
        self.check_memory(wanted.memory)?;
        if record.state(Timestamp::now()) == State::Paused {
            if record.deleted_at().is_some() {
                // The pause before this one ended between its two patches.
                self.set_end(&record, None, json!({})).await?;
            }
            return Err(Error::Conflict(format!("sandbox {id:?} is already paused")));
        }
        let mut marks = json!({ annotations::SUSPENDED_BY: null, annotations::WAKE_REQUESTED_AT: null });
        if record.lifecycle().resumes && wanted.memory == Some(false) {
            // Who asks for files only resumes by `connect` only.
            marks[annotations::WAKE] = "Never".into();
        }
        // A paused sandbox has no end.
        let paused = json!({ "metadata": { "annotations": marks }, "spec": { "operatingMode": "Suspended" } });
        // Clients take every 409 as "already paused".
        let retryable = |error| match error {
            Error::Conflict(message) => Error::Busy(message),
            other => other,
        };
        self.set_end(&record, None, paused).await.map_err(retryable)?;
        let (client, namespace) = (&self.account.client, &self.account.namespace);
        sdk::sandbox_suspended(client, namespace, record.name(), WAIT).await?;
        Ok(())
    }

    /// Refuses a pause that is to keep processes, which is also what a pause without a mode means. Whoever made the key
    /// may have accepted that they end: some clients ask for them without being told to.
    pub(crate) fn check_memory(&self, memory: Option<bool>) -> Result<(), Error> {
        match self.accepts_files_only(memory) {
            true => Ok(()),
            false => Err(Error::Unsupported(MEMORY.to_owned())),
        }
    }

    /// Whether the client, or the maker of its key, accepts that files are kept and processes are not.
    pub(crate) fn accepts_files_only(&self, memory: Option<bool>) -> bool {
        memory == Some(false) || self.account.pauses_without_memory
    }

    pub(crate) async fn set_timeout(&self, id: &str) -> Result<(), Error> {
        let wanted: Timeout = self.json()?;
        let end = end_after(wanted.timeout)?;
        let record = self.running(id).await?;
        self.set_end(&record, Some(end), json!({})).await
    }

    pub(crate) async fn refresh(&self, id: &str) -> Result<(), Error> {
        let wanted: Refresh = self.json()?;
        let end = end_after(wanted.duration.unwrap_or(DEFAULT_TIMEOUT))?;
        let record = self.running(id).await?;
        match record.end() {
            Some(current) if current < end => self.set_end(&record, Some(end), json!({})).await,
            _ => Ok(()),
        }
    }

    /// A sandbox that runs; a paused one is not found.
    pub(crate) async fn running(&self, id: &str) -> Result<Record, Error> {
        let record = self.find(id).await?;
        match record.state(Timestamp::now()) {
            State::Running => Ok(record),
            State::Paused => Err(Error::NotFound(format!("sandbox {id:?} is paused"))),
        }
    }

    /// Sets or removes the end of a sandbox's time, and makes other changes of the Sandbox in the same request where both
    /// are in one object.
    async fn set_end(&self, record: &Record, end: Option<Timestamp>, changes: Value) -> Result<(), Error> {
        let (params, name) = (PatchParams::default(), record.name());
        for change in changes_of_end(record, end, changes) {
            match change {
                Change::Claim(patch) => drop(self.claims().patch(name, &params, &Patch::Merge(patch)).await?),
                Change::Sandbox(patch) => drop(self.sandboxes().patch(name, &params, &Patch::Merge(patch)).await?),
            }
        }
        Ok(())
    }
}

/// A patch of one of a sandbox's objects.
#[derive(Debug, PartialEq)]
enum Change {
    Claim(Value),
    Sandbox(Value),
}

/// The patches that set or remove the end of a sandbox's time with other changes of the Sandbox, in their order.
fn changes_of_end(record: &Record, end: Option<Timestamp>, mut changes: Value) -> Vec<Change> {
    let time = end.map(|end| end.to_string());
    let mut of_claim = None;
    if record.lifecycle().pauses {
        changes["metadata"]["annotations"][annotations::SUSPEND_AT] = json!(time);
    } else {
        if record.sandbox.annotation(annotations::SUSPEND_AT).is_some() {
            // The time after a wake.
            changes["metadata"]["annotations"][annotations::SUSPEND_AT] = Value::Null;
        }
        match &record.claim {
            Some(claim) => {
                let lifecycle = time.map(|time| json!({ "shutdownTime": time, "shutdownPolicy": "Delete" }));
                let patch = json!({ "metadata": { "uid": claim.metadata.uid }, "spec": { "lifecycle": lifecycle } });
                of_claim = Some(Change::Claim(patch));
            }
            None => changes["spec"]["shutdownTime"] = json!(time),
        }
    }
    let of_sandbox = changes.as_object().is_some_and(|changes| !changes.is_empty()).then(|| {
        changes["metadata"]["uid"] = json!(record.sandbox.metadata.uid);
        Change::Sandbox(changes)
    });
    // An end is set before the sandbox runs and removed after it is paused: a failure in between leaves one.
    let order = if end.is_some() { [of_claim, of_sandbox] } else { [of_sandbox, of_claim] };
    order.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_sandbox_api::keys::labels;

    const END: &str = "2026-01-01T00:00:00Z";

    /// A sandbox with an end, of a claim or by itself, and with annotations.
    fn record(of_claim: bool, lifecycle: Lifecycle, annotations: Value) -> Record {
        let meta = |mut annotations: Value| {
            if let Some(text) = lifecycle.annotation() {
                annotations[annotations::E2B_LIFECYCLE] = text.into();
            }
            json!({ "name": "box", "uid": "u", "annotations": annotations, "labels": { labels::E2B_SANDBOX: "true" } })
        };
        let end = json!({ "shutdownTime": END, "shutdownPolicy": "Delete" });
        let spec = if of_claim { json!({}) } else { end.clone() };
        let claim = json!({ "metadata": meta(json!({})), "spec": { "lifecycle": end } });
        Record {
            sandbox: serde_json::from_value(json!({ "metadata": meta(annotations), "spec": spec })).unwrap(),
            claim: of_claim.then(|| serde_json::from_value(claim).unwrap()),
        }
    }

    /// E-039
    #[test]
    fn a_sandbox_has_an_end_whichever_patch_fails() {
        let paused = json!({ "spec": { "operatingMode": "Suspended" } });
        let of_claim = record(true, Lifecycle::default(), json!({}));
        let changes = changes_of_end(&of_claim, None, paused.clone());
        assert!(
            matches!(&changes[..], [Change::Sandbox(first), Change::Claim(last)]
                if first["spec"] == paused["spec"] && last["spec"]["lifecycle"].is_null()),
            "paused before its end is removed: {changes:?}"
        );
        let running = json!({ "spec": { "operatingMode": "Running" } });
        let changes = changes_of_end(&of_claim, Some(END.parse().unwrap()), running);
        assert!(
            matches!(&changes[..], [Change::Claim(first), Change::Sandbox(_)]
                if first["spec"]["lifecycle"]["shutdownTime"] == END),
            "its end is set before it runs: {changes:?}"
        );
        let changes = changes_of_end(&of_claim, Some(END.parse().unwrap()), json!({}));
        assert!(matches!(&changes[..], [Change::Claim(_)]), "nothing of the Sandbox changes: {changes:?}");

        for lifecycle in [Lifecycle::default(), Lifecycle { pauses: true, resumes: false }] {
            let changes = changes_of_end(&record(false, lifecycle, json!({})), None, paused.clone());
            assert!(matches!(&changes[..], [Change::Sandbox(_)]), "one object, one patch: {changes:?}");
        }
    }

    /// E-034, E-037, E-040, E-122
    #[test]
    fn the_end_after_a_wake_pauses_until_a_client_sets_another_one() {
        let resumes = Lifecycle { pauses: false, resumes: true };
        let mut woken = record(false, resumes, json!({ annotations::SUSPEND_AT: END }));
        woken.sandbox.spec.shutdown_time = None;
        let end: Timestamp = END.parse().unwrap();
        let later = end + SignedDuration::from_secs(60);
        assert_eq!((woken.end(), woken.deleted_at()), (Some(end), None));
        assert_eq!(woken.state(later), State::Paused);
        assert!(woken.is_listed(later), "it is not deleted");
        let changes = changes_of_end(&woken, Some(later), json!({}));
        let [Change::Sandbox(patch)] = &changes[..] else { panic!("{changes:?}") };
        assert_eq!(patch["metadata"]["annotations"][annotations::SUSPEND_AT], Value::Null);
        assert_eq!(patch["spec"]["shutdownTime"], later.to_string());
        assert!(!record(false, Lifecycle::default(), json!({})).is_listed(later));
    }
}
