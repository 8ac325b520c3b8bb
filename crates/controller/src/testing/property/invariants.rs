//! The invariants at every commit, and the state after convergence.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::simulation::{Simulation, key};
use crate::{
    api_client::{Request, Verb},
    cache::{Key, Kind},
    testing::fake_api::FakeApi,
};

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn name_of(object: &Value) -> &str {
    text(&object["metadata"]["name"])
}

fn uid_of(object: &Value) -> &str {
    text(&object["metadata"]["uid"])
}

/// Kind and uid of the controller; empty without one.
fn controller_of(object: &Value) -> (&str, &str) {
    let owners = object["metadata"]["ownerReferences"].as_array();
    owners
        .into_iter()
        .flatten()
        .find(|owner| owner["controller"] == true)
        .map(|owner| (text(&owner["kind"]), text(&owner["uid"])))
        .unwrap_or_default()
}

fn is_deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

fn bound(claim: &Value) -> &str {
    text(&claim["status"]["sandbox"]["name"])
}

fn ready(object: &Value) -> (&str, &str) {
    let conditions = object["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == "Ready")
        .map(|condition| (text(&condition["status"]), text(&condition["reason"])))
        .unwrap_or_default()
}

/// Invariant 2: a controller deletes only what it owns, and never a live claim's Sandbox.
pub(super) fn check_request(api: &FakeApi, request: &Request) {
    let Verb::Delete { precondition, .. } = &request.verb else { return };
    let Some(object) = api.get(request.kind, &request.key) else { return };
    let matches = uid_of(&object) == precondition.uid
        && precondition
            .resource_version
            .as_deref()
            .is_none_or(|version| version == text(&object["metadata"]["resourceVersion"]));
    if !matches {
        return;
    }
    let (owner, uid) = controller_of(&object);
    match request.kind {
        Kind::Pod | Kind::Service | Kind::Pvc => {
            assert_eq!(owner, "Sandbox", "deletes only what a Sandbox owns: {object:#}")
        }
        Kind::NetworkPolicy => assert!(
            owner == "SandboxTemplate" || owner == "SandboxClaim",
            "deletes only what a template owns: {object:#}"
        ),
        Kind::Sandbox => {
            assert!(!name_of(&object).starts_with("users"), "a user's own Sandbox is never deleted");
            assert!(precondition.resource_version.is_some(), "a Sandbox is deleted only in the state it was seen in");
            let holder = api.list(Kind::Claim).into_iter().find(|claim| uid_of(claim) == uid);
            if let Some(claim) = holder.filter(|claim| !is_deleting(claim) && bound(claim) == name_of(&object)) {
                assert_eq!(
                    ready(&claim).1,
                    "ClaimExpired",
                    "a live claim's published Sandbox is not deleted: {claim:#}"
                );
            }
            assert!(owner == "SandboxClaim" || owner == "SandboxWarmPool" || owner.is_empty(), "{object:#}");
            if owner.is_empty() {
                assert!(
                    object["metadata"]["labels"]["agents.x-k8s.io/claim-uid"].is_null(),
                    "an orphan that had a claim is not deleted: {object:#}"
                );
            }
        }
        Kind::Claim => assert_eq!(ready(&object).1, "ClaimExpired", "only expired claims are deleted: {object:#}"),
        Kind::Pool | Kind::Template | Kind::Event => panic!("a controller never deletes a {:?}", request.kind),
    }
}

/// Invariant 1, over everything that was ever committed.
pub(super) fn check_history(history: &[(Kind, Value, bool)]) {
    let mut sandboxes: BTreeMap<String, Value> = BTreeMap::new();
    let mut claims: BTreeMap<String, Value> = BTreeMap::new();
    // Sandbox uid to the claim uid that once controlled it.
    let mut served: BTreeMap<String, String> = BTreeMap::new();
    // Names of Sandboxes that a claim controlled at some time.
    let mut held: BTreeSet<(String, String)> = BTreeSet::new();
    for (kind, object, gone) in history {
        match kind {
            Kind::Sandbox => {
                check_owner(object, &mut served);
                held.insert((name_of(object).to_owned(), controller_of(object).1.to_owned()));
                if *gone {
                    sandboxes.remove(name_of(object))
                } else {
                    sandboxes.insert(name_of(object).to_owned(), object.clone())
                };
            }
            Kind::Claim => {
                check_publication(object, claims.get(uid_of(object)), &sandboxes, &held);
                if *gone {
                    claims.remove(uid_of(object))
                } else {
                    claims.insert(uid_of(object).to_owned(), object.clone())
                };
            }
            _ => {}
        }
    }
}

/// A Sandbox that had a claim never gets another one, and never returns to a pool.
fn check_owner(sandbox: &Value, served: &mut BTreeMap<String, String>) {
    let (kind, uid) = controller_of(sandbox);
    match (kind, served.get(uid_of(sandbox))) {
        ("SandboxClaim", Some(claim)) => assert_eq!(claim, uid, "one Sandbox, two claims: {sandbox:#}"),
        ("SandboxClaim", None) => {
            served.insert(uid_of(sandbox).to_owned(), uid.to_owned());
        }
        ("SandboxWarmPool", Some(_)) => panic!("a claimed Sandbox went back to a pool: {sandbox:#}"),
        _ => {}
    }
}

/// A claim publishes only a Sandbox that it controls or controlled; and another one only after the first is gone.
fn check_publication(
    claim: &Value,
    before: Option<&Value>,
    sandboxes: &BTreeMap<String, Value>,
    held: &BTreeSet<(String, String)>,
) {
    let (now, earlier) = (bound(claim), before.map(bound).unwrap_or_default());
    if now.is_empty() || now == earlier {
        return;
    }
    // A user may have deleted the Sandbox before the status write, or an old create may have replaced it.
    let ever = held.contains(&(now.to_owned(), uid_of(claim).to_owned()));
    assert!(ever, "published without ever controlling it: {claim:#}\n{:#?}", sandboxes.get(now));
    if let Some(first) = sandboxes.get(earlier).filter(|_| !earlier.is_empty()) {
        let controls = controller_of(first).1 == uid_of(claim);
        assert!(
            !controls || is_deleting(first),
            "published a second Sandbox while the first was there: {claim:#}\n{first:#}"
        );
    }
}

/// Everything that was requested exists exactly once.
pub(super) fn check_converged(simulation: &Simulation) {
    let api = &simulation.api;
    let sandboxes = api.list(Kind::Sandbox);
    let of =
        |uid: &str| -> Vec<&Value> { sandboxes.iter().filter(|sandbox| controller_of(sandbox).1 == uid).collect() };
    let template_exists = api.get(Kind::Template, &key("t")).is_some();
    for claim in api.list(Kind::Claim) {
        let held = of(uid_of(&claim));
        let pool = Key::new(super::simulation::NAMESPACE, text(&claim["spec"]["warmPoolRef"]["name"]));
        match ready(&claim).1 {
            "ClaimExpired" => assert!(held.is_empty(), "an expired claim keeps nothing: {held:#?}"),
            // An orphaned Sandbox has the claim's name.
            "ReconcilerError" => {
                let namesake = api.get(Kind::Sandbox, &key(name_of(&claim))).expect("something is in the way");
                assert!(held.is_empty() && controller_of(&namesake).1 != uid_of(&claim), "{claim:#}\n{namesake:#}");
            }
            "WarmPoolNotFound" => assert!(api.get(Kind::Pool, &pool).is_none() && held.is_empty(), "{claim:#}"),
            _ => {
                assert!(template_exists);
                assert_eq!(held.len(), 1, "one claim, one Sandbox: {claim:#}\n{held:#?}");
                assert_eq!((bound(&claim), ready(&claim).0), (name_of(held[0]), "True"), "{claim:#}\n{held:#?}");
                assert!(held[0]["metadata"]["labels"]["agents.x-k8s.io/warm-pool-sandbox"].is_null());
            }
        }
    }
    for pool in api.list(Kind::Pool) {
        let members = of(uid_of(&pool)).len();
        assert_eq!(Some(members as u64), pool["spec"]["replicas"].as_u64(), "{pool:#}\n{:#?}", of(uid_of(&pool)));
        assert_eq!(pool["status"]["readyReplicas"].as_u64().unwrap_or(0), members as u64, "{pool:#}");
    }
    for sandbox in &sandboxes {
        let pods = api.list(Kind::Pod).into_iter().filter(|pod| controller_of(pod).1 == uid_of(sandbox)).count();
        assert_eq!(pods, 1, "one Sandbox, one Pod: {sandbox:#}");
        let generation = &sandbox["metadata"]["generation"];
        let current = sandbox["status"]["conditions"]
            .as_array()
            .is_some_and(|all| all.iter().all(|one| one["observedGeneration"] == *generation));
        assert!(current, "the status speaks of the current generation: {sandbox:#}");
    }
    let bystander = api.get(Kind::Pod, &key("bystander")).expect("the foreign Pod still exists");
    assert_eq!(bystander["metadata"]["ownerReferences"], Value::Null, "and still has no owner");
    assert!(api.get(Kind::Sandbox, &key("users-own")).is_some());
}
