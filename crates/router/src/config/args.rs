//! Command-line arguments, generated from the table of settings.

use clap::{Arg, ArgAction, ArgMatches, Args, Command};

use crate::config::ProcessConfig;
use crate::config::settings::{self, ConfigError, Kind, SETTINGS, Setting, Values};

/// Arguments of `agent-sandbox router`: the values given on the command line only.
#[derive(Clone, Debug, Default)]
pub struct RouterArgs {
    values: Values,
}

impl RouterArgs {
    /// Adds file, environment and defaults, and validates the result. `env` reads a variable.
    pub fn into_config(self, env: &dyn Fn(&str) -> Option<String>) -> Result<ProcessConfig, ConfigError> {
        let path = self.values.get("config").cloned().or_else(|| env("SANDBOX_ROUTER_CONFIG"));
        let file = match path.filter(|path| !path.trim().is_empty()) {
            Some(path) => settings::read_file(path.trim().as_ref())?,
            None => Values::new(),
        };
        settings::read(&settings::merge(self.values, file, env), env)
    }
}

fn argument(setting: &'static Setting) -> Arg {
    let mut help = setting.help.to_owned();
    if !setting.default.is_empty() {
        help.push_str(&format!(" [default: {}]", setting.default));
    }
    if let Some(env) = setting.env {
        help.push_str(&format!(" [env: {env}]"));
    }
    let argument = Arg::new(setting.name).long(setting.name).help(help).action(ArgAction::Set);
    match setting.kind {
        Kind::Value => argument.value_name("VALUE").allow_hyphen_values(true),
        // `--switch` and `--switch=false` are accepted, but not `--switch false`, which would take the next argument.
        Kind::Switch => argument.value_name("BOOL").num_args(0..=1).require_equals(true).default_missing_value("true"),
    }
}

impl clap::FromArgMatches for RouterArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = SETTINGS
            .iter()
            .filter_map(|setting| matches.get_one::<String>(setting.name).map(|value| (setting.name, value.clone())));
        Ok(Self { values: given.collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.values.extend(Self::from_arg_matches(matches)?.values);
        Ok(())
    }
}

impl Args for RouterArgs {
    fn augment_args(command: Command) -> Command {
        command.args(SETTINGS.iter().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches;

    fn parse(arguments: &[&str]) -> Result<RouterArgs, clap::Error> {
        let command = RouterArgs::augment_args(Command::new("router"));
        RouterArgs::from_arg_matches(&command.try_get_matches_from([&["router"], arguments].concat())?)
    }

    #[test]
    fn switches_and_values_are_taken_as_go_takes_them() {
        let arguments = ["--access-log=false", "--allow-loopback-pod-ip", "--proxy-timeout", "5s", "--workers=2"];
        let config = parse(&arguments).unwrap().into_config(&|_| None).unwrap();
        assert!(!config.router.access_log && config.router.verification.allow_loopback);
        assert_eq!((config.router.timeouts.proxy.as_secs(), config.router.workers), (5, 2));
        assert!(parse(&["--no-such-flag"]).is_err());
    }

    /// D-165
    #[test]
    fn a_missing_configuration_file_stops_the_start() {
        let error = parse(&["--config", "/nonexistent.yaml"]).unwrap().into_config(&|_| None).unwrap_err();
        assert!(error.to_string().contains("/nonexistent.yaml"));
        let env = |name: &str| (name == "SANDBOX_ROUTER_CONFIG").then(|| "/nonexistent.yaml".to_owned());
        assert!(parse(&[]).unwrap().into_config(&env).is_err());
    }

    #[test]
    fn the_generated_arguments_are_consistent() {
        RouterArgs::augment_args(Command::new("router")).debug_assert();
    }
}
