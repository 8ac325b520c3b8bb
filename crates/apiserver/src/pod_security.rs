//! Pod Security Standards: what the labels `pod-security.kubernetes.io/…` of a namespace allow its Pods.
//!
//! `enforce` refuses a Pod, `warn` adds a `Warning` to the response, `audit` a reason to the record in the audit log.

mod checks;

use serde_json::Value;

use crate::status::{FieldError, Path};

const PREFIX: &str = "pod-security.kubernetes.io/";

/// How much a Pod may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
enum Level {
    #[default]
    Privileged,
    Baseline,
    Restricted,
}

impl Level {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "privileged" => Some(Self::Privileged),
            "baseline" => Some(Self::Baseline),
            "restricted" => Some(Self::Restricted),
            _ => None,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }
}

/// The minor version of Kubernetes whose rules apply; `None` is the latest.
type Minor = Option<u32>;

/// A level with the version of its rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Standard {
    level: Level,
    minor: Minor,
}

impl std::fmt::Display for Standard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let level = self.level.as_str();
        match self.minor {
            None => write!(f, "{level}:latest"),
            Some(minor) => write!(f, "{level}:v1.{minor}"),
        }
    }
}

impl Standard {
    /// What a Pod violates.
    fn violations(self, pod: &Pod<'_>) -> Vec<Violation> {
        match self.level {
            Level::Privileged => Vec::new(),
            level => checks::run(level == Level::Restricted, self.minor.unwrap_or(u32::MAX), pod),
        }
    }
}

/// A broken rule: a short reason, and details about this Pod.
struct Violation {
    reason: String,
    detail: String,
}

/// The parts of a Pod, or of a Pod template, that are checked.
struct Pod<'a> {
    metadata: &'a Value,
    spec: &'a Value,
}

/// What the labels of a namespace say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Policy {
    enforce: Standard,
    warn: Standard,
    audit: Standard,
}

impl Policy {
    /// Reads the labels. A level that cannot be read counts as `restricted` when it is enforced, and as `privileged`
    /// when it only warns or is only recorded.
    pub(crate) fn parse(labels: &Value) -> (Self, Vec<FieldError>) {
        let mut errors = Vec::new();
        let mut level = |mode: &str| {
            let text = labels[format!("{PREFIX}{mode}")].as_str()?;
            let read = Level::parse(text);
            if read.is_none() {
                errors.push(invalid(mode, text, "must be one of privileged, baseline, restricted"));
            }
            Some(read)
        };
        let (enforce, audit, warn) = (level("enforce"), level("audit"), level("warn"));
        let mut version = |mode: &str| {
            let mode = format!("{mode}-version");
            let text = labels[format!("{PREFIX}{mode}")].as_str()?;
            let read = parse_version(text);
            if read.is_none() {
                errors.push(invalid(&mode, text, r#"must be "latest" or "v1.x""#));
            }
            Some(read.flatten())
        };
        let (enforce_version, audit_version, warn_version) = (version("enforce"), version("audit"), version("warn"));
        let enforced = Standard {
            level: enforce.map_or(Level::Privileged, |level| level.unwrap_or(Level::Restricted)),
            minor: enforce_version.flatten(),
        };
        let mut warned = Standard { level: warn.flatten().unwrap_or_default(), minor: warn_version.flatten() };
        let audited = Standard { level: audit.flatten().unwrap_or_default(), minor: audit_version.flatten() };
        // Without a label of its own, `warn` follows `enforce`: templates are not enforced, but warned about.
        if let (None, Some(Some(level))) = (warn, enforce)
            && level > warned.level
        {
            warned.level = level;
            if warn_version.is_none() {
                warned.minor = enforced.minor;
            }
        }
        errors.sort_by_key(|error| label_order(&error.field));
        (Self { enforce: enforced, warn: warned, audit: audited }, errors)
    }

    /// Why a Pod is refused.
    pub(crate) fn refusal(&self, pod: &Value) -> Option<String> {
        let found = self.enforce.violations(&whole(pod));
        (!found.is_empty()).then(|| format!("violates PodSecurity \"{}\": {}", self.enforce, details(&found)))
    }

    /// The warning for a Pod, or for the `spec.template` of another object.
    pub(crate) fn warning(&self, pod: &Value) -> Option<String> {
        would_violate(self.warn, pod)
    }

    /// What the audit log says about a Pod, or about the `spec.template` of another object.
    pub(crate) fn audit_reason(&self, pod: &Value) -> Option<String> {
        would_violate(self.audit, pod)
    }

    /// Warnings about the existing Pods of a namespace whose labels change.
    pub(crate) fn warnings_about_existing(&self, before: &Self, namespace: &str, pods: &[Value]) -> Vec<String> {
        let (new, old) = (self.enforce, before.enforce);
        if new == old || new.level == Level::Privileged || (new.minor == old.minor && new.level <= old.level) {
            return Vec::new();
        }
        let mut by_reason: std::collections::BTreeMap<String, (&str, usize)> = Default::default();
        for pod in pods {
            let found = new.violations(&whole(pod));
            if found.is_empty() {
                continue;
            }
            let reasons = found.iter().map(|violation| violation.reason.as_str()).collect::<Vec<_>>().join(", ");
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            let (first, count) = by_reason.entry(reasons).or_insert((name, 0));
            *first = (*first).min(name);
            *count += 1;
        }
        if by_reason.is_empty() {
            return Vec::new();
        }
        let mut lines: Vec<String> = by_reason
            .into_iter()
            .map(|(reasons, (name, count))| match count {
                1 => format!("{name}: {reasons}"),
                2 => format!("{name} (and 1 other pod): {reasons}"),
                more => format!("{name} (and {} other pods): {reasons}", more - 1),
            })
            .collect();
        lines.sort();
        lines.insert(
            0,
            format!("existing pods in namespace {namespace:?} violate the new PodSecurity enforce level \"{new}\""),
        );
        lines
    }

    pub(crate) fn is_privileged(&self) -> bool {
        [self.enforce, self.warn, self.audit].iter().all(|standard| standard.level == Level::Privileged)
    }
}

fn would_violate(standard: Standard, pod: &Value) -> Option<String> {
    let found = standard.violations(&whole(pod));
    (!found.is_empty()).then(|| format!("would violate PodSecurity \"{standard}\": {}", details(&found)))
}

/// True if a change of a Pod is one that Pod Security looks at: its images, or new ephemeral containers.
pub(crate) fn is_significant(old: &Value, new: &Value) -> bool {
    let images = |pod: &Value, list: &str| -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let containers = pod["spec"][list].as_array().into_iter().flatten();
        containers.map(|container| (text(&container["name"]), text(&container["image"]))).collect()
    };
    let before = images(old, "ephemeralContainers");
    ["containers", "initContainers"].into_iter().any(|list| images(old, list) != images(new, list))
        || images(new, "ephemeralContainers").iter().any(|container| !before.contains(container))
}

fn whole(pod: &Value) -> Pod<'_> {
    Pod { metadata: &pod["metadata"], spec: &pod["spec"] }
}

fn details(found: &[Violation]) -> String {
    let shown = found.iter().map(|Violation { reason, detail }| match detail.as_str() {
        "" => reason.clone(),
        detail => format!("{reason} ({detail})"),
    });
    shown.collect::<Vec<_>>().join(", ")
}

fn invalid(label: &str, text: &str, why: &str) -> FieldError {
    let label = format!("{PREFIX}{label}");
    FieldError::invalid_str(Path::Root.child("metadata").child("labels").key(&label), text, why)
}

/// Position of a label in Kubernetes' order of errors: each mode with its version.
fn label_order(field: &str) -> usize {
    let modes = ["enforce", "audit", "warn"].iter().position(|mode| field.contains(&format!("/{mode}"))).unwrap_or(3);
    2 * modes + usize::from(field.contains("-version"))
}

/// `latest`, or `v1.` and a number without leading zeros.
fn parse_version(text: &str) -> Option<Minor> {
    if text == "latest" {
        return Some(None);
    }
    let digits = text.strip_prefix("v1.")?;
    let plain = digits.bytes().all(|b| b.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    plain.then(|| digits.parse().ok()).flatten().map(Some)
}

#[cfg(test)]
mod tests;
