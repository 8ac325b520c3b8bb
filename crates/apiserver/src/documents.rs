//! Responses to non-resource requests: discovery, OpenAPI, version, health.

pub mod discovery;
pub mod openapi;

use std::collections::HashMap;
use std::sync::Arc;

use http::header::{ACCEPT, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH};
use http::request::Parts;
use http::{Method, Response, StatusCode};
use parking_lot::Mutex;
use serde_json::json;

use crate::registry::{Registry, Snapshot};
use crate::render::{self, Body};
use crate::status::ApiError;

/// The version of Kubernetes whose behaviour and schemas this server follows.
const KUBERNETES_MINOR: &str = "36";
const GIT_VERSION: &str = concat!("v1.36.3+embedded.", env!("CARGO_PKG_VERSION"));

/// Caches the OpenAPI documents of the current registry snapshot; each is rendered on its first request.
#[derive(Default)]
pub(crate) struct Documents {
    cache: Mutex<Option<Cache>>,
}

/// The rendered documents of one snapshot, by path.
struct Cache {
    snapshot: Arc<Snapshot>,
    documents: HashMap<String, Arc<openapi::Document>>,
}

impl Documents {
    fn openapi(&self, snapshot: &Arc<Snapshot>, path: &str) -> Option<Arc<openapi::Document>> {
        if let Some(cache) = &*self.cache.lock()
            && Arc::ptr_eq(&cache.snapshot, snapshot)
            && let Some(found) = cache.documents.get(path)
        {
            return Some(found.clone());
        }
        let document = Arc::new(openapi::document(snapshot, path)?);
        let mut cache = self.cache.lock();
        match &mut *cache {
            Some(cache) if Arc::ptr_eq(&cache.snapshot, snapshot) => {
                cache.documents.insert(path.to_owned(), document.clone());
            }
            other => {
                let documents = HashMap::from([(path.to_owned(), document.clone())]);
                *other = Some(Cache { snapshot: snapshot.clone(), documents });
            }
        }
        Some(document)
    }

    /// Handles a non-resource request.
    pub(crate) fn respond(&self, registry: &Registry, parts: &Parts) -> Result<Response<Body>, ApiError> {
        if parts.method != Method::GET && parts.method != Method::HEAD {
            return Err(ApiError::page_not_found());
        }
        let path = parts.uri.path();
        match path.trim_end_matches('/') {
            "/healthz" | "/livez" | "/readyz" => return Ok(text("ok")),
            "/version" => return Ok(render::value_response(StatusCode::OK, &version())),
            _ => {}
        }
        let snapshot = registry.snapshot();
        if path.starts_with("/openapi") {
            let document =
                self.openapi(&snapshot, path).filter(|_| wants_json(parts)).ok_or_else(ApiError::page_not_found)?;
            return Ok(tagged(parts, &document.tag, document.body.clone(), "application/json"));
        }
        let document = discovery::document(&snapshot, path, &parts.headers).ok_or_else(ApiError::page_not_found)?;
        let body = document.body.to_string();
        Ok(tagged(parts, &openapi::tag(&body), body, document.content_type))
    }
}

/// Clients that accept OpenAPI only as protobuf get 404; they continue without it.
fn wants_json(parts: &Parts) -> bool {
    let accept = parts.headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("*/*");
    !accept.contains("protobuf") || accept.contains("json") || accept.contains("*/*")
}

fn tagged(parts: &Parts, tag: &str, body: String, content_type: &'static str) -> Response<Body> {
    let tag = format!("\"{tag}\"");
    let known = parts.headers.get(IF_NONE_MATCH).is_some_and(|value| value.as_bytes() == tag.as_bytes());
    let mut response = match known {
        true => render::json_response(StatusCode::NOT_MODIFIED, ""),
        false => render::json_response(StatusCode::OK, body),
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(http::header::VARY, HeaderValue::from_static("Accept"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(ETAG, tag);
    }
    response
}

fn text(body: &'static str) -> Response<Body> {
    let mut response = render::json_response(StatusCode::OK, body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

fn version() -> serde_json::Value {
    json!({
        "major": "1",
        "minor": KUBERNETES_MINOR,
        "gitVersion": GIT_VERSION,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": format!("linux/{}", std::env::consts::ARCH),
    })
}
