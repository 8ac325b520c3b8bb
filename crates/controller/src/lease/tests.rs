//! Election: the decisions, and two candidates on one API.

use agent_sandbox_testkit::{Cluster, eventually};

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

/// Expiry is what we saw ourselves: a renewal stamped long ago by a clock that runs behind still counts from when we saw it.
#[test]
fn expiry_is_judged_by_observed_renewals_only() {
    let start = Instant::now();
    let mut elector = Elector::new(config("me"));
    elector.observe(Some((record("other", 1), "7".into())), start);
    assert_eq!(elector.decide(start + Duration::from_secs(14), wall()), Decision::Wait);
    // The same record again does not restart the clock.
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
    let gate = Gate::closed();
    let start = Instant::now();
    assert_eq!(gate.time_left(start), None);
    gate.renewed(start, &config("me"));
    assert_eq!(gate.time_left(start), Some(Duration::from_secs(15)));
    assert_eq!(gate.time_left(start + Duration::from_secs(9)), Some(Duration::from_secs(6)));
    assert_eq!(gate.time_left(start + Duration::from_secs(10)), None);
    gate.close();
    assert_eq!(gate.time_left(start), None);
    assert_eq!(Gate::open().time_left(start), Some(Duration::MAX));
}

/// S-215: one leads, releases the Lease on a clean stop, and the other follows at once.
#[tokio::test]
async fn s_215_leadership_is_handed_over() {
    let cluster = Cluster::start().await.expect("a cluster");
    let fast = |identity: &str| LeaseConfig { retry_period: Duration::from_millis(50), ..config(identity) };
    let start = |identity: &str| {
        let (gate, acquired, stop) = (Gate::closed(), CancellationToken::new(), CancellationToken::new());
        let task = tokio::spawn(lead(cluster.client(), fast(identity), gate.clone(), acquired.clone(), stop.clone()));
        (gate, acquired, stop, task)
    };
    let (first_gate, first_leads, first_stop, first) = start("first");
    first_leads.cancelled().await;
    let (second_gate, second_leads, second_stop, second) = start("second");
    let leases: Api<Lease> = Api::namespaced(cluster.client(), "default");
    let holder = || async {
        let lease = leases.get(LEASE_NAME).await.expect("there");
        lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default()
    };
    let renewals = leases.get(LEASE_NAME).await.expect("there").metadata.resource_version;
    eventually("a renewal", || async {
        let lease = leases.get(LEASE_NAME).await.expect("there");
        if lease.metadata.resource_version == renewals { Err("not yet") } else { Ok(()) }
    })
    .await;
    assert_eq!(holder().await, "first");
    assert!(first_gate.time_left(Instant::now()).is_some());
    assert!(second_gate.time_left(Instant::now()).is_none() && !second_leads.is_cancelled());
    first_stop.cancel();
    assert_eq!(first.await.expect("ends"), Ended::Stopped);
    assert!(first_gate.time_left(Instant::now()).is_none());
    tokio::time::timeout(Duration::from_secs(5), second_leads.cancelled())
        .await
        .expect("follows at once, not after the lease's 15 s");
    assert_eq!(holder().await, "second");
    second_stop.cancel();
    assert_eq!(second.await.expect("ends"), Ended::Stopped);
    assert_eq!(holder().await, "");
}

/// A leader that finds somebody else on the Lease stops at once.
#[tokio::test]
async fn a_usurped_leader_stops() {
    let cluster = Cluster::start().await.expect("a cluster");
    let fast = LeaseConfig { retry_period: Duration::from_millis(50), ..config("first") };
    let (gate, acquired, stop) = (Gate::closed(), CancellationToken::new(), CancellationToken::new());
    let task = tokio::spawn(lead(cluster.client(), fast, gate.clone(), acquired.clone(), stop.clone()));
    acquired.cancelled().await;
    let leases: Api<Lease> = Api::namespaced(cluster.client(), "default");
    let usurp = serde_json::json!({ "spec": { "holderIdentity": "usurper" } });
    leases
        .patch(LEASE_NAME, &kube::api::PatchParams::default(), &kube::api::Patch::Merge(usurp))
        .await
        .expect("patched");
    let ended = tokio::time::timeout(Duration::from_secs(10), task).await.expect("in time").expect("ends");
    assert_eq!((ended, gate.time_left(Instant::now())), (Ended::Lost, None));
}
