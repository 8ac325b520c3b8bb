//! What each command does. One module per group of commands; this one only hands over.

mod apply;
mod copy;
mod doctor;
mod exec;
mod kubeconfig;
mod logs;
mod names;
mod objects;
mod pools;
mod portforward;
mod run;
mod services;
mod small;
mod templates;
mod up;

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
        matches!(self, Self::Up(_) | Self::Router(_))
    }
}

/// Runs the command; the exit code is the command's own where it runs something for the user.
pub(crate) async fn dispatch(cli: Cli) -> Result<ExitCode> {
    let global = cli.global;
    let done = ExitCode::SUCCESS;
    match cli.command {
        Command::Run(args) => return run::run(args).await,
        Command::Up(args) => up::up(&global, args).await?,
        Command::Down(args) => up::down(&global, &args).await?,
        Command::Status(args) => up::status(&global, &args).await?,
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
        Command::Kubeconfig(args) => kubeconfig::kubeconfig(&global, &args)?,
        Command::Controller { arguments } => return Ok(controller(arguments)),
        Command::Router(args) => return services::router(*args).await,
        Command::Token(args) => services::token(&args)?,
        Command::Version(args) => small::version(&args)?,
        Command::Completion(args) => small::completion(&args)?,
    }
    Ok(done)
}
