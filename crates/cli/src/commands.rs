//! The commands, one module per group; this one dispatches.

mod apply;
mod audit;
mod changes;
mod completion;
mod copy;
mod doctor;
mod egress;
mod exec;
mod here;
mod history;
mod host_problem;
mod image;
mod kubeconfig;
mod logs;
mod mcp;
mod names;
mod network;
mod node;
mod objects;
mod pools;
mod portforward;
mod progress;
mod publish;
mod reference;
mod run;
mod services;
mod snapshots;
mod streams;
mod templates;
mod tokens;
mod top;
mod up;
mod url;
mod version;
mod wrapper;

use crate::{
    args::{Cli, Command, GlobalArgs, TokenArgs, TokenCommand},
    cluster::ClusterClient,
};
use anyhow::Result;
use std::process::ExitCode;

pub(crate) use services::controller;

impl Command {
    /// Whether this command serves until it is stopped.
    pub(crate) fn is_service(&self) -> bool {
        matches!(self, Self::Up(_) | Self::Router(_) | Self::Node(_))
    }
}

/// Runs a command about existing objects with a client for the chosen cluster. The local engine is started if it is chosen,
/// has run before and does not run now.
async fn on_cluster<T>(global: &GlobalArgs, command: impl AsyncFnOnce(&ClusterClient) -> Result<T>) -> Result<T> {
    command(&ClusterClient::open_used(global).await?).await
}

/// Runs a command that creates objects with a client for the chosen cluster. The local engine is started if it is chosen
/// and does not run.
async fn on_started<T>(global: &GlobalArgs, command: impl AsyncFnOnce(&ClusterClient) -> Result<T>) -> Result<T> {
    command(&ClusterClient::open_or_start(global).await?).await
}

/// Runs the command. Where it runs a program for the user, the exit code is that program's.
pub(crate) async fn dispatch(cli: Cli) -> Result<ExitCode> {
    let global = cli.global;
    let done = ExitCode::SUCCESS;
    match cli.command {
        Command::Run(args) => return run::run(&global, args).await,
        Command::Up(args) => up::up(&global, args).await?,
        Command::Down(args) => up::down(&global, &args).await?,
        Command::Status(args) => return up::status(&global, &args).await,
        Command::Top(args) => top::top(&global, &args).await?,
        Command::Doctor(args) => return doctor::doctor(&global, &args).await,
        Command::Create(args) => {
            on_started(&global, async |cluster| objects::create(&global, cluster, args).await).await?
        }
        Command::Claim(args) => on_started(&global, async |cluster| objects::claim(cluster, args).await).await?,
        Command::List(args) => return on_cluster(&global, async |cluster| objects::list(cluster, args).await).await,
        Command::Get(args) => on_cluster(&global, async |cluster| objects::get(cluster, args).await).await?,
        Command::KeepAlive(args) => {
            on_cluster(&global, async |cluster| objects::keep_alive(cluster, args).await).await?
        }
        Command::Suspend(args) => on_cluster(&global, async |cluster| objects::suspend(cluster, args).await).await?,
        Command::Resume(args) => on_cluster(&global, async |cluster| objects::resume(cluster, args).await).await?,
        Command::Snapshot(args) => {
            on_cluster(&global, async |cluster| snapshots::snapshot(cluster, args).await).await?
        }
        Command::Fork(args) => on_cluster(&global, async |cluster| snapshots::fork(cluster, args).await).await?,
        Command::Rollback(args) => {
            on_cluster(&global, async |cluster| snapshots::rollback(cluster, args).await).await?
        }
        Command::Delete(args) => on_cluster(&global, async |cluster| objects::delete(cluster, args).await).await?,
        Command::Exec(args) => return on_cluster(&global, async |cluster| exec::exec(cluster, args).await).await,
        Command::Shell(args) => return on_cluster(&global, async |cluster| exec::shell(cluster, args).await).await,
        Command::Cp(args) => copy::copy(&global, args).await?,
        Command::Logs(args) => return on_cluster(&global, async |cluster| logs::logs(cluster, args).await).await,
        Command::Changes(args) => return changes::changes(&global, args),
        Command::History(args) => on_cluster(&global, async |cluster| history::history(cluster, args).await).await?,
        Command::Apply(args) => apply::apply(&global, args).await?,
        Command::Pool(args) => on_cluster(&global, async |cluster| pools::pool(cluster, args).await).await?,
        Command::Template(args) => {
            on_cluster(&global, async |cluster| templates::template(cluster, args).await).await?
        }
        Command::PortForward(args) => {
            on_cluster(&global, async |cluster| portforward::forward(&global, cluster, args).await).await?
        }
        Command::Url(args) => on_cluster(&global, async |cluster| url::url(cluster, args).await).await?,
        Command::Mcp(args) => mcp::mcp(&global, args).await?,
        Command::Image(args) => image::image(&global, args).await?,
        Command::Kubeconfig(args) => kubeconfig::kubeconfig(&global, &args)?,
        Command::Controller { .. } => unreachable!("the controller has a runtime of its own, started before this one"),
        Command::Router(args) => return services::router(*args).await,
        Command::Node(args) => node::node(&global, *args).await?,
        Command::Audit(args) => return audit::audit(&global, args).await,
        Command::Egress(args) => return egress::egress(&global, args).await,
        Command::Token(TokenArgs { command: TokenCommand::E2b(args) }) => {
            on_started(&global, async |cluster| tokens::create_e2b_key(cluster, args).await).await?
        }
        Command::Token(args) => tokens::token(&global, args).await?,
        Command::Version(args) => version::version(&args)?,
        Command::Completion(args) => completion::completion(&args)?,
        Command::Names { words } => completion::names(&global, &words).await?,
        Command::Reference(args) => reference::reference(&args)?,
    }
    Ok(done)
}
