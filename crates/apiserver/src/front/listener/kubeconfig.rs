//! The kubeconfig: the server's address and CA certificate, and the administrator's token.

use std::net::SocketAddr;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::{Credentials, ListenerError, private_file};

/// The text of a kubeconfig whose cluster, user and context are all named `name`.
pub fn render(name: &str, address: SocketAddr, credentials: &Credentials) -> String {
    let ca = BASE64.encode(credentials.ca_certificate());
    let token = credentials.admin_token();
    format!(
        "apiVersion: v1
kind: Config
current-context: {name}
clusters:
- name: {name}
  cluster:
    server: https://{address}
    certificate-authority-data: {ca}
users:
- name: {name}
  user:
    token: {token}
contexts:
- name: {name}
  context:
    cluster: {name}
    user: {name}
    namespace: default
preferences: {{}}
"
    )
}

/// Writes the file with permissions for its owner only.
pub fn write(path: &Path, text: &str) -> Result<(), ListenerError> {
    private_file::write(path, text.as_bytes())
}

/// The address for clients: they cannot connect to a wildcard address, so it is replaced by the loopback address of the
/// same family.
pub fn reachable(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => SocketAddr::from(([127, 0, 0, 1], v4.port())),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, v6.port())),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn kube_can_parse_the_rendered_kubeconfig() {
        let credentials = Credentials::generate("test", Timestamp::now()).unwrap();
        let text = render("agent", reachable("0.0.0.0:7443".parse().unwrap()), &credentials);
        let parsed = kube::config::Kubeconfig::from_yaml(&text).unwrap();
        let cluster = parsed.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://127.0.0.1:7443"));
        assert!(cluster.certificate_authority_data.is_some());
        assert_eq!(parsed.current_context.as_deref(), Some("agent"));
    }
}
