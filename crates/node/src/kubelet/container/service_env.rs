//! Environment variables for the Services of a container's namespace (`enableServiceLinks`). Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Service;

/// Services by namespace and name.
pub type Services = BTreeMap<(String, String), Service>;

/// The variables for a Pod of this namespace. The Service of the API (`default/kubernetes`) is always included, the
/// others only when `enabled`.
pub fn service_variables(services: &Services, namespace: &str, enabled: bool) -> Vec<(String, String)> {
    let mut out = Vec::new();
    for ((of, name), service) in services {
        let own = of == namespace && enabled;
        let api = of == "default" && name == "kubernetes";
        if own || api {
            add(name, service, &mut out);
        }
    }
    out
}

fn add(name: &str, service: &Service, out: &mut Vec<(String, String)>) {
    let Some(spec) = &service.spec else { return };
    let Some(address) = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None") else { return };
    let ports = spec.ports.as_deref().unwrap_or_default();
    let Some(first) = ports.first() else { return };
    let prefix = upper(name);
    out.push((format!("{prefix}_SERVICE_HOST"), address.to_owned()));
    out.push((format!("{prefix}_SERVICE_PORT"), first.port.to_string()));
    for port in ports {
        if let Some(port_name) = port.name.as_deref().filter(|n| !n.is_empty()) {
            out.push((format!("{prefix}_SERVICE_PORT_{}", upper(port_name)), port.port.to_string()));
        }
    }
    let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
    let protocol = |p: Option<&str>| p.unwrap_or("TCP").to_owned();
    let url = |number: i32, proto: &str| format!("{}://{host}:{number}", proto.to_ascii_lowercase());
    out.push((format!("{prefix}_PORT"), url(first.port, &protocol(first.protocol.as_deref()))));
    for port in ports {
        let proto = protocol(port.protocol.as_deref());
        let base = format!("{prefix}_PORT_{}_{proto}", port.port);
        out.push((base.clone(), url(port.port, &proto)));
        out.push((format!("{base}_PROTO"), proto.to_ascii_lowercase()));
        out.push((format!("{base}_PORT"), port.port.to_string()));
        out.push((format!("{base}_ADDR"), address.to_owned()));
    }
}

fn upper(name: &str) -> String {
    name.replace('-', "_").to_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn services() -> Services {
        let all = [
            (
                "ns",
                "my-db",
                json!({"clusterIP": "10.96.0.7", "ports": [{"name": "sql", "port": 5432}, {"port": 53, "protocol": "UDP"}]}),
            ),
            ("ns", "headless", json!({"clusterIP": "None", "ports": [{"port": 80}]})),
            ("other", "web", json!({"clusterIP": "10.96.0.8", "ports": [{"port": 80}]})),
            ("default", "kubernetes", json!({"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443}]})),
        ];
        let read = |(namespace, name, spec): (&str, &str, serde_json::Value)| {
            let service = json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec});
            ((namespace.to_owned(), name.to_owned()), serde_json::from_value(service).unwrap())
        };
        all.into_iter().map(read).collect()
    }

    #[test]
    fn services_with_an_address_have_variables() {
        let all: BTreeMap<String, String> = service_variables(&services(), "ns", true).into_iter().collect();
        for (name, value) in [
            ("MY_DB_SERVICE_HOST", "10.96.0.7"),
            ("MY_DB_SERVICE_PORT", "5432"),
            ("MY_DB_SERVICE_PORT_SQL", "5432"),
            ("MY_DB_PORT", "tcp://10.96.0.7:5432"),
            ("MY_DB_PORT_53_UDP", "udp://10.96.0.7:53"),
            ("MY_DB_PORT_53_UDP_PROTO", "udp"),
            ("MY_DB_PORT_5432_TCP_ADDR", "10.96.0.7"),
            ("KUBERNETES_SERVICE_PORT_HTTPS", "443"),
        ] {
            assert_eq!(all.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert!(!all.keys().any(|k| k.starts_with("HEADLESS") || k.starts_with("WEB")), "{all:?}");
        let without = service_variables(&services(), "ns", false);
        assert!(without.iter().all(|(name, _)| name.starts_with("KUBERNETES_")) && !without.is_empty());
    }
}
