//! Keys of E2B's clients. A key is random; what is stored is a Secret whose name is derived from the key's digest and
//! whose annotations name a ServiceAccount. Only administrators write in the namespace of these Secrets.

use agent_sandbox_api::keys::annotations;
use agent_sandbox_client::ROUTER_NAMESPACE;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::create::hex;

/// The account that a key is for unless another one is named.
pub const ACCOUNT: &str = "e2b";
/// What every key begins with.
pub const PREFIX: &str = "e2b_";
/// What the id of every key begins with.
pub const ID_PREFIX: &str = "e2b-";
/// Type of the Secrets.
const TYPE: &str = "agent-sandbox.github.io/e2b-key";
/// Value of [`annotations::E2B_PAUSE`].
const PAUSE_FILES: &str = "Files";
/// Digits of a key's id after the prefix.
const ID_DIGITS: usize = 20;

/// Why a key could not be created, listed or revoked.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("there is no ServiceAccount {name:?} in namespace {namespace:?}")]
    NoAccount { namespace: String, name: String },
    #[error("there is no key {0:?}; `agent-sandbox token list` shows the ids, and the key itself can be given instead")]
    Unknown(String),
    #[error("cannot {operation}")]
    Api {
        operation: &'static str,
        #[source]
        source: kube::Error,
    },
}

impl KeyError {
    fn api(operation: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |source| Self::Api { operation, source }
    }
}

/// A key that was created; it cannot be read again.
#[derive(Debug)]
pub struct NewKey {
    pub key: String,
    pub id: String,
}

/// A key as it is listed.
#[derive(Clone, Debug, Serialize)]
pub struct Key {
    pub id: String,
    pub namespace: String,
    pub account: String,
    /// Seconds since 1970.
    pub issued: i64,
    /// Seconds since 1970; `None` if the key does not expire.
    pub expires: Option<i64>,
    /// A pause keeps files only, whatever the client asks for.
    pub pauses_without_memory: bool,
    #[serde(skip)]
    account_uid: String,
    #[serde(skip)]
    digest: String,
}

/// What a new key is to be.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// The ServiceAccount; without a name it is [`ACCOUNT`], which is created with the rights that the API needs and no
    /// others.
    pub account: Option<String>,
    pub expires: Option<Timestamp>,
    /// A pause keeps files only, whatever the client asks for, instead of being refused.
    pub pauses_without_memory: bool,
}

/// The ServiceAccount of a key, and what the key says about its use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountRef {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub pauses_without_memory: bool,
}

fn secrets(client: &Client) -> Api<Secret> {
    Api::namespaced(client.clone(), ROUTER_NAMESPACE)
}

fn digest(key: &str) -> String {
    hex(&Sha256::digest(key.as_bytes()))
}

fn id_of(key: &str) -> String {
    format!("{ID_PREFIX}{}", &digest(key)[..ID_DIGITS])
}

fn object<T: DeserializeOwned>(value: Value) -> Result<T, kube::Error> {
    serde_json::from_value(value).map_err(kube::Error::SerdeError)
}

/// Creates a key for an account of a namespace.
pub async fn create(client: &Client, namespace: &str, wanted: Wanted) -> Result<NewKey, KeyError> {
    let Wanted { account, expires, pauses_without_memory } = wanted;
    if account.is_none() {
        create_account(client, namespace).await.map_err(KeyError::api("create the account of the key"))?;
    }
    let name = account.as_deref().unwrap_or(ACCOUNT);
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let found = accounts.get_opt(name).await.map_err(KeyError::api("read the account of the key"))?;
    let missing = || KeyError::NoAccount { namespace: namespace.to_owned(), name: name.to_owned() };
    let uid = found.and_then(|account| account.metadata.uid).ok_or_else(missing)?;
    let account = AccountRef { namespace: namespace.to_owned(), name: name.to_owned(), uid, pauses_without_memory };
    store(client, &account, expires).await
}

async fn store(client: &Client, account: &AccountRef, expires: Option<Timestamp>) -> Result<NewKey, KeyError> {
    let key = format!("{PREFIX}{}", hex(&rand::random::<[u8; 20]>()));
    let id = id_of(&key);
    let mut notes = json!({
        annotations::E2B_ACCOUNT: format!("{}/{}", account.namespace, account.name),
        annotations::E2B_ACCOUNT_UID: account.uid,
    });
    if let Some(expires) = expires {
        notes[annotations::E2B_EXPIRES] = expires.to_string().into();
    }
    if account.pauses_without_memory {
        notes[annotations::E2B_PAUSE] = PAUSE_FILES.into();
    }
    let secret = object(json!({
        "metadata": { "name": id, "annotations": notes },
        "type": TYPE,
        "immutable": true,
        "stringData": { "sha256": digest(&key) },
    }));
    let secret: Secret = secret.map_err(KeyError::api("store the key"))?;
    secrets(client).create(&PostParams::default(), &secret).await.map_err(KeyError::api("store the key"))?;
    Ok(NewKey { key, id })
}

/// Creates the account, its role and their binding, unless they exist.
async fn create_account(client: &Client, namespace: &str) -> Result<(), kube::Error> {
    let read_write = ["get", "list", "watch", "create", "patch", "delete"];
    let read = ["get", "list", "watch"];
    let rules = json!([
        { "apiGroups": ["agents.x-k8s.io"], "resources": ["sandboxes"], "verbs": read_write },
        { "apiGroups": ["extensions.agents.x-k8s.io"], "resources": ["sandboxclaims"], "verbs": read_write },
        { "apiGroups": ["extensions.agents.x-k8s.io"], "resources": ["sandboxtemplates", "sandboxwarmpools"], "verbs": read },
        { "apiGroups": ["agent-sandbox.github.io"], "resources": ["sandboxsnapshots"],
          "verbs": ["get", "list", "watch", "create", "delete"] },
        { "apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["get", "create", "patch"] },
        { "apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get"] },
        { "apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["create"] },
    ]);
    let metadata = json!({ "name": ACCOUNT });
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let roles: Api<Role> = Api::namespaced(client.clone(), namespace);
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
    create_if_absent(&accounts, json!({ "metadata": metadata })).await?;
    create_if_absent(&roles, json!({ "metadata": metadata, "rules": rules })).await?;
    let binding = json!({
        "metadata": metadata,
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": ACCOUNT },
        "subjects": [{ "kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace }],
    });
    create_if_absent(&bindings, binding).await
}

async fn create_if_absent<K>(api: &Api<K>, wanted: Value) -> Result<(), kube::Error>
where
    K: kube::Resource + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    match api.create(&PostParams::default(), &object(wanted)?).await {
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
        other => other.map(drop),
    }
}

/// All keys that have not expired.
pub async fn list(client: &Client, now: Timestamp) -> Result<Vec<Key>, KeyError> {
    let only = ListParams::default().fields(&format!("type={TYPE}"));
    let stored = secrets(client).list(&only).await.map_err(KeyError::api("list keys"))?;
    Ok(stored.items.iter().filter_map(key_of).filter(|key| key.is_valid(now)).collect())
}

/// Deletes a key, given by its id or by itself. Returns its id.
pub async fn revoke(client: &Client, given: &str) -> Result<String, KeyError> {
    let id = if given.starts_with(PREFIX) { id_of(given) } else { given.to_owned() };
    match secrets(client).delete(&id, &DeleteParams::default()).await {
        Ok(_) => Ok(id),
        Err(kube::Error::Api(status)) if status.code == 404 => Err(KeyError::Unknown(id)),
        Err(error) => Err(KeyError::api("revoke the key")(error)),
    }
}

/// Replaces a key by a new one for the same account that is valid for as long as the old one was from its creation.
pub async fn rotate(client: &Client, given: &str, now: Timestamp) -> Result<NewKey, KeyError> {
    let id = if given.starts_with(PREFIX) { id_of(given) } else { given.to_owned() };
    let stored = secrets(client).get_opt(&id).await.map_err(KeyError::api("read the key"))?;
    let old = stored.as_ref().and_then(key_of).ok_or_else(|| KeyError::Unknown(id.clone()))?;
    let new = store(client, &old.account(), old.renewed_expiry(now)).await?;
    revoke(client, &id).await?;
    Ok(new)
}

/// The account that a key names; `None` if the key is unknown or expired, or if its account was deleted.
pub async fn find(client: &Client, key: &str, now: Timestamp) -> Result<Option<AccountRef>, kube::Error> {
    if !key.starts_with(PREFIX) {
        return Ok(None);
    }
    let Some(stored) = secrets(client).get_opt(&id_of(key)).await? else { return Ok(None) };
    let Some(found) = key_of(&stored).filter(|found| found.is_valid(now) && found.is(key)) else { return Ok(None) };
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &found.namespace);
    let account = accounts.get_metadata_opt(&found.account).await?;
    let same = account.is_some_and(|account| account.metadata.uid.as_deref() == Some(found.account_uid.as_str()));
    Ok(same.then(|| found.account()))
}

impl Key {
    fn is_valid(&self, now: Timestamp) -> bool {
        self.expires.is_none_or(|end| now.as_second() < end)
    }

    /// When a key ends that replaces this one now; `None` if it does not expire.
    fn renewed_expiry(&self, now: Timestamp) -> Option<Timestamp> {
        let lifetime = self.expires?.saturating_sub(self.issued);
        Some(Timestamp::from_second(now.as_second().saturating_add(lifetime)).unwrap_or(Timestamp::MAX))
    }

    fn is(&self, key: &str) -> bool {
        bool::from(self.digest.as_bytes().ct_eq(digest(key).as_bytes()))
    }

    fn account(&self) -> AccountRef {
        AccountRef {
            namespace: self.namespace.clone(),
            name: self.account.clone(),
            uid: self.account_uid.clone(),
            pauses_without_memory: self.pauses_without_memory,
        }
    }
}

/// The key in a Secret; `None` if the Secret is of another kind, or if it has a time that cannot be read: a key whose end
/// is not known is not accepted.
fn key_of(secret: &Secret) -> Option<Key> {
    if secret.type_.as_deref() != Some(TYPE) {
        return None;
    }
    let note = |name: &str| secret.metadata.annotations.as_ref()?.get(name).cloned();
    let (namespace, account) =
        note(annotations::E2B_ACCOUNT)?.split_once('/').map(|(a, b)| (a.to_owned(), b.to_owned()))?;
    let expires = match note(annotations::E2B_EXPIRES) {
        Some(text) => Some(text.parse::<Timestamp>().ok()?.as_second()),
        None => None,
    };
    Some(Key {
        id: secret.metadata.name.clone()?,
        namespace,
        account,
        issued: secret.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
        expires,
        pauses_without_memory: note(annotations::E2B_PAUSE).as_deref() == Some(PAUSE_FILES),
        account_uid: note(annotations::E2B_ACCOUNT_UID)?,
        digest: String::from_utf8(secret.data.as_ref()?.get("sha256")?.0.clone()).ok()?,
    })
}

/// Fuzz target: the first line is what a client sends as its key, the rest a Secret in the namespace of keys.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(data: &[u8]) {
    let (given, stored) = data.split_at(data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len()));
    let given = String::from_utf8_lossy(given);
    let id = id_of(&given);
    assert!(
        id.len() == ID_PREFIX.len() + ID_DIGITS && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    );
    let Ok(secret) = serde_json::from_slice::<Secret>(stored) else { return };
    if let Some(key) = key_of(&secret) {
        let _ = (key.is_valid(Timestamp::UNIX_EPOCH), key.account());
        assert_eq!(key.is(&given), key.digest == digest(&given));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;

    fn secret(key: &str, expires: Option<&str>) -> Secret {
        let data = base64::engine::general_purpose::STANDARD.encode(digest(key));
        let mut notes = json!({annotations::E2B_ACCOUNT: "team/bot", annotations::E2B_ACCOUNT_UID: "u"});
        if let Some(expires) = expires {
            notes[annotations::E2B_EXPIRES] = expires.into();
        }
        object(json!({"metadata": {"name": id_of(key), "annotations": notes}, "type": TYPE, "data": {"sha256": data}}))
            .unwrap()
    }

    #[test]
    fn a_secret_does_not_contain_its_key() {
        let text = serde_json::to_string(&secret("e2b_0123", None)).unwrap();
        assert!(!text.contains("0123"), "{text}");
    }

    #[test]
    fn a_key_ends_at_its_time() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let key = |expires| key_of(&secret("e2b_0123", expires));
        assert!(key(None).unwrap().is_valid(now) && key(None).unwrap().is("e2b_0123"));
        assert!(!key(None).unwrap().is("e2b_0124"));
        assert!(key(Some("2026-01-01T00:00:01Z")).unwrap().is_valid(now));
        assert!(!key(Some("2026-01-01T00:00:00Z")).unwrap().is_valid(now));
        assert!(key(Some("soon")).is_none(), "an unreadable end is not no end");
        let stored = Key { issued: now.as_second() - 90, ..key(Some("2026-01-01T00:00:10Z")).unwrap() };
        assert_eq!(stored.renewed_expiry(now).unwrap().to_string(), "2026-01-01T00:01:40Z", "after 100 seconds again");
        assert_eq!(key(None).unwrap().renewed_expiry(now), None);
        assert_eq!(
            key(None).unwrap().account(),
            AccountRef { namespace: "team".into(), name: "bot".into(), uid: "u".into(), pauses_without_memory: false }
        );
    }
}
