//! The user that a client certificate names, read as Kubernetes does: the common name of its subject is the user, the
//! organizations are the user's groups.

use k8s_openapi::api::authentication::v1::UserInfo;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
/// Tag of the version, which certificates of version 1 do not have.
const VERSION: u8 = 0xa0;
/// UTF8String, PrintableString and IA5String.
const TEXTS: [u8; 3] = [0x0c, 0x13, 0x16];
/// Object identifiers 2.5.4.3 and 2.5.4.10.
const COMMON_NAME: [u8; 3] = [0x55, 4, 3];
const ORGANIZATION: [u8; 3] = [0x55, 4, 10];

/// Group of everybody who was authenticated.
const AUTHENTICATED: &str = "system:authenticated";

/// The user of a verified certificate (DER); `None` if its subject has no common name.
pub(super) fn user_of(certificate: &[u8]) -> Option<UserInfo> {
    let mut certificate = Der(certificate);
    let mut signed = Der(Der(certificate.take(SEQUENCE)?).take(SEQUENCE)?);
    if signed.0.first() == Some(&VERSION) {
        signed.next()?;
    }
    // Serial number, signature algorithm, issuer and validity precede the subject.
    for _ in 0..4 {
        signed.next()?;
    }
    let mut names = Der(signed.take(SEQUENCE)?);
    let mut user = None;
    let mut groups = Vec::new();
    while !names.0.is_empty() {
        let mut set = Der(names.take(SET)?);
        while !set.0.is_empty() {
            let mut attribute = Der(set.take(SEQUENCE)?);
            let kind = attribute.take(OBJECT_IDENTIFIER)?;
            if kind != COMMON_NAME && kind != ORGANIZATION {
                continue;
            }
            let (tag, text) = attribute.next()?;
            let text = std::str::from_utf8(text).ok().filter(|_| TEXTS.contains(&tag))?.to_owned();
            if kind == COMMON_NAME {
                user = Some(text);
            } else {
                groups.push(text);
            }
        }
    }
    groups.push(AUTHENTICATED.to_owned());
    let user = user.filter(|name| !name.is_empty())?;
    Some(UserInfo { username: Some(user), groups: Some(groups), ..UserInfo::default() })
}

/// Values in Distinguished Encoding Rules that have not been read yet.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// Tag and content of the next value.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match usize::from(first) {
            short @ 0..=0x7f => (short, rest),
            // The number of bytes of the length; certificates are far shorter than four of them can say.
            long @ 0x81..=0x84 => {
                let (bytes, rest) = rest.split_at_checked(long & 0x7f)?;
                (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, content))
    }

    /// The content of the next value, which must have this tag.
    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().filter(|(found, _)| *found == tag).map(|(_, content)| content)
    }
}

/// Fuzz target: the bytes are a certificate.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(data: &[u8]) {
    if let Some(user) = user_of(data) {
        assert!(user.username.is_some_and(|name| !name.is_empty()));
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};

    use super::*;

    fn user(names: &[(DnType, DnValue)]) -> Option<(String, Vec<String>)> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in names {
            params.distinguished_name.push(kind.clone(), value.clone());
        }
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let user = user_of(certificate.der())?;
        Some((user.username?, user.groups?))
    }

    #[test]
    fn the_common_name_is_the_user_and_organizations_are_groups() {
        let name = (DnType::CommonName, DnValue::Utf8String("kube-apiserver-kubelet-client".into()));
        let country = (DnType::CountryName, DnValue::PrintableString("DE".try_into().unwrap()));
        let group = (DnType::OrganizationName, DnValue::PrintableString("system:masters".try_into().unwrap()));
        let found = user(&[country.clone(), group.clone(), name]);
        let groups = vec!["system:masters".to_owned(), "system:authenticated".to_owned()];
        assert_eq!(found, Some(("kube-apiserver-kubelet-client".to_owned(), groups)));
        assert_eq!(user(&[country, group]), None);
        assert_eq!(user(&[(DnType::CommonName, DnValue::Utf8String(String::new()))]), None);
    }

    #[test]
    fn no_prefix_of_a_certificate_has_a_user() {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "u");
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        for end in 0..certificate.der().len() {
            assert!(user_of(&certificate.der()[..end]).is_none(), "{end}");
        }
    }
}
