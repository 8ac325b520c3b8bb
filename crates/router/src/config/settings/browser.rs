//! Settings for browsers: names of the router, sandboxes in URLs, cookies.

use std::path::PathBuf;

use agent_sandbox_protocol::web::{AllowedHosts, AllowedOrigins, Authority, Host};
use http::Uri;

use super::parse::Reader;
use crate::addressing::Routing;
use crate::auth::AuthzConfig;
use crate::browser::{CookieConfig, SameSite, is_plain_name};
use crate::links::LinkConfig;

/// Any name without a list, except for web pages where no credential is required: only the administrator knows the names
/// of a cluster's gateways.
pub(super) fn read_hosts(reader: &mut Reader<'_>) -> AllowedHosts {
    let mut list = reader.list("allowed-hosts");
    if list.is_empty() {
        return AllowedHosts::any();
    }
    list.extend(reader.non_empty("host-routing-domain").map(|domain| format!("*.{domain}")));
    AllowedHosts::private(reader.non_empty("cluster-domain").map(str::to_owned)).and(list).unwrap_or_else(|error| {
        reader.problem("allowed-hosts", reader.text("allowed-hosts"), &error.to_string());
        AllowedHosts::listed()
    })
}

pub(super) fn read_origins(reader: &mut Reader<'_>, name: &str) -> AllowedOrigins {
    AllowedOrigins::new(reader.list(name)).unwrap_or_else(|error| {
        reader.problem(name, reader.text(name), &error.to_string());
        AllowedOrigins::default()
    })
}

pub(super) fn read_routing(reader: &mut Reader<'_>) -> Routing {
    let prefix = reader.non_empty("path-routing-prefix");
    if let Some(prefix) = prefix
        && !is_prefix(prefix)
    {
        let why = "must begin with a slash, not end with one, and consist of letters, digits, dashes and the like";
        reader.problem("path-routing-prefix", prefix, why);
    }
    let domain = reader.non_empty("host-routing-domain");
    if let Some(domain) = domain
        && !matches!(Authority::parse(domain), Some(Authority { host: Host::Name(name), port: None }) if name == domain)
    {
        reader.problem("host-routing-domain", domain, "is not a domain name such as sandboxes.example.com");
    }
    Routing { path_prefix: prefix.map(str::to_owned), host_domain: domain.map(str::to_owned) }
}

/// Whether a cookie can have this path, and no browser reads it as a host.
fn is_prefix(prefix: &str) -> bool {
    let segments = prefix.strip_prefix('/').map(|rest| rest.split('/'));
    segments
        .is_some_and(|mut segments| segments.all(|segment| is_plain_name(segment) && !matches!(segment, "." | "..")))
}

/// Links are records in Sandboxes, and sessions of browsers.
pub(super) fn read_links(reader: &mut Reader<'_>, watch_pods: bool) -> Option<LinkConfig> {
    let public_url = reader.non_empty("public-url").map(str::to_owned);
    if let Some(url) = &public_url
        && !url.parse::<Uri>().is_ok_and(|url| {
            matches!(url.scheme_str(), Some("http" | "https")) && url.authority().is_some() && url.path() == "/"
        })
    {
        reader.problem("public-url", url, "is not a URL without a path such as https://sandboxes.example.com");
    }
    let secrets: Vec<PathBuf> = reader.list("links-secret-file").into_iter().map(PathBuf::from).collect();
    if secrets.is_empty() {
        if let Some(url) = public_url {
            reader.problem("public-url", &url, "needs --links-secret-file");
        }
        return None;
    }
    let files = reader.text("links-secret-file").to_owned();
    if !watch_pods {
        reader.problem("links-secret-file", &files, "needs the index of sandbox Pods; remove --cache-enabled=false");
    }
    for needed in ["authz-cookie-name", "authz-cookie-query-param"] {
        if reader.non_empty(needed).is_none() {
            reader.problem("links-secret-file", &files, &format!("needs --{needed}"));
        }
    }
    Some(LinkConfig { secrets, public_url, injected_daemon: false })
}

pub(super) fn read_cookie(
    reader: &mut Reader<'_>,
    routing: &Routing,
    authz: &AuthzConfig,
    links: bool,
) -> Option<CookieConfig> {
    let same_site = match reader.text("authz-cookie-samesite") {
        "lax" => SameSite::Lax,
        "strict" => SameSite::Strict,
        "none" => SameSite::None,
        other => {
            reader.problem("authz-cookie-samesite", other, "is not one of lax, strict, none");
            SameSite::Lax
        }
    };
    let secure = !reader.switch("authz-cookie-insecure");
    if same_site == SameSite::None && !secure {
        reader.problem("authz-cookie-samesite", "none", "browsers refuse such a cookie with --authz-cookie-insecure");
    }
    let allowed_origins = read_origins(reader, "authz-cookie-allowed-origins");
    let trust_forwarded_proto = reader.switch("authz-trust-forwarded-proto");
    let Some(name) = reader.non_empty("authz-cookie-name") else {
        for dependent in ["authz-cookie-query-param", "authz-cookie-allowed-origins"] {
            if let Some(value) = reader.non_empty(dependent) {
                reader.problem(dependent, value, "needs --authz-cookie-name");
            }
        }
        if trust_forwarded_proto {
            reader.problem("authz-trust-forwarded-proto", "true", "needs --authz-cookie-name");
        }
        return None;
    };
    if routing.path_prefix.is_none() && routing.host_domain.is_none() {
        reader.problem("authz-cookie-name", name, "needs --path-routing-prefix or --host-routing-domain");
    }
    if matches!(authz, AuthzConfig::AllowAll) && !links {
        reader.problem(
            "authz-cookie-name",
            name,
            "has no effect with --authz-mode allow-all, which needs no credential",
        );
    }
    let query_param = reader.non_empty("authz-cookie-query-param");
    for (flag, value) in [("authz-cookie-name", Some(name)), ("authz-cookie-query-param", query_param)] {
        if let Some(value) = value.filter(|value| !is_plain_name(value)) {
            reader.problem(flag, value, "may consist of letters, digits, '-', '_', '.' and '~'");
        }
    }
    Some(CookieConfig {
        name: name.to_owned(),
        query_param: query_param.map(str::to_owned),
        same_site,
        secure,
        allowed_origins,
        trust_forwarded_proto,
    })
}
