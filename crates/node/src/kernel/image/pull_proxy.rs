//! Which proxies make the connections of a pull: the operator's, from the environment, or the guard. The client library
//! itself never connects to a registry: it would follow redirects to every host that the environment exempts from the
//! operator's proxy, and those hosts are mostly the private ones.

use hyper_util::client::proxy::matcher::Matcher;

/// The proxy settings of the environment; empty where there is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ProxySettings {
    all: String,
    https: String,
    http: String,
    /// Hosts that are reached without a proxy.
    exempt: String,
}

/// The operator's proxy for each scheme; the guard makes the connections where there is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct OperatorProxies {
    pub(super) https: Option<String>,
    pub(super) http: Option<String>,
}

impl ProxySettings {
    /// Of several spellings the first that is set counts, also if it is empty, as in the client library.
    pub(super) fn from_env() -> Self {
        let first = |names: [&str; 2]| names.into_iter().find_map(|name| std::env::var(name).ok()).unwrap_or_default();
        Self {
            all: first(["ALL_PROXY", "all_proxy"]),
            https: first(["HTTPS_PROXY", "https_proxy"]),
            http: first(["HTTP_PROXY", "http_proxy"]),
            exempt: first(["NO_PROXY", "no_proxy"]),
        }
    }

    /// The operator's proxies for a pull from this registry (`host` or `host:port`). They get all connections of the
    /// pull, also those to exempt hosts that the registry leads to; none for a registry that is exempt itself.
    pub(super) fn for_registry(&self, registry: &str) -> OperatorProxies {
        if self.is_exempt(registry) {
            return OperatorProxies::default();
        }
        OperatorProxies { https: proxy(&[&self.https, &self.all]), http: proxy(&[&self.http, &self.all]) }
    }

    fn is_exempt(&self, registry: &str) -> bool {
        let proxied = Matcher::builder().all("http://proxy").no(self.exempt.as_str()).build();
        format!("https://{registry}/").parse().is_ok_and(|address| proxied.intercept(&address).is_none())
    }
}

/// The first of these settings that has a value, as an address.
fn proxy(settings: &[&str]) -> Option<String> {
    let value = settings.iter().map(|value| value.trim()).find(|value| !value.is_empty())?;
    Some(if value.contains("://") { value.to_owned() } else { format!("http://{value}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(https: Option<&str>, http: Option<&str>) -> OperatorProxies {
        OperatorProxies { https: https.map(str::to_owned), http: http.map(str::to_owned) }
    }

    #[test]
    fn the_guard_makes_the_connections_that_the_environment_exempts_from_the_proxy() {
        let settings = ProxySettings {
            https: "http://user:word@proxy.corp:3128".into(),
            exempt: "127.0.0.1,10.0.0.0/8, .corp".into(),
            ..ProxySettings::default()
        };
        for exempt in ["127.0.0.1:5000", "10.1.2.3", "registry.corp:5000"] {
            assert_eq!(settings.for_registry(exempt), proxies(None, None), "{exempt}");
        }
        let of_others = proxies(Some("http://user:word@proxy.corp:3128"), None);
        assert_eq!(
            settings.for_registry("registry.example"),
            of_others,
            "plain HTTP has no proxy, so the guard has it"
        );
        assert_eq!(settings.for_registry("127.0.0.2:5000"), of_others);
    }

    #[test]
    fn one_setting_may_stand_for_both_schemes_and_lack_a_scheme() {
        assert_eq!(ProxySettings::default().for_registry("a.example"), proxies(None, None));
        let all = ProxySettings { all: "socks5://proxy:1080".into(), http: "proxy:80".into(), ..Default::default() };
        assert_eq!(all.for_registry("a.example"), proxies(Some("socks5://proxy:1080"), Some("http://proxy:80")));
        let none = ProxySettings { exempt: "*".into(), ..all };
        assert_eq!(none.for_registry("a.example"), proxies(None, None));
    }
}
