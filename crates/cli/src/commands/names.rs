//! Names and values that users type: checked before anything is sent, with a suggestion where one is near.

use agent_sandbox_api::v1beta1::{Sandbox, SandboxClaim};
use agent_sandbox_client::ClientError;
use anyhow::{Error, Result, bail};
use kube::{Api, Client, ResourceExt, api::ListParams};

/// Names further apart than this are not what the user meant.
const SIMILAR: f64 = 0.7;

/// A DNS-1123 subdomain, as Kubernetes wants names.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let label = |part: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-')
    };
    if name.len() > 253 || !name.split('.').all(label) {
        bail!("`{name}` is not a valid name: use lower-case letters, digits and `-`, for example my-sandbox");
    }
    Ok(())
}

/// `NAME=VALUE` pairs.
pub(crate) fn environment(pairs: &[String]) -> Result<Vec<(String, String)>> {
    pairs
        .iter()
        .map(|pair| match pair.split_once('=') {
            Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
            _ => bail!("`{pair}` is not NAME=VALUE"),
        })
        .collect()
}

/// Adds "did you mean" to an error about a name that does not exist.
pub(crate) async fn with_suggestion(client: &Client, namespace: &str, error: ClientError) -> Error {
    let ClientError::NotFound { name, .. } = &error else { return error.into() };
    let name = name.clone();
    let everything = ListParams::default();
    let sandboxes: Api<Sandbox> = Api::namespaced(client.clone(), namespace);
    let claims: Api<SandboxClaim> = Api::namespaced(client.clone(), namespace);
    let mut known: Vec<String> = Vec::new();
    known.extend(sandboxes.list(&everything).await.into_iter().flatten().map(|sandbox| sandbox.name_any()));
    known.extend(claims.list(&everything).await.into_iter().flatten().map(|claim| claim.name_any()));
    match nearest(&name, &known) {
        Some(near) => anyhow::anyhow!("{error}\n  did you mean `{near}`?"),
        None => anyhow::anyhow!("{error}\n  `agent-sandbox list` shows what there is"),
    }
}

fn nearest<'a>(name: &str, known: &'a [String]) -> Option<&'a str> {
    let scored = known.iter().map(|candidate| (strsim::jaro_winkler(name, candidate), candidate));
    let (score, best) = scored.max_by(|left, right| left.0.total_cmp(&right.0))?;
    (score >= SIMILAR).then_some(best.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_kubernetes_rules() {
        assert!(check_name("my-sandbox.v1").is_ok());
        for wrong in ["", "My", "a_b", "-a", "a-", "a..b", &"a".repeat(254)] {
            assert!(check_name(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn environment_pairs_need_an_equals_sign() {
        assert_eq!(environment(&["A=b=c".into()]).unwrap(), [("A".to_owned(), "b=c".to_owned())]);
        assert!(environment(&["A".into()]).is_err() && environment(&["=b".into()]).is_err());
    }

    #[test]
    fn only_a_near_name_is_suggested() {
        let known = ["my-sandbox".to_owned(), "database".to_owned()];
        assert_eq!(nearest("my-sanbox", &known), Some("my-sandbox"));
        assert_eq!(nearest("zzz", &known), None);
    }
}
