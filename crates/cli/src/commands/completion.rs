//! `completion`: completion scripts for shells, which ask this program for the names of sandboxes, pools and images; and
//! `names`, the hidden command that answers.

use crate::{
    args::{Cli, CompletionArgs, GlobalArgs, NameKind},
    cluster::ClusterClient,
    output,
};
use agent_sandbox_api::v1beta1::{Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool};
use agent_sandbox_engine::{DataDir, EngineReply, EngineRequest, send_request};
use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;
use k8s_openapi::NamespaceResourceScope;
use kube::{Api, ResourceExt as _, api::ListParams};
use std::{collections::BTreeSet, fmt::Debug, time::Duration};

/// Timeout for names: a user waits for them after each press of the tab key.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Added to the generated scripts.
const BASH: &str = r#"
_agent_sandbox_with_names() {
    _agent-sandbox "$@"
    local word=${COMP_WORDS[COMP_CWORD]} kind=
    [[ $word == -* ]] && return 0
    case ${COMP_WORDS[1]} in
        exec|shell|get|logs|history|cp|suspend|stop|resume|start|keep-alive|delete|rm|port-forward) kind=sandboxes ;;
        claim) kind=sources ;;
        pool) kind=pools ;;
        template) kind=templates ;;
        image) kind=images ;;
        *) return 0 ;;
    esac
    COMPREPLY+=($(compgen -W "$(agent-sandbox names "$kind" 2>/dev/null)" -- "$word"))
}
complete -F _agent_sandbox_with_names -o nosort -o bashdefault -o default agent-sandbox
"#;
const ZSH: &str = r#"
_agent_sandbox_with_names() {
    _agent-sandbox "$@"
    local kind
    case $words[2] in
        exec|shell|get|logs|history|cp|suspend|stop|resume|start|keep-alive|delete|rm|port-forward) kind=sandboxes ;;
        claim) kind=sources ;;
        pool) kind=pools ;;
        template) kind=templates ;;
        image) kind=images ;;
        *) return 0 ;;
    esac
    compadd -- ${(f)"$(agent-sandbox names $kind 2>/dev/null)"}
}
compdef _agent_sandbox_with_names agent-sandbox
"#;
const FISH: &str = r#"
complete -c agent-sandbox -n '__fish_seen_subcommand_from exec shell get logs history cp suspend stop resume start keep-alive delete rm port-forward' -a '(agent-sandbox names sandboxes 2>/dev/null)'
complete -c agent-sandbox -n '__fish_seen_subcommand_from claim' -a '(agent-sandbox names sources 2>/dev/null)'
complete -c agent-sandbox -n '__fish_seen_subcommand_from pool' -a '(agent-sandbox names pools 2>/dev/null)'
complete -c agent-sandbox -n '__fish_seen_subcommand_from template' -a '(agent-sandbox names templates 2>/dev/null)'
complete -c agent-sandbox -n '__fish_seen_subcommand_from image' -a '(agent-sandbox names images 2>/dev/null)'
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
    String::from_utf8_lossy(&script).into_owned() + names
}

/// Prints names, one per line. Starts no engine, and prints nothing if there is no answer in time.
pub(crate) async fn names(global: &GlobalArgs, kind: NameKind) -> Result<()> {
    let found = tokio::time::timeout(TIMEOUT, find(global, kind)).await;
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
    Ok(names)
}

async fn list<K>(cluster: &ClusterClient) -> Result<Vec<String>>
where
    K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    Ok(api.list_metadata(&ListParams::default()).await?.iter().map(|object| object.name_any()).collect())
}
