//! Client for the runtime REST API (commands and files), which every published sandbox image implements.

use agent_sandbox_client::{Call, ClientError, Payload, SandboxHandle};
use agent_sandbox_protocol::runtime::{ExecuteRequest, ExecuteResponse, ExistsResponse, FileEntry};
use bytes::{BufMut, Bytes, BytesMut};
use http::{Method, header::CONTENT_TYPE};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use std::time::Duration;

/// Additional time for the response to arrive after the command's timeout.
const RESPONSE_MARGIN: Duration = Duration::from_secs(10);

/// Runs a shell command. The sandbox kills it after `limit`.
pub(crate) async fn execute(
    sandbox: &SandboxHandle,
    command: String,
    limit: Duration,
) -> Result<ExecuteResponse, ClientError> {
    let request = ExecuteRequest { command, timeout_seconds: Some(limit.as_secs_f64()) };
    let mut call = Call::new(Method::POST, "/execute", "run a command").json(&request);
    call.timeout = Some(limit + RESPONSE_MARGIN);
    sandbox.transport().fetch_json(call).await
}

pub(crate) async fn upload(
    sandbox: &SandboxHandle,
    path: &str,
    content: &[u8],
    limit: Duration,
) -> Result<(), ClientError> {
    let (boundary, body) = multipart(path, content)?;
    let kind = format!("multipart/form-data; boundary={boundary}");
    let mut call = call_with_timeout(Method::POST, "/upload".to_owned(), format!("write `{path}`"), limit);
    call = call.header(CONTENT_TYPE, &kind)?;
    call.payload = Payload::Bytes(body);
    sandbox.transport().send(call).await.map(drop)
}

pub(crate) async fn download(sandbox: &SandboxHandle, path: &str, limit: Duration) -> Result<Bytes, ClientError> {
    let call = call_with_timeout(Method::GET, endpoint("download", path), format!("read `{path}`"), limit);
    sandbox.transport().fetch(call).await
}

pub(crate) async fn list(sandbox: &SandboxHandle, path: &str, limit: Duration) -> Result<Vec<FileEntry>, ClientError> {
    let call = call_with_timeout(Method::GET, endpoint("list", path), format!("list `{path}`"), limit);
    sandbox.transport().fetch_json(call).await
}

pub(crate) async fn exists(sandbox: &SandboxHandle, path: &str, limit: Duration) -> Result<bool, ClientError> {
    let call = call_with_timeout(Method::GET, endpoint("exists", path), format!("look at `{path}`"), limit);
    let response: ExistsResponse = sandbox.transport().fetch_json(call).await?;
    Ok(response.exists)
}

fn call_with_timeout(method: Method, path: String, operation: String, limit: Duration) -> Call {
    let mut call = Call::new(method, path, operation);
    call.timeout = Some(limit);
    call
}

/// The URL path of an endpoint, with the file path percent-encoded as one segment, which the runtime decodes once.
fn endpoint(endpoint: &str, path: &str) -> String {
    format!("/{endpoint}/{}", utf8_percent_encode(path, NON_ALPHANUMERIC))
}

/// A multipart form with one file, named by its path. Returns the boundary and the body.
fn multipart(path: &str, content: &[u8]) -> Result<(String, Bytes), ClientError> {
    if path.is_empty() || path.chars().any(char::is_control) {
        return Err(ClientError::Invalid(format!("{path:?} cannot be the path of a file")));
    }
    let boundary = uuid::Uuid::new_v4().simple().to_string();
    let name = path.replace('\\', "\\\\").replace('"', "%22");
    let head = format!("--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n");
    let tail = format!("\r\n--{boundary}--\r\n");
    let mut body = BytesMut::with_capacity(head.len() + content.len() + tail.len());
    body.put_slice(head.as_bytes());
    body.put_slice(content);
    body.put_slice(tail.as_bytes());
    Ok((boundary, body.freeze()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_escaped_in_the_form() {
        let (boundary, body) = multipart("a \"q\".txt", b"x").unwrap();
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert!(
            text.contains("filename=\"a %22q%22.txt\"\r\n\r\nx\r\n") && text.ends_with(&format!("--{boundary}--\r\n"))
        );
        for wrong in ["", "a\r\nb", "a\0b"] {
            assert!(multipart(wrong, b"").is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_path_is_one_segment() {
        assert_eq!(endpoint("list", "a/b c"), "/list/a%2Fb%20c");
    }
}
