//! What each command does. One module per group of commands; this one only hands over.

mod apply;
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
mod pools;
mod portforward;
mod progress;
mod reference;
mod run;
mod services;
mod small;
mod streams;
mod templates;
mod top;
mod up;
mod why;

use crate::{
    args::{Cli, Command},
    target::Target,
};
use anyhow::Result;
use std::process::ExitCode;

pub(crate) use services::controller;

impl Command {
    /// Whether this command stays and serves until it is stopped.
    pub(crate) fn runs_a_service(&self) -> bool {
        matches!(self, Self::Up(_) | Self::Router(_) | Self::Node(_))
    }
}

/// Runs the command; the exit code is the command's own where it runs something for the user.
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
        Command::Create(args) => objects::create(&Target::find(&global).await?, args).await?,
        Command::Claim(args) => objects::claim(&Target::find(&global).await?, args).await?,
        Command::List(args) => objects::list(&Target::find(&global).await?, args).await?,
        Command::Get(args) => objects::get(&Target::find(&global).await?, args).await?,
        Command::Suspend(args) => objects::suspend(&Target::find(&global).await?, args).await?,
        Command::Resume(args) => objects::resume(&Target::find(&global).await?, args).await?,
        Command::Delete(args) => objects::delete(&Target::find(&global).await?, args).await?,
        Command::Exec(args) => return exec::exec(&Target::find(&global).await?, args).await,
        Command::Shell(args) => return exec::shell(&Target::find(&global).await?, args).await,
        Command::Cp(args) => copy::copy(&global, args).await?,
        Command::Logs(args) => logs::logs(&Target::find(&global).await?, args).await?,
        Command::Apply(args) => apply::apply(&global, args).await?,
        Command::Pool(args) => pools::pool(&Target::find(&global).await?, args).await?,
        Command::Template(args) => templates::template(&Target::find(&global).await?, args).await?,
        Command::PortForward(args) => portforward::forward(&Target::find(&global).await?, args).await?,
        Command::Mcp(args) => mcp::mcp(&global, args).await?,
        Command::Image(args) => image::image(&global, args).await?,
        Command::Kubeconfig(args) => kubeconfig::kubeconfig(&global, &args)?,
        Command::Controller { .. } => unreachable!("the controller has a runtime of its own, started before this one"),
        Command::Router(args) => return services::router(*args).await,
        Command::Node(args) => node::node(&global, *args).await?,
        Command::Token(args) => services::token(&args)?,
        Command::Version(args) => small::version(&args)?,
        Command::Completion(args) => small::completion(&args)?,
        Command::Reference(args) => reference::reference(&args)?,
    }
    Ok(done)
}
