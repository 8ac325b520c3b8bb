//! Kubernetes' rules for names, label keys and label values. Each check returns what is wrong, with Kubernetes'
//! messages.

fn alnum(c: char) -> bool {
    c.is_ascii_alphanumeric()
}

fn lower_alnum(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

fn too_long(max: usize) -> String {
    format!("must be no more than {max} characters")
}

fn is_dns_label(text: &str) -> bool {
    text.starts_with(lower_alnum) && text.ends_with(lower_alnum) && text.chars().all(|c| lower_alnum(c) || c == '-')
}

/// `sandbox-1.example`: most object names.
pub fn dns1123_subdomain(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    if text.len() > 253 {
        out.push(too_long(253));
    }
    if !text.split('.').all(is_dns_label) {
        out.push(SUBDOMAIN.into());
    }
    out
}

/// `my-name`: namespaces, container names.
pub fn dns1123_label(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    if text.len() > 63 {
        out.push(too_long(63));
    }
    if !is_dns_label(text) {
        out.push(LABEL.into());
    }
    out
}

/// `my-name`, not starting with a digit: CRD names and ports.
pub fn dns1035_label(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    if text.len() > 63 {
        out.push(too_long(63));
    }
    if !(is_dns_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase())) {
        out.push(LABEL_1035.into());
    }
    out
}

/// A name that only has to fit into one path segment: RBAC objects.
pub fn path_segment(text: &str) -> Vec<String> {
    if matches!(text, "." | "..") {
        return vec![format!("may not be '{text}'")];
    }
    ["/", "%"].iter().filter(|bad| text.contains(**bad)).map(|bad| format!("may not contain '{bad}'")).collect()
}

/// A label or annotation key: `[prefix/]name`.
pub fn qualified_name(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts.as_slice() {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                out.push("prefix part must be non-empty".into());
            } else {
                out.extend(dns1123_subdomain(prefix).into_iter().map(|why| format!("prefix part {why}")));
            }
            name
        }
        _ => {
            return vec![format!(
                "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        out.push("name part must be non-empty".into());
    } else if name.len() > 63 {
        out.push(format!("name part {}", too_long(63)));
    }
    if !is_loose_name(name) {
        out.push(QUALIFIED.into());
    }
    out
}

fn is_loose_name(text: &str) -> bool {
    text.starts_with(alnum) && text.ends_with(alnum) && text.chars().all(|c| alnum(c) || "-_.".contains(c))
}

pub fn label_value(text: &str) -> Vec<String> {
    let mut out = Vec::new();
    if text.len() > 63 {
        out.push(too_long(63));
    }
    if !(text.is_empty() || is_loose_name(text)) {
        out.push(VALUE.into());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_dns() {
        for good in ["a", "a-b", "a.b", "0a", "a.0-b.c"] {
            assert_eq!(dns1123_subdomain(good), Vec::<String>::new(), "{good}");
        }
        for bad in ["", "A", "a_b", "-a", "a-", "a..b", ".a", "a b"] {
            assert!(!dns1123_subdomain(bad).is_empty(), "{bad}");
        }
        assert!(!dns1123_label("a.b").is_empty());
        assert!(!dns1035_label("1a").is_empty());
        assert_eq!(dns1123_subdomain(&"a".repeat(254)), ["must be no more than 253 characters"]);
    }

    #[test]
    fn keys_and_values_of_labels() {
        assert!(qualified_name("agents.x-k8s.io/sandbox-name-hash").is_empty());
        assert!(qualified_name("a_B.c").is_empty());
        for bad in ["", "/a", "a/", "A_/x", "a/b/c", "a b"] {
            assert!(!qualified_name(bad).is_empty(), "{bad}");
        }
        assert!(label_value("").is_empty());
        assert!(label_value("V-1_2.3").is_empty());
        assert!(!label_value("-x").is_empty());
        assert!(!label_value(&"a".repeat(64)).is_empty());
    }
}
