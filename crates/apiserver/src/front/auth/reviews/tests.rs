//! Reviews use the same policy as requests, and a token review recognizes requested tokens.

use std::sync::Arc;

use super::*;
use crate::front::auth::rbac::RbacObjects;

struct Cluster;

impl Objects for Cluster {
    fn uid(&self, resource: &str, _namespace: &str, name: &str) -> Option<String> {
        matches!((resource, name), ("serviceaccounts", "bot") | ("pods", "p")).then(|| format!("{resource}-{name}"))
    }
}

fn authenticator() -> Authenticator {
    Authenticator::new("admin-token", b"key", Arc::new(Cluster))
}

fn mint(spec: Value) -> Result<Value, ApiError> {
    let account = json!({"metadata": {"name": "bot", "uid": "serviceaccounts-bot"}});
    let request = TokenRequest { namespace: "ns", account: &account, body: json!({"spec": spec}) };
    token_request(request, &authenticator(), &Cluster, Timestamp::now()).map(|(reply, _)| reply)
}

#[test]
fn a_minted_token_is_recognised_by_token_review() {
    let minted = mint(json!({"expirationSeconds": 600, "boundObjectRef": {"kind": "Pod", "name": "p"}})).unwrap();
    assert_eq!(minted["spec"]["audiences"], json!([ISSUER]));
    let review = json!({"kind": "TokenReview", "spec": {"token": minted["status"]["token"]}});
    let reviewed = token_review(review, &authenticator(), Timestamp::now());
    assert_eq!(reviewed["status"]["authenticated"], true);
    assert_eq!(reviewed["status"]["user"]["username"], "system:serviceaccount:ns:bot");
    assert_eq!(reviewed["status"]["user"]["extra"]["authentication.kubernetes.io/pod-name"], json!(["p"]));
    assert!(reviewed["spec"].get("token").is_none());
}

#[test]
fn audiences_are_respected() {
    let token = mint(json!({"audiences": ["vault"]})).unwrap()["status"]["token"].clone();
    let ask = |audiences: Value| {
        let review = json!({"spec": {"token": token, "audiences": audiences}});
        token_review(review, &authenticator(), Timestamp::now())["status"]["authenticated"] == true
    };
    assert!(ask(json!(["vault", "other"])));
    assert!(!ask(json!(["other"])));
    assert!(!ask(json!([])), "the API server itself is not an audience of this token");
}

#[test]
fn bad_token_requests_are_refused_with_the_field() {
    for (spec, expected) in [
        (json!({"expirationSeconds": 10}), "spec.expirationSeconds"),
        (json!({"expirationSeconds": i64::MAX}), "spec.expirationSeconds"),
        (json!({"expirationSeconds": "soon"}), "spec.expirationSeconds"),
        (json!({"boundObjectRef": {"kind": "Pod", "name": "gone"}}), "not found"),
        (json!({"boundObjectRef": {"kind": "Pod", "name": "p", "uid": "old"}}), "does not match"),
        (json!({"boundObjectRef": {"kind": "Job", "name": "j"}}), "Job"),
    ] {
        let message = mint(spec.clone()).unwrap_err().message;
        assert!(message.contains(expected), "{spec}: {message}");
    }
}

#[test]
fn access_reviews_agree_with_the_policy() {
    let policy = Policy::compile(&RbacObjects {
        cluster_roles: vec![
            json!({"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]}),
        ],
        cluster_role_bindings: vec![
            json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "r"}, "subjects": [{"kind": "User", "name": "ann"}]}),
        ],
        ..RbacObjects::default()
    });
    let ann = UserInfo { username: "ann".into(), ..UserInfo::default() };
    let ask = |verb: &str, user: Option<&UserInfo>| {
        let review = json!({"kind": "SelfSubjectAccessReview", "spec": {"user": "ann", "resourceAttributes": {"verb": verb, "resource": "pods", "namespace": "x"}}});
        access_review(review, user, &policy).unwrap()["status"]["allowed"] == true
    };
    assert!(ask("list", Some(&ann)) && ask("list", None));
    assert!(!ask("delete", Some(&ann)) && !ask("delete", None));
    assert!(!ask("list", Some(&UserInfo::default())));
    let both =
        json!({"kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": {}, "nonResourceAttributes": {}}});
    assert_eq!(access_review(both, Some(&ann), &policy).unwrap_err().code, 422);
    let listed = rules_review(json!({"spec": {"namespace": "x"}}), &ann, &policy).unwrap();
    assert_eq!(
        listed["status"]["resourceRules"],
        json!([{"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]}])
    );
}
