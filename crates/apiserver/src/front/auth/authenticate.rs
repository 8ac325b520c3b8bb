//! Authenticates requests by bearer token, and handles impersonation headers.

use std::sync::Arc;

use arc_swap::ArcSwap;
use base64::Engine as _;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

use super::UserInfo;
use super::rbac::{AccessTarget, Attributes, Policy};
use super::token_registry::TokenRegistry;
use super::tokens::{Claims, ISSUER, TokenError, TokenSigner};
use super::user::Credential;
use crate::status::ApiError;

const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
/// Prefix of the ids of administrators' tokens.
const ADMIN_PREFIX: &str = "admin-";
const IMPERSONATE_USER: &str = "impersonate-user";
const IMPERSONATE_UID: &str = "impersonate-uid";
const IMPERSONATE_GROUP: &str = "impersonate-group";
const IMPERSONATE_EXTRA: &str = "impersonate-extra-";

/// Looks up the objects that tokens are bound to.
pub trait Objects: Send + Sync {
    /// The uid of an object of the core group; `None` if it does not exist.
    fn uid(&self, resource: &str, namespace: &str, name: &str) -> Option<String>;
}

/// Verifies the administrator's token and ServiceAccount tokens.
#[derive(Clone)]
pub struct Authenticator {
    admin_token: Arc<ArcSwap<String>>,
    signer: TokenSigner,
    objects: Arc<dyn Objects>,
    registry: Arc<TokenRegistry>,
}

impl Authenticator {
    pub fn new(admin_token: &str, signing_key: &[u8], objects: Arc<dyn Objects>) -> Self {
        Self {
            admin_token: Arc::new(ArcSwap::from_pointee(admin_token.to_owned())),
            signer: TokenSigner::new(signing_key),
            objects,
            registry: Arc::default(),
        }
    }

    /// Refuses the tokens that `registry` knows as revoked.
    pub fn with_registry(self, registry: Arc<TokenRegistry>) -> Self {
        Self { registry, ..self }
    }

    /// Replaces the administrator's token: the old one is refused from now on.
    pub fn set_admin_token(&self, token: &str) {
        self.admin_token.store(Arc::new(token.to_owned()));
    }

    /// True while a user could still authenticate: the token is neither expired nor revoked or replaced, and the
    /// ServiceAccount and the Pod that it is bound to exist. Users without a token belong to this process.
    pub fn is_still_valid(&self, user: &UserInfo, now: Timestamp) -> bool {
        let Credential { id, expires } = &user.credential;
        let accepted = match id.strip_prefix(ADMIN_PREFIX) {
            Some(_) => *id == admin_id(&self.admin_token.load()),
            None => !self.registry.is_revoked(id),
        };
        let account = service_account_name(&user.username).filter(|_| !user.uid.is_empty());
        let exists = account.is_none_or(|(namespace, name)| {
            self.objects.uid("serviceaccounts", namespace, name).is_some_and(|uid| uid == user.uid)
        });
        let extra = |key: &str| {
            let found = user.extra.iter().find(|(name, _)| name == key)?;
            found.1.first().map(String::as_str)
        };
        let bound = match (account, extra(POD_NAME), extra(POD_UID)) {
            (Some((namespace, _)), Some(pod), Some(wanted)) => {
                self.objects.uid("pods", namespace, pod).is_some_and(|uid| uid == wanted)
            }
            _ => true,
        };
        accepted && exists && bound && expires.is_none_or(|end| now.as_second() < end)
    }

    pub fn signer(&self) -> &TokenSigner {
        &self.signer
    }

    /// The user who sent the request: anonymous without credentials. Fails with 401 if the request has credentials that
    /// are not a valid token.
    pub fn authenticate(&self, headers: &HeaderMap, now: Timestamp) -> Result<UserInfo, ApiError> {
        if !headers.contains_key(AUTHORIZATION) {
            return Ok(UserInfo::anonymous());
        }
        let token = bearer(headers).ok_or_else(ApiError::unauthorized)?;
        let authenticated = self.identify(token, now).and_then(|(user, audiences)| match audiences {
            // A token for another audience is refused: that audience has seen the token and could use it here.
            Some(audiences) if !audiences.iter().any(|a| a == ISSUER) => Err(TokenError::Audience),
            _ => Ok(user),
        });
        authenticated.map_err(|error| {
            tracing::debug!(%error, "Refused a bearer token");
            ApiError::unauthorized()
        })
    }

    /// The user of a token and, for a ServiceAccount token, its audiences.
    pub fn identify(&self, token: &str, now: Timestamp) -> Result<(UserInfo, Option<Vec<String>>), TokenError> {
        let admin_token = self.admin_token.load();
        if bool::from(token.as_bytes().ct_eq(admin_token.as_bytes())) {
            let credential = Credential { id: admin_id(&admin_token), expires: None };
            return Ok((UserInfo { credential, ..UserInfo::administrator() }, None));
        }
        let claims = self.signer.verify(token, now)?;
        if self.registry.is_revoked(&claims.id) {
            return Err(TokenError::Revoked);
        }
        if !self.still_bound(&claims) {
            return Err(TokenError::BoundObjectDeleted);
        }
        Ok((service_account(&claims), Some(claims.audiences)))
    }

    fn still_bound(&self, claims: &Claims) -> bool {
        let bound = &claims.kubernetes;
        let exists = |resource: &str, namespace: &str, named: &super::tokens::Named| {
            self.objects.uid(resource, namespace, &named.name).is_some_and(|uid| uid == named.uid)
        };
        exists("serviceaccounts", &bound.namespace, &bound.serviceaccount)
            && bound.pod.as_ref().is_none_or(|pod| exists("pods", &bound.namespace, pod))
            && bound.secret.as_ref().is_none_or(|secret| exists("secrets", &bound.namespace, secret))
            && bound.node.as_ref().is_none_or(|node| exists("nodes", "", node))
    }
}

/// The id of the administrator's token: a digest that does not reveal it.
fn admin_id(token: &str) -> String {
    let digest = Sha256::digest(token.as_bytes());
    format!("{ADMIN_PREFIX}{}", base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(digest))
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim()).filter(|token| !token.is_empty())
}

fn service_account(claims: &Claims) -> UserInfo {
    let bound = &claims.kubernetes;
    let mut extra = vec![("authentication.kubernetes.io/credential-id".to_owned(), vec![format!("JTI={}", claims.id)])];
    if let Some(pod) = &bound.pod {
        extra.push((POD_NAME.into(), vec![pod.name.clone()]));
        extra.push((POD_UID.into(), vec![pod.uid.clone()]));
    }
    UserInfo {
        username: claims.subject.clone(),
        uid: bound.serviceaccount.uid.clone(),
        groups: vec![
            "system:serviceaccounts".into(),
            format!("system:serviceaccounts:{}", bound.namespace),
            "system:authenticated".into(),
        ],
        extra,
        credential: Credential { id: claims.id.clone(), expires: Some(claims.expires) },
    }
}

/// The user that the request acts as: `user`, or the impersonated user if the policy allows `user` to impersonate them.
pub fn impersonate(headers: &HeaderMap, user: UserInfo, policy: &Policy) -> Result<UserInfo, ApiError> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let wanted = text(IMPERSONATE_USER);
    let groups: Vec<String> =
        headers.get_all(IMPERSONATE_GROUP).iter().filter_map(|value| value.to_str().ok()).map(str::to_owned).collect();
    if wanted.is_empty() {
        let extra = headers.keys().any(|name| name.as_str().starts_with(IMPERSONATE_EXTRA));
        return match groups.is_empty() && text(IMPERSONATE_UID).is_empty() && !extra {
            true => Ok(user),
            false => Err(ApiError::bad_request("requested groups, uid or extra to impersonate without a user")),
        };
    }
    match service_account_name(wanted) {
        Some((namespace, name)) => check_impersonation(policy, &user, "serviceaccounts", namespace, name)?,
        None => check_impersonation(policy, &user, "users", "", wanted)?,
    }
    for group in &groups {
        check_impersonation(policy, &user, "groups", "", group)?;
    }
    let mut impersonated =
        UserInfo { username: wanted.to_owned(), uid: text(IMPERSONATE_UID).to_owned(), groups, ..UserInfo::default() };
    // The impersonating user's token remains what the request depends on.
    impersonated.credential = user.credential.clone();
    if !impersonated.uid.is_empty() {
        check_impersonation(policy, &user, "uids", "", &impersonated.uid)?;
    }
    for (name, value) in headers {
        if let Some(key) = name.as_str().strip_prefix(IMPERSONATE_EXTRA) {
            check_impersonation(policy, &user, &format!("userextras/{key}"), "", "")?;
            impersonated.extra.push((key.to_owned(), vec![value.to_str().unwrap_or_default().to_owned()]));
        }
    }
    add_implied_groups(&mut impersonated);
    Ok(impersonated)
}

fn check_impersonation(
    policy: &Policy,
    user: &UserInfo,
    resource: &str,
    namespace: &str,
    name: &str,
) -> Result<(), ApiError> {
    let (plain, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let target = AccessTarget::Resource {
        group: if plain == "userextras" || plain == "uids" { "authentication.k8s.io".into() } else { String::new() },
        resource: plain.into(),
        subresource: subresource.into(),
        namespace: namespace.into(),
        name: name.into(),
    };
    let place = match namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    match policy.allows(user, &Attributes { verb: "impersonate".into(), target }) {
        Some(_) => Ok(()),
        None => Err(ApiError::forbidden(
            "",
            plain,
            name,
            &format!("User {:?} cannot impersonate resource {plain:?} in API group \"\" {place}", user.username),
        )),
    }
}

/// Namespace and name of a ServiceAccount's user name.
fn service_account_name(username: &str) -> Option<(&str, &str)> {
    username.strip_prefix("system:serviceaccount:")?.split_once(':')
}

fn add_implied_groups(user: &mut UserInfo) {
    let mut implied = vec!["system:authenticated".to_owned()];
    if let Some((namespace, _)) = service_account_name(&user.username) {
        implied.push("system:serviceaccounts".into());
        implied.push(format!("system:serviceaccounts:{namespace}"));
    }
    if user.username == "system:anonymous" {
        implied = vec!["system:unauthenticated".into()];
    }
    for group in implied {
        if !user.groups.contains(&group) {
            user.groups.push(group);
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use jiff::SignedDuration;

    use super::*;
    use crate::front::auth::rbac::RbacObjects;
    use crate::front::auth::tokens::{KubernetesClaims, Named};

    struct OneAccount;

    impl Objects for OneAccount {
        fn uid(&self, resource: &str, namespace: &str, name: &str) -> Option<String> {
            ((resource, namespace, name) == ("serviceaccounts", "ns", "bot")).then(|| "uid-1".to_owned())
        }
    }

    fn authenticator() -> Authenticator {
        Authenticator::new("the-admin-token", b"key", Arc::new(OneAccount))
    }

    fn with_token(token: &str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {token}")).unwrap())])
    }

    fn token(uid: &str, pod: Option<Named>, now: Timestamp) -> String {
        let serviceaccount = Named { name: "bot".into(), uid: uid.into() };
        let kubernetes = KubernetesClaims { namespace: "ns".into(), serviceaccount, pod, secret: None, node: None };
        let claims = Claims::new(kubernetes, vec![ISSUER.into()], now, SignedDuration::from_hours(1));
        authenticator().signer().sign(&claims)
    }

    #[test]
    fn a_token_for_another_audience_is_refused() {
        let now = Timestamp::now();
        let serviceaccount = Named { name: "bot".into(), uid: "uid-1".into() };
        let kubernetes =
            KubernetesClaims { namespace: "ns".into(), serviceaccount, pod: None, secret: None, node: None };
        for (audiences, works) in [(vec!["vault"], false), (vec![], false), (vec!["vault", ISSUER], true)] {
            let audiences = audiences.into_iter().map(str::to_owned).collect();
            let claims = Claims::new(kubernetes.clone(), audiences, now, SignedDuration::from_hours(1));
            let token = authenticator().signer().sign(&claims);
            assert_eq!(authenticator().authenticate(&with_token(&token), now).is_ok(), works);
            assert!(authenticator().identify(&token, now).is_ok(), "a token review can still identify it");
        }
    }

    #[test]
    fn only_valid_tokens_are_accepted() {
        let now = Timestamp::now();
        assert!(authenticator().authenticate(&with_token("the-admin-token"), now).unwrap().is_administrator());
        for wrong in ["", "the-admin-toke", "the-admin-token-and-more", "x.y.z"] {
            assert_eq!(authenticator().authenticate(&with_token(wrong), now).unwrap_err().code, 401, "{wrong}");
        }
        assert!(authenticator().authenticate(&HeaderMap::new(), now).unwrap().is_anonymous());
        let basic = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static("Basic the-admin-token"))]);
        assert_eq!(authenticator().authenticate(&basic, now).unwrap_err().code, 401);
    }

    #[test]
    fn a_service_account_token_is_invalid_after_its_account_or_pod_is_deleted() {
        let now = Timestamp::now();
        let user = authenticator().authenticate(&with_token(&token("uid-1", None, now)), now).unwrap();
        assert_eq!(user.username, "system:serviceaccount:ns:bot");
        assert!(user.groups.contains(&"system:serviceaccounts:ns".to_owned()));
        assert!(authenticator().authenticate(&with_token(&token("uid-0", None, now)), now).is_err());
        let pod = Named { name: "gone".into(), uid: "x".into() };
        assert!(authenticator().authenticate(&with_token(&token("uid-1", Some(pod), now)), now).is_err());
    }

    /// As in Kubernetes, ServiceAccounts are impersonated by a right to `serviceaccounts` in their namespace.
    #[test]
    fn a_service_account_is_impersonated_by_rights_in_its_namespace() {
        let role = serde_json::json!({
            "metadata": {"name": "r", "namespace": "ns"},
            "rules": [{"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["impersonate"]}],
        });
        let binding = serde_json::json!({
            "metadata": {"name": "b", "namespace": "ns"},
            "roleRef": {"kind": "Role", "name": "r"},
            "subjects": [{"kind": "User", "name": "ann"}],
        });
        let objects = RbacObjects { roles: vec![role], role_bindings: vec![binding], ..RbacObjects::default() };
        let policy = Policy::compile(&objects);
        let acting_as = |header: &'static str, value: &'static str| {
            let name = http::HeaderName::from_static(header);
            let headers = HeaderMap::from_iter([(name, HeaderValue::from_static(value))]);
            let ann = UserInfo { username: "ann".into(), ..UserInfo::default() };
            impersonate(&headers, ann, &policy).map(|user| user.username).map_err(|error| error.code.as_u16())
        };
        let own = "system:serviceaccount:ns:bot";
        assert_eq!(acting_as(IMPERSONATE_USER, own).as_deref(), Ok(own));
        assert_eq!(acting_as(IMPERSONATE_USER, "system:serviceaccount:other:bot"), Err(403));
        assert_eq!(acting_as(IMPERSONATE_USER, "kubernetes-admin"), Err(403));
        assert_eq!(acting_as("impersonate-extra-scopes", "all"), Err(400), "extra needs a user");
    }

    #[test]
    fn impersonation_requires_permission() {
        let policy = Policy::compile(&RbacObjects::default());
        let headers = HeaderMap::from_iter([(
            http::HeaderName::from_static(IMPERSONATE_USER),
            HeaderValue::from_static("system:serviceaccount:ns:bot"),
        )]);
        let acting = impersonate(&headers, UserInfo::administrator(), &policy).unwrap();
        assert!(!acting.is_administrator());
        assert!(acting.groups.contains(&"system:serviceaccounts:ns".to_owned()));
        let unprivileged = UserInfo { username: "ann".into(), ..UserInfo::default() };
        assert_eq!(impersonate(&headers, unprivileged, &policy).unwrap_err().code, 403);
    }
}
