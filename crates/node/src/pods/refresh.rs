//! When the files of a Pod's volumes have to be written again: an object they come from changed, or a token grows old.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{BoxStream, SelectAll};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, PodSpec, Secret};
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};

use super::sources::{Sources, wanted_by_volumes};

/// Changes that come close together are one change.
const SETTLE: Duration = Duration::from_millis(300);
/// A clock that moves, or a token without an end, must not make the node look every moment.
const AT_MOST_EVERY: Duration = Duration::from_secs(10);

/// Which kind of object files come from.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Kind {
    ConfigMap,
    Secret,
}

/// The versions files were written from; `None` is an object that did not exist.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Versions {
    objects: BTreeMap<(Kind, String), Option<String>>,
    /// When the first of its tokens should be renewed.
    renew_at: Option<Timestamp>,
}

impl Versions {
    /// The versions of what was read for the volumes of a spec.
    pub fn of(spec: &PodSpec, sources: &Sources) -> Self {
        let wanted = wanted_by_volumes(spec);
        let maps = wanted.config_maps.into_iter().map(|name| {
            let version = sources.config_maps.get(&name).and_then(|o| o.metadata.resource_version.clone());
            ((Kind::ConfigMap, name), version)
        });
        let secrets = wanted.secrets.into_iter().map(|name| {
            let version = sources.secrets.get(&name).and_then(|o| o.metadata.resource_version.clone());
            ((Kind::Secret, name), version)
        });
        Self { objects: maps.chain(secrets).collect(), renew_at: sources.renew_at }
    }

    /// Nothing that could change.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.renew_at.is_none()
    }

    fn differs(&self, kind: Kind, name: &str, now: Option<&str>) -> bool {
        let known = self.objects.get(&(kind, name.to_owned()));
        known.is_some_and(|version| version.as_deref() != now)
    }
}

/// What was seen of one object: its version now.
type Seen = (Kind, String, Option<String>);

/// Resolves when files written from these versions are out of date.
pub async fn outdated(client: kube::Client, namespace: String, versions: Versions) {
    let mut changes: SelectAll<BoxStream<'static, Seen>> = SelectAll::new();
    for (kind, name) in versions.objects.keys() {
        changes.push(match kind {
            Kind::ConfigMap => watch::<ConfigMap>(&client, &namespace, *kind, name),
            Kind::Secret => watch::<Secret>(&client, &namespace, *kind, name),
        });
    }
    let change = async {
        while let Some((kind, name, version)) = changes.next().await {
            if versions.differs(kind, &name, version.as_deref()) {
                return tokio::time::sleep(SETTLE).await;
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
    tokio::time::sleep(left.max(AT_MOST_EVERY)).await;
}

/// The versions of one object as they come. Only this object is asked for: a node may not list others.
fn watch<K>(client: &kube::Client, namespace: &str, kind: Kind, name: &str) -> BoxStream<'static, Seen>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + serde::de::DeserializeOwned
        + std::fmt::Debug
        + Send
        + 'static,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let name = name.to_owned();
    let mut listed = false;
    let seen = watcher(api, only).default_backoff().filter_map(move |event| {
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
    fn only_what_files_come_from_makes_them_old() {
        let spec: PodSpec = serde_json::from_value(json!({"containers": [{"name": "a", "envFrom": [
                {"configMapRef": {"name": "env"}}]}],
            "volumes": [{"name": "v", "configMap": {"name": "files"}}, {"name": "s", "secret": {"secretName": "none"}}]}))
        .unwrap();
        let mut sources = Sources::default();
        let map = json!({"metadata": {"name": "files", "resourceVersion": "7"}});
        sources.config_maps.insert("files".into(), serde_json::from_value(map).unwrap());
        let versions = Versions::of(&spec, &sources);
        assert!(!versions.is_empty());
        assert!(!versions.differs(Kind::ConfigMap, "files", Some("7")));
        assert!(versions.differs(Kind::ConfigMap, "files", Some("8")));
        assert!(versions.differs(Kind::ConfigMap, "files", None), "deleted");
        assert!(!versions.differs(Kind::Secret, "none", None));
        assert!(versions.differs(Kind::Secret, "none", Some("1")), "appeared");
        assert!(!versions.differs(Kind::ConfigMap, "env", Some("9")), "variables are fixed when a container starts");
    }
}
