//! What a request to a sandbox's daemon does, from its head and the beginning of its body.

use agent_sandbox_protocol::e2b::{ENVD_PORT, INTERPRETER_PORT, query_pairs};
use agent_sandbox_protocol::grpc::process;
use agent_sandbox_protocol::native::{self, ExecRequest, FileOperation};
use agent_sandbox_telemetry::audit::Action;
use http::{Method, Uri};
use prost::Message as _;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

/// Ports of sandboxd's runtime, native and workspace dialects.
const DAEMON_PORTS: [u16; 3] = [8888, 8080, 9090];
/// Bytes before a message of a stream: flags and length, in gRPC as in Connect.
const FRAME_HEAD: usize = 5;

/// What sandboxd speaks at a port. The same path can mean different things in two of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Runtime, native and workspace API.
    #[default]
    Own,
    /// E2B's processes and files.
    Envd,
    /// E2B's code interpreter.
    Interpreter,
}

impl Dialect {
    /// `None` for ports of other programs in the sandbox, on which the daemon's paths mean nothing.
    pub(super) fn at(port: u16) -> Option<Self> {
        match port {
            ENVD_PORT => Some(Self::Envd),
            INTERPRETER_PORT => Some(Self::Interpreter),
            port => DAEMON_PORTS.contains(&port).then_some(Self::Own),
        }
    }
}

/// How the body of a command names its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyFormat {
    Runtime,
    Native,
    /// A native request as the first message of a WebSocket.
    WebSocket,
    Grpc,
    /// The first message of E2B's stream of a process.
    Connect,
    /// E2B's code interpreter: the code is the one argument.
    Code,
}

/// Where the path of a changed file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FilePath {
    Known(String),
    /// The name of the first file of a form.
    InForm,
    /// Members of E2B's calls, of which one has a source and a destination.
    InJson {
        moves: bool,
    },
    /// Members of the native API's operations, of which some have a source and a destination.
    InOperation {
        moves: bool,
    },
}

/// What a request does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Operation {
    Exec(BodyFormat),
    WriteFile(FilePath),
    /// A request to a program in the sandbox.
    Port,
    /// A link to ports of the sandbox is created or revoked.
    Link(Action),
    #[default]
    Read,
}

impl Operation {
    /// The operation of a request for the daemon.
    pub(super) fn of(method: &Method, uri: &Uri, dialect: Dialect) -> Self {
        let query = uri.query().unwrap_or_default();
        match dialect {
            Dialect::Own => own_operation(method, uri.path(), query),
            // Slashes around a path do not matter there.
            Dialect::Envd => envd_operation(method, uri.path().trim_matches('/'), query),
            Dialect::Interpreter if method == Method::POST && uri.path().trim_matches('/') == "execute" => {
                Self::Exec(BodyFormat::Code)
            }
            Dialect::Interpreter => Self::Read,
        }
    }

    /// Whether the body says what is done.
    pub(super) fn is_in_body(&self) -> bool {
        match self {
            Self::Exec(_) => true,
            Self::WriteFile(path) => !matches!(path, FilePath::Known(_)),
            Self::Port | Self::Link(_) | Self::Read => false,
        }
    }
}

fn own_operation(method: &Method, path: &str, query: &str) -> Operation {
    if let Some(native) = path.strip_prefix(native::PREFIX) {
        return native_operation(method, native, query);
    }
    match (method, path) {
        (&Method::POST, "/execute") => Operation::Exec(BodyFormat::Runtime),
        (&Method::POST, "/upload") => Operation::WriteFile(FilePath::InForm),
        (&Method::POST, "/process.v1.ProcessService/Start" | "/process.v1.ProcessService/Execute") => {
            Operation::Exec(BodyFormat::Grpc)
        }
        (&Method::POST | &Method::PUT | &Method::DELETE | &Method::PATCH, _) => match path.strip_prefix("/v1/files") {
            Some(file) => Operation::WriteFile(FilePath::Known(decode(file))),
            None => Operation::Read,
        },
        _ => Operation::Read,
    }
}

fn envd_operation(method: &Method, path: &str, query: &str) -> Operation {
    match (method, path) {
        (&Method::POST, "process.Process/Start") => Operation::Exec(BodyFormat::Connect),
        (&Method::POST, "filesystem.Filesystem/Move") => Operation::WriteFile(FilePath::InJson { moves: true }),
        (&Method::POST, "filesystem.Filesystem/MakeDir" | "filesystem.Filesystem/Remove") => {
            Operation::WriteFile(FilePath::InJson { moves: false })
        }
        (&Method::POST, "files") => {
            // As the daemon reads it: the last one counts, an empty one is none, and a plus sign is a space.
            let mut pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
            let path = pairs.rfind(|(key, _)| *key == "path").filter(|(_, path)| !path.is_empty());
            let known = path.map(|(_, path)| FilePath::Known(decode(&path.replace('+', " "))));
            Operation::WriteFile(known.unwrap_or(FilePath::InForm))
        }
        _ => Operation::Read,
    }
}

fn native_operation(method: &Method, path: &str, query: &str) -> Operation {
    // A slash at the end does not matter there.
    match (method, path.strip_suffix('/').unwrap_or(path)) {
        (&Method::POST, "/exec" | "/processes") => Operation::Exec(BodyFormat::Native),
        (&Method::POST, "/code") => Operation::Exec(BodyFormat::Code),
        (&Method::GET | &Method::CONNECT, "/exec") => Operation::Exec(BodyFormat::WebSocket),
        (&Method::PUT | &Method::DELETE, path) if path.starts_with("/files") => {
            Operation::WriteFile(FilePath::Known(path_parameter(query)))
        }
        (&Method::POST, "/files/move" | "/files/copy") => Operation::WriteFile(FilePath::InOperation { moves: true }),
        (&Method::POST, path) if path.starts_with("/files/") => {
            Operation::WriteFile(FilePath::InOperation { moves: false })
        }
        _ => Operation::Read,
    }
}

/// The parameter `path` as the native API reads it: the last one counts, and its name may be encoded.
fn path_parameter(query: &str) -> String {
    let paths = query_pairs(query).filter(|(name, _)| name == "path");
    paths.last().map_or_else(String::new, |(_, path)| path.into_owned())
}

/// The parsers below accept whatever sandboxd's accept and find in it what sandboxd runs: a body that only one of the
/// two understands would be a command without a record. Structures have the fields of sandboxd's, in their order,
/// because they can be sent as arrays too.
impl BodyFormat {
    /// The command's arguments; `None` if the captured bytes do not contain them.
    pub(super) fn arguments(self, captured: &[u8]) -> Option<Vec<String>> {
        match self {
            Self::Runtime => runtime_arguments(captured),
            Self::Native => native_arguments(captured),
            Self::WebSocket => first_message(captured).and_then(|message| native_arguments(&message)),
            Self::Connect => first_frame(captured).and_then(connect_arguments),
            Self::Code => serde_json::from_slice::<Code>(captured).map(|run| vec![run.code]).ok(),
            // Start and Execute both have the program in field 1; what else a Start has is skipped.
            Self::Grpc => Some(process::ExecuteRequest::decode(first_frame(captured)?).ok()?.config?.command),
        }
    }
}

/// Of members with the same name the last one counts, and other members can be anything.
fn runtime_arguments(body: &[u8]) -> Option<Vec<String>> {
    let Value::Object(mut members) = serde_json::from_slice(body).ok()? else { return None };
    match members.remove("command")? {
        Value::String(command) => Some(vec![command]),
        _ => None,
    }
}

fn native_arguments(body: &[u8]) -> Option<Vec<String>> {
    let request: ExecRequest = serde_json::from_slice(body).ok()?;
    Some(request.command.map_or(request.argv, |command| vec![command]))
}

/// The native API's request for code has the fields of E2B's or fewer, with the code as the first one.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Code {
    code: String,
    #[serde(rename = "context_id")]
    _context: IgnoredAny,
    #[serde(rename = "language")]
    _language: IgnoredAny,
    #[serde(rename = "env_vars")]
    _variables: IgnoredAny,
}

/// The first message of a gRPC or Connect stream, without those that follow it in the captured bytes.
fn first_frame(captured: &[u8]) -> Option<&[u8]> {
    let (head, messages) = captured.split_first_chunk::<FRAME_HEAD>()?;
    let [_, length @ ..] = *head;
    messages.get(..usize::try_from(u32::from_be_bytes(length)).ok()?)
}

/// The first message of E2B's stream of a process.
fn connect_arguments(message: &[u8]) -> Option<Vec<String>> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Start {
        process: Process,
        #[serde(rename = "pty")]
        _terminal: IgnoredAny,
        #[serde(rename = "tag")]
        _tag: IgnoredAny,
        #[serde(rename = "stdin")]
        _stdin: IgnoredAny,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Process {
        cmd: String,
        args: Vec<String>,
        #[serde(rename = "envs")]
        _variables: IgnoredAny,
        #[serde(rename = "cwd")]
        _cwd: IgnoredAny,
    }
    let Start { process, .. } = serde_json::from_slice(message).ok()?;
    Some(std::iter::once(process.cmd).chain(process.args).collect())
}

impl FilePath {
    /// The path; `None` if the captured bytes do not contain it.
    pub(super) fn find(self, captured: &[u8]) -> Option<String> {
        match self {
            Self::Known(path) => Some(path),
            Self::InForm => uploaded_name(captured),
            Self::InJson { moves } => called_path(captured, moves),
            Self::InOperation { moves } => operated_path(captured, moves),
        }
    }
}

/// The path in a call of E2B's file service; of a move, both.
fn called_path(body: &[u8], moves: bool) -> Option<String> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Call {
        path: String,
        #[serde(rename = "depth")]
        _depth: IgnoredAny,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Move {
        source: String,
        destination: String,
    }
    if moves {
        let Move { source, destination } = serde_json::from_slice(body).ok()?;
        return Some(format!("{source} -> {destination}"));
    }
    serde_json::from_slice::<Call>(body).ok().map(|call| call.path)
}

/// The path in an operation of the native API; of a move or copy, both.
fn operated_path(body: &[u8], moves: bool) -> Option<String> {
    let operation: FileOperation = serde_json::from_slice(body).ok()?;
    if moves { Some(format!("{} -> {}", operation.from?, operation.to?)) } else { operation.path }
}

/// The payload of the first message that a WebSocket client sent, from all its frames; `None` if it is not complete.
pub(super) fn first_message(bytes: &[u8]) -> Option<Vec<u8>> {
    let (mut rest, mut message) = (bytes, Vec::new());
    loop {
        let (frame, after) = WebSocketFrame::read(rest)?;
        rest = after;
        // Control frames can come between the frames of a message.
        if !frame.is_control {
            message.extend(frame.payload);
            if frame.is_last {
                return Some(message);
            }
        }
    }
}

struct WebSocketFrame {
    is_last: bool,
    is_control: bool,
    payload: Vec<u8>,
}

impl WebSocketFrame {
    /// The frame at the beginning, and the bytes after it.
    fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (first, second) = (*bytes.first()?, *bytes.get(1)?);
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
        let end = at.checked_add(length)?;
        let masked = bytes.get(at..end)?;
        let payload = masked.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
        Some((Self { is_last: first & 0x80 != 0, is_control: first & 0x08 != 0, payload }, &bytes[end..]))
    }
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
    use BodyFormat::{Code, Connect, Grpc, Native, Runtime, WebSocket};
    for format in [Runtime, Native, WebSocket, Grpc, Connect, Code] {
        let _ = format.arguments(data);
    }
    let _ = FilePath::InForm.find(data);
    let _ =
        [true, false].map(|moves| (FilePath::InJson { moves }.find(data), FilePath::InOperation { moves }.find(data)));
    if let Some(message) = first_message(data) {
        assert!(message.len() < data.len());
    }
    if let Ok(uri) = Uri::try_from(data) {
        for dialect in [Dialect::Own, Dialect::Envd, Dialect::Interpreter] {
            let _ = (Operation::of(&Method::PUT, &uri, dialect), Operation::of(&Method::POST, &uri, dialect));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(method: &str, target: &str, port: u16) -> Operation {
        Operation::of(&method.parse().unwrap(), &target.parse().unwrap(), Dialect::at(port).unwrap())
    }

    #[test]
    fn every_dialect_is_recognised() {
        let file = |path: &str| Operation::WriteFile(FilePath::Known(path.to_owned()));
        for (method, target, expected) in [
            ("POST", "/execute", Operation::Exec(BodyFormat::Runtime)),
            ("POST", "/sandbox/v1/exec", Operation::Exec(BodyFormat::Native)),
            ("POST", "/sandbox/v1/processes", Operation::Exec(BodyFormat::Native)),
            ("GET", "/sandbox/v1/exec", Operation::Exec(BodyFormat::WebSocket)),
            ("POST", "/process.v1.ProcessService/Start", Operation::Exec(BodyFormat::Grpc)),
            ("POST", "/upload", Operation::WriteFile(FilePath::InForm)),
            ("PUT", "/sandbox/v1/files?mode=1&path=%2Fa%20b", file("/a b")),
            ("PUT", "/sandbox/v1/files?path=/harmless&p%61th=/etc/a+b", file("/etc/a b")),
            ("POST", "/sandbox/v1/exec/", Operation::Exec(BodyFormat::Native)),
            ("POST", "/sandbox/v1/code", Operation::Exec(BodyFormat::Code)),
            ("POST", "/sandbox/v1/code/contexts", Operation::Read),
            ("POST", "/sandbox/v1/files/copy", Operation::WriteFile(FilePath::InOperation { moves: true })),
            ("POST", "/sandbox/v1/files/mkdir", Operation::WriteFile(FilePath::InOperation { moves: false })),
            ("PUT", "/sandbox/v1/files/tar?path=%2Fa", file("/a")),
            ("PUT", "/v1/files/a/b", file("/a/b")),
            ("GET", "/download/a", Operation::Read),
            ("GET", "/sandbox/v1/processes", Operation::Read),
        ] {
            for port in DAEMON_PORTS {
                assert_eq!(operation(method, target, port), expected, "{method} {target}");
            }
        }
        for (method, target, expected) in [
            ("POST", "/process.Process/Start", Operation::Exec(BodyFormat::Connect)),
            ("POST", "//process.Process/Start/", Operation::Exec(BodyFormat::Connect)),
            ("POST", "/process.Process/List", Operation::Read),
            ("POST", "/files?username=me&path=%2Fa+b", file("/a b")),
            ("POST", "/files?path=/harmless&path=/etc/a", file("/etc/a")),
            ("POST", "/files?path=", Operation::WriteFile(FilePath::InForm)),
            ("POST", "/files", Operation::WriteFile(FilePath::InForm)),
            ("GET", "/files?path=/a", Operation::Read),
            ("POST", "/filesystem.Filesystem/MakeDir", Operation::WriteFile(FilePath::InJson { moves: false })),
            ("POST", "/filesystem.Filesystem/Move", Operation::WriteFile(FilePath::InJson { moves: true })),
            ("POST", "/filesystem.Filesystem/Remove", Operation::WriteFile(FilePath::InJson { moves: false })),
            ("POST", "/filesystem.Filesystem/Stat", Operation::Read),
            ("POST", "/execute", Operation::Read),
        ] {
            assert_eq!(operation(method, target, ENVD_PORT), expected, "{method} {target}");
        }
        assert_eq!(operation("POST", "/execute", INTERPRETER_PORT), Operation::Exec(BodyFormat::Code));
        assert_eq!(operation("POST", "/contexts", INTERPRETER_PORT), Operation::Read);
        assert_eq!(Dialect::at(3000), None);
    }

    fn found(format: BodyFormat, body: &[u8]) -> Vec<String> {
        format.arguments(body).expect("arguments")
    }

    /// A message of a gRPC or Connect stream.
    fn framed(message: &[u8]) -> Vec<u8> {
        [[0].as_slice(), &u32::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
    }

    /// A masked frame of a WebSocket.
    fn web_socket_frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mask = [1, 2, 3, 4];
        let masked: Vec<u8> = payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
        [&[first, 0x80 | payload.len() as u8], mask.as_slice(), &masked].concat()
    }

    #[test]
    fn arguments_are_found_in_every_format() {
        assert_eq!(found(BodyFormat::Runtime, br#"{"command":"ls -l"}"#), ["ls -l"]);
        assert_eq!(found(BodyFormat::Native, br#"{"argv":["ls","-l"]}"#), ["ls", "-l"]);
        assert_eq!(BodyFormat::Native.arguments(b"{"), None);
        let config = process::ProcessConfig { command: vec!["ls".to_owned()], ..Default::default() };
        let message = process::StartRequest { config: Some(config), pty: None }.encode_to_vec();
        assert_eq!(found(BodyFormat::Grpc, &framed(&message)), ["ls"]);
        let start = br#"{"process":{"cmd":"/bin/bash","args":["-l","-c","ls"]},"stdin":false}"#;
        let body = [framed(start), vec![0, 0]].concat();
        assert_eq!(found(BodyFormat::Connect, &body), ["/bin/bash", "-l", "-c", "ls"]);
        assert_eq!(BodyFormat::Connect.arguments(&body[..40]), None);
        assert_eq!(found(BodyFormat::Code, br#"{"code":"print(1)","language":null}"#), ["print(1)"]);
    }

    #[test]
    fn arguments_are_found_in_every_body_that_sandboxd_accepts() {
        let runtime = |body: &str| BodyFormat::Runtime.arguments(body.as_bytes());
        let echo = Some(vec!["echo x".to_owned()]);
        assert_eq!(runtime(r#"{"command":"true","command":"echo x"}"#), echo);
        assert_eq!(runtime(r#"{"command":"echo x","timeout_seconds":"none"}"#), echo);
        assert_eq!(runtime(r#"{"command":["echo x"]}"#), None);
        // Structures as arrays of their fields.
        assert_eq!(found(BodyFormat::Code, br#"["print(1)",null,"python",{}]"#), ["print(1)"]);
        assert_eq!(found(BodyFormat::Connect, &framed(br#"[["ls",["-l"],{},null],null,"tag",false]"#)), ["ls", "-l"]);
        // A second message, and a field that only Start has.
        let config = process::ProcessConfig { command: vec!["ls".to_owned()], ..Default::default() };
        let mut message = process::ExecuteRequest { config: Some(config) }.encode_to_vec();
        message.extend([0x10, 1]);
        assert_eq!(found(BodyFormat::Grpc, &[framed(&message), framed(b"")].concat()), ["ls"]);
    }

    #[test]
    fn paths_are_found_in_calls() {
        let path = |path: &str| Some(path.to_owned());
        let (move_, make) = (FilePath::InJson { moves: true }, FilePath::InJson { moves: false });
        assert_eq!(make.clone().find(br#"{"path":"/a"}"#), path("/a"));
        assert_eq!(make.clone().find(br#"{"path":"/a","source":1,"destination":"/harmless"}"#), path("/a"));
        assert_eq!(move_.find(br#"{"source":"/a","destination":"/etc/b"}"#), path("/a -> /etc/b"));
        assert_eq!(make.find(b"{"), None);
        let (move_, make) = (FilePath::InOperation { moves: true }, FilePath::InOperation { moves: false });
        assert_eq!(move_.clone().find(br#"{"from":"/a","to":"/etc/b","path":"/c"}"#), path("/a -> /etc/b"));
        assert_eq!(make.clone().find(br#"{"from":"/a","to":"/b","path":"/etc/c"}"#), path("/etc/c"));
        assert_eq!((move_.find(b"{}"), make.find(b"{}")), (None, None));
    }

    #[test]
    fn the_first_message_is_unmasked_when_it_is_complete() {
        let frame = web_socket_frame(0x81, br#"{"argv":["id"]}"#);
        assert_eq!(found(BodyFormat::WebSocket, &frame), ["id"]);
        assert_eq!(first_message(&frame[..frame.len() - 1]), None);
        assert_eq!(first_message(&[0x81, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0]), None);
        // The message in two frames, with a ping between them.
        let first = web_socket_frame(0x01, br#"{"argv":"#);
        let frames = [first.clone(), web_socket_frame(0x89, b"ping"), web_socket_frame(0x80, br#"["id"]}"#)].concat();
        assert_eq!(found(BodyFormat::WebSocket, &frames), ["id"]);
        assert_eq!(first_message(&first), None);
    }

    #[test]
    fn the_name_of_an_upload_is_in_its_first_part() {
        let form = b"--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.py\"\r\n\r\nprint(1)";
        assert_eq!(uploaded_name(form).as_deref(), Some("a.py"));
        assert_eq!(uploaded_name(b"--x\r\n\r\n"), None);
    }
}
