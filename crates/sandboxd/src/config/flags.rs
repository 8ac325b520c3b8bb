//! Parses the arguments. `--name value` and `--name=value` are equivalent; everything after `--` is the container's own
//! command.

use std::collections::HashMap;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use agent_sandbox_protocol::e2b::{ENVD_PORT, INTERPRETER_PORT};
use agent_sandbox_protocol::sandbox_token::VerifyingKeys;
use agent_sandbox_protocol::web::{AllowedHosts, AllowedOrigins};

use super::variables::{
    ALLOWED_HOSTS, ALLOWED_ORIGINS, BASE_DIR, E2B, EXEC_TIMEOUT_SECONDS, LISTEN_FDS, LISTEN_PID, POD_UID,
    ROUTER_PUBLIC_KEY, inherited_sockets, seconds, trimmed,
};
use super::{
    Config, ConfigError, DEFAULT_EXEC_TIMEOUT, DEFAULT_MAX_PROCESSES, DEFAULT_OUTPUT_LIMIT, Invocation, RouterKeys,
    TokenSource, default_addresses,
};
use crate::core::paths::Mode;
use crate::dialects::runtime::ExecMode;

/// The text of `--help`.
pub const USAGE: &str = "\
sandboxd: makes any image a sandbox

usage: sandboxd [FLAGS] [-- COMMAND ARGS...]

  --listen HOST:PORT          serve everything here (repeatable)
  --listen-if-free HOST:PORT  the same, but a taken port is not an error (repeatable)
  --unix PATH                 serve everything on a Unix socket (repeatable)
  --listen-host HOST          without --listen: host of ports 8888, 8080 and 9090 (0.0.0.0)
  --rest-port PORT            without --listen: instead of 8080
  --grpc-port PORT            without --listen: instead of 9090
  --e2b                       serve E2B's clients on ports 49983 and 49999 (SANDBOX_E2B=true)
  --envd-listen HOST:PORT     serve E2B's processes and files here (repeatable)
  --interpreter-listen HOST:PORT  serve E2B's code interpreter here (repeatable)
  --mode natural|strict       how the runtime dialect understands commands and paths (natural)
  --exec-mode shell|argv      shell text, or words without a shell (shell; argv in strict mode)
  --shell PATH                the shell (/bin/sh)
  --base-dir DIR              working directory of commands (SANDBOX_BASE_DIR; /home/user, /app or .)
  --sandbox-root DIR          confine file operations to DIR (/)
  --root-dir DIR              root of /v1/files and gRPC commands (/workspace)
  --exec-timeout SECONDS      time limit of one /execute (SANDBOX_EXEC_TIMEOUT_SECONDS; 300)
  --output-limit BYTES        output kept of each stream of one command (8388608)
  --max-processes N           commands running at once (256)
  --max-body BYTES            largest upload (no limit)
  --kill-grace DURATION       time between SIGTERM and SIGKILL (2s)
  --shutdown-timeout DURATION time limit of a graceful shutdown (10s)
  --http-idle-timeout DURATION timeout for idle connections and slow headers (60s)
  --stream-chunk-size BYTES   maximum size of one gRPC output message (4096)
  --metadata-env-prefix TEXT  variables that /v1/metadata may show (SANDBOX_)
  --signal-exit-minus-one     gRPC reports -1 instead of 128+N for signals
  --token-file PATH           file with the bearer token that every request must carry
  --token-fd N                the same, from an inherited descriptor
  --router-key-file PATH      file with the public key (PEM) of the router that every request must come through
                              (SANDBOX_ROUTER_PUBLIC_KEY: the key itself)
  --pod-uid UID               with it: UID of this Pod (SANDBOX_POD_UID)
  --allowed-host NAME         accept requests with this Host, *.DOMAIN or * (repeatable; SANDBOX_ALLOWED_HOSTS)
  --allowed-origin ORIGIN     accept requests of web pages of this origin (repeatable; SANDBOX_ALLOWED_ORIGINS)
  --history-file PATH         keep the history of commands in this file over restarts (only in memory)
  --keep-running              keep serving after COMMAND has ended
  --log-level LEVEL           error, warn, info, debug or trace (info)
  --version, --help

Listening sockets passed by systemd socket activation (LISTEN_FDS) are served, too.
";

const SWITCHES: [&str; 3] = ["signal-exit-minus-one", "keep-running", "e2b"];

const VALUES: [&str; 33] = [
    "listen",
    "listen-if-free",
    "unix",
    "listen-host",
    "envd-listen",
    "interpreter-listen",
    "rest-port",
    "grpc-port",
    "mode",
    "exec-mode",
    "shell",
    "base-dir",
    "sandbox-root",
    "root-dir",
    "exec-timeout",
    "output-limit",
    "max-processes",
    "max-body",
    "kill-grace",
    "shutdown-timeout",
    "http-idle-timeout",
    "stream-chunk-size",
    "metadata-env-prefix",
    "token-file",
    "token-fd",
    "router-key-file",
    "pod-uid",
    "allowed-host",
    "allowed-origin",
    "history-file",
    "log-level",
    "zap-log-level",
    "zap-encoder",
];

/// Parses the arguments (without the program's name) and reads environment variables through `variable`.
pub fn parse(
    arguments: impl IntoIterator<Item = OsString>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Invocation, ConfigError> {
    let mut parsed = Arguments::default();
    let mut arguments = arguments.into_iter();
    let mut command = Vec::new();
    while let Some(argument) = arguments.next() {
        let Some(text) = argument.to_str() else {
            parsed.add_error(format!("{argument:?} is not valid UTF-8"));
            continue;
        };
        match text {
            "--" => {
                command = arguments.by_ref().collect();
                if command.is_empty() {
                    parsed.add_error("a command must follow --");
                }
            }
            "--help" | "-h" => return Ok(Invocation::Help),
            "--version" => return Ok(Invocation::Version),
            _ => parsed.parse_flag(text, &mut arguments),
        }
    }
    parsed.into_config(command, variable)
}

#[derive(Default)]
struct Arguments {
    values: HashMap<&'static str, Vec<String>>,
    errors: Vec<String>,
}

impl Arguments {
    fn add_error(&mut self, error: impl Into<String>) {
        self.errors.push(error.into());
    }

    fn parse_flag(&mut self, text: &str, rest: &mut impl Iterator<Item = OsString>) {
        let bare = text.trim_start_matches('-');
        let (name, inline) = match bare.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (bare, None),
        };
        if !text.starts_with('-') {
            return self.add_error(format!("unexpected argument {text:?}; put a command after --"));
        }
        if let Some(switch) = SWITCHES.iter().find(|switch| **switch == name) {
            self.values.entry(switch).or_default().push(inline.unwrap_or_else(|| "true".into()));
            return;
        }
        let Some(flag) = VALUES.iter().find(|flag| **flag == name) else {
            return self.add_error(format!("unknown flag {text:?}; see --help"));
        };
        match inline.or_else(|| rest.next().and_then(|value| value.into_string().ok())) {
            Some(value) => self.values.entry(flag).or_default().push(value),
            None => self.add_error(format!("--{flag} needs a value")),
        }
    }

    fn last(&mut self, flag: &'static str) -> Option<String> {
        self.values.remove(flag).and_then(|values| values.into_iter().next_back())
    }

    fn switch(&mut self, flag: &'static str) -> bool {
        self.last(flag).is_some_and(|value| value != "false")
    }

    fn parsed<T: FromStr>(&mut self, flag: &'static str, default: T) -> T {
        let Some(text) = self.last(flag) else { return default };
        text.parse().unwrap_or_else(|_| {
            self.add_error(format!("--{flag}: {text:?} is not a valid value"));
            default
        })
    }

    fn duration(&mut self, flag: &'static str, default: Duration) -> Duration {
        let Some(text) = self.last(flag) else { return default };
        parse_duration(&text).unwrap_or_else(|| {
            self.add_error(format!("--{flag}: {text:?} is not a duration such as 10s or 500ms"));
            default
        })
    }

    fn choice<T: Copy>(&mut self, flag: &'static str, default: T, choices: &[(&str, T)]) -> T {
        let Some(text) = self.last(flag) else { return default };
        choices.iter().find(|(name, _)| *name == text).map_or_else(
            || {
                let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
                self.add_error(format!("--{flag}: {text:?} is not one of {}", names.join(", ")));
                default
            },
            |(_, value)| *value,
        )
    }

    /// The values of a repeatable flag and of a variable with a comma list.
    fn list(&mut self, flag: &'static str, variable: Option<String>) -> Vec<String> {
        let variable = variable.unwrap_or_default();
        let listed = variable.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(str::to_owned);
        self.values.remove(flag).unwrap_or_default().into_iter().chain(listed).collect()
    }

    fn router(&mut self, variable: impl Fn(&str) -> Option<String>) -> Option<RouterKeys> {
        let pod_uid = self.last("pod-uid").or_else(|| trimmed(variable(POD_UID)));
        let pem = match self.last("router-key-file") {
            Some(path) => match std::fs::read_to_string(&path) {
                Ok(text) => text,
                Err(error) => {
                    self.add_error(format!("--router-key-file: cannot read {path}: {error}"));
                    return None;
                }
            },
            None => trimmed(variable(ROUTER_PUBLIC_KEY))?,
        };
        match (VerifyingKeys::from_pem(&pem), pod_uid) {
            (Ok(keys), Some(pod_uid)) => return Some(RouterKeys { keys, pod_uid }),
            (Ok(_), None) => self.add_error(
                "a router's key needs the UID of this Pod: set SANDBOX_POD_UID from fieldRef metadata.uid, or --pod-uid",
            ),
            (Err(error), _) => self.add_error(format!("the router's key is {error}")),
        }
        None
    }

    fn allowed_hosts(&mut self, variable: impl Fn(&str) -> Option<String>) -> Vec<String> {
        let list = self.list("allowed-host", variable(ALLOWED_HOSTS));
        if let Err(error) = AllowedHosts::listed().and(list.clone()) {
            self.add_error(format!("--allowed-host: {error}"));
        }
        list
    }

    fn allowed_origins(&mut self, variable: impl Fn(&str) -> Option<String>) -> AllowedOrigins {
        let list = self.list("allowed-origin", variable(ALLOWED_ORIGINS));
        AllowedOrigins::new(list).unwrap_or_else(|error| {
            self.add_error(format!("--allowed-origin: {error}"));
            AllowedOrigins::default()
        })
    }

    /// Addresses of E2B's two ports.
    fn e2b_addresses(&mut self, host: IpAddr, variable: Option<String>) -> (Vec<SocketAddr>, Vec<SocketAddr>) {
        let wanted = self.switch("e2b") || matches!(trimmed(variable).as_deref(), Some("true" | "1"));
        let [envd, interpreter] =
            [("envd-listen", ENVD_PORT), ("interpreter-listen", INTERPRETER_PORT)].map(|(flag, port)| {
                let given = self.address_list(flag);
                if given.is_empty() && wanted { vec![SocketAddr::new(host, port)] } else { given }
            });
        (envd, interpreter)
    }

    fn addresses(&mut self, host: IpAddr) -> Vec<SocketAddr> {
        let rest = self.parsed("rest-port", 8080_u16);
        let grpc = self.parsed("grpc-port", 9090_u16);
        for (flag, port) in [("rest-port", rest), ("grpc-port", grpc)] {
            if port == 0 {
                self.add_error(format!("--{flag}: 0 is not a port between 1 and 65535"));
            }
        }
        if rest == grpc {
            self.add_error(format!("--rest-port and --grpc-port are both {rest}; they must differ"));
        }
        let addresses = self.address_list("listen");
        if addresses.is_empty() && !self.values.contains_key("unix") && !self.values.contains_key("listen-if-free") {
            return default_addresses(host, rest, grpc);
        }
        addresses
    }

    fn address_list(&mut self, flag: &'static str) -> Vec<SocketAddr> {
        let mut addresses = Vec::new();
        for text in self.values.remove(flag).unwrap_or_default() {
            let text = text.replacen("localhost:", "127.0.0.1:", 1);
            let full = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.clone() };
            match full.parse() {
                Ok(address) => addresses.push(address),
                Err(_) => self.add_error(format!("--{flag}: {text:?} is not an address such as 127.0.0.1:8888")),
            }
        }
        addresses
    }

    fn token(&mut self) -> Option<TokenSource> {
        let file = self.last("token-file").map(|path| TokenSource::File(path.into()));
        let descriptor = self.last("token-fd");
        if file.is_some() && descriptor.is_some() {
            self.add_error("--token-file and --token-fd exclude each other");
        }
        let Some(text) = descriptor else { return file };
        match text.parse::<i32>() {
            Ok(descriptor) if descriptor > 2 => Some(TokenSource::Descriptor(descriptor)),
            _ => {
                self.add_error(format!("--token-fd: {text:?} is not a descriptor above 2"));
                None
            }
        }
    }

    fn directory(&mut self, flag: &'static str) -> Option<PathBuf> {
        let text = self.last(flag)?;
        if text.trim().is_empty() {
            self.add_error(format!("--{flag}: empty; name a directory"));
        }
        Some(PathBuf::from(text))
    }

    fn into_config(
        mut self,
        command: Vec<OsString>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Invocation, ConfigError> {
        let host = self.parsed("listen-host", IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let listen = self.addresses(host);
        let (envd, interpreter) = self.e2b_addresses(host, variable(E2B));
        let mode = self.choice("mode", Mode::Natural, &[("natural", Mode::Natural), ("strict", Mode::Strict)]);
        let exec_default = if mode == Mode::Strict { ExecMode::Argv } else { ExecMode::Shell };
        let exec_modes = [("shell", ExecMode::Shell), ("argv", ExecMode::Argv)];
        let from_variable = trimmed(variable(EXEC_TIMEOUT_SECONDS)).and_then(|text| seconds(&text));
        let exec_timeout = self.duration("exec-timeout", from_variable.unwrap_or(DEFAULT_EXEC_TIMEOUT));
        let chunk = self.parsed("stream-chunk-size", 0_usize);
        let config = Config {
            listen,
            listen_if_free: self.address_list("listen-if-free"),
            unix: self.values.remove("unix").unwrap_or_default().into_iter().map(PathBuf::from).collect(),
            envd,
            interpreter,
            inherited_sockets: inherited_sockets(variable(LISTEN_FDS), variable(LISTEN_PID), std::process::id()),
            mode,
            exec_mode: self.choice("exec-mode", exec_default, &exec_modes),
            shell: self.last("shell").map_or_else(|| "/bin/sh".into(), OsString::from),
            base_dir: self.directory("base-dir").or_else(|| trimmed(variable(BASE_DIR)).map(PathBuf::from)),
            sandbox_root: self.directory("sandbox-root").unwrap_or_else(|| "/".into()),
            root_dir: self.directory("root-dir"),
            exec_timeout,
            output_limit: self.parsed("output-limit", DEFAULT_OUTPUT_LIMIT).max(1024),
            max_processes: self.parsed("max-processes", DEFAULT_MAX_PROCESSES).max(1),
            max_body: self.parsed("max-body", u64::MAX),
            kill_grace: self.duration("kill-grace", Duration::from_secs(2)),
            shutdown_timeout: self.duration("shutdown-timeout", Duration::from_secs(10)),
            http_idle_timeout: self.duration("http-idle-timeout", Duration::from_secs(60)),
            stream_chunk_size: if chunk == 0 { 4096 } else { chunk.min(1 << 20) },
            metadata_env_prefix: self.last("metadata-env-prefix").unwrap_or_else(|| "SANDBOX_".into()),
            signal_exit_minus_one: self.switch("signal-exit-minus-one"),
            token: self.token(),
            router: self.router(&variable),
            allowed_hosts: self.allowed_hosts(&variable),
            allowed_origins: self.allowed_origins(&variable),
            history_file: self.last("history-file").map(PathBuf::from),
            log_level: self.parsed("log-level", tracing::Level::INFO),
            command,
            keep_running: self.switch("keep-running"),
        };
        if self.errors.is_empty() { Ok(Invocation::Run(Box::new(config))) } else { Err(ConfigError(self.errors)) }
    }
}

/// Parses `10`, `10s`, `1.5s`, `500ms`, `2m` or `1h`.
fn parse_duration(text: &str) -> Option<Duration> {
    let split = text.find(|character: char| character.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    let number: f64 = number.parse().ok()?;
    Duration::try_from_secs_f64(number * scale).ok().filter(|duration| !duration.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<Invocation, ConfigError> {
        parse(arguments.iter().map(OsString::from), |_| None)
    }

    fn config(arguments: &[&str]) -> Config {
        match read(arguments) {
            Ok(Invocation::Run(config)) => *config,
            other => panic!("{other:?}"),
        }
    }

    /// D-096
    #[test]
    fn bad_ports_and_empty_roots_are_reported_together() {
        let ConfigError(errors) =
            read(&["--grpc-port", "0", "--rest-port=0", "--root-dir", " ", "--nonsense"]).expect_err("four errors");
        assert_eq!(errors.len(), 5, "{errors:?}");
        assert!(read(&["--grpc-port=7000", "--rest-port=7000"]).is_err());
        assert!(read(&["--grpc-port=7000", "--rest-port=70000"]).is_err());
    }

    #[test]
    fn everything_after_the_dashes_is_the_command() {
        let config = config(&["--listen", "127.0.0.1:0", "--", "sleep", "--listen"]);
        assert_eq!(config.command, ["sleep", "--listen"]);
        assert_eq!(config.listen, ["127.0.0.1:0".parse().expect("an address")]);
    }

    #[test]
    fn without_addresses_the_three_known_ports_are_served() {
        let ports: Vec<u16> = config(&["--rest-port", "81"]).listen.iter().map(SocketAddr::port).collect();
        assert_eq!(ports, [8888, 81, 9090]);
    }

    #[test]
    fn the_ports_of_e2b_are_opened_only_when_asked_for() {
        let ports = |config: &Config| -> Vec<u16> {
            config.envd.iter().chain(&config.interpreter).map(SocketAddr::port).collect()
        };
        assert!(ports(&config(&[])).is_empty());
        assert_eq!(ports(&config(&["--e2b"])), [49983, 49999]);
        assert_eq!(ports(&config(&["--e2b", "--envd-listen", "127.0.0.1:7"])), [7, 49999]);
        assert_eq!(ports(&config(&["--interpreter-listen", ":8"])), [8]);
        for (value, count) in [("true", 2), ("1", 2), ("false", 0), ("", 0)] {
            let request = parse([], |name| (name == E2B).then(|| value.to_owned()));
            let Ok(Invocation::Run(config)) = request else { panic!("{request:?}") };
            assert_eq!(ports(&config).len(), count, "{value}");
        }
    }

    /// D-005, D-006
    #[test]
    fn the_time_limit_comes_from_the_variable_when_it_is_usable() {
        for (value, expected) in [("5", 5), ("nan", 300), ("-3", 300)] {
            let request = parse([], |name| (name == EXEC_TIMEOUT_SECONDS).then(|| value.to_owned()));
            let Ok(Invocation::Run(config)) = request else { panic!("{request:?}") };
            assert_eq!(config.exec_timeout, Duration::from_secs(expected), "{value}");
        }
    }

    #[test]
    fn names_and_origins_come_from_flags_and_variables() {
        let variable = |name: &str| (name == ALLOWED_HOSTS).then(|| "a.example, *.b.example,".to_owned());
        let flags = ["--allowed-host=c.example", "--allowed-origin", "https://app.example"];
        let request = parse(flags.iter().map(OsString::from), variable);
        let Ok(Invocation::Run(config)) = request else { panic!("{request:?}") };
        assert_eq!(config.allowed_hosts, ["c.example", "a.example", "*.b.example"]);
        assert!(!config.allowed_origins.is_empty());
        let ConfigError(errors) =
            read(&["--allowed-host=a:1", "--allowed-origin=app.example"]).expect_err("two errors");
        assert_eq!(errors.len(), 2, "{errors:?}");
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(parse_duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.5"), Some(Duration::from_millis(1500)));
        for bad in ["", "x", "-1s", "1d", "0s", "nan"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }
}
