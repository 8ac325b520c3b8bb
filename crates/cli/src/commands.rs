//! The commands, one module per group; this one dispatches.

mod apply;
mod completion;
mod copy;
mod doctor;
mod exec;
mod image;
mod kubeconfig;
mod logs;
mod mcp;
mod names;
mod node;
mod objects;
mod pod_warnings;
mod pools;
mod portforward;
mod progress;
mod reference;
mod run;
mod services;
mod streams;
mod templates;
mod top;
mod up;
mod version;

use crate::{
    args::{Cli, Command},
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

/// Runs the command. Where it runs a program for the user, the exit code is that program's.
pub(crate) async fn dispatch(cli: Cli) -> Result<ExitCode> {
    let global = cli.global;
    let done = ExitCode::SUCCESS;
    match cli.command {
        Command::Run(args) => return run::run(&global, args).await,
        Command::Up(args) => up::up(&global, args).await?,
        Command::Down(args) => up::down(&global, &args).await?,
        Command::Status(args) => up::status(&global, &args).await?,
        Command::Top(args) => top::top(&global, &args).await?,
        Command::Doctor(args) => return doctor::doctor(&global, &args).await,
        Command::Create(args) => objects::create(&ClusterClient::open(&global).await?, args).await?,
        Command::Claim(args) => objects::claim(&ClusterClient::open(&global).await?, args).await?,
        Command::List(args) => objects::list(&ClusterClient::open(&global).await?, args).await?,
        Command::Get(args) => objects::get(&ClusterClient::open(&global).await?, args).await?,
        Command::Suspend(args) => objects::suspend(&ClusterClient::open(&global).await?, args).await?,
        Command::Resume(args) => objects::resume(&ClusterClient::open(&global).await?, args).await?,
        Command::Delete(args) => objects::delete(&ClusterClient::open(&global).await?, args).await?,
        Command::Exec(args) => return exec::exec(&ClusterClient::open(&global).await?, args).await,
        Command::Shell(args) => return exec::shell(&ClusterClient::open(&global).await?, args).await,
        Command::Cp(args) => copy::copy(&global, args).await?,
        Command::Logs(args) => return logs::logs(&ClusterClient::open(&global).await?, args).await,
        Command::Apply(args) => apply::apply(&global, args).await?,
        Command::Pool(args) => pools::pool(&ClusterClient::open(&global).await?, args).await?,
        Command::Template(args) => templates::template(&ClusterClient::open(&global).await?, args).await?,
        Command::PortForward(args) => portforward::forward(&ClusterClient::open(&global).await?, args).await?,
        Command::Mcp(args) => mcp::mcp(&global, args).await?,
        Command::Image(args) => image::image(&global, args).await?,
        Command::Kubeconfig(args) => kubeconfig::kubeconfig(&global, &args)?,
        Command::Controller { .. } => unreachable!("the controller has a runtime of its own, started before this one"),
        Command::Router(args) => return services::router(*args).await,
        Command::Node(args) => node::node(&global, *args).await?,
        Command::Token(args) => services::token(&args)?,
        Command::Version(args) => version::version(&args)?,
        Command::Completion(args) => completion::completion(&args)?,
        Command::Reference(args) => reference::reference(&args)?,
    }
    Ok(done)
}
