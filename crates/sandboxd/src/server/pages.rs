//! Which web pages may use the daemon: in general those that it serves itself.

use agent_sandbox_protocol::web::{AllowedHosts, AllowedOrigins, HostError, PageError, PageRules};
use http::{Request, Response};

use crate::http_io::body::{self, Body};

/// The rules for a daemon in this machine's network. `resolver` is the text of `resolv.conf`, which names the domain of
/// the cluster.
pub fn page_rules(hosts: Vec<String>, origins: AllowedOrigins, resolver: &str) -> Result<PageRules, HostError> {
    let hosts = AllowedHosts::private(cluster_domains(resolver)).and(hosts)?;
    // Through a router, the daemon's pages have the router's origin.
    Ok(PageRules { hosts, origins, own_proxy: true, links: false })
}

/// The domains for which the resolver searches `svc.DOMAIN`, as in every Pod of a cluster.
fn cluster_domains(resolver: &str) -> Vec<String> {
    let words = resolver.lines().filter_map(|line| line.trim().strip_prefix("search")).flat_map(str::split_whitespace);
    words.filter_map(|domain| domain.trim_end_matches('.').strip_prefix("svc.")).map(str::to_owned).collect()
}

/// Refuses a request that a web page may have sent, and says how to permit it.
pub(super) async fn refuse(error: &PageError, request: Request<Body>) -> Response<Body> {
    body::discard(request.into_body()).await;
    let hint = match error {
        PageError::Host(_) => {
            "call it by an address, localhost or the name of a Service, or start sandboxd with --allowed-host \
             (SANDBOX_ALLOWED_HOSTS)"
        }
        PageError::Origin(_) | PageError::CrossSite => {
            "start sandboxd with --allowed-origin (SANDBOX_ALLOWED_ORIGINS) to permit them"
        }
    };
    body::text(error.status(), format!("{error}; {hint}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cluster_domain_is_the_one_that_the_resolver_searches() {
        let resolver =
            "nameserver 10.96.0.10\nsearch ns.svc.corp.example svc.corp.example corp.example lan\noptions x\n";
        assert_eq!(cluster_domains(resolver), ["corp.example"]);
        assert!(cluster_domains("").is_empty() && cluster_domains("search lan example.com\n").is_empty());
        let rules = page_rules(vec!["box.example.com".into()], AllowedOrigins::default(), resolver).expect("rules");
        for own in ["box.ns.svc.corp.example", "box.ns.svc.cluster.local", "box.example.com"] {
            assert!(rules.hosts.contain(own), "{own}");
        }
        assert!(!rules.hosts.contain("box.ns.svc.example.com"));
    }
}
