//! What a template's name stands for: a pool or a template of the account's namespace, one of the templates that every
//! engine has, a snapshot, or an image.

use agent_sandbox_api::v1beta1::{SandboxTemplate, SandboxWarmPool};
use agent_sandbox_protocol::router_headers::is_dns_label;
use kube::Api;

use crate::error::Error;
use crate::server::Call;

/// Templates that exist without an object.
pub(crate) const BUILT_IN: [&str; 2] = ["base", "code-interpreter-v1"];
/// The tag that clients may add to a template's name.
const DEFAULT_TAGS: [&str; 2] = [":default", ":latest"];

/// Where a new sandbox comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Pool(String),
    Template(String),
    Image(String),
    /// A snapshot, by the name of its object.
    Snapshot(String),
}

/// A template's name without the tag that stands for its newest version.
pub(crate) fn without_default_tag(name: &str) -> &str {
    DEFAULT_TAGS.iter().find_map(|tag| name.strip_suffix(tag)).unwrap_or(name)
}

impl Call<'_> {
    /// Resolves a template's name, before anything is created.
    pub(crate) async fn source(&self, template: &str) -> Result<Source, Error> {
        let name = without_default_tag(template);
        if is_dns_label(name.as_bytes()) {
            let (client, namespace) = (&self.account.client, &self.account.namespace);
            let pools: Api<SandboxWarmPool> = Api::namespaced(client.clone(), namespace);
            let templates: Api<SandboxTemplate> = Api::namespaced(client.clone(), namespace);
            let (pool, found) = tokio::try_join!(pools.get_metadata_opt(name), templates.get_metadata_opt(name))?;
            if found.is_some() {
                return Ok(Source::Template(name.to_owned()));
            }
            if pool.is_some() {
                return Ok(Source::Pool(name.to_owned()));
            }
        }
        if let Some(image) = self.settings.base_image.as_ref().filter(|_| BUILT_IN.contains(&name)) {
            return Ok(Source::Image(image.clone()));
        }
        let snapshot = match name.contains(['/', ':', '@']) || name.is_empty() {
            true => None,
            false => self.snapshot_by_name(name).await?,
        };
        match (snapshot.and_then(|snapshot| snapshot.metadata.name), is_image(template)) {
            (Some(object), _) => Ok(Source::Snapshot(object)),
            (None, true) => Ok(Source::Image(template.to_owned())),
            _ => Err(Error::NotFound(format!(
                "template {template:?} not found: there is no SandboxTemplate, SandboxWarmPool or snapshot of this \
                 name in namespace {:?}, and it is not an image (which has a '/' or a ':')",
                self.account.namespace
            ))),
        }
    }
}

/// Whether a name can only be meant as an image.
fn is_image(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b'/' | b':' | b'@');
    name.contains(['/', ':'])
        && name.bytes().all(plain)
        && name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_a_slash_or_a_tag() {
        for image in ["python:3.12", "docker.io/library/python", "localhost:5000/x@sha256:00"] {
            assert!(is_image(image), "{image}");
        }
        for other in ["base", "", "/etc/passwd", "a b:c", "../x"] {
            assert!(!is_image(other), "{other}");
        }
    }
}
