//! Settings from environment variables, with the names of upstream's server: `K8S_SANDBOX_CONNECTION__TYPE` and others.

use agent_sandbox_client::{Address, Connection, DirectOptions, GatewayOptions, Tunnel};
use std::time::Duration;
use thiserror::Error;

/// Label on a claim with the id of the session that created it.
pub const DEFAULT_SESSION_KEY: &str = "mcp.k8s-agent-sandbox/session-id";
const PREFIX: &str = "K8S_SANDBOX_";
const DAEMON_PORT: u16 = 8888;

/// How to connect to sandboxes, and the label that identifies sessions.
#[derive(Clone, Debug)]
pub struct Settings {
    pub connection: Connection,
    pub port: u16,
    pub session_key: String,
}

/// All errors in the settings.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{}", .0.join("; "))]
pub struct SettingsError(Vec<String>);

impl Settings {
    pub fn from_environment() -> Result<Self, SettingsError> {
        Self::read(|name| std::env::var(name).ok())
    }

    /// Reads the settings through a function that looks up variables.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let mut reader = Reader { variable, errors: Vec::new() };
        let session_key = reader.text("SESSION_ID_LABEL_KEY").unwrap_or_else(|| DEFAULT_SESSION_KEY.to_owned());
        let port = reader.number("CONNECTION__SERVER_PORT").unwrap_or(DAEMON_PORT);
        let connection = reader.connection();
        if reader.errors.is_empty() {
            Ok(Self { connection, port, session_key })
        } else {
            Err(SettingsError(reader.errors))
        }
    }
}

struct Reader<F> {
    variable: F,
    errors: Vec<String>,
}

impl<F: Fn(&str) -> Option<String>> Reader<F> {
    fn connection(&mut self) -> Connection {
        match self.text("CONNECTION__TYPE").as_deref() {
            None | Some("tunnel") => {
                Connection::Tunnel(Tunnel { router_namespace: self.text("CONNECTION__ROUTER_NAMESPACE") })
            }
            Some("direct") => {
                let url = self.required("CONNECTION__API_URL", "a router's address, such as http://router:8080");
                Connection::Direct(DirectOptions {
                    url,
                    ca: self.text("CONNECTION__CA_CERT").map(Into::into),
                    ..DirectOptions::default()
                })
            }
            Some("gateway") => Connection::Gateway(GatewayOptions {
                name: self.required("CONNECTION__GATEWAY_NAME", "a Gateway's name"),
                namespace: self.text("CONNECTION__GATEWAY_NAMESPACE").unwrap_or_else(|| "default".to_owned()),
                ready_timeout: Duration::from_secs(self.number("CONNECTION__GATEWAY_READY_TIMEOUT").unwrap_or(180)),
            }),
            Some("in-cluster") => Connection::InCluster(match self.text("CONNECTION__USE_POD_IP").as_deref() {
                Some("true" | "True" | "1") => Address::PodIp,
                _ => Address::PodIpThenDns,
            }),
            Some(other) => {
                self.errors.push(format!(
                    "{PREFIX}CONNECTION__TYPE is {other:?}; it can be tunnel, direct, gateway or in-cluster"
                ));
                Connection::default()
            }
        }
    }

    fn text(&self, name: &str) -> Option<String> {
        (self.variable)(&format!("{PREFIX}{name}")).filter(|value| !value.is_empty())
    }

    fn required(&mut self, name: &str, what: &str) -> String {
        let found = self.text(name);
        if found.is_none() {
            self.errors.push(format!("{PREFIX}{name} is not set; this connection needs {what}"));
        }
        found.unwrap_or_default()
    }

    fn number<T: std::str::FromStr>(&mut self, name: &str) -> Option<T> {
        let text = self.text(name)?;
        let parsed = text.parse().ok();
        if parsed.is_none() {
            self.errors.push(format!("{PREFIX}{name} is {text:?}, not a number in range"));
        }
        parsed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        Settings::read(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn the_default_is_a_tunnel_and_the_default_label() {
        let settings = read(&[]).unwrap();
        assert!(matches!(settings.connection, Connection::Tunnel(_)));
        assert_eq!((settings.port, settings.session_key.as_str()), (8888, "mcp.k8s-agent-sandbox/session-id"));
    }

    #[test]
    fn the_fields_of_each_connection_are_read() {
        let settings = read(&[
            ("K8S_SANDBOX_CONNECTION__TYPE", "gateway"),
            ("K8S_SANDBOX_CONNECTION__GATEWAY_NAME", "g"),
            ("K8S_SANDBOX_CONNECTION__SERVER_PORT", "9000"),
            ("K8S_SANDBOX_SESSION_ID_LABEL_KEY", "a/b"),
        ]);
        let settings = settings.unwrap();
        let Connection::Gateway(gateway) = settings.connection else { panic!("not a gateway") };
        assert_eq!((gateway.name.as_str(), gateway.namespace.as_str(), settings.port), ("g", "default", 9000));
        assert_eq!(settings.session_key, "a/b");
    }

    #[test]
    fn all_errors_are_reported_at_once() {
        let wrong =
            read(&[("K8S_SANDBOX_CONNECTION__TYPE", "direct"), ("K8S_SANDBOX_CONNECTION__SERVER_PORT", "99999")]);
        let message = wrong.unwrap_err().to_string();
        assert!(message.contains("API_URL") && message.contains("99999"), "{message}");
        let message = read(&[("K8S_SANDBOX_CONNECTION__TYPE", "carrier-pigeon")]).unwrap_err().to_string();
        assert!(message.contains("carrier-pigeon"), "{message}");
    }
}
