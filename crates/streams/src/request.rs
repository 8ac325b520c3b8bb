//! Parses and validates the query parameters of streaming requests, and chooses the container.

use agent_sandbox_protocol::exec::EXEC_USER;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::backend::{ExecRequest, LogOptions, LogStreams, StreamSet};

/// Why a streaming request is invalid. The servers that use this crate convert it to an HTTP response in one place
/// each.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("{0}")]
    BadRequest(String),
    /// A field of the options object has a bad value.
    #[error("{field}: Invalid value: {value}: {message}")]
    Invalid { field: &'static str, value: String, message: &'static str },
}

/// Query parameters in order, percent-decoded.
#[derive(Debug, Clone, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(query: Option<&str>) -> Self {
        let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        });
        Self(pairs.collect())
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Parses a boolean parameter as Kubernetes (Go) does; a parameter without a value counts as true.
    pub fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| !matches!(value, "0" | "f" | "F" | "false" | "False" | "FALSE"))
    }

    fn number(&self, field: &'static str, minimum: i64) -> Result<Option<i64>, RequestError> {
        let Some(text) = self.get(field).filter(|text| !text.is_empty()) else { return Ok(None) };
        let number: i64 = text.parse().map_err(|_| RequestError::Invalid {
            field,
            value: format!("{text:?}"),
            message: "must be a whole number",
        })?;
        if number < minimum {
            let message = if minimum == 0 { "must be greater than or equal to 0" } else { "must be greater than 0" };
            return Err(RequestError::Invalid { field, value: number.to_string(), message });
        }
        Ok(Some(number))
    }
}

fn decode(text: &str) -> String {
    let spaced = text.replace('+', " ");
    percent_encoding::percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
}

/// The container that a request refers to: the named one, or the Pod's only one.
pub fn choose_container(pod: &Value, wanted: Option<&str>) -> Result<String, RequestError> {
    let pod_name = pod.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let names = |field: &str| -> Vec<&str> {
        let containers = pod.pointer(&format!("/spec/{field}")).and_then(Value::as_array);
        containers.into_iter().flatten().filter_map(|container| container.get("name")?.as_str()).collect()
    };
    let (main, init, ephemeral) = (names("containers"), names("initContainers"), names("ephemeralContainers"));
    match wanted.filter(|name| !name.is_empty()) {
        Some(name) if main.contains(&name) || init.contains(&name) || ephemeral.contains(&name) => Ok(name.to_owned()),
        Some(name) => Err(RequestError::BadRequest(format!("container {name} is not valid for pod {pod_name}"))),
        None if main.len() == 1 => Ok(main[0].to_owned()),
        None => {
            let inits = if init.is_empty() {
                String::new()
            } else {
                format!(" or one of the init containers: [{}]", init.join(" "))
            };
            Err(RequestError::BadRequest(format!(
                "a container name must be specified for pod {pod_name}, choose one of: [{}]{inits}",
                main.join(" ")
            )))
        }
    }
}

pub fn log_options(query: &Query, pod: &Value, now: Timestamp) -> Result<LogOptions, RequestError> {
    let tail_lines = query.number("tailLines", 0)?;
    let limit_bytes = query.number("limitBytes", 1)?;
    let since_seconds = query.number("sinceSeconds", 1)?;
    let since = match (query.get("sinceTime").filter(|time| !time.is_empty()), since_seconds) {
        (Some(_), Some(_)) => {
            return Err(RequestError::BadRequest(
                "at most one of `sinceTime` or `sinceSeconds` may be specified".into(),
            ));
        }
        (Some(text), None) => Some(text.parse::<Timestamp>().map_err(|_| RequestError::Invalid {
            field: "sinceTime",
            value: format!("{text:?}"),
            message: "must be a time such as 2024-01-31T12:00:00Z",
        })?),
        (None, Some(seconds)) => now.checked_sub(SignedDuration::from_secs(seconds)).ok(),
        (None, None) => None,
    };
    let stream = match query.get("stream").unwrap_or("All") {
        "" | "All" => LogStreams::All,
        "Stdout" => LogStreams::Stdout,
        "Stderr" => LogStreams::Stderr,
        other => {
            return Err(RequestError::Invalid {
                field: "stream",
                value: format!("{other:?}"),
                message: "must be All, Stdout or Stderr",
            });
        }
    };
    Ok(LogOptions {
        container: choose_container(pod, query.get("container"))?,
        follow: query.flag("follow"),
        previous: query.flag("previous"),
        timestamps: query.flag("timestamps"),
        tail_lines: tail_lines.map(i64::unsigned_abs),
        since,
        limit_bytes: limit_bytes.map(i64::unsigned_abs),
        stream,
    })
}

/// The streams of an exec or attach. At least one is required; a terminal has no separate stderr.
fn stream_set(query: &Query) -> Result<StreamSet, RequestError> {
    let (stdin, stdout, tty) = (query.flag("stdin"), query.flag("stdout"), query.flag("tty"));
    let stderr = query.flag("stderr") && !tty;
    if !(stdin || stdout || query.flag("stderr")) {
        return Err(RequestError::BadRequest("you must specify at least 1 of stdin, stdout, stderr".into()));
    }
    Ok(StreamSet { stdin, stdout, stderr, tty })
}

pub fn exec_request(query: &Query, pod: &Value) -> Result<ExecRequest, RequestError> {
    let command: Vec<String> = query.all("command").map(str::to_owned).collect();
    if command.is_empty() {
        return Err(RequestError::BadRequest("you must specify at least one command for the container".into()));
    }
    let streams = stream_set(query)?;
    let container = choose_container(pod, query.get("container"))?;
    let user = query.get(EXEC_USER).filter(|user| !user.is_empty()).map(str::to_owned);
    if let Some(user) = &user
        && must_not_be_root(pod, &container)
    {
        return Err(RequestError::BadRequest(format!(
            "container {container:?} must not run as root (runAsNonRoot), so its commands cannot run as {user:?}; leave the user out"
        )));
    }
    Ok(ExecRequest { container, command, user, streams })
}

/// Whether the Pod or the container says that the container must not run as root. Names of users are known to its image
/// only, so none may be chosen then.
fn must_not_be_root(pod: &Value, container: &str) -> bool {
    let spec = &pod["spec"];
    let lists = ["containers", "initContainers", "ephemeralContainers"];
    let mut all = lists.iter().flat_map(|list| spec[list].as_array().into_iter().flatten());
    let own = all.find(|one| one["name"] == container).map(|one| &one["securityContext"]["runAsNonRoot"]);
    own.and_then(Value::as_bool).or_else(|| spec["securityContext"]["runAsNonRoot"].as_bool()) == Some(true)
}

pub fn attach_request(query: &Query, pod: &Value) -> Result<(String, StreamSet), RequestError> {
    let streams = stream_set(query)?;
    Ok((choose_container(pod, query.get("container"))?, streams))
}

/// The ports of a port-forward over WebSocket, which are in the query (SPDY has one per stream, in its headers).
pub fn forwarded_ports(query: &Query) -> Result<Vec<u16>, RequestError> {
    let ports: Result<Vec<u16>, RequestError> = query
        .all("ports")
        .flat_map(|value| value.split(','))
        .map(|text| match text.trim().parse::<u16>() {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(RequestError::BadRequest(format!("port {text:?} is not a number from 1 to 65535"))),
        })
        .collect();
    let ports = ports?;
    match ports.len() {
        0 => Err(RequestError::BadRequest("query parameter \"ports\" is required".into())),
        1..=100 => Ok(ports),
        count => Err(RequestError::BadRequest(format!("{count} ports are too many, at most 100 can be forwarded"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Value {
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}})
    }

    #[test]
    fn the_container_is_the_named_one_or_the_only_one() {
        assert_eq!(choose_container(&pod(), Some("i")), Ok("i".into()));
        assert_eq!(choose_container(&json!({"spec": {"containers": [{"name": "x"}]}}), None), Ok("x".into()));
        let message = choose_container(&pod(), None).unwrap_err().to_string();
        assert_eq!(
            message,
            "a container name must be specified for pod p, choose one of: [a b] or one of the init containers: [i]"
        );
        assert_eq!(choose_container(&pod(), Some("z")).unwrap_err().to_string(), "container z is not valid for pod p");
    }

    #[test]
    fn log_options_are_validated() {
        let now: Timestamp = "2024-01-31T12:00:00Z".parse().unwrap();
        let options = |query: &str| log_options(&Query::parse(Some(query)), &pod(), now);
        let good =
            options("container=a&follow=true&tailLines=5&sinceSeconds=60&limitBytes=10&timestamps=1&previous=false")
                .unwrap();
        assert_eq!(good.since, Some("2024-01-31T11:59:00Z".parse().unwrap()));
        assert_eq!((good.tail_lines, good.limit_bytes), (Some(5), Some(10)));
        assert!(good.follow && good.timestamps && !good.previous);
        for bad in [
            "tailLines=-1",
            "tailLines=x",
            "limitBytes=0",
            "sinceSeconds=0",
            "sinceTime=yesterday",
            "stream=both",
            "sinceSeconds=1&sinceTime=2024-01-31T12:00:00Z",
        ] {
            assert!(options(&format!("container=a&{bad}")).is_err(), "{bad}");
        }
    }

    #[test]
    fn exec_needs_a_command_and_a_stream() {
        let request = |query: &str| exec_request(&Query::parse(Some(query)), &pod());
        let good =
            request("container=a&command=sh&command=-c&command=echo+%24HOME&stdout=true&stderr=true&tty=true").unwrap();
        assert_eq!(good.command, ["sh", "-c", "echo $HOME"]);
        assert_eq!(good.streams, StreamSet { stdin: false, stdout: true, stderr: false, tty: true });
        assert!(request("container=a&stdout=true").is_err());
        assert!(request("container=a&command=ls").is_err());
    }

    #[test]
    fn a_command_runs_as_another_user_unless_the_container_must_not_be_root() {
        let query = Query::parse(Some("container=a&command=id&stdout=true&agent-sandbox-user=root"));
        let user = |pod: Value, own: Value| {
            let spec =
                json!({"securityContext": pod, "containers": [{"name": "a", "securityContext": own}, {"name": "b"}]});
            exec_request(&query, &json!({ "spec": spec })).map(|request| request.user)
        };
        let (free, bound) = (json!({"runAsNonRoot": false}), json!({"runAsNonRoot": true}));
        assert_eq!(user(Value::Null, Value::Null), Ok(Some("root".to_owned())));
        assert_eq!(user(bound.clone(), free), Ok(Some("root".to_owned())), "the container's own setting wins");
        for (pod, own) in [(Value::Null, bound.clone()), (bound, Value::Null)] {
            let Err(RequestError::BadRequest(message)) = user(pod, own) else { panic!("allowed") };
            assert!(message.contains("runAsNonRoot") && message.contains("root"), "{message}");
        }
    }

    #[test]
    fn ports_must_be_valid_port_numbers() {
        let ports = |query: &str| forwarded_ports(&Query::parse(Some(query)));
        assert_eq!(ports("ports=80,443&ports=8080"), Ok(vec![80, 443, 8080]));
        for bad in ["", "ports=", "ports=0", "ports=65536", "ports=http"] {
            assert!(ports(bad).is_err(), "{bad}");
        }
    }
}
