//! Answers that are errors, in the words of whoever wrote them.

use super::Transport;
use crate::ClientError;
use agent_sandbox_protocol::native::{ErrorBody, ErrorCode};
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Error as HttpError;

/// Words of an error that are read; more is cut.
const MAX_ERROR: usize = 64 * 1024;

impl Transport {
    pub(super) async fn refused(&self, answer: Response<Incoming>, operation: String) -> ClientError {
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ERROR).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        let (code, message) = words(status, &body);
        let name = self.inner.name.clone();
        ClientError::Refused { name, operation, status: status.as_u16(), code, message, body }
    }
}

/// The message in an error's body, whoever wrote it.
fn words(status: StatusCode, body: &[u8]) -> (Option<ErrorCode>, String) {
    if let Ok(said) = serde_json::from_slice::<ErrorBody>(body) {
        return (Some(said.code), said.message);
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

/// An error of ours that travelled through the HTTP client as a connection's failure.
pub(crate) fn typed(error: HttpError) -> Option<ClientError> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(&error);
    while let Some(cause) = next {
        if let Some(known) = cause.downcast_ref::<ClientError>() {
            return match known {
                ClientError::NoRouter { tried, straight } => {
                    Some(ClientError::NoRouter { tried: tried.clone(), straight: straight.clone() })
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

/// An error and everything behind it.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
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
    fn an_error_is_told_in_its_own_words() {
        let said = |body: &str| words(StatusCode::CONFLICT, body.as_bytes());
        assert_eq!(said(r#"{"code":"CONFLICT","message":"m"}"#).1, "CONFLICT: m");
        assert_eq!(said(r#"{"code":"notFound","message":"gone"}"#).1, "gone");
        assert_eq!(said(r#"{"detail":"Not Found"}"#).1, "Not Found");
        assert_eq!(said("plain words\n").1, "plain words");
        assert_eq!(said("").1, "Conflict");
    }
}
