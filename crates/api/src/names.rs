//! Names of child objects, and the hashes that represent names in labels.

use serde_json::Value;

use crate::keys::labels;
use crate::template::{PodTemplate, VolumeClaimTemplate};

/// Prefix of the pool that stands for "any pool of this template" in claims converted from v1alpha1.
pub const SHADOW_POOL_PREFIX: &str = "shadow-pool-";

/// Characters of the random part of a pool member's name: those of Kubernetes' `generateName`.
pub const SUFFIX_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
/// Length of the random part of a pool member's name.
pub const SUFFIX_LENGTH: usize = 5;
/// Maximum number of characters of the prefix that `generateName` keeps.
const GENERATED_PREFIX_LENGTH: usize = 58;

/// 32-bit FNV-1a of a name, as eight lower-case hex digits.
pub fn name_hash(name: &str) -> String {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{hash:08x}")
}

/// The selector string of a Sandbox's status, which clients split at its only `=`.
pub fn sandbox_selector(sandbox: &str) -> String {
    format!("{}={}", labels::SANDBOX_NAME_HASH, name_hash(sandbox))
}

/// The selector string of a pool's status.
pub fn pool_selector(pool: &str) -> String {
    format!("{}={}", labels::WARM_POOL_SANDBOX, name_hash(pool))
}

/// The name of the PVC for one of a Sandbox's `volumeClaimTemplates`.
pub fn volume_claim(volume: &str, sandbox: &str) -> String {
    format!("{volume}-{sandbox}")
}

/// The stable DNS name of a Sandbox's headless Service.
pub fn service_fqdn(service: &str, namespace: &str, cluster_domain: &str) -> String {
    format!("{service}.{namespace}.svc.{cluster_domain}")
}

/// The NetworkPolicy of a template; also the legacy one of a claim.
pub fn network_policy(owner: &str) -> String {
    format!("{owner}-network-policy")
}

/// The pool that stands for "any pool of this template".
pub fn shadow_pool(template: &str) -> String {
    format!("{SHADOW_POOL_PREFIX}{template}")
}

/// The template behind a shadow pool's name.
pub fn shadow_pool_template(pool: &str) -> Option<&str> {
    pool.strip_prefix(SHADOW_POOL_PREFIX)
}

/// The `generateName` of a pool's members.
pub fn pool_member_prefix(pool: &str) -> String {
    format!("{pool}-")
}

/// A pool member's name, in the form of the server's `generateName`, from random bytes given by the caller.
pub fn pool_member(pool: &str, random: [u8; SUFFIX_LENGTH]) -> String {
    let prefix = pool_member_prefix(pool);
    let mut name: String = prefix.chars().take(GENERATED_PREFIX_LENGTH).collect();
    name.extend(random.iter().map(|byte| char::from(SUFFIX_ALPHABET[usize::from(*byte) % SUFFIX_ALPHABET.len()])));
    name
}

/// A Sandbox's name without its last segment: the pool it came from, unless the pool's name was truncated.
pub fn without_last_segment(sandbox: &str) -> &str {
    sandbox.rsplit_once('-').map_or(sandbox, |(pool, _)| pool)
}

/// Hash of a blueprint (`sandbox-template-hash`).
///
/// Used only as a fast path: upstream hashes Go's JSON text and this function hashes JSON with sorted keys, so both
/// implementations compare the blueprints themselves when the labels differ.
pub fn blueprint_hash(
    pod_template: &PodTemplate,
    volume_claim_templates: &[VolumeClaimTemplate],
    service: Option<bool>,
) -> String {
    let mut blueprint = serde_json::json!({ "podTemplate": pod_template });
    if !volume_claim_templates.is_empty() {
        blueprint["volumeClaimTemplates"] = serde_json::json!(volume_claim_templates);
    }
    if let Some(service) = service {
        blueprint["service"] = Value::Bool(service);
    }
    name_hash(&canonical(&blueprint))
}

/// Hash of a Pod template alone (`sandbox-pod-template-hash`).
pub fn pod_template_hash(pod_template: &PodTemplate) -> String {
    name_hash(&canonical(&serde_json::json!(pod_template)))
}

/// JSON text with keys in order at every level, whatever map type `serde_json` was built with.
fn canonical(value: &Value) -> String {
    fn write(value: &Value, out: &mut String) {
        match value {
            Value::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                entries.sort_unstable_by_key(|(key, _)| *key);
                out.push('{');
                for (index, (key, value)) in entries.into_iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    out.push_str(&Value::from(key.as_str()).to_string());
                    out.push(':');
                    write(value, out);
                }
                out.push('}');
            }
            Value::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    write(item, out);
                }
                out.push(']');
            }
            leaf => out.push_str(&leaf.to_string()),
        }
    }
    let mut out = String::new();
    write(value, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The example values of both contracts.
    #[test]
    fn name_hash_gives_the_example_values() {
        for (name, hash) in [
            ("", "811c9dc5"),
            ("a", "e40c292c"),
            ("b", "e70c2de5"),
            ("foobar", "bf9cf968"),
            ("my-sandbox", "374de8f5"),
            ("sandbox-name", "ab179450"),
            ("vct-sandbox", "6936fe48"),
            ("sandbox-name-with-a-very-long-label-value", "0a9ed996"),
            ("sandbox", "da1fd924"),
            ("costarring", "5e4daa9d"),
            ("liquid", "5e4daa9d"),
            ("test-template", "69155462"),
            ("other-template", "c349d772"),
            ("test-pool", "59733166"),
            ("python-sandbox-template", "d274c066"),
            ("python-warmpool", "99619c39"),
            ("python-sdk-warmpool", "d937650a"),
            ("secure-datascience-template", "16901744"),
            ("sandboxwarmpool-example", "11ea0998"),
            ("shadow-pool-upgrade-template-cold", "aaa2d391"),
        ] {
            assert_eq!(name_hash(name), hash, "{name}");
        }
    }

    /// The example values for blueprints: upstream hashes its own JSON text with the same function.
    #[test]
    fn name_hash_of_upstreams_blueprint_texts_gives_the_example_values() {
        for (text, hash) in [
            (
                r#"{"podTemplate":{"spec":{"containers":[{"name":"test-container","image":"test-image","resources":{}}]},"metadata":{}}}"#,
                "c972d31f",
            ),
            (
                r#"{"spec":{"containers":[{"name":"test-container","image":"test-image","resources":{}}]},"metadata":{}}"#,
                "2473a66c",
            ),
            (
                r#"{"podTemplate":{"spec":{"containers":[{"name":"pause","image":"registry.k8s.io/pause:3.10","resources":{}}]},"metadata":{}}}"#,
                "ef56b0f7",
            ),
            (
                r#"{"podTemplate":{"spec":{"containers":[{"name":"pause","image":"registry.k8s.io/pause:3.10","resources":{}}]},"metadata":{"labels":{"initial-label":"value"}}}}"#,
                "a0bd73a8",
            ),
            (
                r#"{"podTemplate":{"spec":{"containers":[{"name":"app","image":"test","resources":{}}]},"metadata":{}},"volumeClaimTemplates":[{"metadata":{"name":"data"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}],"service":true}"#,
                "5df85c7c",
            ),
            (
                r#"{"podTemplate":{"spec":{"containers":[{"name":"python-runtime","image":"img","ports":[{"containerPort":8888,"protocol":"TCP"}],"resources":{}}]},"metadata":{}}}"#,
                "02573866",
            ),
        ] {
            assert_eq!(name_hash(text), hash, "{text}");
        }
    }

    #[test]
    fn children_are_named_after_their_owner() {
        assert_eq!(sandbox_selector("my-sandbox"), "agents.x-k8s.io/sandbox-name-hash=374de8f5");
        assert_eq!(pool_selector("test-pool"), "agents.x-k8s.io/warm-pool-sandbox=59733166");
        assert_eq!(volume_claim("data", "vct-sandbox"), "data-vct-sandbox");
        assert_eq!(service_fqdn("s", "n", "cluster.local"), "s.n.svc.cluster.local");
        assert_eq!(network_policy("t"), "t-network-policy");
        assert_eq!(shadow_pool_template(&shadow_pool("t")), Some("t"));
        assert_eq!(shadow_pool_template("t"), None);
        assert_eq!(without_last_segment("my-pool-abcde"), "my-pool");
        assert_eq!(without_last_segment("nodash"), "nodash");
    }

    #[test]
    fn pool_members_look_like_generated_names() {
        let name = pool_member("test-pool", [0, 1, 26, 27, 255]);
        assert_eq!(name, "test-pool-bc9bq");
        assert_eq!(pool_member(&"p".repeat(80), [0; 5]).len(), 63);
    }

    #[test]
    fn blueprint_hash_follows_content_and_not_the_order_of_keys() {
        let template = |spec: Value| PodTemplate { spec: spec.into(), metadata: None };
        let one = template(serde_json::from_str(r#"{"a":{"x":1,"y":2},"b":[1]}"#).expect("valid"));
        let two = template(serde_json::from_str(r#"{"b":[1],"a":{"y":2,"x":1}}"#).expect("valid"));
        let three = template(json!({"a": {"x": 1, "y": 3}, "b": [1]}));
        assert_eq!(blueprint_hash(&one, &[], None), blueprint_hash(&two, &[], None));
        assert_ne!(blueprint_hash(&one, &[], None), blueprint_hash(&three, &[], None));
        assert_ne!(blueprint_hash(&one, &[], None), blueprint_hash(&one, &[], Some(false)));
        assert_ne!(blueprint_hash(&one, &[], None), blueprint_hash(&one, &[VolumeClaimTemplate::default()], None));
        assert_eq!(pod_template_hash(&one), pod_template_hash(&two));
        assert_eq!(pod_template_hash(&one).len(), 8);
    }
}
