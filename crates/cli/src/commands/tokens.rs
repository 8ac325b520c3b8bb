//! `token`: scoped tokens for a router, keys for E2B's clients, and the tokens of the local engine's API.

use crate::{
    args::{GlobalArgs, OutputFormat, TokenArgs, TokenCommand, TokenE2bArgs, TokenRotateArgs},
    cluster::ClusterClient,
    output::{self, Table},
};
use agent_sandbox_client::{Cluster, ClusterOptions};
use agent_sandbox_e2b::keys::{self, Key};
use agent_sandbox_engine::{DataDir, EngineReply, IssuedToken, TokenRequest, send_request, write_private};
use agent_sandbox_router::mint_token;
use anyhow::{Context as _, Result, bail};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use std::{fs, path::Path};

pub(crate) async fn token(global: &GlobalArgs, args: TokenArgs) -> Result<()> {
    match args.command {
        TokenCommand::Mint(args) => {
            let local = DataDir::locate(global.data_dir.as_deref()).ok().map(|data| data.router_secret());
            output::print(&format!("{}\n", mint_token(&args, local.as_deref())?))
        }
        TokenCommand::List(args) => list(&DataDir::locate(global.data_dir.as_deref())?, args.output.output).await,
        TokenCommand::E2b(_) => unreachable!("it is dispatched with a cluster"),
        TokenCommand::Revoke(args) => {
            let data = DataDir::locate(global.data_dir.as_deref())?;
            for token in args.tokens {
                if is_key(&token) {
                    let id = keys::revoke(&engine_client(&data).await?, &token).await?;
                    output::print(&format!("key {id} revoked\n"))?;
                    continue;
                }
                let EngineReply::Revoked { id } = request(&data, TokenRequest::RevokeToken { token }).await? else {
                    return unexpected_reply();
                };
                output::print(&format!("token {id} revoked\n"))?;
            }
            Ok(())
        }
        TokenCommand::Rotate(TokenRotateArgs { key: Some(key) }) => {
            let data = DataDir::locate(global.data_dir.as_deref())?;
            if !is_key(&key) {
                bail!("only keys for E2B's clients can be replaced by their id: those begin with {}", keys::ID_PREFIX);
            }
            let new = keys::rotate(&engine_client(&data).await?, &key, Timestamp::now()).await?;
            output::print(&format!("{}\n", new.key))
        }
        TokenCommand::Rotate(_) => rotate(&DataDir::locate(global.data_dir.as_deref())?).await,
    }
}

/// Creates a key for E2B's clients, in the cluster that the command talks to.
pub(crate) async fn create_e2b_key(cluster: &ClusterClient, args: TokenE2bArgs) -> Result<()> {
    cluster.announce_change();
    let expires = args.expires_in.0.map(|time| Timestamp::now().checked_add(time)).transpose();
    let expires = expires.context("--expires-in is too long")?;
    let wanted = keys::Wanted { account: args.account, expires, pauses_without_memory: args.pause_without_memory };
    let new = keys::create(&cluster.client, &cluster.namespace, wanted).await?;
    output::print(&format!("{}\n", new.key))
}

/// Whether a word is a key for E2B's clients or the id of one.
fn is_key(word: &str) -> bool {
    word.starts_with(keys::PREFIX) || word.starts_with(keys::ID_PREFIX)
}

/// A client for the engine on this data folder, with all rights.
async fn engine_client(data: &DataDir) -> Result<kube::Client> {
    if data.running().is_none() {
        bail!("no engine runs here; start one with `agent-sandbox up --detach`");
    }
    let options = ClusterOptions { kubeconfig: Some(data.kubeconfig()), ..ClusterOptions::default() };
    Ok(Cluster::find(&options).await?.client)
}

async fn request(data: &DataDir, request: TokenRequest) -> Result<EngineReply> {
    if data.running().is_none() {
        bail!("no engine runs here; start one with `agent-sandbox up --detach`");
    }
    Ok(send_request(&data.control(), &request, |_| {}).await?)
}

fn unexpected_reply() -> Result<()> {
    bail!("the running engine sent an unexpected reply; are both of the same version?")
}

async fn list(data: &DataDir, format: OutputFormat) -> Result<()> {
    let EngineReply::Tokens(tokens) = request(data, TokenRequest::ListTokens).await? else { return unexpected_reply() };
    let mut tokens: Vec<Listed> = tokens.into_iter().map(Listed::Token).collect();
    tokens.extend(keys::list(&engine_client(data).await?, Timestamp::now()).await?.into_iter().map(Listed::Key));
    let names = || tokens.iter().map(|token| format!("{}\n", token.fields().0)).collect();
    let now = Timestamp::now().as_second();
    let table = || {
        let mut table = Table::new(&["ID", "NAMESPACE", "SERVICE ACCOUNT", "AGE", "EXPIRES IN"]);
        for token in &tokens {
            let (id, namespace, account, issued, expires) = token.fields();
            table.row(vec![
                id.to_owned(),
                namespace.to_owned(),
                account.to_owned(),
                output::age(now - issued),
                expires.map_or("never".to_owned(), |end| output::age(end - now)),
            ]);
        }
        table.render()
    };
    output::emit(format, &tokens, names, table)
}

/// A row of the list. Both kinds have the same fields in JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum Listed {
    Token(IssuedToken),
    Key(Key),
}

impl Listed {
    fn fields(&self) -> (&str, &str, &str, i64, Option<i64>) {
        match self {
            Self::Token(token) => (&token.id, &token.namespace, &token.account, token.issued, Some(token.expires)),
            Self::Key(key) => (&key.id, &key.namespace, &key.account, key.issued, key.expires),
        }
    }
}

/// Replaces the administrator's token, also in the user's own kubeconfig if it holds the old one.
async fn rotate(data: &DataDir) -> Result<()> {
    let read = || fs::read_to_string(data.kubeconfig()).ok().and_then(|text| admin_token(&text));
    let old = read();
    let EngineReply::Rotated = request(data, TokenRequest::RotateToken).await? else { return unexpected_reply() };
    output::print(&format!(
        "the administrator's token was replaced; the new one is in {}\n",
        data.kubeconfig().display()
    ))?;
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".kube/config"));
    if let (Some(old), Some(new), Some(path)) = (old, read(), home)
        && replace_token(&path, &old, &new).with_context(|| format!("cannot update {}", path.display()))?
    {
        output::print(&format!("{} was updated\n", path.display()))?;
    }
    Ok(())
}

/// The token of a kubeconfig's first user.
fn admin_token(kubeconfig: &str) -> Option<String> {
    let file: Value = serde_saphyr::from_str(kubeconfig).ok()?;
    file["users"][0]["user"]["token"].as_str().map(str::to_owned)
}

/// Replaces a token in a kubeconfig; false if the file does not exist or does not hold it.
fn replace_token(path: &Path, old: &str, new: &str) -> Result<bool> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let mut file: Value = serde_saphyr::from_str(&text)?;
    let mut changed = false;
    for entry in file["users"].as_array_mut().into_iter().flatten() {
        let token = &mut entry["user"]["token"];
        if *token == old {
            *token = new.into();
            changed = true;
        }
    }
    if changed {
        write_private(path, serde_saphyr::to_string(&file)?.as_bytes())?;
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn only_users_with_the_old_token_are_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        assert!(!replace_token(&path, "old", "new").unwrap(), "there is no file");
        let text = "users:\n- name: agent-sandbox\n  user:\n    token: old\n- name: prod\n  user:\n    token: other\n";
        fs::write(&path, text).unwrap();
        assert!(replace_token(&path, "old", "new").unwrap());
        assert!(!replace_token(&path, "old", "new").unwrap());
        let file: Value = serde_saphyr::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(file["users"][0]["user"]["token"], "new");
        assert_eq!(file["users"][1]["user"]["token"], "other");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(admin_token("users: [{name: a, user: {token: t}}]").as_deref(), Some("t"));
    }
}
