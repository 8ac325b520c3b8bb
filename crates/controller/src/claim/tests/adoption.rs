//! Claims that are served from a pool.

use agent_sandbox_api::{
    keys::{annotations, labels},
    owners,
};

use super::*;
use crate::{object::Kind, request::Verb};

/// three writes, and the claim is Ready in the same pass.
#[tokio::test]
async fn x_100_x_112_x_115_a_warm_claim_costs_three_writes() {
    let rig = Rig::new();
    rig.warm_pool(3).await;
    let members = rig.sandboxes();
    rig.claim_on("c", "p");
    rig.events();
    rig.writes();
    rig.claim("c").await.expect("no error");

    let writes = rig.writes();
    let kinds: Vec<_> =
        writes.iter().map(|request| (request.kind, matches!(request.verb, Verb::PatchStatus { .. }))).collect();
    assert_eq!(kinds.len(), 3, "{kinds:?}");
    assert_eq!(kinds[2], (Kind::Claim, true), "status last");

    let name = rig.bound("c").expect("bound");
    assert!(members.iter().any(|member| member.name() == name));
    assert_eq!(rig.ready_of("c").0, "True");
    let claim = rig.stored_claim("c");
    assert_eq!(claim.annotation(annotations::SANDBOX_NAME), Some(name.as_str()));
    assert!(claim.annotation(annotations::CLAIM_FIRST_READY_AT).is_some());
    assert!(claim.annotation(annotations::CONTROLLER_FIRST_OBSERVED_AT).is_some());

    let sandbox = rig.sandbox(&name);
    for gone in [labels::WARM_POOL_SANDBOX, labels::TEMPLATE_HASH, labels::POD_TEMPLATE_HASH] {
        assert_eq!(sandbox.label(gone), None, "{gone}");
    }
    assert_eq!(sandbox.label(labels::LAUNCH_TYPE), Some("warm"));
    assert_eq!(sandbox.label(labels::CLAIM_UID), Some(claim.uid()));
    assert!(sandbox.label(labels::TEMPLATE_REF_HASH).is_some());
    assert_eq!(sandbox.annotation(annotations::POD_NAME), Some(name.as_str()));
    assert_eq!(sandbox.metadata.owner_references.as_ref().map(Vec::len), Some(1));
    assert_eq!(owners::owning_claim(&sandbox.metadata).expect("owned").uid, claim.uid());
    let pod = sandbox.spec.pod_template.metadata.expect("metadata");
    assert_eq!(pod.labels.expect("labels").keys().collect::<Vec<_>>(), [labels::CLAIM_UID, labels::TEMPLATE_REF_HASH]);
    assert_eq!(pod.annotations, None, "the pool's safe-to-evict is gone");
    assert_eq!(rig.events(), [("SandboxAdopted", "Adoption", format!("Adopted warm pool Sandbox \"{name}\""))]);
    rig.pump();
    rig.claim("c").await.expect("no error");
    assert_eq!(rig.writes(), [], "a settled claim writes nothing");
}
