//! The options of lists, watches, writes and deletes: query parameters, and the body of a delete.

use http::Uri;
use serde::Deserialize;

use super::{Verb, is_true, query_pairs};
use crate::status::{ApiError, FieldError};

/// The `resourceVersionMatch` of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionMatch {
    Exact,
    NotOlderThan,
}

#[derive(Debug, Clone, Default)]
pub struct ListOptions {
    pub label_selector: String,
    pub field_selector: String,
    pub limit: usize,
    pub continue_token: String,
    /// Empty if not given; "0" accepts any version.
    pub resource_version: String,
    pub version_match: Option<VersionMatch>,
    pub timeout_seconds: Option<u64>,
    pub bookmarks: bool,
    pub send_initial_events: Option<bool>,
}

impl ListOptions {
    pub fn parse(uri: &Uri) -> Result<Self, ApiError> {
        let mut out = Self::default();
        for (key, value) in query_pairs(uri) {
            match key.as_str() {
                "labelSelector" => out.label_selector = value,
                "fieldSelector" => out.field_selector = value,
                // As in Kubernetes, a negative limit means no limit.
                "limit" if value.starts_with('-') && value[1..].parse::<u64>().is_ok() => out.limit = 0,
                "limit" => out.limit = number(&key, &value)? as usize,
                "continue" => out.continue_token = value,
                "resourceVersion" => out.resource_version = value,
                "resourceVersionMatch" => {
                    out.version_match = match value.as_str() {
                        "" => None,
                        "Exact" => Some(VersionMatch::Exact),
                        "NotOlderThan" => Some(VersionMatch::NotOlderThan),
                        other => {
                            return Err(ApiError::bad_request(format!(
                                "resourceVersionMatch: Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\""
                            )));
                        }
                    }
                }
                "timeoutSeconds" if !value.is_empty() => out.timeout_seconds = Some(number(&key, &value)?),
                "allowWatchBookmarks" => out.bookmarks = is_true(Some(&value)),
                "sendInitialEvents" if !value.is_empty() => out.send_initial_events = Some(is_true(Some(&value))),
                _ => {}
            }
        }
        Ok(out)
    }

    /// The requested version as a number; `None` if absent or "0".
    pub fn version(&self) -> Result<Option<u64>, ApiError> {
        match self.resource_version.as_str() {
            "" | "0" => Ok(None),
            text => text
                .parse()
                .map(Some)
                .map_err(|_| {
                    ApiError::bad_request(format!(
                        "invalid resource version: resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
                    ))
                }),
        }
    }
}

fn number(key: &str, value: &str) -> Result<u64, ApiError> {
    if value.is_empty() {
        return Ok(0);
    }
    value.parse().map_err(|_| ApiError::bad_request(format!("invalid value for {key}: {value:?} is not a number")))
}

/// How unknown and duplicate fields are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FieldValidation {
    Ignore,
    #[default]
    Warn,
    Strict,
}

#[derive(Debug, Clone, Default)]
pub struct WriteOptions {
    pub dry_run: bool,
    pub field_manager: String,
    pub field_validation: FieldValidation,
    pub force: bool,
}

impl WriteOptions {
    /// `user_agent` is the default of the field manager.
    pub fn parse(uri: &Uri, user_agent: &str, verb: Verb) -> Result<Self, ApiError> {
        let mut out = Self::default();
        let kind = match verb {
            Verb::Create => "CreateOptions",
            Verb::Patch => "PatchOptions",
            _ => "UpdateOptions",
        };
        for (key, value) in query_pairs(uri) {
            match key.as_str() {
                "dryRun" => out.dry_run = dry_run(kind, &value)?,
                "fieldManager" => out.field_manager = value,
                "force" => out.force = is_true(Some(&value)),
                "fieldValidation" => {
                    out.field_validation = match value.as_str() {
                        "Ignore" => FieldValidation::Ignore,
                        "" | "Warn" => FieldValidation::Warn,
                        "Strict" => FieldValidation::Strict,
                        other => {
                            let supported = &["", "Ignore", "Strict", "Warn"];
                            let error = FieldError::not_supported("fieldValidation", &other.into(), supported);
                            return Err(invalid(kind, error));
                        }
                    }
                }
                _ => {}
            }
        }
        if out.field_manager.len() > 128 {
            return Err(ApiError::bad_request("fieldManager: Too long: may not be more than 128 bytes"));
        }
        if out.field_manager.is_empty() {
            let prefix = user_agent.split(['/', ' ']).next().unwrap_or_default();
            out.field_manager = if prefix.is_empty() { "unknown".into() } else { prefix.chars().take(128).collect() };
        }
        Ok(out)
    }
}

/// 422 for invalid options, which Kubernetes reports as an invalid object of their own kind.
pub(crate) fn invalid(kind: &str, error: FieldError) -> ApiError {
    ApiError::invalid("meta.k8s.io", kind, "", &[error])
}

fn dry_run(kind: &str, value: &str) -> Result<bool, ApiError> {
    match value {
        "" => Ok(false),
        "All" => Ok(true),
        other => Err(invalid(kind, FieldError::not_supported("dryRun", &serde_json::json!([other]), &["All"]))),
    }
}

/// What happens to the dependents of a deleted object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Foreground,
    Orphan,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Preconditions {
    pub uid: Option<String>,
    pub resource_version: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    pub grace_period_seconds: Option<i64>,
    pub preconditions: Preconditions,
    pub propagation: Option<Propagation>,
    pub dry_run: bool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct DeleteBody {
    kind: Option<String>,
    grace_period_seconds: Option<i64>,
    preconditions: Option<BodyPreconditions>,
    propagation_policy: Option<String>,
    orphan_dependents: Option<bool>,
    dry_run: Option<Vec<String>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct BodyPreconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

impl DeleteOptions {
    /// Parses the query and the body (JSON; may be empty).
    pub fn parse(uri: &Uri, body: &[u8]) -> Result<Self, ApiError> {
        let mut out = Self::default();
        let mut policy = None;
        let mut orphan = None;
        for (key, value) in query_pairs(uri) {
            match key.as_str() {
                "gracePeriodSeconds" if !value.is_empty() => {
                    out.grace_period_seconds = Some(value.parse().map_err(|_| {
                        ApiError::bad_request(format!("gracePeriodSeconds: {value:?} is not a number"))
                    })?);
                }
                "propagationPolicy" if !value.is_empty() => policy = Some(value),
                "orphanDependents" if !value.is_empty() => orphan = Some(is_true(Some(&value))),
                "dryRun" => out.dry_run = dry_run("DeleteOptions", &value)?,
                _ => {}
            }
        }
        if !body.iter().all(u8::is_ascii_whitespace) {
            let body: DeleteBody = serde_json::from_slice(body)
                .map_err(|e| ApiError::bad_request(format!("couldn't decode DeleteOptions: {e}")))?;
            if let Some(kind) = body.kind.filter(|k| k != "DeleteOptions") {
                return Err(ApiError::bad_request(format!("expect a DeleteOptions object, got {kind:?}")));
            }
            out.grace_period_seconds = body.grace_period_seconds.or(out.grace_period_seconds);
            if let Some(p) = body.preconditions {
                out.preconditions = Preconditions { uid: p.uid, resource_version: p.resource_version };
            }
            policy = body.propagation_policy.or(policy);
            orphan = body.orphan_dependents.or(orphan);
            for value in body.dry_run.unwrap_or_default() {
                out.dry_run |= dry_run("DeleteOptions", &value)?;
            }
        }
        out.propagation = propagation(policy.as_deref(), orphan)?;
        Ok(out)
    }
}

fn propagation(policy: Option<&str>, orphan: Option<bool>) -> Result<Option<Propagation>, ApiError> {
    if let (Some(policy), Some(_)) = (policy, orphan) {
        let why = "orphanDependents and deletionPropagation cannot be both set";
        return Err(invalid("DeleteOptions", FieldError::invalid_str("propagationPolicy", policy, why)));
    }
    match (policy, orphan) {
        (None, None) => Ok(None),
        (None, Some(true)) | (Some("Orphan"), _) => Ok(Some(Propagation::Orphan)),
        (None, Some(false)) | (Some("Background"), _) => Ok(Some(Propagation::Background)),
        (Some("Foreground"), _) => Ok(Some(Propagation::Foreground)),
        (Some(other), _) => {
            let supported = &["Foreground", "Background", "Orphan", "nil"];
            Err(invalid("DeleteOptions", FieldError::not_supported("propagationPolicy", &other.into(), supported)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_delete_body_gives_the_defaults() {
        assert_eq!(DeleteOptions::parse(&"/x".parse().unwrap(), b"").unwrap(), DeleteOptions::default());
    }

    #[test]
    fn delete_preconditions_come_from_the_body() {
        let got =
            DeleteOptions::parse(&"/x".parse().unwrap(), br#"{"preconditions":{"uid":"u"},"gracePeriodSeconds":0}"#)
                .unwrap();
        assert_eq!(got.preconditions.uid.as_deref(), Some("u"));
        assert_eq!(got.grace_period_seconds, Some(0));
    }

    #[test]
    fn unknown_policies_are_refused() {
        let error = DeleteOptions::parse(&"/x?propagationPolicy=Later".parse().unwrap(), b"").unwrap_err();
        assert_eq!(error.code, 422);
        assert!(error.message.contains("Later"), "{}", error.message);
    }

    #[test]
    fn invalid_options_are_reported_as_invalid_objects_of_their_kind() {
        let error = WriteOptions::parse(&"/x?fieldValidation=Perhaps".parse().unwrap(), "", Verb::Create).unwrap_err();
        assert_eq!(
            (error.code.as_u16(), error.message.as_str()),
            (
                422,
                "CreateOptions.meta.k8s.io \"\" is invalid: fieldValidation: Unsupported value: \"Perhaps\": supported values: \"\", \"Ignore\", \"Strict\", \"Warn\""
            )
        );
        let error = WriteOptions::parse(&"/x?dryRun=Some".parse().unwrap(), "", Verb::Patch).unwrap_err();
        assert_eq!(
            error.message,
            "PatchOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: [\"Some\"]: supported values: \"All\""
        );
        assert_eq!(ListOptions::parse(&"/x?limit=-1".parse().unwrap()).unwrap().limit, 0);
        assert_eq!(ListOptions::parse(&"/x?limit=x".parse().unwrap()).unwrap_err().code, 400);
    }

    #[test]
    fn the_user_agent_is_the_default_field_manager() {
        let got = WriteOptions::parse(&"/x".parse().unwrap(), "kubectl/v1.32 (linux)", Verb::Create).unwrap();
        assert_eq!(got.field_manager, "kubectl");
    }
}
