//! Conversion by the webhook in a CRD: one `ConversionReview` over HTTPS.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::registry::WebhookClient;

/// Timeout for a conversion, as in Kubernetes.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum size of the webhook's response. Converted objects may be larger than the request.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

/// Sends one object to the webhook and returns it in the desired version.
pub(super) async fn convert(hook: &WebhookClient, object: Value, desired: &str) -> Result<Value, String> {
    let version = hook.review_versions.iter().find(|v| matches!(v.as_str(), "v1" | "v1beta1")).map_or("v1", |v| v);
    let uid = uuid::Uuid::new_v4().to_string();
    let review = json!({
        "apiVersion": format!("apiextensions.k8s.io/{version}"),
        "kind": "ConversionReview",
        "request": { "uid": uid, "desiredAPIVersion": desired, "objects": [object] },
    });
    let body = tokio::time::timeout(TIMEOUT, post(hook, review.to_string()))
        .await
        .map_err(|_| format!("conversion webhook {} did not answer within {TIMEOUT:?}", hook.url))??;
    parse_review(&hook.url, &uid, &body)
}

fn parse_review(url: &str, uid: &str, body: &[u8]) -> Result<Value, String> {
    let mut review: Value =
        serde_json::from_slice(body).map_err(|e| format!("conversion webhook {url} sent no JSON: {e}"))?;
    let response = &mut review["response"];
    if response["uid"] != uid {
        return Err(format!("conversion webhook {url} answered another request"));
    }
    if response["result"]["status"] != "Success" {
        let why = response["result"]["message"].as_str().unwrap_or("no message");
        return Err(format!("conversion webhook {url} failed: {why}"));
    }
    match response["convertedObjects"].as_array_mut().map(std::mem::take).as_deref_mut() {
        Some([one]) => Ok(one.take()),
        other => Err(format!("conversion webhook {url} returned {} objects for 1", other.map_or(0, |o| o.len()))),
    }
}

async fn post(hook: &WebhookClient, body: String) -> Result<Vec<u8>, String> {
    let at = |what: &str, e: &dyn std::fmt::Display| format!("conversion webhook {}: {what}: {e}", hook.url);
    let uri: http::Uri = hook.url.parse().map_err(|e: http::uri::InvalidUri| at("bad address", &e))?;
    let host = uri.host().unwrap_or_default().to_owned();
    let port = uri.port_u16().unwrap_or(443);
    let stream = TcpStream::connect((host.as_str(), port)).await.map_err(|e| at("cannot connect", &e))?;
    let name = ServerName::try_from(host.clone()).map_err(|e| at("bad host name", &e))?;
    let tls = tokio_rustls::TlsConnector::from(Arc::new(tls_config(hook).map_err(|e| at("bad caBundle", &e))?));
    let stream = tls.connect(name, stream).await.map_err(|e| at("TLS failed", &e))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| at("handshake failed", &e))?;
    let request = Request::post(uri.path_and_query().map_or("/", |p| p.as_str()))
        .header(header::HOST, host)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(|e| at("bad request", &e))?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(|e| at("no answer", &e))?;
        if !response.status().is_success() {
            return Err(at("refused", &response.status()));
        }
        let body =
            Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await.map_err(|e| at("bad answer", &e))?;
        Ok(body.to_bytes().to_vec())
    };
    tokio::pin!(exchange);
    tokio::pin!(connection);
    tokio::select! {
        answer = &mut exchange => answer,
        ended = &mut connection => match ended {
            Ok(()) => exchange.await,
            Err(e) => Err(at("connection failed", &e)),
        },
    }
}

/// A TLS configuration that trusts only the CRD's `caBundle`; without one it trusts the host's roots, as in Kubernetes.
fn tls_config(hook: &WebhookClient) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    if hook.ca_bundle.is_empty() {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err("it is empty, and this host has no root certificates".to_owned());
        }
    }
    for certificate in CertificateDer::pem_slice_iter(&hook.ca_bundle) {
        let certificate = certificate.map_err(|e| e.to_string())?;
        roots.add(certificate).map_err(|e| e.to_string())?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_bundle_means_the_roots_of_the_host() {
        let hook = WebhookClient { url: "https://h".into(), ca_bundle: Vec::new(), review_versions: Vec::new() };
        let host = rustls_native_certs::load_native_certs().certs;
        assert_eq!(tls_config(&hook).is_ok(), !host.is_empty());
    }

    #[test]
    fn responses_are_checked_s_023() {
        let answer = |body: Value| parse_review("https://h", "u", body.to_string().as_bytes());
        let good = json!({"response": {"uid": "u", "result": {"status": "Success"}, "convertedObjects": [{"a": 1}]}});
        assert_eq!(answer(good).unwrap(), json!({"a": 1}));
        for (body, why) in [
            (json!({"response": {"uid": "x"}}), "another request"),
            (json!({"response": {"uid": "u", "result": {"status": "Failure", "message": "no"}}}), "failed: no"),
            (json!({"response": {"uid": "u", "result": {"status": "Success"}, "convertedObjects": []}}), "0 objects"),
        ] {
            assert!(answer(body).unwrap_err().contains(why));
        }
        assert!(parse_review("https://h", "u", b"<html>").unwrap_err().contains("no JSON"));
    }
}
