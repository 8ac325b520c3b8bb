//! `kubeconfig`: the local engine's credentials for kubectl and SDKs.

use crate::{
    args::{GlobalArgs, KubeconfigArgs},
    output,
};
use agent_sandbox_engine::{DataDir, write_private};
use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
};

pub(crate) fn kubeconfig(global: &GlobalArgs, args: &KubeconfigArgs) -> Result<()> {
    let data = DataDir::locate(global.data_dir.as_deref())?;
    let path = data.kubeconfig();
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("no engine has run here yet; start one with `agent-sandbox up --detach`")
        }
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    if args.path {
        return output::print(&format!("{}\n", path.display()));
    }
    if !args.merge {
        return output::print(&text);
    }
    let user = user_file().context("HOME is not set, so there is no ~/.kube/config")?;
    let merged = merge(&read_or_empty(&user)?, &serde_saphyr::from_str(&text)?)?;
    fs::create_dir_all(user.parent().unwrap_or(Path::new("/")))?;
    write(&user, &merged)?;
    eprintln!("added context agent-sandbox to {}; use it with: kubectl --context agent-sandbox", user.display());
    Ok(())
}

/// The user's own kubeconfig.
fn user_file() -> Option<PathBuf> {
    std::env::var_os("HOME").map(|home| Path::new(&home).join(".kube/config"))
}

fn write(path: &Path, value: &Value) -> Result<()> {
    write_private(path, serde_saphyr::to_string(value)?.as_bytes())
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Writes the engine's present address into the user's kubeconfig, if the engine was merged into it. Returns the file
/// if it was changed.
pub(crate) fn update_merged(data: &DataDir) -> Result<Option<PathBuf>> {
    change_merged(data, merge)
}

/// Removes the engine from the user's kubeconfig, if it was merged into it. Returns the file if it was changed.
pub(crate) fn remove_merged(data: &DataDir) -> Result<Option<PathBuf>> {
    change_merged(data, remove)
}

fn change_merged(data: &DataDir, change: impl Fn(&Value, &Value) -> Result<Value>) -> Result<Option<PathBuf>> {
    let (Some(user), Ok(text)) = (user_file().filter(|path| path.exists()), fs::read_to_string(data.kubeconfig()))
    else {
        return Ok(None);
    };
    let (theirs, ours): (Value, Value) = (read_or_empty(&user)?, serde_saphyr::from_str(&text)?);
    if !holds(&theirs, &ours) {
        return Ok(None);
    }
    let changed = change(&theirs, &ours)?;
    if changed == theirs {
        return Ok(None);
    }
    write(&user, &changed)?;
    Ok(Some(user))
}

/// Whether a kubeconfig has this engine's credentials: an entry of the same name may belong to another engine.
fn holds(theirs: &Value, ours: &Value) -> bool {
    let token = &ours["users"][0]["user"]["token"];
    let users = theirs["users"].as_array();
    token.is_string() && users.is_some_and(|users| users.iter().any(|entry| entry["user"]["token"] == *token))
}

fn read_or_empty(path: &Path) -> Result<Value> {
    match fs::read_to_string(path) {
        Ok(text) => serde_saphyr::from_str(&text).with_context(|| format!("{} is not a kubeconfig", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Ok(serde_json::json!({"apiVersion": "v1", "kind": "Config"}))
        }
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Adds the engine's cluster, user and context to the user's own. The current context stays unless there is none.
fn merge(theirs: &Value, ours: &Value) -> Result<Value> {
    let mut merged = theirs.clone();
    let Some(root) = merged.as_object_mut() else { bail!("~/.kube/config is not a kubeconfig") };
    for list in ["clusters", "users", "contexts"] {
        let added = ours[list].as_array().cloned().unwrap_or_default();
        let mut kept: Vec<Value> = root.get(list).and_then(Value::as_array).cloned().unwrap_or_default();
        kept.retain(|entry| !added.iter().any(|new| new["name"] == entry["name"]));
        kept.extend(added);
        root.insert(list.to_owned(), Value::Array(kept));
    }
    if root.get("current-context").and_then(Value::as_str).unwrap_or_default().is_empty() {
        root.insert("current-context".to_owned(), ours["current-context"].clone());
    }
    Ok(merged)
}

/// Removes the engine's cluster, user and context from the user's own.
fn remove(theirs: &Value, ours: &Value) -> Result<Value> {
    let mut left = theirs.clone();
    for list in ["clusters", "users", "contexts"] {
        if let (Some(entries), Some(ours)) = (left[list].as_array_mut(), ours[list].as_array()) {
            entries.retain(|entry| !ours.iter().any(|own| own["name"] == entry["name"]));
        }
    }
    if left["current-context"] == ours["current-context"] {
        left["current-context"] = Value::String(String::new());
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn merging_keeps_what_is_the_users() {
        let theirs = json!({"current-context": "prod", "clusters": [{"name": "prod", "cluster": {}}, {"name": "agent-sandbox", "cluster": {"server": "old"}}], "preferences": {"x": 1}});
        let ours = json!({"current-context": "agent-sandbox", "clusters": [{"name": "agent-sandbox", "cluster": {"server": "new"}}], "users": [{"name": "agent-sandbox"}], "contexts": [{"name": "agent-sandbox"}]});
        let merged = merge(&theirs, &ours).unwrap();
        assert_eq!(merged["current-context"], "prod");
        assert_eq!(merged["preferences"], json!({"x": 1}));
        assert_eq!(merged["clusters"].as_array().unwrap().len(), 2);
        assert_eq!(merged["clusters"][1]["cluster"]["server"], "new");
        assert_eq!(merge(&json!({}), &ours).unwrap()["current-context"], "agent-sandbox");
        assert!(merge(&json!([]), &ours).is_err());
    }

    #[test]
    fn only_an_engine_that_was_merged_is_removed() {
        let ours = json!({"current-context": "agent-sandbox", "clusters": [{"name": "agent-sandbox"}], "users": [{"name": "agent-sandbox", "user": {"token": "t"}}], "contexts": [{"name": "agent-sandbox"}]});
        let theirs = json!({"current-context": "prod", "clusters": [{"name": "prod"}], "users": [], "contexts": []});
        assert!(!holds(&theirs, &ours));
        let other = json!({"users": [{"name": "agent-sandbox", "user": {"token": "another engine's"}}]});
        assert!(!holds(&other, &ours));
        let merged = merge(&theirs, &ours).unwrap();
        assert!(holds(&merged, &ours));
        assert_eq!(remove(&merged, &ours).unwrap(), theirs);
        let alone = merge(&json!({}), &ours).unwrap();
        assert_eq!(remove(&alone, &ours).unwrap()["current-context"], "");
    }
}
