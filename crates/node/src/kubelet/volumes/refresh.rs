//! Waits until the files of a Pod's volumes must be written again: a source object changed, or a token is due for
//! renewal.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{BoxStream, SelectAll};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, PodSpec, Secret};
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};

use crate::kubelet::references::{Sources, referenced_by_volumes};

/// Delay after a change, so that changes in quick succession cause one refresh.
const COALESCE_DELAY: Duration = Duration::from_millis(300);
/// Minimum time before a token is renewed, so that a clock change or a wrong expiry does not cause a busy loop.
const MIN_RENEWAL_INTERVAL: Duration = Duration::from_secs(10);

/// The kind of a source object.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum SourceKind {
    ConfigMap,
    Secret,
}

/// The resourceVersions of the source objects from which files were written; `None` for an object that did not exist.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Versions {
    objects: BTreeMap<(SourceKind, String), Option<String>>,
    /// When the first of the tokens must be renewed.
    renew_at: Option<Timestamp>,
}

impl Versions {
    /// The versions of the objects that were read for the volumes of a spec.
    pub fn of(spec: &PodSpec, sources: &Sources) -> Self {
        let names = referenced_by_volumes(spec);
        let maps = names.config_maps.into_iter().map(|name| {
            let version = sources.config_maps.get(&name).and_then(|o| o.metadata.resource_version.clone());
            ((SourceKind::ConfigMap, name), version)
        });
        let secrets = names.secrets.into_iter().map(|name| {
            let version = sources.secrets.get(&name).and_then(|o| o.metadata.resource_version.clone());
            ((SourceKind::Secret, name), version)
        });
        Self { objects: maps.chain(secrets).collect(), renew_at: sources.renew_at }
    }

    /// Whether there is nothing that could change.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.renew_at.is_none()
    }

    fn differs(&self, kind: SourceKind, name: &str, now: Option<&str>) -> bool {
        let known = self.objects.get(&(kind, name.to_owned()));
        known.is_some_and(|version| version.as_deref() != now)
    }
}

/// A version of a source object, as seen by a watch.
type Seen = (SourceKind, String, Option<String>);

/// Resolves when files that were written from these versions are outdated.
pub async fn wait_until_outdated(client: kube::Client, namespace: String, versions: Versions) {
    let mut changes: SelectAll<BoxStream<'static, Seen>> = SelectAll::new();
    for (kind, name) in versions.objects.keys() {
        changes.push(match kind {
            SourceKind::ConfigMap => watch::<ConfigMap>(&client, &namespace, *kind, name),
            SourceKind::Secret => watch::<Secret>(&client, &namespace, *kind, name),
        });
    }
    let change = async {
        while let Some((kind, name, version)) = changes.next().await {
            if versions.differs(kind, &name, version.as_deref()) {
                return tokio::time::sleep(COALESCE_DELAY).await;
            }
        }
        std::future::pending().await
    };
    tokio::select! {
        () = change => {}
        () = until(versions.renew_at) => {}
    }
}

async fn until(at: Option<Timestamp>) {
    let Some(at) = at else { return std::future::pending().await };
    let left = Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default();
    tokio::time::sleep(left.max(MIN_RENEWAL_INTERVAL)).await;
}

/// Watches the versions of one object. The watch is restricted to it, because a node may not list other objects.
fn watch<K>(client: &kube::Client, namespace: &str, kind: SourceKind, name: &str) -> BoxStream<'static, Seen>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug
        + Send
        + 'static,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let only_this_object = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let name = name.to_owned();
    let mut listed = false;
    let seen = watcher(api, only_this_object).default_backoff().filter_map(move |event| {
        let version = |object: &K| object.meta().resource_version.clone();
        let now = match event {
            Ok(watcher::Event::Init) => {
                listed = false;
                None
            }
            Ok(watcher::Event::InitApply(object)) => {
                listed = true;
                Some(version(&object))
            }
            Ok(watcher::Event::Apply(object)) => Some(version(&object)),
            Ok(watcher::Event::InitDone) if listed => None,
            Ok(watcher::Event::InitDone | watcher::Event::Delete(_)) => Some(None),
            Err(_) => None,
        };
        let seen = now.map(|version| (kind, name.clone(), version));
        async move { seen }
    });
    seen.boxed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_changes_of_source_objects_make_files_outdated() {
        let spec: PodSpec = serde_json::from_value(json!({"containers": [{"name": "a", "envFrom": [
                {"configMapRef": {"name": "env"}}]}],
            "volumes": [{"name": "v", "configMap": {"name": "files"}}, {"name": "s", "secret": {"secretName": "none"}}]}))
        .unwrap();
        let mut sources = Sources::default();
        let map = json!({"metadata": {"name": "files", "resourceVersion": "7"}});
        sources.config_maps.insert("files".into(), serde_json::from_value(map).unwrap());
        let versions = Versions::of(&spec, &sources);
        assert!(!versions.is_empty());
        assert!(!versions.differs(SourceKind::ConfigMap, "files", Some("7")));
        assert!(versions.differs(SourceKind::ConfigMap, "files", Some("8")));
        assert!(versions.differs(SourceKind::ConfigMap, "files", None), "deleted");
        assert!(!versions.differs(SourceKind::Secret, "none", None));
        assert!(versions.differs(SourceKind::Secret, "none", Some("1")), "appeared");
        assert!(
            !versions.differs(SourceKind::ConfigMap, "env", Some("9")),
            "variables are fixed when a container starts"
        );
    }
}
