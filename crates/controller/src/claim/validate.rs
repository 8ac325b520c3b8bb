//! Which labels and annotations a claim may put on its Pod.

use agent_sandbox_api::{keys::annotations, template::PodMetadata};

/// Domains whose labels a claim may set, when the installation names none.
pub const DEFAULT_LABEL_DOMAIN: &str = "sandbox.users.io";

/// Domains whose annotations a claim may not set.
const RESTRICTED_DOMAINS: [&str; 3] = ["kubernetes.io", "k8s.io", "agents.x-k8s.io"];
/// Our own domains: what a claim may set of them are annotations of the claim itself, such as its idle time. Domains
/// below them are open (E2B's API sets `e2b.agent-sandbox.github.io/traffic`).
const OWN_DOMAINS: [&str; 2] = ["agent-sandbox.github.io", "agent-sandbox.dev"];
/// Maximum length of the name part of a key, and of a label value.
const NAME_LIMIT: usize = 63;
/// Maximum length of the domain part of a key.
const DOMAIN_LIMIT: usize = 253;

/// The domains in a configuration text: separated by commas or line breaks. An empty text means the default.
pub fn label_domains(text: &str) -> Vec<String> {
    let domains: Vec<String> = text
        .split([',', '\n', '\r'])
        .map(|domain| domain.trim().to_lowercase())
        .filter(|domain| !domain.is_empty())
        .collect();
    if domains.is_empty() { vec![DEFAULT_LABEL_DOMAIN.to_owned()] } else { domains }
}

/// Rejects metadata that a claim may not set; the error names the key and the reason.
pub fn validate(metadata: Option<&PodMetadata>, label_domains: &[String]) -> Result<(), String> {
    let Some(metadata) = metadata else { return Ok(()) };
    for (key, value) in metadata.labels.iter().flatten() {
        validate_label(key, value, label_domains)
            .map_err(|why| format!("invalid additionalPodMetadata: failed to validate label \"{key}\": {why}"))?;
    }
    for key in metadata.annotations.iter().flatten().map(|(key, _)| key) {
        validate_annotation(key)
            .map_err(|why| format!("invalid additionalPodMetadata: failed to validate annotation \"{key}\": {why}"))?;
    }
    Ok(())
}

fn validate_label(key: &str, value: &str, label_domains: &[String]) -> Result<(), String> {
    let domain = qualified_name(key)?;
    if key.eq_ignore_ascii_case("app") && value.eq_ignore_ascii_case("sandbox-router") {
        return Err(format!(
            "restricted system label value: \"{key}\"=\"{value}\" is not allowed in AdditionalPodMetadata"
        ));
    }
    let domain =
        domain.ok_or_else(|| "label key must have a domain prefix, such as \"sandbox.users.io/\"".to_owned())?;
    if !label_domains.iter().any(|allowed| is_within(domain, allowed)) {
        return Err(format!("label domain \"{domain}\" is not in the allowlist"));
    }
    if !value.is_empty() {
        name_part(value).map_err(|why| format!("invalid label value \"{value}\": {why}"))?;
    }
    Ok(())
}

fn validate_annotation(key: &str) -> Result<(), String> {
    let domain = qualified_name(key)?;
    let restricted = domain.is_some_and(|domain| {
        RESTRICTED_DOMAINS.iter().any(|system| is_within(domain, system)) || OWN_DOMAINS.contains(&domain)
    });
    if restricted && key != annotations::SAFE_TO_EVICT {
        return Err(format!("restricted system domain: \"{key}\" is not allowed in AdditionalPodMetadata"));
    }
    Ok(())
}

/// Whether a domain is the other one or below it.
fn is_within(domain: &str, parent: &str) -> bool {
    let domain = domain.to_lowercase();
    domain == parent || domain.strip_suffix(parent).is_some_and(|head| head.ends_with('.'))
}

/// Checks a key by Kubernetes' rules; returns its domain, when it has one.
fn qualified_name(key: &str) -> Result<Option<&str>, String> {
    match key.split('/').collect::<Vec<_>>()[..] {
        [name] => name_part(name).map(|()| None),
        [domain, name] => {
            dns_subdomain(domain)?;
            name_part(name).map(|()| Some(domain))
        }
        _ => Err("a qualified name has at most one '/'".to_owned()),
    }
}

fn name_part(name: &str) -> Result<(), String> {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let ends_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
        && name.bytes().last().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if name.len() > NAME_LIMIT {
        return Err(format!("must be no more than {NAME_LIMIT} characters"));
    }
    if !ends_well || !name.bytes().all(inner) {
        return Err(
            "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
                .to_owned(),
        );
    }
    Ok(())
}

fn dns_subdomain(domain: &str) -> Result<(), String> {
    let label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if domain.len() > DOMAIN_LIMIT || !domain.split('.').all(label) {
        return Err("prefix part must be a lower-case DNS subdomain".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// every part of the prefix counts.
    #[test]
    fn x_053_a_prefix_is_a_subdomain() {
        for domain in ["a", "a.b", "a-b.c", "0.example", "x1.y2"] {
            assert_eq!(dns_subdomain(domain), Ok(()), "{domain}");
        }
        for domain in ["", "a..b", "-a.b", "a-.b", "a.b-", "A.b", "a_b.c", "a.b.", "ä.b"] {
            assert!(dns_subdomain(domain).is_err(), "{domain}");
        }
    }
}
