//! Leader election: the decisions, and two replicas on one API.

use std::sync::atomic::{AtomicUsize, Ordering};

use agent_sandbox_testkit::{Cluster, eventually};
use http_body_util::BodyExt;
use tower::BoxError;

use super::*;

fn config(identity: &str) -> LeaseConfig {
    LeaseConfig::new("default", identity)
}

fn record(holder: &str, renewed: i64) -> Record {
    Record {
        holder: holder.to_owned(),
        duration: Duration::from_secs(15),
        acquired: Some(Timestamp::UNIX_EPOCH),
        renewed: Timestamp::from_second(renewed).ok(),
        transitions: 3,
    }
}

fn wall() -> Timestamp {
    Timestamp::from_second(1_000_000).expect("in range")
}

#[test]
fn a_missing_lease_is_created() {
    let elector = Elector::new(config("me"));
    let Decision::Create(made) = elector.decide(Instant::now(), wall()) else { panic!("creates") };
    assert_eq!((made.holder.as_str(), made.transitions, made.renewed), ("me", 0, Some(wall())));
}

/// Expiry counts from local observations: a renewal stamped long ago by a clock that runs behind still counts from when
/// it was seen.
#[test]
fn expiry_counts_from_observed_renewals_only() {
    let start = Instant::now();
    let mut elector = Elector::new(config("me"));
    elector.observe(Some((record("other", 1), "7".into())), start);
    assert_eq!(elector.decide(start + Duration::from_secs(14), wall()), Decision::Wait);
    // Seeing the same record again does not restart the lease.
    elector.observe(Some((record("other", 1), "7".into())), start + Duration::from_secs(14));
    let Decision::Update(taken, version) = elector.decide(start + Duration::from_secs(15), wall()) else {
        panic!("takes over")
    };
    assert_eq!(
        (taken.holder.as_str(), taken.transitions, taken.acquired, version.as_str()),
        ("me", 4, Some(wall()), "7")
    );
    // A renewal does, even one that looks older.
    elector.observe(Some((record("other", 0), "8".into())), start + Duration::from_secs(15));
    assert_eq!(elector.decide(start + Duration::from_secs(29), wall()), Decision::Wait);
}

#[test]
fn a_released_lease_is_taken_at_once() {
    let start = Instant::now();
    let mut elector = Elector::new(config("me"));
    elector.observe(Some((record("", 1), "7".into())), start);
    assert!(matches!(elector.decide(start, wall()), Decision::Update(..)));
}

#[test]
fn the_holder_renews_without_a_transition() {
    let start = Instant::now();
    let mut elector = Elector::new(config("me"));
    elector.observe(Some((record("me", 1), "7".into())), start);
    let Decision::Update(renewed, _) = elector.decide(start, wall()) else { panic!("renews") };
    assert_eq!(
        (renewed.transitions, renewed.acquired, renewed.renewed),
        (3, Some(Timestamp::UNIX_EPOCH), Some(wall()))
    );
    let (given_up, version) = elector.release().expect("ours");
    assert_eq!((given_up.holder.as_str(), given_up.duration, version.as_str()), ("", Duration::from_secs(1), "7"));
    elector.observe(Some((record("other", 1), "9".into())), start);
    assert_eq!(elector.release(), None);
}

/// No write starts past the renew deadline, and none outlasts the lease.
#[test]
fn the_gate_closes_with_the_renew_deadline() {
    let gate = WriteGate::closed();
    let start = Instant::now();
    assert_eq!(gate.time_left(start), None);
    gate.renewed(start, &config("me"));
    assert_eq!(gate.time_left(start), Some(Duration::from_secs(15)));
    assert_eq!(gate.time_left(start + Duration::from_secs(9)), Some(Duration::from_secs(6)));
    assert_eq!(gate.time_left(start + Duration::from_secs(10)), None);
    gate.close();
    assert_eq!(gate.time_left(start), None);
    assert_eq!(WriteGate::open().time_left(start), Some(Duration::MAX));
}

/// A standby's timer is set by the last renewal it saw; there is none when no other replica leads.
#[test]
fn a_hold_ends_a_lease_after_the_renewal_that_was_seen() {
    let start = Instant::now();
    let mut elector = Elector::new(config("me"));
    assert_eq!((elector.held_until(), elector.version()), (None, None));
    elector.observe(Some((record("other", 1), "7".into())), start);
    let lease = Duration::from_secs(15);
    assert_eq!((elector.held_until(), elector.version()), (Some(start + lease), Some("7")));
    let later = start + Duration::from_secs(2);
    elector.observe(Some((record("other", 2), "8".into())), later);
    assert_eq!((elector.held_until(), elector.version()), (Some(later + lease), Some("8")));
    for free in [record("", 3), record("me", 3)] {
        elector.observe(Some((free, "9".into())), later);
        assert_eq!(elector.held_until(), None);
    }
}

/// A retry period that never ends within a test: the standby acts only because of the watch.
const NEVER: Duration = Duration::from_secs(3600);
const OFTEN: Duration = Duration::from_millis(50);

struct Candidate {
    gate: Arc<WriteGate>,
    leads: CancellationToken,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<LeadershipEnd>,
}

impl Candidate {
    fn start(client: kube::Client, config: LeaseConfig) -> Self {
        let (gate, leads, stop) = (WriteGate::closed(), CancellationToken::new(), CancellationToken::new());
        let task = tokio::spawn(hold_lease(client, config, gate.clone(), leads.clone(), stop.clone()));
        Self { gate, leads, stop, task }
    }

    fn may_write(&self) -> bool {
        self.gate.time_left(Instant::now()).is_some()
    }

    async fn wait_until_leading(&self) {
        tokio::time::timeout(Duration::from_secs(30), self.leads.cancelled()).await.expect("leads in the end");
    }

    async fn stops(self) {
        self.stop.cancel();
        assert_eq!(self.task.await.expect("ends"), LeadershipEnd::Stopped);
        assert!(self.gate.time_left(Instant::now()).is_none());
    }
}

async fn leased(cluster: &Cluster) -> Lease {
    let leases: Api<Lease> = Api::namespaced(cluster.client(), "default");
    leases.get(LEASE_NAME).await.expect("there")
}

async fn holder(cluster: &Cluster) -> String {
    leased(cluster).await.spec.and_then(|spec| spec.holder_identity).unwrap_or_default()
}

async fn renewals(cluster: &Cluster, count: usize) {
    for _ in 0..count {
        let before = leased(cluster).await.metadata.resource_version;
        eventually("a renewal", || async {
            if leased(cluster).await.metadata.resource_version == before { Err("not yet") } else { Ok(()) }
        })
        .await;
    }
}

/// S-215: one leads, releases the Lease on a clean stop, and the other, which watches it, follows at once.
#[tokio::test]
async fn s_215_leadership_is_handed_over() {
    let cluster = Cluster::start().await.expect("a cluster");
    let every = |retry_period, identity: &str| LeaseConfig { retry_period, ..config(identity) };
    let first = Candidate::start(cluster.client(), every(OFTEN, "first"));
    first.wait_until_leading().await;
    let second = Candidate::start(cluster.client(), every(NEVER, "second"));
    renewals(&cluster, 2).await;
    assert_eq!(holder(&cluster).await, "first");
    assert!(first.may_write());
    assert!(!second.may_write() && !second.leads.is_cancelled());
    first.stops().await;
    tokio::time::timeout(Duration::from_secs(5), second.leads.cancelled())
        .await
        .expect("follows at once, not after the lease's 15 s");
    assert_eq!(holder(&cluster).await, "second");
    second.stops().await;
    assert_eq!(holder(&cluster).await, "");
}

/// A leader that dies without releasing the lease is replaced when the lease that the standby saw has expired, and not
/// before.
#[tokio::test]
async fn a_dead_leader_is_replaced_when_its_lease_expires() {
    let cluster = Cluster::start().await.expect("a cluster");
    let lasting = |retry_period, identity: &str| LeaseConfig {
        retry_period,
        duration: Duration::from_secs(2),
        renew_deadline: Duration::from_secs(1),
        ..config(identity)
    };
    let first = Candidate::start(cluster.client(), lasting(OFTEN, "first"));
    first.wait_until_leading().await;
    let second = Candidate::start(cluster.client(), lasting(NEVER, "second"));
    renewals(&cluster, 3).await;
    first.task.abort();
    assert!(first.task.await.expect_err("aborted").is_cancelled());
    let died = Instant::now();
    // Requests that the dead leader has in flight end with its lease.
    let last_write_ends = died + first.gate.time_left(died).expect("it led");
    second.wait_until_leading().await;
    assert!(Instant::now() >= last_write_ends, "two led at the same time");
    second.stops().await;
}

/// How watch requests are handled.
#[derive(Clone, Copy)]
enum Watches {
    Refused,
    /// Accepted, without any event.
    Silent,
}

/// A client whose watches are handled this way, and the number of its other requests.
fn with_watches(inner: kube::Client, watches: Watches) -> (kube::Client, Arc<AtomicUsize>) {
    let looks = Arc::new(AtomicUsize::new(0));
    let counted = looks.clone();
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let (inner, counted) = (inner.clone(), counted.clone());
        async move {
            if !request.uri().query().is_some_and(|query| query.contains("watch=true")) {
                counted.fetch_add(1, Ordering::Relaxed);
                return Ok(inner.send(request).await?.map(|body| body.map_err(BoxError::from).boxed_unsync()));
            }
            let refusal = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","reason":"Forbidden","code":403}"#;
            let (status, body) = match watches {
                Watches::Refused => (403, http_body_util::Full::from(refusal).map_err(BoxError::from).boxed_unsync()),
                Watches::Silent => {
                    let silence = futures::stream::pending::<Result<hyper::body::Frame<bytes::Bytes>, BoxError>>();
                    (200, http_body_util::StreamBody::new(silence).boxed_unsync())
                }
            };
            Ok::<_, BoxError>(http::Response::builder().status(status).body(body)?)
        }
    });
    (kube::Client::new(service, "default"), looks)
}

/// With a role of an older release, which does not allow to watch the Lease, a standby polls it.
#[tokio::test]
async fn a_standby_without_permission_to_watch_polls() {
    let cluster = Cluster::start().await.expect("a cluster");
    let every = |identity: &str| LeaseConfig { retry_period: OFTEN, ..config(identity) };
    let first = Candidate::start(cluster.client(), every("first"));
    first.wait_until_leading().await;
    let (client, looks) = with_watches(cluster.client(), Watches::Refused);
    let second = Candidate::start(client, every("second"));
    eventually("it looks", || async { if looks.load(Ordering::Relaxed) < 4 { Err("not yet") } else { Ok(()) } }).await;
    assert!(!second.leads.is_cancelled());
    first.stops().await;
    second.wait_until_leading().await;
    second.stops().await;
}

/// A dead watch shows no renewals. The standby reads the Lease before it acquires what seems to be expired, and does
/// not acquire it.
#[tokio::test]
async fn a_silent_watch_does_not_make_a_leader() {
    let cluster = Cluster::start().await.expect("a cluster");
    let short = |retry_period, identity: &str| LeaseConfig {
        retry_period,
        duration: Duration::from_secs(1),
        renew_deadline: Duration::from_millis(800),
        ..config(identity)
    };
    let first = Candidate::start(cluster.client(), short(OFTEN, "first"));
    first.wait_until_leading().await;
    let (client, looks) = with_watches(cluster.client(), Watches::Silent);
    let second = Candidate::start(client, short(NEVER, "second"));
    eventually("leases have run out in its eyes", || async {
        if looks.load(Ordering::Relaxed) < 3 { Err("not yet") } else { Ok(()) }
    })
    .await;
    assert!(!second.leads.is_cancelled() && holder(&cluster).await == "first");
    first.stops().await;
    second.wait_until_leading().await;
    second.stops().await;
}

/// A leader that finds another holder on the Lease stops at once.
#[tokio::test]
async fn a_leader_stops_when_another_replica_holds_the_lease() {
    let cluster = Cluster::start().await.expect("a cluster");
    let fast = LeaseConfig { retry_period: Duration::from_millis(50), ..config("first") };
    let (gate, acquired, stop) = (WriteGate::closed(), CancellationToken::new(), CancellationToken::new());
    let task = tokio::spawn(hold_lease(cluster.client(), fast, gate.clone(), acquired.clone(), stop.clone()));
    acquired.cancelled().await;
    let leases: Api<Lease> = Api::namespaced(cluster.client(), "default");
    let usurp = serde_json::json!({ "spec": { "holderIdentity": "usurper" } });
    leases
        .patch(LEASE_NAME, &kube::api::PatchParams::default(), &kube::api::Patch::Merge(usurp))
        .await
        .expect("patched");
    let ended = tokio::time::timeout(Duration::from_secs(10), task).await.expect("in time").expect("ends");
    assert_eq!((ended, gate.time_left(Instant::now())), (LeadershipEnd::Lost, None));
}
