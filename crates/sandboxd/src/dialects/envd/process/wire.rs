//! Messages of the service, in the JSON form of Protocol Buffers.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use rustix::process::Signal;
use serde::{Deserialize, Deserializer, Serialize};

use super::RpcError;

/// Command, arguments, variables and directory of a process.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Config {
    pub(super) cmd: String,
    pub(super) args: Vec<String>,
    pub(super) envs: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) cwd: Option<String>,
}

impl Config {
    /// The description of a process that another dialect started.
    pub(super) fn of(argv: &[String]) -> Self {
        let (cmd, args) =
            argv.split_first().map_or((String::new(), Vec::new()), |(cmd, args)| (cmd.clone(), args.into()));
        Self { cmd, args, ..Self::default() }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Start {
    pub(super) process: Config,
    pub(super) pty: Option<Pty>,
    pub(super) tag: Option<String>,
    pub(super) stdin: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pty {
    size: Option<Size>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Size {
    cols: u32,
    rows: u32,
}

impl Pty {
    /// Columns and rows; 80 by 24 if no size is given.
    pub(super) fn window(&self) -> Result<(u16, u16), RpcError> {
        let Some(size) = &self.size else { return Ok((80, 24)) };
        let number = |value: u32| u16::try_from(value).ok();
        number(size.cols).zip(number(size.rows)).ok_or_else(|| {
            RpcError::invalid(format!("pty.size: {} by {} is larger than a terminal can be", size.cols, size.rows))
        })
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Selector {
    pub(super) pid: Option<u32>,
    pub(super) tag: Option<String>,
}

/// Messages that consist of a selector alone.
#[derive(Debug, Deserialize)]
pub(super) struct Connect {
    pub(super) process: Option<Selector>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Update {
    pub(super) process: Option<Selector>,
    pub(super) pty: Option<Pty>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Input {
    pub(super) stdin: Option<Base64>,
    pub(super) pty: Option<Base64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct SendInput {
    pub(super) process: Option<Selector>,
    pub(super) input: Option<Input>,
}

#[derive(Debug, Deserialize)]
pub(super) struct StreamInput {
    pub(super) start: Option<Connect>,
    pub(super) data: Option<Data>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Data {
    pub(super) input: Option<Input>,
}

#[derive(Debug, Deserialize)]
pub(super) struct SendSignal {
    pub(super) process: Option<Selector>,
    signal: Option<serde_json::Value>,
}

impl SendSignal {
    pub(super) fn signal(&self) -> Result<Signal, RpcError> {
        match &self.signal {
            Some(value) if value == "SIGNAL_SIGKILL" || value == 9 => Ok(Signal::KILL),
            Some(value) if value == "SIGNAL_SIGTERM" || value == 15 => Ok(Signal::TERM),
            other => {
                let given = other.as_ref().map_or_else(|| "nothing".into(), ToString::to_string);
                Err(RpcError::invalid(format!("signal: {given} is neither SIGNAL_SIGKILL nor SIGNAL_SIGTERM")))
            }
        }
    }
}

/// Bytes, which JSON carries as base64 in either alphabet.
#[derive(Debug)]
pub(super) struct Base64(pub(super) Vec<u8>);

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let decoded = STANDARD.decode(&text).or_else(|_| URL_SAFE.decode(&text));
        decoded.map(Self).map_err(|error| serde::de::Error::custom(format!("not base64: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// E-072, E-080
    #[test]
    fn messages_of_published_clients_are_read() {
        let start: Start = serde_json::from_str(
            r#"{"process":{"cmd":"/bin/bash","args":["-l","-c","true"],"envs":{"A":"1"},"cwd":"/tmp"},
                "pty":{"size":{"cols":100,"rows":30}},"tag":"t","stdin":false,"later":1}"#,
        )
        .expect("a start");
        assert_eq!(start.pty.expect("a terminal").window().expect("a size"), (100, 30));
        assert_eq!(start.process.args.len(), 3);
        let input: SendInput =
            serde_json::from_str(r#"{"process":{"pid":7},"input":{"stdin":"aGk="}}"#).expect("an input");
        assert_eq!(input.input.and_then(|input| input.stdin).expect("bytes").0, b"hi");
        let kill: SendSignal =
            serde_json::from_str(r#"{"process":{"tag":"t"},"signal":"SIGNAL_SIGKILL"}"#).expect("it");
        assert_eq!(kill.signal().expect("a signal"), Signal::KILL);
        let other: SendSignal = serde_json::from_str(r#"{"signal":1}"#).expect("a message");
        assert!(other.signal().is_err());
    }
}
