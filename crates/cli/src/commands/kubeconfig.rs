//! `kubeconfig`: the local engine's credentials for kubectl and SDKs.

use crate::{
    args::{GlobalArgs, KubeconfigArgs},
    output,
};
use agent_sandbox_engine::{DataDir, write_private};
use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::{fs, path::Path};

pub(crate) fn kubeconfig(global: &GlobalArgs, args: &KubeconfigArgs) -> Result<()> {
    let data = DataDir::locate(global.data_dir.as_deref())?;
    let path = data.kubeconfig();
    if args.path {
        return output::print(&format!("{}\n", path.display()));
    }
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("no engine has run here yet; start one with `agent-sandbox up --detach`")
        }
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    if !args.merge {
        return output::print(&text);
    }
    let home = std::env::var_os("HOME").context("HOME is not set, so there is no ~/.kube/config")?;
    let user = Path::new(&home).join(".kube/config");
    let merged = merge(&read_or_empty(&user)?, &serde_saphyr::from_str(&text)?)?;
    fs::create_dir_all(user.parent().unwrap_or(Path::new("/")))?;
    write_private(&user, serde_saphyr::to_string(&merged)?.as_bytes())
        .with_context(|| format!("cannot write {}", user.display()))?;
    eprintln!("added context agent-sandbox to {}; use it with: kubectl --context agent-sandbox", user.display());
    Ok(())
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
}
