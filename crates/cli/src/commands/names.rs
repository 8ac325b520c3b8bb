//! Names that users type and nobody has: with a suggestion where one is near.

use agent_sandbox_api::v1beta1::{Sandbox, SandboxClaim};
use agent_sandbox_client::ClientError;
use anyhow::Error;
use kube::{Api, Client, ResourceExt, api::ListParams};

/// One typo is always forgiven, and one more for so many letters.
const LETTERS_PER_TYPO: usize = 5;

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
    let measured = known.iter().map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate));
    let (distance, best) = measured.min_by_key(|(distance, _)| *distance)?;
    (distance <= 1 + name.chars().count() / LETTERS_PER_TYPO).then_some(best.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_near_name_is_suggested() {
        let known = ["my-sandbox".to_owned(), "database".to_owned()];
        assert_eq!(nearest("my-sanbox", &known), Some("my-sandbox"));
        assert_eq!(nearest("datbaes", &known), Some("database"));
        assert_eq!(nearest("zzz", &known), None);
    }
}
