//! A sandbox as it is stored in the cluster, and as clients see it.

use agent_sandbox_api::conditions::ConditionType;
use agent_sandbox_api::keys::{annotations, labels};
use agent_sandbox_api::quantity::Quantity;
use agent_sandbox_api::sleep;
use agent_sandbox_api::v1beta1::{OperatingMode, Sandbox, SandboxClaim};
use agent_sandbox_protocol::e2b::{ENVD_VERSION, Token, sandbox_id};
use agent_sandbox_protocol::sandbox_address::Address;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use serde_json::{Map, Value, json};

use crate::error::Error;
use crate::lifecycle::Lifecycle;
use crate::metadata;
use crate::server::{Call, Settings};

/// The only client id there is.
const CLIENT_ID: &str = "agent-sandbox";
/// The end that is shown for a sandbox without one.
const NO_END: SignedDuration = SignedDuration::from_hours(24 * 365);

/// A Sandbox of the API, and the claim that it was created for, if it came from a template.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) sandbox: Sandbox,
    pub(crate) claim: Option<SandboxClaim>,
}

/// Whether a sandbox runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    Paused,
}

impl Record {
    /// The metadata of the object that clients' settings are stored in.
    pub(crate) fn meta(&self) -> &ObjectMeta {
        self.claim.as_ref().map_or(&self.sandbox.metadata, |claim| &claim.metadata)
    }

    pub(crate) fn name(&self) -> &str {
        self.sandbox.metadata.name.as_deref().unwrap_or_default()
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.meta().annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// Whether this is a sandbox of the API that still exists at `now`.
    pub(crate) fn is_listed(&self, now: Timestamp) -> bool {
        let labelled = self.meta().labels.as_ref().is_some_and(|all| all.contains_key(labels::E2B_SANDBOX));
        let deleting = self.sandbox.metadata.deletion_timestamp.is_some() || self.meta().deletion_timestamp.is_some();
        let over = self.deleted_at().is_some_and(|end| end <= now);
        labelled && !deleting && !over
    }

    /// When the sandbox ends by itself: it is deleted, or paused.
    pub(crate) fn end(&self) -> Option<Timestamp> {
        let paused_at = sleep::suspends_at(|key| self.sandbox.annotation(key));
        // A sandbox that is to be deleted has a time to be paused, too, if a request has resumed it.
        self.deleted_at().into_iter().chain(paused_at).min()
    }

    /// When the sandbox is deleted; `None` if its end pauses it, or if it has no end.
    pub(crate) fn deleted_at(&self) -> Option<Timestamp> {
        if self.lifecycle().pauses {
            return None;
        }
        let time = match &self.claim {
            Some(claim) => claim.spec.lifecycle.as_ref().and_then(|lifecycle| lifecycle.shutdown_time.as_ref()),
            None => self.sandbox.spec.shutdown_time.as_ref(),
        };
        time.map(|time| time.0)
    }

    /// What happens at the end of the sandbox's time, and what resumes it.
    pub(crate) fn lifecycle(&self) -> Lifecycle {
        let stored = self.annotation(annotations::E2B_LIFECYCLE);
        stored.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    pub(crate) fn state(&self, now: Timestamp) -> State {
        let suspended = self.sandbox.operating_mode() == OperatingMode::Suspended;
        match suspended || self.end().is_some_and(|end| end <= now) {
            true => State::Paused,
            false => State::Running,
        }
    }

    pub(crate) fn started(&self) -> Timestamp {
        // The API server's own time has whole seconds, which do not order sandboxes that are created at once.
        let exact = self.annotation(annotations::CLIENT_FIRST_REQUESTED_AT).and_then(|text| text.parse().ok());
        let created = self.meta().creation_timestamp.as_ref().map(|time| time.0);
        exact.or(created).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    pub(crate) fn template(&self) -> &str {
        self.annotation(annotations::E2B_TEMPLATE).unwrap_or_default()
    }

    pub(crate) fn metadata(&self) -> metadata::Metadata {
        metadata::load(self.meta())
    }

    /// The network settings that the client gave.
    pub(crate) fn network(&self) -> Option<Value> {
        serde_json::from_str(self.annotation(annotations::E2B_NETWORK)?).ok()
    }

    /// The end that clients are shown: every sandbox has one.
    fn shown_end(&self, now: Timestamp) -> Timestamp {
        let paused = self.sandbox.condition(ConditionType::Suspended).map(|condition| condition.last_transition_time.0);
        match (self.end(), self.state(now)) {
            (Some(end), _) => end,
            (None, State::Paused) => paused.unwrap_or(now),
            (None, State::Running) => self.started().checked_add(NO_END).unwrap_or(Timestamp::MAX),
        }
    }

    /// What create and connect answer: everything that a client needs to reach the sandbox.
    pub(crate) fn connection(&self, settings: &Settings) -> Value {
        let (namespace, name) = (self.namespace(), self.name());
        json!({
            "templateID": self.template(),
            "sandboxID": sandbox_id(namespace, name),
            "clientID": CLIENT_ID,
            "envdVersion": ENVD_VERSION,
            "alias": self.template(),
            "envdAccessToken": Token::Access.derive(&settings.secret, namespace, name),
            // Also where programs are public: clients send it to the code interpreter, which never is.
            "trafficAccessToken": Token::Traffic.derive(&settings.secret, namespace, name),
            "domain": settings.domain,
        })
    }

    fn namespace(&self) -> &str {
        self.sandbox.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// What lists show.
    pub(crate) fn item(&self, settings: &Settings, now: Timestamp) -> Map<String, Value> {
        let (cpus, memory, disk) = self.limits(settings);
        let state = match self.state(now) {
            State::Running => "running",
            State::Paused => "paused",
        };
        let item = json!({
            "templateID": self.template(),
            "alias": self.template(),
            "sandboxID": sandbox_id(self.namespace(), self.name()),
            "clientID": CLIENT_ID,
            "startedAt": self.started().to_string(),
            "endAt": self.shown_end(now).to_string(),
            "cpuCount": cpus,
            "memoryMB": memory,
            "diskSizeMB": disk,
            "metadata": self.metadata(),
            "state": state,
            "envdVersion": ENVD_VERSION,
        });
        let Value::Object(item) = item else { return Map::new() };
        item
    }

    /// What `get` shows.
    pub(crate) fn detail(&self, settings: &Settings, now: Timestamp) -> Map<String, Value> {
        let mut detail = self.item(settings, now);
        let token = Token::Access.derive(&settings.secret, self.namespace(), self.name());
        let Lifecycle { pauses, resumes } = self.lifecycle();
        let on_timeout = if pauses { "pause" } else { "kill" };
        detail.insert("envdAccessToken".into(), token.into());
        detail.insert("domain".into(), settings.domain.as_str().into());
        detail.insert("lifecycle".into(), json!({ "onTimeout": on_timeout, "autoResume": resumes }));
        if self.state(now) == State::Paused {
            // Processes end; files stay.
            detail.insert("pauseMode".into(), "filesystem".into());
        }
        if let Some(Value::Object(mut network)) = self.network() {
            let internet = network.remove("allow_internet_access").unwrap_or(Value::Null);
            detail.insert("allowInternetAccess".into(), internet);
            if !network.is_empty() {
                detail.insert("network".into(), Value::Object(network));
            }
        }
        detail
    }

    /// Processors, and memory and disk in MB. Fractions of a processor count as one.
    fn limits(&self, settings: &Settings) -> (u64, u64, u64) {
        let limits = &self.sandbox.spec.pod_template.spec["containers"][0]["resources"]["limits"];
        let capacity = &settings.capacity;
        let limit = |name: &str| Quantity::of_json(&limits[name]);
        let mb = |quantity: Quantity| quantity.units_u64() >> 20;
        (
            limit("cpu").map_or(u64::from(capacity.cpus), |cpu| cpu.units_u64().max(1)),
            limit("memory").map_or(capacity.memory_mb, mb),
            limit("ephemeral-storage").map_or(capacity.disk_mb, mb),
        )
    }
}

impl Call<'_> {
    pub(crate) fn sandboxes(&self) -> Api<Sandbox> {
        Api::namespaced(self.account.client.clone(), &self.account.namespace)
    }

    pub(crate) fn claims(&self) -> Api<SandboxClaim> {
        Api::namespaced(self.account.client.clone(), &self.account.namespace)
    }

    /// The sandbox with this id. One of another namespace does not exist for this account.
    pub(crate) async fn find(&self, id: &str) -> Result<Record, Error> {
        let missing = || Error::sandbox(id);
        let address = Address::of_joined(id, 1).map_err(|_| missing())?;
        if address.namespace.as_str() != self.account.namespace {
            return Err(missing());
        }
        self.record(address.id.as_str()).await?.filter(|record| record.is_listed(Timestamp::now())).ok_or_else(missing)
    }

    /// The Sandbox of this name with its claim.
    pub(crate) async fn record(&self, name: &str) -> Result<Option<Record>, Error> {
        let (sandboxes, claims) = (self.sandboxes(), self.claims());
        let (sandbox, claim) = tokio::try_join!(sandboxes.get_opt(name), claims.get_opt(name))?;
        Ok(sandbox.map(|sandbox| Record { claim: claim.filter(|claim| owns(claim, &sandbox)), sandbox }))
    }

    pub(crate) async fn get(&self, id: &str) -> Result<Map<String, Value>, Error> {
        Ok(self.find(id).await?.detail(self.settings, Timestamp::now()))
    }
}

/// Whether the Sandbox serves this claim.
pub(crate) fn owns(claim: &SandboxClaim, sandbox: &Sandbox) -> bool {
    claim.bound_sandbox() == sandbox.metadata.name.as_deref()
}
