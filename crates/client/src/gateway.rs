//! Waits for the address of a Gateway (Gateway API).

use crate::{ClientError, GatewayOptions};
use futures::TryStreamExt;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
    runtime::watcher,
};
use std::net::IpAddr;

/// Waits until the status of the Gateway has a valid address, and returns it.
pub(crate) async fn address(client: &Client, options: &GatewayOptions) -> Result<String, ClientError> {
    let resource = ApiResource {
        group: "gateway.networking.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "gateway.networking.k8s.io/v1".to_owned(),
        kind: "Gateway".to_owned(),
        plural: "gateways".to_owned(),
    };
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &options.namespace, &resource);
    let mut last = "the object has not been observed yet".to_owned();
    let watching = async {
        let mut changes = std::pin::pin!(watcher::watch_object(api, &options.name));
        loop {
            match changes.try_next().await {
                Ok(Some(Some(gateway))) => match first_address(&gateway.data) {
                    Some(address) => return address,
                    None => last = "its status has no valid address".to_owned(),
                },
                Ok(_) => last = "it does not exist".to_owned(),
                Err(error) => last = error.to_string(),
            }
        }
    };
    let found = tokio::time::timeout(options.ready_timeout, watching).await;
    found.map_err(|_| ClientError::NoGateway {
        name: options.name.clone(),
        namespace: options.namespace.clone(),
        after: options.ready_timeout,
        last,
    })
}

/// The first address in the status that is an IP address or a host name.
fn first_address(gateway: &serde_json::Value) -> Option<String> {
    let addresses = gateway["status"]["addresses"].as_array()?;
    let mut values = addresses.iter().filter_map(|address| address["value"].as_str());
    values.find(|value| value.parse::<IpAddr>().is_ok() || is_host_name(value)).map(str::to_owned)
}

/// True for a DNS name. Names of only numbers are excluded, because some resolvers parse them as addresses.
fn is_host_name(text: &str) -> bool {
    let number = |label: &str| {
        let digits = label.strip_prefix("0x").or_else(|| label.strip_prefix("0X"));
        match digits {
            Some(hex) => hex.bytes().all(|byte| byte.is_ascii_hexdigit()),
            None => !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_digit()),
        }
    };
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    text.len() <= 253 && text.split('.').all(label) && !text.split('.').all(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn d_205_the_first_valid_address_is_used() {
        let gateway =
            json!({"status": {"addresses": [{"value": "http://x/"}, {"value": "2130706433"}, {"value": "10.1.2.3"}]}});
        assert_eq!(first_address(&gateway).as_deref(), Some("10.1.2.3"));
        let named = json!({"status": {"addresses": [{"value": "gw.example.com"}]}});
        assert_eq!(first_address(&named).as_deref(), Some("gw.example.com"));
        assert_eq!(first_address(&json!({"status": {}})), None);
    }
}
