//! `completion`: completion scripts for shells, which ask this program for the names of sandboxes, pools and images; and
//! `names`, the hidden command that answers.

mod words;

use super::objects::is_pool_member;
use crate::{
    args::{Cli, CompletionArgs, GlobalArgs},
    cluster::ClusterClient,
    output,
};
use agent_sandbox_api::{
    snapshot::SandboxSnapshot,
    v1beta1::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool},
};
use agent_sandbox_engine::{DataDir, EngineReply, EngineRequest, send_request};
use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;
use k8s_openapi::NamespaceResourceScope;
use kube::{Api, ResourceExt as _, api::ListParams};
use std::{collections::BTreeSet, fmt::Debug, time::Duration};
use words::NameKind;

/// Timeout for names: a user waits for them after each press of the tab key.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Added to the generated scripts. Which names a word may be is decided by this program.
const BASH: &str = r#"
_agent_sandbox_with_names() {
    _agent__sandbox "$@"
    local names
    names=$(agent-sandbox names -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    COMPREPLY+=($(compgen -W "$names" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -F _agent_sandbox_with_names -o nosort -o bashdefault -o default agent-sandbox
"#;
const ZSH: &str = r#"
_agent_sandbox_with_names() {
    _agent-sandbox "$@"
    compadd -- ${(f)"$(agent-sandbox names -- "${(@)words[2,CURRENT]}" 2>/dev/null)"}
}
compdef _agent_sandbox_with_names agent-sandbox
"#;
const FISH: &str = r#"
function __agent_sandbox_names
    agent-sandbox names -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null
end
complete -c agent-sandbox -a '(__agent_sandbox_names)'
for flag in image template snapshot
    complete -c agent-sandbox -l $flag -r -a '(__agent_sandbox_names)'
end
"#;

pub(crate) fn completion(args: &CompletionArgs) -> Result<()> {
    output::print(&script(args.shell))
}

/// The completion script for a shell. Names are completed in bash, zsh and fish.
pub(crate) fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "agent-sandbox", &mut script);
    let names = match shell {
        Shell::Bash => BASH,
        Shell::Zsh => ZSH,
        Shell::Fish => FISH,
        _ => "",
    };
    // clap_complete writes a program's name with a hyphen in two ways into a script for bash: no option was completed.
    String::from_utf8_lossy(&script).replace("agent__subcmd__sandbox", "agent__sandbox") + names
}

/// Prints the names that the last word may be, one per line. Starts no engine, and prints nothing if there is no answer in
/// time.
pub(crate) async fn names(global: &GlobalArgs, words: &[String]) -> Result<()> {
    let Some((kind, global)) = words::wanted(&Cli::command(), global, words) else { return Ok(()) };
    let found = tokio::time::timeout(TIMEOUT, find(&global, kind)).await;
    let found = found.unwrap_or_else(|_| Ok(BTreeSet::new()))?;
    output::print(&found.iter().map(|name| format!("{name}\n")).collect::<String>())
}

async fn find(global: &GlobalArgs, kind: NameKind) -> Result<BTreeSet<String>> {
    if kind == NameKind::Images {
        let data = DataDir::locate(global.data_dir.as_deref())?;
        return match send_request(&data.control(), &EngineRequest::List, |_| {}).await? {
            EngineReply::Images(images) => Ok(images.into_iter().map(|image| image.name).collect()),
            _ => Ok(BTreeSet::new()),
        };
    }
    let cluster = ClusterClient::open(global).await?;
    let mut names = BTreeSet::new();
    if kind == NameKind::Sandboxes {
        names.extend(list::<SandboxClaim>(&cluster).await?);
        names.extend(list::<Sandbox>(&cluster).await?);
    }
    if matches!(kind, NameKind::Pools | NameKind::Sources) {
        names.extend(list::<SandboxWarmPool>(&cluster).await?);
    }
    if matches!(kind, NameKind::Templates | NameKind::Sources) {
        names.extend(list::<SandboxTemplate>(&cluster).await?);
    }
    if kind == NameKind::Snapshots {
        names.extend(list::<SandboxSnapshot>(&cluster).await?);
    }
    Ok(names)
}

/// Names of all objects of a kind, but not those of a pool's waiting sandboxes.
async fn list<K>(cluster: &ClusterClient) -> Result<Vec<String>>
where
    K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let objects = api.list_metadata(&ListParams::default()).await?;
    Ok(objects.iter().filter(|object| !is_pool_member(*object)).map(|object| object.name_any()).collect())
}
