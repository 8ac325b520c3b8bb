//! Snapshots of sandboxes, which are templates of further sandboxes, and forks. They keep files, not processes.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_sandbox_api::keys::labels;
use agent_sandbox_api::snapshot::SandboxSnapshot;
use agent_sandbox_client as sdk;
use agent_sandbox_protocol::sandbox_address::Address;
use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ListParams};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::create::Plan;
use crate::error::Error;
use crate::lifecycle::{WAIT, end_after};
use crate::list::Page;
use crate::record::State;
use crate::server::Call;
use crate::source::without_default_tag;

/// The tag of every snapshot.
const TAG: &str = ":default";
/// Time after which the snapshot of a fork is deleted if this program ends before it could do so.
const FORK_SNAPSHOT_LIFE: Duration = Duration::from_secs(600);
/// Default time of a fork's sandboxes in seconds.
const DEFAULT_TIMEOUT: i64 = 15;
/// Number of sandboxes that one fork may make.
const MAX_COUNT: usize = 20;

const SNAPSHOT_MEMORY: &str = "processes cannot be part of a snapshot: ask for mode \"filesystem\", which keeps files \
                               only, or use a key of `agent-sandbox token e2b --pause-without-memory`";
const FORK_MEMORY: &str = "a fork copies files, not processes: use a key of `agent-sandbox token e2b \
                           --pause-without-memory`, or create sandboxes from a snapshot of mode \"filesystem\"";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct New {
    name: Option<String>,
    memory: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Fork {
    timeout: Option<i64>,
    count: Option<usize>,
}

impl Call<'_> {
    /// Takes a snapshot. A name that another snapshot has moves to the new one, and the old one is deleted.
    pub(crate) async fn take_snapshot(&self, id: &str) -> Result<Value, Error> {
        let new: New = self.json()?;
        let record = self.find(id).await?;
        if !self.accepts_files_only(new.memory) {
            return Err(Error::Unsupported(SNAPSHOT_MEMORY.to_owned()));
        }
        let name = new.name.as_deref().map(snapshot_name).transpose()?;
        let label = (labels::E2B_SNAPSHOT.to_owned(), name.unwrap_or_default().to_owned());
        let taken = self.snapshot_of(record.name(), BTreeMap::from([label]), None).await?;
        if let Some(name) = name {
            for old in self.snapshots_named(name).await? {
                if old.metadata.uid != taken.metadata.uid {
                    self.delete_snapshot_object(&old).await?;
                }
            }
        }
        Ok(shown(&taken))
    }

    async fn snapshot_of(
        &self,
        sandbox: &str,
        labels: BTreeMap<String, String>,
        expires_after: Option<Duration>,
    ) -> Result<SandboxSnapshot, Error> {
        let request = sdk::SnapshotRequest { sandbox: sandbox.to_owned(), name: None, labels, expires_after };
        Ok(sdk::take_snapshot(&self.account.client, &self.account.namespace, request, WAIT).await?)
    }

    /// The complete snapshots of the namespace, the newest first.
    pub(crate) async fn snapshots(&self) -> Result<Page, Error> {
        let (limit, after) = self.paging()?;
        let sandbox = self.parameter("sandboxID").filter(|text| !text.is_empty());
        let sandbox = match sandbox.as_deref().map(|id| Address::of_joined(id, 1)) {
            None => None,
            Some(Ok(address)) if address.namespace.as_str() == self.account.namespace => {
                Some(address.id.as_str().to_owned())
            }
            Some(_) => return Ok(Page { items: Vec::new(), next: None }),
        };
        let name = self.parameter("name").filter(|text| !text.is_empty());
        let name = name.as_deref().map(without_default_tag);
        let mut found = sdk::list_snapshots(&self.account.client, &self.account.namespace).await?;
        found.reverse();
        found.retain(|snapshot| {
            let object = snapshot.metadata.name.as_deref();
            is_usable(snapshot)
                && sandbox.as_ref().is_none_or(|sandbox| snapshot.spec.sandbox_name == *sandbox)
                && name.is_none_or(|name| given_name(snapshot) == Some(name) || object == Some(name))
        });
        let key = |snapshot: &SandboxSnapshot| {
            let created = snapshot.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
            (created, snapshot.metadata.name.clone().unwrap_or_default())
        };
        found.sort_by_cached_key(|snapshot| std::cmp::Reverse(key(snapshot)));
        let page = Page::of(found, key, |key| after.as_ref().is_none_or(|after| key < after), Some(limit));
        Ok(page.map(|snapshot| object(shown(snapshot))))
    }

    /// The snapshot that a template's name stands for. An account without rights on snapshots has none.
    pub(crate) async fn snapshot_by_name(&self, name: &str) -> Result<Option<SandboxSnapshot>, Error> {
        let found = async {
            match self.snapshot_api().get_opt(name).await?.filter(is_usable) {
                Some(found) => Ok(Some(found)),
                None => Ok(self.snapshots_named(name).await?.into_iter().find(is_usable)),
            }
        };
        match found.await {
            Err(Error::Forbidden(_)) => Ok(None),
            found => found,
        }
    }

    async fn snapshots_named(&self, name: &str) -> Result<Vec<SandboxSnapshot>, Error> {
        let named = ListParams::default().labels(&format!("{}={name}", labels::E2B_SNAPSHOT));
        match self.snapshot_api().list(&named).await {
            Ok(list) => Ok(list.items),
            // A cluster without the kind.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes a snapshot under the name of a template; false if there is none.
    pub(crate) async fn delete_snapshot(&self, name: &str) -> Result<bool, Error> {
        match self.snapshot_by_name(without_default_tag(name)).await? {
            Some(found) => self.delete_snapshot_object(&found).await.map(|()| true),
            None => Ok(false),
        }
    }

    async fn delete_snapshot_object(&self, snapshot: &SandboxSnapshot) -> Result<(), Error> {
        let name = snapshot.metadata.name.as_deref().unwrap_or_default();
        match sdk::delete_snapshot(&self.account.client, &self.account.namespace, name).await {
            Ok(()) | Err(sdk::ClientError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes copies of a running sandbox; each succeeds or fails by itself.
    pub(crate) async fn fork(&self, id: &str) -> Result<Vec<Value>, Error> {
        let wanted: Fork = self.json()?;
        let count = wanted.count.unwrap_or(1);
        if !(1..=MAX_COUNT).contains(&count) {
            return Err(Error::Invalid(format!("count {count} is not between 1 and {MAX_COUNT}")));
        }
        let end = end_after(wanted.timeout.unwrap_or(DEFAULT_TIMEOUT))?;
        let record = self.find(id).await?;
        if !self.accepts_files_only(None) {
            return Err(Error::Unsupported(FORK_MEMORY.to_owned()));
        }
        if record.state(Timestamp::now()) == State::Paused {
            return Err(Error::Conflict(format!("sandbox {id:?} is paused")));
        }
        let plans: Vec<Plan> = (0..count).map(|_| self.plan_like(&record, end)).collect::<Result<_, _>>()?;
        let snapshot = self.snapshot_of(record.name(), BTreeMap::new(), Some(FORK_SNAPSHOT_LIFE)).await?;
        let mut untold = Untold {
            client: self.account.client.clone(),
            namespace: self.account.namespace.clone(),
            names: plans.iter().map(|plan| plan.name().to_owned()).collect(),
        };
        let copies = plans.iter().map(|plan| async {
            self.create_from(plan, &snapshot).await?;
            let gone = || Error::Internal(format!("sandbox {:?} was deleted while it was created", plan.name()));
            Ok(self.record(plan.name()).await?.ok_or_else(gone)?.connection(self.settings))
        });
        let copies: Vec<Result<Value, Error>> = futures::future::join_all(copies).await;
        // A snapshot that is left ends by itself; the copies run already.
        let _ = self.delete_snapshot_object(&snapshot).await;
        let mut made = copies.iter().map(Result::is_ok);
        untold.names.retain(|_| made.next() != Some(true));
        let answer = |copy: Result<Value, Error>| match copy {
            Ok(sandbox) => json!({ "sandbox": sandbox }),
            Err(error) => json!({ "error": error.body() }),
        };
        Ok(copies.into_iter().map(answer).collect())
    }

    fn snapshot_api(&self) -> Api<SandboxSnapshot> {
        Api::namespaced(self.account.client.clone(), &self.account.namespace)
    }
}

/// Sandboxes that no client has been told of. They are deleted when this is dropped: a client that leaves in the middle
/// of a fork could not use them. What cannot be deleted ends at its time.
struct Untold {
    client: Client,
    namespace: String,
    names: Vec<String>,
}

impl Drop for Untold {
    fn drop(&mut self) {
        let names = std::mem::take(&mut self.names);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if names.is_empty() {
            return;
        }
        let (client, namespace) = (self.client.clone(), std::mem::take(&mut self.namespace));
        runtime.spawn(async move {
            futures::future::join_all(names.iter().map(|name| sdk::delete(&client, &namespace, name))).await;
        });
    }
}

/// Whether sandboxes can be made from it.
fn is_usable(snapshot: &SandboxSnapshot) -> bool {
    snapshot.is_ready() && snapshot.metadata.deletion_timestamp.is_none()
}

/// The name that a client gave a snapshot.
fn given_name(snapshot: &SandboxSnapshot) -> Option<&str> {
    let label = snapshot.metadata.labels.as_ref()?.get(labels::E2B_SNAPSHOT)?;
    (!label.is_empty()).then_some(label)
}

/// What clients are shown of a snapshot.
fn shown(snapshot: &SandboxSnapshot) -> Value {
    let name = given_name(snapshot);
    let id = name.or(snapshot.metadata.name.as_deref()).unwrap_or_default();
    let names: Vec<String> = name.map(|name| format!("{name}{TAG}")).into_iter().collect();
    json!({ "snapshotID": format!("{id}{TAG}"), "names": names })
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

/// A name that fits into a label, without the tag that every snapshot has.
fn snapshot_name(given: &str) -> Result<&str, Error> {
    let name = without_default_tag(given);
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let ends = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    match bytes.len() <= 63 && bytes.iter().all(|&byte| inner(byte)) && ends(bytes.first()) && ends(bytes.last()) {
        true => Ok(name),
        false => Err(Error::Invalid(format!(
            "snapshot name {given:?}: use at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both \
             ends; the only tag is {:?}",
            &TAG[1..]
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::client::Body;

    /// E-045
    #[tokio::test]
    async fn copies_that_no_client_is_told_of_are_deleted() {
        let (asked, mut requests) = tokio::sync::mpsc::unbounded_channel();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            asked.send(format!("{} {}", request.method(), request.uri().path())).unwrap();
            let deleted = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success" });
            async move { Ok::<_, std::io::Error>(http::Response::new(Body::from(deleted.to_string().into_bytes()))) }
        });
        let client = Client::new(service, "default");
        let untold = |names: &[&str]| Untold {
            client: client.clone(),
            namespace: "team".to_owned(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        drop(untold(&[]));
        drop(untold(&["one"]));
        let claims = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/team/sandboxclaims";
        assert_eq!(requests.recv().await.unwrap(), format!("DELETE {claims}/one"), "a Sandbox or its claim");
    }

    /// E-044
    #[test]
    fn a_name_fits_into_a_label() {
        for (given, name) in [("mine", "mine"), ("mine:default", "mine"), ("A.b_c-1:latest", "A.b_c-1")] {
            assert_eq!(snapshot_name(given).unwrap(), name);
        }
        for given in ["", ":default", "team/mine", "mine:v2", "-a", "a.", &"a".repeat(64), "ä"] {
            assert!(matches!(snapshot_name(given), Err(Error::Invalid(_))), "{given}");
        }
    }

    /// E-044
    #[test]
    fn a_snapshot_is_shown_with_its_tag() {
        let mut snapshot = SandboxSnapshot::default();
        snapshot.metadata.name = Some("box-1".to_owned());
        assert_eq!(shown(&snapshot), json!({ "snapshotID": "box-1:default", "names": [] }));
        snapshot.metadata.labels = Some(BTreeMap::from([(labels::E2B_SNAPSHOT.to_owned(), "mine".to_owned())]));
        assert_eq!(shown(&snapshot), json!({ "snapshotID": "mine:default", "names": ["mine:default"] }));
    }
}
