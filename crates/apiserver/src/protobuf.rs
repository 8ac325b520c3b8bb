//! The few request bodies that Go clients send as Kubernetes protobuf, turned into the JSON objects that they mean.
//!
//! Everything else in protobuf is refused with 415; answers are always JSON, which those clients accept.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use prost::Message;
use serde_json::{Map, Value, json};

use crate::status::ApiError;

pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// Every Kubernetes protobuf body starts like this.
const MAGIC: &[u8] = b"k8s\0";

#[derive(Clone, PartialEq, Message)]
struct TypeMeta {
    #[prost(string, tag = "1")]
    api_version: String,
    #[prost(string, tag = "2")]
    kind: String,
}

#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(message, optional, tag = "1")]
    type_meta: Option<TypeMeta>,
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct ObjectMeta {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    namespace: String,
}

#[derive(Clone, PartialEq, Message)]
struct TokenReviewSpec {
    #[prost(string, tag = "1")]
    token: String,
    #[prost(string, repeated, tag = "2")]
    audiences: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct BoundObject {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "2")]
    api_version: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    uid: String,
}

#[derive(Clone, PartialEq, Message)]
struct TokenRequestSpec {
    #[prost(string, repeated, tag = "1")]
    audiences: Vec<String>,
    #[prost(message, optional, tag = "3")]
    bound_object: Option<BoundObject>,
    #[prost(int64, optional, tag = "4")]
    expiration_seconds: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceAttributes {
    #[prost(string, tag = "1")]
    namespace: String,
    #[prost(string, tag = "2")]
    verb: String,
    #[prost(string, tag = "3")]
    group: String,
    #[prost(string, tag = "4")]
    version: String,
    #[prost(string, tag = "5")]
    resource: String,
    #[prost(string, tag = "6")]
    subresource: String,
    #[prost(string, tag = "7")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct PathAttributes {
    #[prost(string, tag = "1")]
    path: String,
    #[prost(string, tag = "2")]
    verb: String,
}

#[derive(Clone, PartialEq, Message)]
struct AccessReviewSpec {
    #[prost(message, optional, tag = "1")]
    resource: Option<ResourceAttributes>,
    #[prost(message, optional, tag = "2")]
    path: Option<PathAttributes>,
    /// The rest is of `SubjectAccessReview` only.
    #[prost(string, tag = "3")]
    user: String,
    #[prost(string, repeated, tag = "4")]
    groups: Vec<String>,
    #[prost(string, tag = "6")]
    uid: String,
}

#[derive(Clone, PartialEq, Message)]
struct RulesReviewSpec {
    #[prost(string, tag = "1")]
    namespace: String,
}

/// A review: metadata first, the question second.
#[derive(Clone, PartialEq, Message)]
struct Review {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(bytes = "vec", tag = "2")]
    spec: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Preconditions {
    #[prost(string, optional, tag = "1")]
    uid: Option<String>,
    #[prost(string, optional, tag = "2")]
    resource_version: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct DeleteOptions {
    #[prost(int64, optional, tag = "1")]
    grace_period_seconds: Option<i64>,
    #[prost(message, optional, tag = "2")]
    preconditions: Option<Preconditions>,
    #[prost(bool, optional, tag = "3")]
    orphan_dependents: Option<bool>,
    #[prost(string, optional, tag = "4")]
    propagation_policy: Option<String>,
    #[prost(string, repeated, tag = "5")]
    dry_run: Vec<String>,
}

/// Replaces a protobuf body by the JSON that it means; other bodies pass through.
pub(crate) fn to_json(parts: &mut Parts, body: Bytes) -> Result<Bytes, ApiError> {
    let given = parts.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if given.split(';').next().map(str::trim) != Some(MEDIA_TYPE) {
        return Ok(body);
    }
    // An empty body has nothing to decode, whatever it claims to be.
    let json = if body.is_empty() { body } else { decode(&body)?.to_string().into() };
    parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(json)
}

/// The object in a protobuf body.
pub fn decode(body: &[u8]) -> Result<Value, ApiError> {
    let broken = |error: prost::DecodeError| ApiError::bad_request(format!("the protobuf body is damaged: {error}"));
    let Some(body) = body.strip_prefix(MAGIC) else {
        return Err(ApiError::bad_request("the protobuf body does not start with the Kubernetes prefix"));
    };
    let envelope = Envelope::decode(body).map_err(broken)?;
    let TypeMeta { api_version, kind } = envelope.type_meta.unwrap_or_default();
    let raw = envelope.raw.as_slice();
    let object = match kind.as_str() {
        "DeleteOptions" => delete_options(DeleteOptions::decode(raw).map_err(broken)?),
        "TokenReview"
        | "TokenRequest"
        | "SelfSubjectAccessReview"
        | "SubjectAccessReview"
        | "SelfSubjectRulesReview" => {
            let review = Review::decode(raw).map_err(broken)?;
            let spec = spec(&kind, &review.spec).map_err(broken)?;
            let metadata = review.metadata.unwrap_or_default();
            json!({"metadata": texts([("name", metadata.name), ("namespace", metadata.namespace)]), "spec": spec})
        }
        // It has no question, only an answer.
        "SelfSubjectReview" => json!({"metadata": {}}),
        other => {
            let given = format!("{MEDIA_TYPE} ({other})");
            return Err(ApiError::unsupported_media_type(&given, &["application/json", "application/yaml"]));
        }
    };
    let mut object = object;
    object["apiVersion"] = api_version.into();
    object["kind"] = kind.into();
    Ok(object)
}

fn spec(kind: &str, bytes: &[u8]) -> Result<Value, prost::DecodeError> {
    Ok(match kind {
        "TokenReview" => {
            let spec = TokenReviewSpec::decode(bytes)?;
            json!({"token": spec.token, "audiences": spec.audiences})
        }
        "TokenRequest" => {
            let spec = TokenRequestSpec::decode(bytes)?;
            let mut out = json!({"audiences": spec.audiences});
            if let Some(seconds) = spec.expiration_seconds {
                out["expirationSeconds"] = seconds.into();
            }
            if let Some(bound) = spec.bound_object {
                let members =
                    [("kind", bound.kind), ("apiVersion", bound.api_version), ("name", bound.name), ("uid", bound.uid)];
                out["boundObjectRef"] = texts(members);
            }
            out
        }
        "SelfSubjectRulesReview" => json!({"namespace": RulesReviewSpec::decode(bytes)?.namespace}),
        _ => access_spec(AccessReviewSpec::decode(bytes)?),
    })
}

fn access_spec(spec: AccessReviewSpec) -> Value {
    let mut out = texts([("user", spec.user), ("uid", spec.uid)]);
    if !spec.groups.is_empty() {
        out["groups"] = spec.groups.into();
    }
    if let Some(wanted) = spec.resource {
        out["resourceAttributes"] = texts([
            ("namespace", wanted.namespace),
            ("verb", wanted.verb),
            ("group", wanted.group),
            ("version", wanted.version),
            ("resource", wanted.resource),
            ("subresource", wanted.subresource),
            ("name", wanted.name),
        ]);
    }
    if let Some(wanted) = spec.path {
        out["nonResourceAttributes"] = texts([("path", wanted.path), ("verb", wanted.verb)]);
    }
    out
}

fn delete_options(options: DeleteOptions) -> Value {
    let mut out = Map::new();
    if let Some(seconds) = options.grace_period_seconds {
        out.insert("gracePeriodSeconds".into(), seconds.into());
    }
    if let Some(conditions) = options.preconditions {
        let members = [
            ("uid", conditions.uid.unwrap_or_default()),
            ("resourceVersion", conditions.resource_version.unwrap_or_default()),
        ];
        out.insert("preconditions".into(), texts(members));
    }
    if let Some(orphan) = options.orphan_dependents {
        out.insert("orphanDependents".into(), orphan.into());
    }
    if let Some(policy) = options.propagation_policy {
        out.insert("propagationPolicy".into(), policy.into());
    }
    if !options.dry_run.is_empty() {
        out.insert("dryRun".into(), options.dry_run.into());
    }
    Value::Object(out)
}

/// The members that are not empty: protobuf does not tell an empty text from none.
fn texts<const N: usize>(members: [(&str, String); N]) -> Value {
    let present = members.into_iter().filter(|(_, value)| !value.is_empty());
    Value::Object(present.map(|(key, value)| (key.to_owned(), value.into())).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn body(api_version: &str, kind: &str, raw: Vec<u8>) -> Vec<u8> {
        let type_meta = Some(TypeMeta { api_version: api_version.into(), kind: kind.into() });
        let mut bytes = MAGIC.to_vec();
        Envelope { type_meta, raw }.encode(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_token_request_reads_as_its_json_form() {
        let spec = TokenRequestSpec {
            audiences: vec!["vault".into()],
            bound_object: Some(BoundObject {
                kind: "Pod".into(),
                api_version: "v1".into(),
                name: "p".into(),
                uid: String::new(),
            }),
            expiration_seconds: Some(900),
        };
        let review = Review { metadata: None, spec: spec.encode_to_vec() };
        let object = decode(&body("authentication.k8s.io/v1", "TokenRequest", review.encode_to_vec())).unwrap();
        assert_eq!(
            object,
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {},
                "spec": {"audiences": ["vault"], "expirationSeconds": 900, "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}}})
        );
    }

    #[test]
    fn delete_options_keep_what_is_set_and_nothing_else() {
        let options = DeleteOptions {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: Some("u".into()), resource_version: None }),
            propagation_policy: Some("Foreground".into()),
            ..DeleteOptions::default()
        };
        let object = decode(&body("v1", "DeleteOptions", options.encode_to_vec())).unwrap();
        assert_eq!(
            object,
            json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "preconditions": {"uid": "u"}, "propagationPolicy": "Foreground"})
        );
    }

    #[test]
    fn other_kinds_and_damaged_bodies_are_refused() {
        assert_eq!(decode(&body("v1", "Pod", Vec::new())).unwrap_err().code, 415);
        assert_eq!(decode(b"{}").unwrap_err().code, 400);
        assert_eq!(decode(&body("v1", "TokenReview", vec![0xff; 9])).unwrap_err().code, 400);
    }

    proptest! {
        #[test]
        fn arbitrary_bodies_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0usize..4) {
            let _ = decode(&bytes);
            let kinds = ["TokenReview", "TokenRequest", "SelfSubjectAccessReview", "DeleteOptions"];
            let _ = decode(&body("v1", kinds[kind], bytes));
        }
    }
}
