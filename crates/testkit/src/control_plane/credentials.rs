//! Keys, certificates and what a node needs to join.

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

/// Signs for one control plane: servers, kubelets and clients alike.
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

    /// For a server on loopback; it may have further names.
    pub(super) fn server(&self, common_name: &str, names: &[&str]) -> anyhow::Result<Signed> {
        let names = ["127.0.0.1", "::1", "localhost"].iter().chain(names).map(|name| (*name).to_owned());
        self.sign(common_name, "", names.collect(), ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// For a client: its user and group in Kubernetes.
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

/// Writes a file that only its owner can read.
pub(super) fn write(path: &Path, content: &str) -> anyhow::Result<()> {
    fs::write(path, content)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o600)))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// What a node needs to join: PEM texts and a kubeconfig with a kubelet's rights.
#[derive(Clone)]
pub struct NodeCredentials {
    /// User `system:node:NAME` of group `system:nodes`.
    pub kubeconfig: std::path::PathBuf,
    /// For the node's own server, valid for loopback and the node's name.
    pub serving_certificate: String,
    pub serving_key: String,
    /// Who may call the node: kube-apiserver's client certificate is signed by it.
    pub client_authority: String,
}

impl ControlPlane {
    /// What a node of this name needs to join.
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
