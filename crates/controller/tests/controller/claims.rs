//! Claims and pools on the embedded API, with a simulated kubelet.

use std::{collections::HashSet, time::Duration};

use agent_sandbox_api::{
    conditions::{self, ConditionType},
    keys::{annotations, labels},
    owners, v1alpha1,
    v1beta1::{Sandbox, SandboxClaim, SandboxWarmPool},
};
use agent_sandbox_controller::{
    Config,
    pool::{PacingSettings, PoolSettings},
};
use agent_sandbox_testkit::{BURST_TIMEOUT, eventually, eventually_within, from_json};
use futures::{StreamExt, future::join_all};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::json;

use crate::fixture::Fixture;

/// the life of a warm claim, seen by its user.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x_124_x_125_x_193_a_warm_claim_takes_a_running_pod_and_the_pool_refills() {
    let bench = Fixture::start().await;
    bench.template("t").await;
    bench.pool("p", "t", 2).await;
    bench.pool_ready("p", 2).await;
    let before: Vec<Pod> = bench.list::<Pod>().await;
    bench.claim("c", "p").await;
    let claim = bench.ready("c").await;
    let name = claim.bound_sandbox().expect("bound").to_owned();
    assert_eq!(claim.annotation(annotations::SANDBOX_NAME), Some(name.as_str()), "X-086: recorded");
    assert!(claim.annotation(annotations::CONTROLLER_FIRST_OBSERVED_AT).is_some_and(|at| at.contains('.')), "X-240");

    // when the claim is Ready, it controls the Sandbox.
    let sandbox: Sandbox = bench.api().get(&name).await.expect("there");
    assert_eq!(owners::owning_claim(&sandbox.metadata).expect("claimed").uid, claim.uid());
    assert_eq!(sandbox.annotation(annotations::POD_NAME), Some(name.as_str()), "X-122");

    let pod = eventually("the Pod loses the pool's label", || async {
        let pod: Pod = bench.api().get(&name).await.expect("there");
        let labelled = pod.metadata.labels.as_ref().is_some_and(|map| map.contains_key(labels::WARM_POOL_SANDBOX));
        if labelled { Err(pod.metadata.labels) } else { Ok(pod) }
    })
    .await;
    assert!(before.iter().any(|old| old.metadata.uid == pod.metadata.uid), "X-125: the same Pod, not a new one");
    assert!(pod.metadata.labels.expect("labels").contains_key(labels::SANDBOX_NAME_HASH));

    // `kubectl wait --for=condition=Ready sandbox/…` looks at the generation too.
    eventually("the Sandbox's status is of its generation", || async {
        let sandbox: Sandbox = bench.api().get(&name).await.expect("there");
        let observed = sandbox.condition(ConditionType::Ready).and_then(|ready| ready.observed_generation);
        if observed == sandbox.metadata.generation { Ok(()) } else { Err((observed, sandbox.metadata.generation)) }
    })
    .await;
    bench.pool_ready("p", 2).await;
    bench.claim("d", "p").await;
    let second = bench.ready("d").await;
    assert_ne!(second.bound_sandbox(), Some(name.as_str()));

    bench.api::<SandboxWarmPool>().delete("p", &DeleteParams::default()).await.expect("deleted");
    eventually("X-194: only claimed Sandboxes remain", || async {
        let left = bench.list::<Sandbox>().await.len();
        if left == 2 { Ok(()) } else { Err(left) }
    })
    .await;
    bench.stop().await;
}

/// The write budget of a warm claim, counted at the API: six writes of the controller before refill, two of them in
/// sequence before Ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_warm_claim_stays_within_its_write_budget() {
    let bench = Fixture::start().await;
    bench.template("t").await;
    bench.pool("p", "t", 1).await;
    bench.pool_ready("p", 1).await;
    // Without refill, so that only the claim's own writes are counted.
    let stop = json!({ "spec": { "sandboxTemplateRef": { "name": "missing" } } });
    bench.api::<SandboxWarmPool>().patch("p", &PatchParams::default(), &Patch::Merge(stop)).await.expect("patched");
    eventually("the pool has seen its new template", || async {
        let pool: SandboxWarmPool = bench.api().get("p").await.expect("there");
        let observed = pool.status.as_ref().and_then(|status| status.observed_generation);
        if observed == pool.metadata.generation { Ok(()) } else { Err(pool.status) }
    })
    .await;
    bench.writes.clear();
    bench.claim("c", "p").await;
    let claim = bench.ready("c").await;
    let name = claim.bound_sandbox().expect("bound").to_owned();
    eventually("everything has followed", || async {
        let sandbox: Sandbox = bench.api().get(&name).await.expect("there");
        let observed = sandbox.condition(ConditionType::Ready).and_then(|ready| ready.observed_generation);
        let event = bench.writes.writes().iter().any(|write| write.path.ends_with("/events"));
        let pool: SandboxWarmPool = bench.api().get("p").await.expect("there");
        let counted = pool.status.as_ref().and_then(|status| status.replicas) == Some(0);
        if observed == sandbox.metadata.generation && event && counted {
            Ok(())
        } else {
            Err((observed, event, counted))
        }
    })
    .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let writes: Vec<_> =
        bench.writes.writes().into_iter().filter(|write| !write.path.contains("/sandboxwarmpools/")).collect();
    assert!(writes.len() <= 6, "{writes:#?}");
    assert!(writes.iter().all(|write| write.status < 300), "no failing write: {writes:#?}");
    bench.stop().await;
}

/// 300 claims on a pool of 300.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x_121_three_hundred_claims_on_three_hundred_members() {
    let bench = Fixture::start().await;
    bench.template("t").await;
    bench.pool("p", "t", 300).await;
    bench.pool_ready("p", 300).await;
    let claims = bench.burst(300, "p").await;
    eventually_within(BURST_TIMEOUT, "one Sandbox for every claim", || bench.check_one_sandbox_per_claim(300)).await;
    assert!(claims.iter().all(|claim| claim.bound_sandbox() != Some(claim.name())), "all warm");
    bench.stop().await;
}

/// exactly as many warm ones as there were members.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x_120_three_hundred_claims_on_a_hundred_members() {
    // No refill meanwhile: what is warm is what was there.
    let pacing = PacingSettings { replenish_delay: Duration::from_secs(3600), ..PacingSettings::default() };
    let pool = PoolSettings { pacing, ..PoolSettings::default() };
    let bench = Fixture::with(Config { pool, ..Config::default() }).await;
    bench.template("t").await;
    bench.pool("p", "t", 100).await;
    bench.pool_ready("p", 100).await;
    let members: HashSet<String> =
        bench.list::<Sandbox>().await.iter().map(|sandbox| sandbox.name().to_owned()).collect();
    let claims = bench.burst(300, "p").await;
    eventually_within(BURST_TIMEOUT, "one Sandbox for every claim", || bench.check_one_sandbox_per_claim(0)).await;
    let warm = claims.iter().filter(|claim| members.contains(claim.bound_sandbox().expect("bound"))).count();
    let cold = claims.iter().filter(|claim| claim.bound_sandbox() == Some(claim.name())).count();
    assert_eq!((warm, cold), (100, 200));
    bench.stop().await;
}

/// 20 pools of 25: exactly 500 creates.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_pools_of_twenty_five_cost_five_hundred_creates() {
    let bench = Fixture::start().await;
    bench.template("t").await;
    join_all((0..20).map(|index| {
        let bench = &bench;
        async move { bench.pool(&format!("p-{index}"), "t", 25).await }
    }))
    .await;
    for index in 0..20 {
        bench.pool_ready(&format!("p-{index}"), 25).await;
    }
    let creates = bench
        .writes
        .writes()
        .iter()
        .filter(|write| write.method == "POST" && write.path.ends_with("/sandboxes"))
        .count();
    assert_eq!(creates, 500);
    assert_eq!(bench.list::<Sandbox>().await.len(), 500);
    bench.stop().await;
}

/// the v1alpha1 experience: a claim that names only a template, seen through v1alpha1 all the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x_264_x_265_a_claim_of_v1alpha1_works_end_to_end() {
    let bench = Fixture::start().await;
    bench.template("t").await;
    let old = |name: &str, warmpool: Option<&str>| -> v1alpha1::SandboxClaim {
        let mut spec = json!({ "sandboxTemplateRef": { "name": "t" } });
        if let Some(pool) = warmpool {
            spec["warmpool"] = pool.into();
        }
        from_json(json!({ "metadata": { "name": name }, "spec": spec }))
    };
    let served = |name: &'static str| {
        let bench = &bench;
        async move {
            eventually(&format!("claim {name} is served"), || async {
                let claim: v1alpha1::SandboxClaim = bench.api().get(name).await.expect("there");
                let list = claim.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
                let ready = conditions::is_true(conditions::find(list, ConditionType::Ready));
                if ready { Ok(claim) } else { Err(claim.status) }
            })
            .await
        }
    };
    let bound = |claim: &v1alpha1::SandboxClaim| {
        claim
            .status
            .as_ref()
            .and_then(|status| status.sandbox.as_ref())
            .and_then(|sandbox| sandbox.name.clone())
            .expect("bound")
    };
    bench.api().create(&PostParams::default(), &old("cold", None)).await.expect("created");
    let cold = served("cold").await;
    assert_eq!(bound(&cold), "cold");
    assert_eq!(cold.spec.warmpool.as_deref(), Some("default"));
    assert_eq!(cold.spec.sandbox_template_ref.name, "t");
    let sandbox: v1alpha1::Sandbox = bench.api().get("cold").await.expect("there");
    assert_eq!(sandbox.spec.replicas, Some(1));

    bench.pool("any", "t", 2).await;
    bench.pool_ready("any", 2).await;
    bench.api().create(&PostParams::default(), &old("never", Some("none"))).await.expect("created");
    assert_eq!(bound(&served("never").await), "never", "none means a new one");
    bench.api().create(&PostParams::default(), &old("warm", None)).await.expect("created");
    let warm = served("warm").await;
    assert!(bound(&warm).starts_with("any-"), "CNV-13: a pool of the template is used: {}", bound(&warm));
    assert_eq!(warm.spec.warmpool.as_deref(), Some("default"));
    bench.api().create(&PostParams::default(), &old("named", Some("any"))).await.expect("created");
    assert!(bound(&served("named").await).starts_with("any-"));
    bench.stop().await;
}

/// what the Python SDK does: one watch from the create's version, and reads of the Sandbox that it
/// names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x_260_x_263_x_268_one_watch_is_enough() {
    let bench = Fixture::start().await;
    bench.template("t").await;
    bench.pool("p", "t", 1).await;
    bench.pool_ready("p", 1).await;
    let created = bench.claim("c", "p").await;
    let params = WatchParams::default().fields("metadata.name=c").timeout(60);
    let events = bench.api::<SandboxClaim>().watch(&params, created.resource_version()).await.expect("watches");
    futures::pin_mut!(events);
    let claim = loop {
        match events.next().await.expect("an event").expect("no error") {
            WatchEvent::Added(claim) | WatchEvent::Modified(claim) => {
                let ready = claim.condition(ConditionType::Ready);
                if conditions::is_true(ready) {
                    break claim;
                }
                assert!(ready.is_none(), "nothing is said before: {ready:?}");
                assert_eq!(claim.bound_sandbox(), None, "name and Ready come together");
            }
            other => panic!("{other:?}"),
        }
    };
    let name = claim.bound_sandbox().expect("bound").to_owned();
    let ips =
        claim.status.as_ref().and_then(|status| status.sandbox.as_ref()).and_then(|sandbox| sandbox.pod_ips.clone());
    let sandbox: Sandbox = bench.api().get(&name).await.expect("there");
    assert_eq!(ips.as_deref(), Some(sandbox.pod_ips()));
    let selector = sandbox.status.as_ref().and_then(|status| status.selector.clone()).expect("selector");
    let pods = bench.api::<Pod>().list(&ListParams::default().labels(&selector)).await.expect("lists").items;
    assert_eq!(pods.len(), 1, "X-268: {selector}");
    assert_eq!(pods[0].metadata.name.as_deref(), sandbox.annotation(annotations::POD_NAME));

    // the claim exists already; its current status is enough.
    let again: SandboxClaim =
        from_json(json!({ "metadata": { "name": "c" }, "spec": { "warmPoolRef": { "name": "p" } } }));
    let error = bench.api().create(&PostParams::default(), &again).await.expect_err("exists");
    assert!(matches!(error, kube::Error::Api(status) if status.code == 409));
    let existing: SandboxClaim = bench.api().get("c").await.expect("there");
    assert_eq!(existing.bound_sandbox(), Some(name.as_str()));
    bench.stop().await;
}

/// a terminal reason is the first status that a client sees.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x_261_x_262_terminal_reasons_come_first() {
    let bench = Fixture::start().await;
    bench.template("t").await;
    bench.pool("p", "t", 0).await;
    let volumes = json!([{ "metadata": { "name": "v" }, "spec": {} }]);
    for (name, spec, reason) in [
        ("no-pool", json!({ "warmPoolRef": { "name": "missing" } }), "WarmPoolNotFound"),
        (
            "env",
            json!({ "warmPoolRef": { "name": "p" }, "env": [{ "name": "A", "value": "b" }] }),
            "EnvVarsInjectionRejected",
        ),
        (
            "volumes",
            json!({ "warmPoolRef": { "name": "p" }, "volumeClaimTemplates": volumes }),
            "VolumeClaimTemplatesError",
        ),
    ] {
        let claim: SandboxClaim = from_json(json!({ "metadata": { "name": name }, "spec": spec }));
        let created = bench.api().create(&PostParams::default(), &claim).await.expect("created");
        let params = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(60);
        let events = bench.api::<SandboxClaim>().watch(&params, created.resource_version()).await.expect("watches");
        futures::pin_mut!(events);
        let first = loop {
            if let WatchEvent::Added(claim) | WatchEvent::Modified(claim) =
                events.next().await.expect("an event").expect("no error")
                && let Some(ready) = claim.condition(ConditionType::Ready)
            {
                break ready.reason.clone();
            }
        };
        assert_eq!(first, reason);
    }
    bench.stop().await;
}

/// the Go SDK's generated names, and an expiry that deletes everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x_266_x_267_generated_names_and_an_end() {
    let bench = Fixture::start().await;
    bench.template("t").await;
    bench.pool("p", "t", 0).await;
    let end = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(2);
    let claim: SandboxClaim = from_json(json!({
        "metadata": { "generateName": "sandbox-claim-", "labels": { labels::CREATED_BY: "go-client" } },
        "spec": { "warmPoolRef": { "name": "p" }, "lifecycle": { "shutdownTime": format!("{end:.0}"), "shutdownPolicy": "Delete" } },
    }));
    let created = bench.api().create(&PostParams::default(), &claim).await.expect("created");
    let name = created.name().to_owned();
    assert!(name.starts_with("sandbox-claim-") && name.len() > "sandbox-claim-".len());
    let sandbox = eventually("the claim's Sandbox is Ready", || async {
        let sandbox: Option<Sandbox> = bench.api().get_opt(&name).await.expect("reads");
        match sandbox {
            Some(sandbox) if conditions::is_true(sandbox.condition(ConditionType::Ready)) => Ok(sandbox),
            other => Err(other.map(|sandbox| sandbox.status)),
        }
    })
    .await;
    assert_eq!(sandbox.label(labels::CREATED_BY), Some("go-client"));
    eventually("X-267: claim, Sandbox and Pod are gone", || async {
        let claims = bench.api::<SandboxClaim>().list(&ListParams::default()).await.expect("lists").items.len();
        let sandboxes = bench.list::<Sandbox>().await.len();
        let pods = bench.list::<Pod>().await.len();
        if claims + sandboxes + pods == 0 { Ok(()) } else { Err((claims, sandboxes, pods)) }
    })
    .await;
    bench.stop().await;
}

/// foreground: the claim exists until everything below it is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x_164_foreground_deletion_keeps_the_claim_to_the_last() {
    let bench = Fixture::start().await;
    bench.template("t").await;
    bench.pool("p", "t", 0).await;
    bench.claim("c", "p").await;
    bench.ready("c").await;
    let past = json!({ "spec": { "lifecycle": { "shutdownTime": "2020-01-01T00:00:00Z", "shutdownPolicy": "DeleteForeground" } } });
    bench.api::<SandboxClaim>().patch("c", &PatchParams::default(), &Patch::Merge(past)).await.expect("patched");
    eventually("the claim is gone, last of all", || async {
        let claim: Option<SandboxClaim> = bench.api().get_opt("c").await.expect("reads");
        match claim {
            Some(claim) => Err(claim.metadata.deletion_timestamp),
            None => {
                let left: Option<Sandbox> = bench.api().get_opt("c").await.expect("reads");
                assert!(left.is_none(), "the Sandbox went before the claim");
                Ok(())
            }
        }
    })
    .await;
    bench.stop().await;
}

/// S-020, X-024: a storage rewrite does not touch a running Pod.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s_020_x_024_a_storage_rewrite_leaves_the_pod_alone() {
    let bench = Fixture::start().await;
    let spec =
        json!({ "replicas": 1, "podTemplate": { "spec": { "containers": [{ "name": "main", "image": "busybox" }] } } });
    let old: v1alpha1::Sandbox = from_json(json!({ "metadata": { "name": "s" }, "spec": spec }));
    bench.api().create(&PostParams::default(), &old).await.expect("created");
    let running = || async {
        let sandbox: Sandbox = bench.api().get("s").await.expect("there");
        if conditions::is_true(sandbox.condition(ConditionType::Ready)) { Ok(()) } else { Err(sandbox.status) }
    };
    eventually("the Sandbox runs", running).await;
    let before: Pod = bench.api().get("s").await.expect("there");
    let mark = json!({ "metadata": { "annotations": { annotations::STORAGE_MIGRATED_AT: "2026-01-01T00:00:00Z" } } });
    bench.api::<Sandbox>().patch("s", &PatchParams::default(), &Patch::Merge(mark)).await.expect("patched");
    tokio::time::sleep(Duration::from_millis(200)).await;
    eventually("the Sandbox still runs", running).await;
    let after: Pod = bench.api().get("s").await.expect("there");
    assert_eq!(
        (after.metadata.uid, after.metadata.creation_timestamp),
        (before.metadata.uid, before.metadata.creation_timestamp)
    );
    bench.stop().await;
}
