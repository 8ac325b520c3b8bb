//! Leader election by client-go's rules, and the gate that every write has to pass.
//!
//! Expiry is judged by when *this* process last saw the record change, never by comparing clocks. The decision is a pure state machine
//! ([`Elector`]); [`lead`] talks to the API. A standby follows the Lease with a watch ([`standby`]) and tries when it is given up or has
//! run out before its eyes.
//!
//! Why there are never two leaders: a leader counts its time from before it sends a renewal, a standby from after it has seen that
//! renewal, both for the same duration; and what a standby writes names the version it saw, so that a renewal it has not seen yet refuses
//! it. A watch that lags or is dead therefore costs time, never safety, and so does a clock that is wrong.

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

/// The Lease's name. It is upstream's, and must stay so: two controllers would otherwise both lead during an upgrade.
pub const LEASE_NAME: &str = "a3317529.agent-sandbox.x-k8s.io";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseConfig {
    pub namespace: String,
    pub name: String,
    /// Who we are: unique per process.
    pub identity: String,
    /// How long others wait after the last renewal they saw.
    pub duration: Duration,
    /// How long we keep acting without a successful renewal; shorter than `duration`, so that we stop before others start.
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

    /// How long one that does not hold the lease waits before it looks again. Contenders spread out, so that they do not write at the
    /// same moment.
    fn contender_pause(&self) -> Duration {
        self.retry_period.mul_f64(rand::random_range(1.0..2.2))
    }
}

#[derive(Clone, Copy, Debug)]
enum Pass {
    /// Leader election is off: always open.
    Always,
    Closed,
    /// Open until the renew deadline; requests end with the lease at the latest.
    Until {
        renew: Instant,
        lease: Instant,
    },
}

/// Lets writes through only while this process certainly leads.
#[derive(Debug)]
pub struct Gate(Mutex<Pass>);

impl Gate {
    /// A gate for a controller that has no rivals.
    pub fn open() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Pass::Always)))
    }

    /// A gate that opens when the lease is acquired.
    pub fn closed() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Pass::Closed)))
    }

    /// How long a write that starts now may take; `None`: it must not start.
    pub fn time_left(&self, now: Instant) -> Option<Duration> {
        match *self.0.lock() {
            Pass::Always => Some(Duration::MAX),
            Pass::Closed => None,
            Pass::Until { renew, lease } => (now < renew).then(|| lease.saturating_duration_since(now)),
        }
    }

    fn renewed(&self, at: Instant, config: &LeaseConfig) {
        *self.0.lock() = Pass::Until { renew: at + config.renew_deadline, lease: at + config.duration };
    }

    fn close(&self) {
        *self.0.lock() = Pass::Closed;
    }
}

/// How leadership ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// We were asked to stop; the lease was released.
    Stopped,
    /// It could not be renewed in time, or somebody else has it.
    Lost,
}

/// Holds the lease from here on; `acquired` is cancelled once it is ours, which wakes whoever waits for it.
pub async fn lead(
    client: kube::Client,
    config: LeaseConfig,
    gate: Arc<Gate>,
    acquired: CancellationToken,
    stop: CancellationToken,
) -> Ended {
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
            return Ended::Lost;
        }
        let pause = async {
            match attempt {
                // The holder keeps its beat.
                _ if held_since.is_some() => tokio::time::sleep(config.retry_period).await,
                Attempt::Theirs => standby.wait(&api, &config, &mut elector).await,
                Attempt::Held | Attempt::Beaten | Attempt::Failed => tokio::time::sleep(config.contender_pause()).await,
            }
        };
        tokio::select! {
            () = pause => {}
            () = stop.cancelled() => return finish(&api, &config, &mut elector, &gate, held_since.is_some()).await,
        }
    }
}

async fn finish(api: &Api<Lease>, config: &LeaseConfig, elector: &mut Elector, gate: &Gate, held: bool) -> Ended {
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
    Ended::Stopped
}

/// What came of a try to acquire or renew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    Held,
    /// Somebody else holds the lease, and it has not run out.
    Theirs,
    /// Somebody else has written the Lease since it was seen.
    Beaten,
    /// The API does not answer, or refuses.
    Failed,
}

/// How often one try looks at the Lease: who was beaten to it wants to know by whom, and from when its lease counts.
const LOOKS: usize = 2;

/// One try to acquire or renew. The holder writes at once; only when that fails does it look first.
async fn attempt(api: &Api<Lease>, config: &LeaseConfig, elector: &mut Elector) -> Attempt {
    if elector.is_holder() && write(api, config, elector).await == Attempt::Held {
        return Attempt::Held;
    }
    for _ in 0..LOOKS {
        match api.get_opt(&config.name).await {
            Ok(lease) => elector.observe(lease.as_ref().map(from_lease), Instant::now()),
            Err(error) => {
                debug!(%error, "Could not read the lease");
                return Attempt::Failed;
            }
        }
        match write(api, config, elector).await {
            Attempt::Beaten => {}
            decided => return decided,
        }
    }
    Attempt::Beaten
}

async fn write(api: &Api<Lease>, config: &LeaseConfig, elector: &mut Elector) -> Attempt {
    let answer = match elector.decide(Instant::now(), Timestamp::now()) {
        Decision::Wait => return Attempt::Theirs,
        Decision::Create(record) => api.create(&PostParams::default(), &to_lease(config, &record, None)).await,
        Decision::Update(record, version) => {
            api.replace(&config.name, &PostParams::default(), &to_lease(config, &record, Some(version))).await
        }
    };
    match answer {
        Ok(lease) => {
            elector.observe(Some(from_lease(&lease)), Instant::now());
            if elector.is_holder() { Attempt::Held } else { Attempt::Beaten }
        }
        Err(kube::Error::Api(status)) if status.code == 409 => Attempt::Beaten,
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
