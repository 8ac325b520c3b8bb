//! Leader election by client-go's rules, and the gate that every write has to pass.
//!
//! Expiry is judged by when *this* process last saw the record change, never by comparing clocks. The decision is a
//! pure state machine ([`Elector`]); [`hold_lease`] talks to the API. A standby watches the Lease ([`standby`]) and
//! tries to acquire it when it is released or when the last renewal it saw has expired.
//!
//! Why there are never two leaders: a leader counts its time from before it sends a renewal, a standby from after it
//! has seen that renewal, both for the same duration; and a standby's write names the version it saw, so that a renewal
//! it has not seen yet makes that write fail. A watch that lags or is dead therefore costs time, never safety, and so
//! does a clock that is wrong.

mod elector;
mod standby;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, api::PostParams};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

pub use self::elector::{Decision, Elector, Record};
use self::standby::Standby;

/// Name of the Lease. It is upstream's, and must stay so: two controllers would otherwise both hold_lease during an
/// upgrade.
pub const LEASE_NAME: &str = "a3317529.agent-sandbox.x-k8s.io";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseConfig {
    pub namespace: String,
    pub name: String,
    /// Identity of this process, unique among the replicas.
    pub identity: String,
    /// How long other replicas wait after the last renewal they saw.
    pub duration: Duration,
    /// How long the leader keeps writing without a successful renewal; shorter than `duration`, so that it stops before
    /// others start.
    pub renew_deadline: Duration,
    pub retry_period: Duration,
}

impl LeaseConfig {
    pub fn new(namespace: impl Into<String>, identity: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: LEASE_NAME.to_owned(),
            identity: identity.into(),
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }

    /// Delay before a replica that does not hold the lease looks again. It is random, so that contenders do not write
    /// at the same moment.
    fn contender_pause(&self) -> Duration {
        self.retry_period.mul_f64(rand::random_range(1.0..2.2))
    }
}

#[derive(Clone, Copy, Debug)]
enum GateState {
    /// Leader election is off: always open.
    Always,
    Closed,
    /// Open until the renew deadline; a request ends with the lease at the latest.
    Until {
        renew: Instant,
        lease: Instant,
    },
}

/// Lets writes through only while this process certainly holds the lease.
#[derive(Debug)]
pub struct WriteGate(Mutex<GateState>);

impl WriteGate {
    /// A gate that is always open, for a controller that has no other replicas.
    pub fn open() -> Arc<Self> {
        Arc::new(Self(Mutex::new(GateState::Always)))
    }

    /// A gate that opens when the lease is acquired.
    pub fn closed() -> Arc<Self> {
        Arc::new(Self(Mutex::new(GateState::Closed)))
    }

    /// How long a write that starts now may take; `None`: it must not start.
    pub fn time_left(&self, now: Instant) -> Option<Duration> {
        match *self.0.lock() {
            GateState::Always => Some(Duration::MAX),
            GateState::Closed => None,
            GateState::Until { renew, lease } => (now < renew).then(|| lease.saturating_duration_since(now)),
        }
    }

    fn renewed(&self, at: Instant, config: &LeaseConfig) {
        *self.0.lock() = GateState::Until { renew: at + config.renew_deadline, lease: at + config.duration };
    }

    fn close(&self) {
        *self.0.lock() = GateState::Closed;
    }
}

/// How leadership ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeadershipEnd {
    /// The process was asked to stop; the lease was released.
    Stopped,
    /// The lease could not be renewed in time, or another replica holds it.
    Lost,
}

/// Acquires the lease and holds it until `stop` is cancelled or it is lost. `acquired` is cancelled once this process
/// holds it, which wakes the tasks that wait for leadership.
pub async fn hold_lease(
    client: kube::Client,
    config: LeaseConfig,
    gate: Arc<WriteGate>,
    acquired: CancellationToken,
    stop: CancellationToken,
) -> LeadershipEnd {
    let api: Api<Lease> = Api::namespaced(client, &config.namespace);
    let mut elector = Elector::new(config.clone());
    let mut standby = Standby::default();
    let mut held_since: Option<Instant> = None;
    let mut last_renewal = Instant::now();
    loop {
        let started = Instant::now();
        let attempt = tokio::select! {
            attempt = tokio::time::timeout(config.renew_deadline, attempt(&api, &config, &mut elector)) => attempt.unwrap_or(Attempt::Failed),
            () = stop.cancelled() => return finish(&api, &config, &mut elector, &gate, held_since.is_some()).await,
        };
        if attempt == Attempt::Held {
            last_renewal = started;
            gate.renewed(started, &config);
            if held_since.is_none() {
                info!(lease = %config.name, identity = %config.identity, "Became leader");
                held_since = Some(started);
                acquired.cancel();
            }
        } else if held_since.is_some()
            && (started.duration_since(last_renewal) >= config.renew_deadline || elector.held_by_other())
        {
            gate.close();
            warn!(lease = %config.name, "Lost leadership");
            return LeadershipEnd::Lost;
        }
        let pause = async {
            match attempt {
                // The holder renews at a fixed period.
                _ if held_since.is_some() => tokio::time::sleep(config.retry_period).await,
                Attempt::HeldByOther => standby.wait(&api, &config, &mut elector).await,
                Attempt::Held | Attempt::Conflict | Attempt::Failed => {
                    tokio::time::sleep(config.contender_pause()).await
                }
            }
        };
        tokio::select! {
            () = pause => {}
            () = stop.cancelled() => return finish(&api, &config, &mut elector, &gate, held_since.is_some()).await,
        }
    }
}

async fn finish(
    api: &Api<Lease>,
    config: &LeaseConfig,
    elector: &mut Elector,
    gate: &WriteGate,
    held: bool,
) -> LeadershipEnd {
    gate.close();
    if held && let Some((record, version)) = elector.release() {
        let released = tokio::time::timeout(
            config.retry_period,
            api.replace(&config.name, &PostParams::default(), &to_lease(config, &record, Some(version))),
        )
        .await;
        if !matches!(released, Ok(Ok(_))) {
            warn!(lease = %config.name, "Could not release the lease; others will wait for it to expire");
        }
    }
    LeadershipEnd::Stopped
}

/// The outcome of an attempt to acquire or renew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    Held,
    /// Another replica holds the lease, and it has not expired.
    HeldByOther,
    /// Another replica has written the Lease since it was read.
    Conflict,
    /// The API server did not answer, or refused.
    Failed,
}

/// Reads of the Lease per attempt: after a conflict a second read shows who holds it and from when its lease counts.
const READS_PER_ATTEMPT: usize = 2;

/// One attempt to acquire or renew. The holder writes at once and reads the Lease only when that fails.
async fn attempt(api: &Api<Lease>, config: &LeaseConfig, elector: &mut Elector) -> Attempt {
    if elector.is_holder() && write(api, config, elector).await == Attempt::Held {
        return Attempt::Held;
    }
    for _ in 0..READS_PER_ATTEMPT {
        match api.get_opt(&config.name).await {
            Ok(lease) => elector.observe(lease.as_ref().map(from_lease), Instant::now()),
            Err(error) => {
                debug!(%error, "Could not read the lease");
                return Attempt::Failed;
            }
        }
        match write(api, config, elector).await {
            Attempt::Conflict => {}
            decided => return decided,
        }
    }
    Attempt::Conflict
}

async fn write(api: &Api<Lease>, config: &LeaseConfig, elector: &mut Elector) -> Attempt {
    let response = match elector.decide(Instant::now(), Timestamp::now()) {
        Decision::Wait => return Attempt::HeldByOther,
        Decision::Create(record) => api.create(&PostParams::default(), &to_lease(config, &record, None)).await,
        Decision::Update(record, version) => {
            api.replace(&config.name, &PostParams::default(), &to_lease(config, &record, Some(version))).await
        }
    };
    match response {
        Ok(lease) => {
            elector.observe(Some(from_lease(&lease)), Instant::now());
            if elector.is_holder() { Attempt::Held } else { Attempt::Conflict }
        }
        Err(kube::Error::Api(status)) if status.code == 409 => Attempt::Conflict,
        Err(error) => {
            debug!(%error, "Could not write the lease");
            Attempt::Failed
        }
    }
}

fn to_lease(config: &LeaseConfig, record: &Record, version: Option<String>) -> Lease {
    Lease {
        metadata: ObjectMeta {
            name: Some(config.name.clone()),
            namespace: Some(config.namespace.clone()),
            resource_version: version,
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(record.holder.clone()),
            lease_duration_seconds: i32::try_from(record.duration.as_secs()).ok(),
            acquire_time: record.acquired.map(MicroTime),
            renew_time: record.renewed.map(MicroTime),
            lease_transitions: Some(record.transitions),
            ..LeaseSpec::default()
        }),
    }
}

fn from_lease(lease: &Lease) -> (Record, String) {
    let spec = lease.spec.clone().unwrap_or_default();
    let record = Record {
        holder: spec.holder_identity.unwrap_or_default(),
        duration: Duration::from_secs(
            spec.lease_duration_seconds.and_then(|seconds| seconds.try_into().ok()).unwrap_or(0),
        ),
        acquired: spec.acquire_time.map(|time| time.0),
        renewed: spec.renew_time.map(|time| time.0),
        transitions: spec.lease_transitions.unwrap_or(0),
    };
    (record, lease.metadata.resource_version.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests;
