//! A self-signed certificate for the node, for control planes that do not check it.

use anyhow::{Context as _, Result};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use std::net::IpAddr;

/// Certificate and key, PEM, for the node's name and address.
pub(crate) fn self_signed(node: &str, address: IpAddr) -> Result<(Vec<u8>, Vec<u8>)> {
    let names = vec![node.to_owned(), "localhost".to_owned(), "127.0.0.1".to_owned(), address.to_string()];
    let make = || -> Result<_, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.distinguished_name.push(DnType::CommonName, format!("system:node:{node}"));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.self_signed(&key)?;
        Ok((certificate.pem().into_bytes(), key.serialize_pem().into_bytes()))
    };
    make().context("cannot make a certificate for the node")
}
