//! Keys, certificates, and the credentials that a node needs to join.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use anyhow::Context;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};

use super::ControlPlane;

/// A certificate and its key, PEM.
#[derive(Clone)]
pub(super) struct Signed {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// The certificate authority of one control plane, for servers, kubelets and clients.
pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(super) fn generate() -> anyhow::Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name("control-plane-ca", "");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    pub(super) fn certificate(&self) -> String {
        self.0.pem()
    }

    /// A certificate for a server on loopback, with further names if given.
    pub(super) fn server(&self, common_name: &str, names: &[&str]) -> anyhow::Result<Signed> {
        let names = ["127.0.0.1", "::1", "localhost"].iter().chain(names).map(|name| (*name).to_owned());
        self.sign(common_name, "", names.collect(), ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A certificate for a client with this Kubernetes user and group.
    pub(super) fn client(&self, user: &str, group: &str) -> anyhow::Result<Signed> {
        self.sign(user, group, Vec::new(), ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(
        &self,
        common_name: &str,
        organisation: &str,
        names: Vec<String>,
        usage: ExtendedKeyUsagePurpose,
    ) -> anyhow::Result<Signed> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = name(common_name, organisation);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let certificate = params.signed_by(&key, &self.0)?.pem();
        Ok(Signed { certificate, key: key.serialize_pem() })
    }
}

fn name(common_name: &str, organisation: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    if !organisation.is_empty() {
        name.push(DnType::OrganizationName, organisation);
    }
    name
}

/// The key that signs ServiceAccount tokens, and its public half.
pub(super) fn signing_keys() -> anyhow::Result<(String, String)> {
    let key = KeyPair::generate()?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

/// Writes a file that only its owner can read (mode 0600).
pub(super) fn write(path: &Path, content: &str) -> anyhow::Result<()> {
    fs::write(path, content)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o600)))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Credentials that a node needs to join: PEM texts and a kubeconfig with a kubelet's permissions.
#[derive(Clone)]
pub struct NodeCredentials {
    /// Kubeconfig of the user `system:node:NAME` in the group `system:nodes`.
    pub kubeconfig: std::path::PathBuf,
    /// Certificate of the node's own server, valid for loopback and the node's name.
    pub serving_certificate: String,
    pub serving_key: String,
    /// The authority that the node trusts for its clients: it signed kube-apiserver's client certificate.
    pub client_authority: String,
}

impl ControlPlane {
    /// Credentials for a node of this name.
    pub fn node_credentials(&self, node: &str) -> anyhow::Result<NodeCredentials> {
        let client = self.authority.client(&format!("system:node:{node}"), "system:nodes")?;
        let server = self.authority.server(node, &[node])?;
        let kubeconfig = self.path(&format!("node-{node}.kubeconfig"));
        write(&kubeconfig, &self.kubeconfig_of(&super::Identity::certificate(&client)))?;
        Ok(NodeCredentials {
            kubeconfig,
            serving_certificate: server.certificate,
            serving_key: server.key,
            client_authority: self.authority.certificate(),
        })
    }
}
