//! Kill, connect, pause, and the time after which a sandbox ends.

use std::time::Duration;

use agent_sandbox_api::v1beta1::{Sandbox, SandboxClaim};
use agent_sandbox_client as sdk;
use jiff::{SignedDuration, Timestamp};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde::Deserialize;
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
        // Before it runs, so that the time that is over does not stop it at once.
        self.set_end(record, Some(end), json!({ "operatingMode": "Running" })).await?;
        let (client, namespace) = (&self.account.client, &self.account.namespace);
        sdk::sandbox_ready(client, namespace, record.name(), WAIT).await?;
        Ok(())
    }

    pub(crate) async fn pause(&self, id: &str) -> Result<(), Error> {
        let wanted: Pause = self.json()?;
        if wanted.memory == Some(true) {
            let why = "pausing with memory is not supported: processes end and files stay (mode \"filesystem\")";
            return Err(Error::Unsupported(why.to_owned()));
        }
        let record = self.find(id).await?;
        if record.state(Timestamp::now()) == State::Paused {
            return Err(Error::Conflict(format!("sandbox {id:?} is already paused")));
        }
        // A paused sandbox has no end.
        self.set_end(&record, None, json!({ "operatingMode": "Suspended" })).await?;
        let (client, namespace) = (&self.account.client, &self.account.namespace);
        sdk::sandbox_suspended(client, namespace, record.name(), WAIT).await?;
        Ok(())
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

    /// Sets or removes the end of a sandbox's time, and changes the Sandbox's spec in the same request where both are
    /// in one object.
    async fn set_end(&self, record: &Record, end: Option<Timestamp>, mut spec: Value) -> Result<(), Error> {
        let (client, namespace) = (&self.account.client, &self.account.namespace);
        let params = PatchParams::default();
        let time = end.map(|end| end.to_string());
        if let Some(claim) = &record.claim {
            let claims: Api<SandboxClaim> = Api::namespaced(client.clone(), namespace);
            let lifecycle = match time {
                Some(time) => json!({ "shutdownTime": time, "shutdownPolicy": "Delete" }),
                None => Value::Null,
            };
            let patch = json!({ "metadata": { "uid": claim.metadata.uid }, "spec": { "lifecycle": lifecycle } });
            claims.patch(record.name(), &params, &Patch::Merge(patch)).await?;
            if spec.as_object().is_some_and(serde_json::Map::is_empty) {
                return Ok(());
            }
        } else {
            spec["shutdownTime"] = json!(time);
        }
        let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
        let patch = json!({ "metadata": { "uid": record.sandbox.metadata.uid }, "spec": spec });
        sandboxes.patch(record.name(), &params, &Patch::Merge(patch)).await?;
        Ok(())
    }
}
