//! Evaluates the review resources: access reviews, rules reviews, token reviews and token requests.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use super::UserInfo;
use super::authenticate::{Authenticator, Objects};
use super::rbac::{AccessTarget, Attributes, Policy};
use super::tokens::{Claims, ISSUER, KubernetesClaims, Named};
use crate::status::{ApiError, FieldError, Path};

/// Lifetimes of requested tokens in seconds, as in Kubernetes.
const DEFAULT_LIFETIME: i64 = 3600;
const MIN_LIFETIME: i64 = 600;
const MAX_LIFETIME: i64 = 1 << 32;

/// Evaluates an access review for `user` (of a `SelfSubject…`) or for the user that the review names.
pub fn access_review(mut review: Value, user: Option<&UserInfo>, policy: &Policy) -> Result<Value, ApiError> {
    let kind = text(&review["kind"]);
    let spec = &review["spec"];
    let attributes = attributes(&kind, spec)?;
    let named;
    let user = match user {
        Some(user) => user,
        None => {
            named = named_user(spec);
            if named.username.is_empty() && named.groups.is_empty() {
                let message = "at least one of user or group must be specified";
                return Err(invalid(&kind, "user", &Value::Null, message));
            }
            &named
        }
    };
    review["status"] = match policy.allows(user, &attributes) {
        Some(reason) => json!({"allowed": true, "reason": reason}),
        None => json!({"allowed": false}),
    };
    Ok(review)
}

fn attributes(kind: &str, spec: &Value) -> Result<Attributes, ApiError> {
    let (resource, path) = (spec.get("resourceAttributes"), spec.get("nonResourceAttributes"));
    match (resource.filter(|value| value.is_object()), path.filter(|value| value.is_object())) {
        (Some(wanted), None) => Ok(Attributes {
            verb: text(&wanted["verb"]),
            target: AccessTarget::Resource {
                group: text(&wanted["group"]),
                resource: text(&wanted["resource"]),
                subresource: text(&wanted["subresource"]),
                namespace: text(&wanted["namespace"]),
                name: text(&wanted["name"]),
            },
        }),
        (None, Some(wanted)) => {
            Ok(Attributes { verb: text(&wanted["verb"]), target: AccessTarget::Path(text(&wanted["path"])) })
        }
        _ => {
            let message = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            Err(invalid(kind, "resourceAttributes", &Value::Null, message))
        }
    }
}

fn named_user(spec: &Value) -> UserInfo {
    let extra = spec["extra"].as_object().into_iter().flatten();
    UserInfo {
        username: text(&spec["user"]),
        uid: text(&spec["uid"]),
        groups: texts(&spec["groups"]),
        extra: extra.map(|(key, values)| (key.clone(), texts(values))).collect(),
        ..UserInfo::default()
    }
}

/// Lists the rules that apply to `user` in the review's namespace.
pub fn rules_review(mut review: Value, user: &UserInfo, policy: &Policy) -> Result<Value, ApiError> {
    let namespace = text(&review["spec"]["namespace"]);
    if namespace.is_empty() {
        return Err(invalid("SelfSubjectRulesReview", "namespace", &Value::Null, "namespace is required"));
    }
    let (paths, resources): (Vec<_>, Vec<_>) =
        policy.rules_for(user, &namespace).into_iter().partition(|rule| !rule.non_resource_urls.is_empty());
    review["status"] = json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": false});
    Ok(review)
}

/// Evaluates a SelfSubjectReview (`kubectl auth whoami`).
pub fn self_review(mut review: Value, user: &UserInfo) -> Value {
    review["status"] = json!({"userInfo": user_value(user)});
    review
}

/// Evaluates a TokenReview: the user of the token, or why it is not valid.
pub fn token_review(mut review: Value, authenticator: &Authenticator, now: Timestamp) -> Value {
    let wanted = texts(&review["spec"]["audiences"]);
    let status = match authenticator.identify(&text(&review["spec"]["token"]), now) {
        Ok((user, audiences)) => {
            let own = audiences.unwrap_or_else(|| vec![ISSUER.to_owned()]);
            let shared: Vec<String> = match wanted.is_empty() {
                true if own.iter().any(|audience| audience == ISSUER) => vec![ISSUER.to_owned()],
                true => Vec::new(),
                false => own.into_iter().filter(|audience| wanted.contains(audience)).collect(),
            };
            if shared.is_empty() {
                json!({"user": {}, "error": "the token is not meant for any of the audiences"})
            } else {
                json!({"authenticated": true, "user": user_value(&user), "audiences": shared})
            }
        }
        Err(error) => json!({"user": {}, "error": error.to_string()}),
    };
    review["status"] = status;
    // The response does not repeat the token.
    if let Some(spec) = review["spec"].as_object_mut() {
        spec.remove("token");
    }
    review
}

/// A request for a token of one ServiceAccount.
pub struct TokenRequest<'a> {
    pub namespace: &'a str,
    pub account: &'a Value,
    pub body: Value,
}

/// Signs a token that is bound to the account and, if requested, to a Pod, Secret or Node. Returns the response and
/// what was signed.
pub fn token_request(
    request: TokenRequest<'_>,
    authenticator: &Authenticator,
    objects: &dyn Objects,
    now: Timestamp,
) -> Result<(Value, Claims), ApiError> {
    let TokenRequest { namespace, account, mut body } = request;
    let spec = &body["spec"];
    let lifetime = match &spec["expirationSeconds"] {
        Value::Null => DEFAULT_LIFETIME,
        value => checked_lifetime(value)?,
    };
    let mut audiences = texts(&spec["audiences"]);
    if audiences.is_empty() {
        audiences.push(ISSUER.to_owned());
    }
    let named = |name: &Value, uid: &Value| Named { name: text(name), uid: text(uid) };
    let metadata = &account["metadata"];
    let mut claims = KubernetesClaims {
        namespace: namespace.to_owned(),
        serviceaccount: named(&metadata["name"], &metadata["uid"]),
        pod: None,
        secret: None,
        node: None,
    };
    bind_to_object(&mut claims, &spec["boundObjectRef"], objects)?;
    let lifetime = SignedDuration::from_secs(lifetime);
    let account_name = claims.serviceaccount.name.clone();
    let claims = Claims::new(claims, audiences.clone(), now, lifetime);
    let token = authenticator.signer().sign(&claims);
    let expires = Timestamp::from_second((now + lifetime).as_second()).expect("a whole second of a valid time");
    body["apiVersion"] = "authentication.k8s.io/v1".into();
    body["kind"] = "TokenRequest".into();
    body["metadata"] = json!({"name": account_name, "namespace": namespace, "creationTimestamp": Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()});
    body["spec"]["audiences"] = audiences.into();
    body["spec"]["expirationSeconds"] = lifetime.as_secs().into();
    body["status"] = json!({"token": token, "expirationTimestamp": expires.to_string()});
    Ok((body, claims))
}

fn checked_lifetime(value: &Value) -> Result<i64, ApiError> {
    let wrong = |message: &str| invalid("TokenRequest", "expirationSeconds", value, message);
    match value.as_i64() {
        None => Err(wrong("must be a whole number")),
        Some(seconds) if seconds < MIN_LIFETIME => Err(wrong("may not specify a duration less than 10 minutes")),
        Some(seconds) if seconds > MAX_LIFETIME => Err(wrong("may not specify a duration larger than 2^32 seconds")),
        Some(seconds) => Ok(seconds),
    }
}

fn bind_to_object(claims: &mut KubernetesClaims, reference: &Value, objects: &dyn Objects) -> Result<(), ApiError> {
    if reference.is_null() {
        return Ok(());
    }
    let (kind, name, uid) = (text(&reference["kind"]), text(&reference["name"]), text(&reference["uid"]));
    let (resource, namespace) = match kind.as_str() {
        "Pod" => ("pods", claims.namespace.as_str()),
        "Secret" => ("secrets", claims.namespace.as_str()),
        "Node" => ("nodes", ""),
        _ => {
            let message = format!("cannot bind token for serviceaccount to object of type {kind:?}");
            return Err(ApiError::bad_request(message));
        }
    };
    let Some(current) = objects.uid(resource, namespace, &name) else {
        return Err(ApiError::not_found("", resource, &name));
    };
    if !uid.is_empty() && uid != current {
        let message =
            format!("the UID in the bound object reference ({uid}) does not match the UID in record ({current})");
        return Err(ApiError::conflict("", resource, &name, &message));
    }
    let bound = Some(Named { name, uid: current });
    match resource {
        "pods" => claims.pod = bound,
        "secrets" => claims.secret = bound,
        _ => claims.node = bound,
    }
    Ok(())
}

fn invalid(kind: &str, field: &str, value: &Value, message: &str) -> ApiError {
    let path = Path::Root;
    let spec = path.child("spec");
    let error = match value {
        Value::Null => FieldError::required(spec.child(field), message),
        value => FieldError::invalid(spec.child(field), value, message),
    };
    let group = if kind.starts_with("Token") { "authentication.k8s.io" } else { "authorization.k8s.io" };
    ApiError::invalid(group, kind, "", &[error])
}

/// A user as a `UserInfo` object of the API.
pub fn user_value(user: &UserInfo) -> Value {
    let mut out = Map::new();
    out.insert("username".into(), user.username.as_str().into());
    if !user.uid.is_empty() {
        out.insert("uid".into(), user.uid.as_str().into());
    }
    if !user.groups.is_empty() {
        out.insert("groups".into(), user.groups.clone().into());
    }
    if !user.extra.is_empty() {
        let extra: Map<String, Value> =
            user.extra.iter().map(|(key, values)| (key.clone(), values.clone().into())).collect();
        out.insert("extra".into(), extra.into());
    }
    Value::Object(out)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests;
