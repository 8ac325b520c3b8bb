//! Conversion of error responses and connection errors to [`ClientError`].

use super::Transport;
use crate::ClientError;
use agent_sandbox_protocol::native::{ErrorBody, ErrorCode};
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Error as HttpError;

/// Maximum size of an error body.
const MAX_ERROR_BYTES: usize = 64 * 1024;

impl Transport {
    pub(super) async fn error_from_response(&self, response: Response<Incoming>, operation: String) -> ClientError {
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ERROR_BYTES).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        let (code, message) = error_message(status, &body);
        let name = self.inner.name.clone();
        ClientError::Refused { name, operation, status: status.as_u16(), code, message, body }
    }
}

/// Code and message of an error body in the formats of sandboxd, the router and other runtimes.
fn error_message(status: StatusCode, body: &[u8]) -> (Option<ErrorCode>, String) {
    if let Ok(parsed) = serde_json::from_slice::<ErrorBody>(body) {
        return (Some(parsed.code), parsed.message);
    }
    let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let member = |name: &str| value[name].as_str().map(str::to_owned);
    if let (Some(code), Some(message)) = (member("code"), member("message")) {
        return (None, format!("{code}: {message}"));
    }
    let text = member("message").or_else(|| member("detail"));
    let text = text.unwrap_or_else(|| String::from_utf8_lossy(body).trim().chars().take(512).collect());
    (None, if text.is_empty() { status.canonical_reason().unwrap_or("no reason given").to_owned() } else { text })
}

/// The [`ClientError`] in the source chain of an HTTP client error, if a dialer returned one.
pub(crate) fn client_error_in(error: HttpError) -> Option<ClientError> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(&error);
    while let Some(cause) = next {
        if let Some(known) = cause.downcast_ref::<ClientError>() {
            return match known {
                ClientError::NoRouter { tried, direct_error } => {
                    Some(ClientError::NoRouter { tried: tried.clone(), direct_error: direct_error.clone() })
                }
                ClientError::Suspended { name } => Some(ClientError::Suspended { name: name.clone() }),
                ClientError::NotRunning { name, last } => {
                    Some(ClientError::NotRunning { name: name.clone(), last: last.clone() })
                }
                ClientError::Dial { name, port, message } => {
                    Some(ClientError::Dial { name: name.clone(), port: *port, message: message.clone() })
                }
                _ => None,
            };
        }
        next = cause.source();
    }
    None
}

/// An error and all its sources as text.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(&format!(": {cause}"));
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_each_error_format_is_found() {
        let parsed = |body: &str| error_message(StatusCode::CONFLICT, body.as_bytes());
        assert_eq!(parsed(r#"{"code":"CONFLICT","message":"m"}"#).1, "CONFLICT: m");
        assert_eq!(parsed(r#"{"code":"notFound","message":"gone"}"#).1, "gone");
        assert_eq!(parsed(r#"{"detail":"Not Found"}"#).1, "Not Found");
        assert_eq!(parsed("plain words\n").1, "plain words");
        assert_eq!(parsed("").1, "Conflict");
    }
}
