//! What a request to a sandbox's daemon does, from its head and the beginning of its body.

use agent_sandbox_protocol::grpc::process;
use agent_sandbox_protocol::native::{self, ExecRequest};
use agent_sandbox_protocol::runtime::ExecuteRequest;
use http::{Method, Request};
use prost::Message as _;

/// Ports on which sandboxd listens. The daemon's paths mean nothing on other ports.
const DAEMON_PORTS: [u16; 3] = [8888, 8080, 9090];

pub(super) fn is_daemon_port(port: u16) -> bool {
    DAEMON_PORTS.contains(&port)
}

/// How the body of a command names its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyFormat {
    Runtime,
    Native,
    /// A native request as the first message of a WebSocket.
    WebSocket,
    Grpc,
}

/// What a request does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Operation {
    Exec(BodyFormat),
    /// Without a path in the request line, the name is in the body's first part.
    WriteFile {
        path: Option<String>,
    },
    /// A request to a program in the sandbox.
    Port,
    #[default]
    Read,
}

impl Operation {
    /// The operation if the request is for the daemon.
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        let (method, path) = (request.method(), request.uri().path());
        let query = request.uri().query().unwrap_or_default();
        if let Some(native) = path.strip_prefix(native::PREFIX) {
            return native_operation(method, native, query);
        }
        match (method, path) {
            (&Method::POST, "/execute") => Self::Exec(BodyFormat::Runtime),
            (&Method::POST, "/upload") => Self::WriteFile { path: None },
            (&Method::POST, "/process.v1.ProcessService/Start" | "/process.v1.ProcessService/Execute") => {
                Self::Exec(BodyFormat::Grpc)
            }
            (&Method::POST | &Method::PUT | &Method::DELETE | &Method::PATCH, _) => {
                match path.strip_prefix("/v1/files") {
                    Some(file) => Self::WriteFile { path: Some(decode(file)) },
                    None => Self::Read,
                }
            }
            _ => Self::Read,
        }
    }
}

fn native_operation(method: &Method, path: &str, query: &str) -> Operation {
    match (method, path) {
        (&Method::POST, "/exec" | "/processes") => Operation::Exec(BodyFormat::Native),
        (&Method::GET | &Method::CONNECT, "/exec") => Operation::Exec(BodyFormat::WebSocket),
        (&Method::PUT | &Method::POST | &Method::DELETE, path) if path.starts_with("/files") => {
            let values = query.split('&').filter_map(|pair| pair.split_once('='));
            let mut named = values.filter(|(key, _)| matches!(*key, "path" | "to"));
            Operation::WriteFile { path: Some(named.next().map_or_else(String::new, |(_, value)| decode(value))) }
        }
        _ => Operation::Read,
    }
}

impl BodyFormat {
    /// The command's arguments; empty if the captured bytes do not contain them.
    pub(super) fn arguments(self, captured: &[u8]) -> Vec<String> {
        match self {
            Self::Runtime => {
                serde_json::from_slice::<ExecuteRequest>(captured).map(|request| vec![request.command]).ok()
            }
            Self::Native => native_arguments(captured),
            Self::WebSocket => first_message(captured).and_then(|message| native_arguments(&message)),
            Self::Grpc => captured.get(5..).and_then(|message| {
                // Start and Execute both have the program in field 1; what else a Start has is skipped.
                process::StartRequest::decode(message).ok()?.config.map(|config| config.command)
            }),
        }
        .unwrap_or_default()
    }
}

fn native_arguments(body: &[u8]) -> Option<Vec<String>> {
    let request: ExecRequest = serde_json::from_slice(body).ok()?;
    Some(request.command.map_or(request.argv, |command| vec![command]))
}

/// The payload of the first frame that a WebSocket client sent; `None` if it is not complete.
pub(super) fn first_message(bytes: &[u8]) -> Option<Vec<u8>> {
    let second = *bytes.get(1)?;
    let (length, mut at) = match second & 0x7f {
        126 => (usize::from(u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?)), 4),
        127 => (usize::try_from(u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?)).ok()?, 10),
        short => (usize::from(short), 2),
    };
    let mask: [u8; 4] = if second & 0x80 == 0 {
        [0; 4]
    } else {
        at += 4;
        bytes.get(at - 4..at)?.try_into().ok()?
    };
    let payload = bytes.get(at..at.checked_add(length)?)?;
    Some(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect())
}

/// The `filename` of the first part of a form.
pub(super) fn uploaded_name(form: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(form);
    let (_, rest) = text.split_once("filename=\"")?;
    rest.split_once('"').map(|(name, _)| name.to_owned())
}

fn decode(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Fuzz target: the bytes are the beginning of a body, in every format.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(data: &[u8]) {
    for format in [BodyFormat::Runtime, BodyFormat::Native, BodyFormat::WebSocket, BodyFormat::Grpc] {
        let _ = format.arguments(data);
    }
    let _ = uploaded_name(data);
    if let Some(message) = first_message(data) {
        assert!(message.len() < data.len());
    }
    if let Some(request) = std::str::from_utf8(data).ok().and_then(|target| Request::put(target).body(()).ok()) {
        let _ = Operation::of(&request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(method: &str, target: &str) -> Operation {
        Operation::of(&Request::builder().method(method).uri(target).body(()).unwrap())
    }

    #[test]
    fn every_dialect_is_recognised() {
        let file = |path: &str| Operation::WriteFile { path: Some(path.to_owned()) };
        for (method, target, expected) in [
            ("POST", "/execute", Operation::Exec(BodyFormat::Runtime)),
            ("POST", "/sandbox/v1/exec", Operation::Exec(BodyFormat::Native)),
            ("POST", "/sandbox/v1/processes", Operation::Exec(BodyFormat::Native)),
            ("GET", "/sandbox/v1/exec", Operation::Exec(BodyFormat::WebSocket)),
            ("POST", "/process.v1.ProcessService/Start", Operation::Exec(BodyFormat::Grpc)),
            ("POST", "/upload", Operation::WriteFile { path: None }),
            ("PUT", "/sandbox/v1/files?mode=1&path=%2Fa%20b", file("/a b")),
            ("PUT", "/v1/files/a/b", file("/a/b")),
            ("GET", "/download/a", Operation::Read),
            ("GET", "/sandbox/v1/processes", Operation::Read),
        ] {
            assert_eq!(operation(method, target), expected, "{method} {target}");
        }
    }

    #[test]
    fn arguments_are_found_in_every_format() {
        assert_eq!(BodyFormat::Runtime.arguments(br#"{"command":"ls -l"}"#), ["ls -l"]);
        assert_eq!(BodyFormat::Native.arguments(br#"{"argv":["ls","-l"]}"#), ["ls", "-l"]);
        assert_eq!(BodyFormat::Native.arguments(b"{"), Vec::<String>::new());
        let config = process::ProcessConfig { command: vec!["ls".to_owned()], ..Default::default() };
        let message = process::StartRequest { config: Some(config), pty: None }.encode_to_vec();
        let framed = [&[0, 0, 0, 0, message.len() as u8], message.as_slice()].concat();
        assert_eq!(BodyFormat::Grpc.arguments(&framed), ["ls"]);
    }

    #[test]
    fn the_first_message_is_unmasked_when_it_is_complete() {
        let payload = br#"{"argv":["id"]}"#;
        let mask = [1, 2, 3, 4];
        let masked: Vec<u8> = payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
        let frame = [&[0x81, 0x80 | payload.len() as u8], mask.as_slice(), &masked].concat();
        assert_eq!(BodyFormat::WebSocket.arguments(&frame), ["id"]);
        assert_eq!(first_message(&frame[..frame.len() - 1]), None);
        assert_eq!(first_message(&[0x81, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0]), None);
    }

    #[test]
    fn the_name_of_an_upload_is_in_its_first_part() {
        let form = b"--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.py\"\r\n\r\nprint(1)";
        assert_eq!(uploaded_name(form).as_deref(), Some("a.py"));
        assert_eq!(uploaded_name(b"--x\r\n\r\n"), None);
    }
}
