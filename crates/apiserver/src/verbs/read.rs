//! get, list and the start of a watch.

use std::{sync::Arc, time::Duration};

use base64::Engine as _;
use serde::{Deserialize, Serialize};

use super::{
    Context, List, Payload, Reply,
    watch::{Start, WatchEvents},
};
use crate::{
    request::{ListOptions, VersionMatch, options, query_value},
    selectors::Filter,
    status::{ApiError, FieldError},
    store::{ObjectKey, Stored},
};

/// Timeout for a read to wait until a resourceVersion is reached.
const VERSION_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) async fn get(context: &mut Context<'_>) -> Result<Reply, ApiError> {
    let wanted = query_value(&context.parts.uri, "resourceVersion").unwrap_or_default();
    if let Ok(version @ 1..) = wanted.parse::<u64>() {
        wait_for_version(context, version).await?;
    }
    let object = context
        .core
        .store
        .get(&context.endpoint.resource.storage, &context.key())
        .ok_or_else(|| context.not_found())?;
    let view = context.core.conversions.view(&context.endpoint, &object).await?;
    Ok(Reply::ok(Payload::Object(view)))
}

async fn wait_for_version(context: &Context<'_>, version: u64) -> Result<(), ApiError> {
    let store = &context.core.store;
    match tokio::time::timeout(VERSION_TIMEOUT, store.wait_for_version(version)).await {
        Ok(()) => Ok(()),
        Err(_) => Err(ApiError::too_large_version(version, store.version())),
    }
}

/// A continue token in Kubernetes' form: the key after which the next page starts, and the resourceVersion of all
/// pages.
#[derive(Serialize, Deserialize)]
struct Continue {
    #[serde(rename = "v", default)]
    api: String,
    /// Negative: the latest version, which a client accepts whose list has expired.
    #[serde(default)]
    rv: i64,
    /// `namespace/name` or, in a list of one namespace, `name`; a zero byte ends it.
    #[serde(default)]
    start: String,
}

const CONTINUE_API: &str = "meta.k8s.io/v1";

impl Continue {
    fn parse(token: &str) -> Result<Self, ApiError> {
        let bad =
            |why: &str| ApiError::bad_request(format!("invalid continue token: continue key is not valid: {why}"));
        let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(token).map_err(|e| bad(&e.to_string()))?;
        let parsed: Self = serde_json::from_slice(&bytes).map_err(|error| bad(&error.to_string()))?;
        if parsed.api != CONTINUE_API {
            return Err(bad(&format!("server does not recognize this encoded version {}", parsed.api)));
        }
        if parsed.rv == 0 {
            return Err(bad(&format!("incorrect encoded start resourceVersion (version {CONTINUE_API})")));
        }
        if parsed.start.is_empty() {
            return Err(bad(&format!("encoded start key empty (version {CONTINUE_API})")));
        }
        let path = parsed.start.strip_prefix('/').unwrap_or(&parsed.start);
        if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(bad(&parsed.start));
        }
        Ok(parsed)
    }

    /// The last object of the previous page.
    fn after(&self, namespace: &str) -> ObjectKey {
        let path = self.start.trim_matches(['/', '\0']);
        match path.split_once('/') {
            Some((own, name)) if namespace.is_empty() => ObjectKey::new(own, name),
            _ => ObjectKey::new(namespace, path),
        }
    }
}

fn continue_token(version: u64, namespace: &str, last: &ObjectKey) -> String {
    let start = match namespace.is_empty() && !last.namespace.is_empty() {
        true => format!("{}/{}\0", last.namespace, last.name),
        false => format!("{}\0", last.name),
    };
    let token = Continue { api: CONTINUE_API.into(), rv: version.cast_signed(), start };
    base64::engine::general_purpose::URL_SAFE_NO_PAD
        .encode(serde_json::to_vec(&token).expect("a token of strings and a number serialises"))
}

pub(super) async fn list(context: &mut Context<'_>) -> Result<Reply, ApiError> {
    let options = ListOptions::parse(&context.parts.uri)?;
    if options.send_initial_events.is_some() {
        let error = FieldError::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list");
        return Err(options::invalid("ListOptions", error));
    }
    let resource = context.endpoint.resource.clone();
    let filter =
        Filter::parse(&resource, &context.request.namespace, &options.label_selector, &options.field_selector)?;
    let (page, version) = select(context, &options, &filter).await?;
    let next = match (&page.more, page.items.last()) {
        (true, Some(last)) => continue_token(version, &context.request.namespace, &last.key),
        _ => String::new(),
    };
    let mut items = Vec::with_capacity(page.items.len());
    for object in &page.items {
        items.push(context.core.conversions.view(&context.endpoint, object).await?);
    }
    Ok(Reply::ok(Payload::List(List { version, next, remaining: page.remaining, items })))
}

#[derive(Default)]
struct Page {
    items: Vec<Arc<Stored>>,
    more: bool,
    remaining: Option<u64>,
}

impl Page {
    /// Adds an object if it matches and the page has room; false if the scan can stop.
    fn add(&mut self, object: &Arc<Stored>, filter: &Filter, limit: usize, exact_count: bool) -> bool {
        if !filter.matches(object) {
            return true;
        }
        if limit == 0 || self.items.len() < limit {
            self.items.push(object.clone());
            return true;
        }
        self.more = true;
        // As in Kubernetes, the number of remaining items is given only without selectors.
        if exact_count {
            self.remaining = Some(self.remaining.unwrap_or(0) + 1);
        }
        exact_count
    }
}

async fn select(context: &Context<'_>, options: &ListOptions, filter: &Filter) -> Result<(Page, u64), ApiError> {
    let store = &context.core.store;
    let collection = store.collection(&context.endpoint.resource.storage);
    let exact_count = options.label_selector.is_empty() && options.field_selector.is_empty();
    let mut page = Page::default();
    let (after, at) = if !options.continue_token.is_empty() {
        if options.version()?.is_some() {
            return Err(ApiError::bad_request("specifying resource version is not allowed when using continue"));
        }
        let token = Continue::parse(&options.continue_token)?;
        let version = u64::try_from(token.rv).ok();
        if let Some(version) = version {
            wait_for_version(context, version).await?;
        }
        (Some(token.after(&context.request.namespace)), version)
    } else {
        let version = options.version()?;
        if let Some(version) = version {
            wait_for_version(context, version).await?;
        }
        if options.version_match.is_some() && options.resource_version.is_empty() {
            let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
            return Err(options::invalid("ListOptions", FieldError::forbidden("resourceVersionMatch", why)));
        }
        (None, version.filter(|_| options.version_match == Some(VersionMatch::Exact)))
    };
    if let Some(version) = at.filter(|v| *v < collection.version()) {
        let snapshot = collection.snapshot_at(version).map_err(|_| {
            ApiError::expired(
                "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter.",
            )
        })?;
        let skip = |key: &ObjectKey| after.as_ref().is_some_and(|a| key <= a);
        for (_, object) in snapshot.iter().filter(|(k, _)| !skip(k)) {
            if !page.add(object, filter, options.limit, exact_count) {
                break;
            }
        }
        return Ok((page, version));
    }
    // Read the version before the objects: everything up to it is already in the collection.
    let version = store.version().max(collection.version());
    if let Some(key) = filter.only() {
        if let Some(object) = collection.get(&key) {
            page.add(&object, filter, 0, false);
        }
        return Ok((page, version));
    }
    collection.scan(filter.namespace(), after.as_ref(), |object| page.add(object, filter, options.limit, exact_count));
    Ok((page, at.unwrap_or(version)))
}

pub(super) async fn watch(context: &mut Context<'_>) -> Result<Reply, ApiError> {
    let mut options = ListOptions::parse(&context.parts.uri)?;
    if !context.request.name.is_empty() {
        options.field_selector = format!("metadata.name={}", context.request.name);
    }
    let filter = Filter::parse(
        &context.endpoint.resource,
        &context.request.namespace,
        &options.label_selector,
        &options.field_selector,
    )?;
    let start = start_of(context, &options).await?;
    let events = WatchEvents::start(context.core.clone(), context.endpoint.clone(), filter, start, &options)?;
    Ok(Reply::ok(Payload::Watch(events)))
}

/// The resourceVersion that a watch starts at. As in Kubernetes, one that is not a number is an internal error (500).
fn watch_version(options: &ListOptions) -> Result<Option<u64>, ApiError> {
    options.version().map_err(|error| {
        let message = error.message.trim_start_matches("invalid resource version: ").to_owned();
        ApiError::new(http::StatusCode::INTERNAL_SERVER_ERROR, "", message)
    })
}

async fn start_of(context: &Context<'_>, options: &ListOptions) -> Result<Start, ApiError> {
    if options.send_initial_events == Some(true) {
        if options.version_match != Some(VersionMatch::NotOlderThan) {
            return Err(invalid_list_options(
                "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ));
        }
        if let Some(version) = watch_version(options)? {
            wait_for_version(context, version).await?;
        }
        return Ok(Start::Initial { bookmark: options.bookmarks });
    }
    if options.version_match.is_some() && options.send_initial_events.is_none() {
        return Err(invalid_list_options(
            "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ));
    }
    match watch_version(options)? {
        None if options.send_initial_events == Some(false) => Ok(Start::Now),
        None => Ok(Start::Initial { bookmark: false }),
        Some(version) => {
            wait_for_version(context, version).await?;
            Ok(Start::After(version))
        }
    }
}

fn invalid_list_options(message: &str) -> ApiError {
    ApiError::new(
        http::StatusCode::UNPROCESSABLE_ENTITY,
        "Invalid",
        format!("ListOptions.meta.k8s.io \"\" is invalid: {message}"),
    )
}

/// Fuzz target: the bytes are a continue token, then the content of one.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_continue(data: &[u8]) {
    let encoded = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(data);
    for token in [String::from_utf8_lossy(data).into_owned(), encoded] {
        let Ok(parsed) = Continue::parse(&token) else { continue };
        for namespace in ["", "ns"] {
            let key = parsed.after(namespace);
            assert!(namespace.is_empty() || &*key.namespace == namespace, "a token leads into another namespace");
            let _ = Continue::parse(&continue_token(1, namespace, &key));
        }
    }
}
