//! Addressing of requests: addresses of the sandbox, which may become stale, and the router's headers.

use super::Transport;
use crate::{Address, ClientError, GatewayOptions, TraceContext, call::Body, gateway};
use agent_sandbox_api::v1beta1::Sandbox;
use agent_sandbox_protocol::router_headers as names;
use http::{HeaderMap, HeaderValue, Method, Request, Uri};
use kube::{Api, Client};
use std::{net::IpAddr, sync::PoisonError, time::Duration};

/// Addresses from the API, which may become stale.
#[derive(Default)]
pub(super) struct AddressCache {
    pod_ip: Option<String>,
    /// The API denied reading the Sandbox, so it is not looked up again.
    pod_ip_denied: bool,
    base: Option<String>,
}

pub(super) enum Route {
    /// A router: `base` plus headers.
    Router { base: String },
    /// The router if there is one, otherwise the daemon itself, which ignores the router's headers.
    Tunnel,
    /// A router behind a Gateway.
    Gateway { client: Client, options: GatewayOptions },
    /// The daemon itself.
    Daemon { address: Option<Address> },
}

impl Transport {
    /// Clears addresses that may have changed.
    pub(super) fn clear_addresses(&self) {
        let mut addresses = self.addresses();
        addresses.pod_ip = None;
        addresses.base = None;
    }

    /// Caches a Pod IP from the API.
    pub(super) fn set_pod_ip(&self, pod_ip: Option<String>) {
        self.addresses().pod_ip = pod_ip;
    }

    fn addresses(&self) -> std::sync::MutexGuard<'_, AddressCache> {
        self.inner.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one request")]
    pub(super) async fn request(
        &self,
        method: &Method,
        path: &str,
        mut headers: HeaderMap,
        left: Option<Duration>,
        trace: Option<&TraceContext>,
        port: Option<u16>,
        body: Body,
    ) -> Result<(Request<Body>, Option<String>), ClientError> {
        let port = port.unwrap_or(self.inner.port);
        let base = self.base(port).await?;
        for (name, value) in &self.inner.headers {
            if !headers.contains_key(name) {
                headers.insert(name.clone(), value.clone());
            }
        }
        let mut pod_ip = None;
        if !matches!(self.inner.route, Route::Daemon { .. }) {
            let value = |text: &str| HeaderValue::from_str(text).map_err(|_| invalid_name(text));
            headers.insert(names::SANDBOX_ID, value(&self.inner.name)?);
            headers.insert(names::SANDBOX_NAMESPACE, value(&self.inner.namespace)?);
            headers.insert(names::SANDBOX_PORT, HeaderValue::from(port));
            if let Some(left) = left {
                headers.insert(names::SANDBOX_TIMEOUT, value(&seconds(left))?);
            }
            pod_ip = self.pod_ip().await;
            if let Some(address) = &pod_ip {
                headers.insert(names::SANDBOX_POD_IP, value(address)?);
            }
        }
        if let Some(trace) = trace.or(self.inner.trace.as_ref()) {
            trace.write(&mut headers);
        }
        let uri: Uri = format!("{base}{path}").parse().map_err(|_| {
            ClientError::Invalid(format!("{base}{path} is not an address; it needs to look like http://host:port"))
        })?;
        let mut request = Request::new(body);
        *request.method_mut() = method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        Ok((request, pod_ip))
    }

    /// Base URL of the next request.
    async fn base(&self, port: u16) -> Result<String, ClientError> {
        match &self.inner.route {
            Route::Router { base } => Ok(base.clone()),
            Route::Gateway { client, options } => {
                if let Some(base) = self.addresses().base.clone() {
                    return Ok(base);
                }
                let host = bracketed(&gateway::address(client, options).await?);
                let base = format!("http://{host}");
                self.addresses().base = Some(base.clone());
                Ok(base)
            }
            Route::Tunnel | Route::Daemon { address: None } => Ok(format!("http://localhost:{port}")),
            Route::Daemon { address: Some(address) } => {
                if let Some(base) = self.addresses().base.clone() {
                    return Ok(format!("{base}:{port}"));
                }
                let (host, cacheable) = self.host(*address).await?;
                let base = format!("http://{}", bracketed(&host));
                if cacheable {
                    self.addresses().base = Some(base.clone());
                }
                Ok(format!("{base}:{port}"))
            }
        }
    }

    /// The sandbox's host inside the cluster, and whether it may be cached.
    async fn host(&self, address: Address) -> Result<(String, bool), ClientError> {
        let (name, namespace) = (&self.inner.name, &self.inner.namespace);
        let dns = format!("{name}.{namespace}.svc.cluster.local");
        match address {
            Address::Dns => Ok((dns, true)),
            Address::PodIpThenDns => Ok(match self.get_sandbox().await {
                Ok(Some(sandbox)) => select_pod_ip(sandbox.pod_ips()).map_or((dns, false), |address| (address, true)),
                _ => (dns, false),
            }),
            Address::PodIp => {
                let sandbox = self.get_sandbox().await?;
                let address = sandbox.and_then(|sandbox| select_pod_ip(sandbox.pod_ips()));
                let last = "its status has no Pod IP".to_owned();
                let missing = || ClientError::NotRunning { name: name.clone(), last };
                Ok((address.ok_or_else(missing)?, true))
            }
            Address::Service => {
                let sandbox = self.get_sandbox().await?;
                let status = sandbox.and_then(|sandbox| sandbox.status);
                let service = status.and_then(|status| status.service_fqdn).filter(|name| !name.is_empty());
                Ok((service.ok_or_else(|| ClientError::NoService { name: name.clone() })?, true))
            }
        }
    }

    async fn get_sandbox(&self) -> Result<Option<Sandbox>, ClientError> {
        let Some(client) = &self.inner.kube else { return Ok(None) };
        let api: Api<Sandbox> = Api::namespaced(client.clone(), &self.inner.namespace);
        let found = api.get_opt(&self.inner.name).await;
        found.map_err(ClientError::api(format!("look up `{}`", self.inner.name)))
    }

    /// Value of `X-Sandbox-Pod-IP`. It is only a hint, so errors are ignored.
    pub(super) async fn pod_ip(&self) -> Option<String> {
        if !self.inner.send_pod_ip || self.addresses().pod_ip_denied {
            return None;
        }
        if let Some(address) = self.addresses().pod_ip.clone() {
            return Some(address);
        }
        match self.get_sandbox().await {
            Ok(found) => {
                let address = found.and_then(|sandbox| select_pod_ip(sandbox.pod_ips()));
                self.addresses().pod_ip = address.clone();
                address
            }
            Err(error) => {
                self.addresses().pod_ip_denied = matches!(error.status(), Some(401 | 403));
                None
            }
        }
    }
}

fn invalid_name(text: &str) -> ClientError {
    ClientError::Invalid(format!("{text:?} cannot be the name of a sandbox"))
}

/// Formats a duration in seconds as the shortest decimal.
fn seconds(duration: Duration) -> String {
    let seconds = (duration.as_secs_f64().max(0.001) * 1000.0).round() / 1000.0;
    seconds.to_string()
}

fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// The preferred address: IPv4 before IPv6, in canonical form. Invalid addresses are skipped.
pub fn select_pod_ip(addresses: &[String]) -> Option<String> {
    let parsed =
        || addresses.iter().filter_map(|text| text.parse::<IpAddr>().ok()).map(|address| address.to_canonical());
    let chosen = parsed().find(IpAddr::is_ipv4).or_else(|| parsed().next())?;
    Some(chosen.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d_199_ipv4_is_preferred_and_shortened() {
        let list = |addresses: &[&str]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(select_pod_ip(&list(&["fd00::5", "10.0.0.5"])).as_deref(), Some("10.0.0.5"));
        assert_eq!(select_pod_ip(&list(&["::ffff:10.0.0.6"])).as_deref(), Some("10.0.0.6"));
        assert_eq!(select_pod_ip(&list(&["x", "fd00:0::5"])).as_deref(), Some("fd00::5"));
        assert_eq!(select_pod_ip(&list(&["x"])), None);
    }

    #[test]
    fn d_243_the_timeout_is_the_shortest_decimal() {
        assert_eq!(seconds(Duration::from_secs(10)), "10");
        assert_eq!(seconds(Duration::from_millis(2500)), "2.5");
    }
}
