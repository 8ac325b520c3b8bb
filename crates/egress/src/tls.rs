//! Reads the server name (SNI) from the first bytes of a TLS connection, without opening it.

use crate::name::{Name, NameError};

/// Maximum size of a ClientHello with its record headers. Those of today, with post-quantum keys, have 2 KiB.
pub const MAX_HELLO: usize = 16 * 1024;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const EXTENSION_SERVER_NAME: u16 = 0;
const EXTENSION_ENCRYPTED_HELLO: u16 = 0xfe0d;

/// Why a connection has no server name that can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    #[error("the connection does not begin with a TLS handshake")]
    NotTls,
    #[error("the TLS handshake is malformed")]
    Malformed,
    #[error("the TLS handshake is too long")]
    TooLong,
    #[error("the TLS handshake has no server name (SNI)")]
    NoServerName,
    #[error("the TLS handshake has several server names (SNI)")]
    SeveralServerNames,
    #[error("the server name (SNI) of the TLS handshake is invalid: {0}")]
    ServerName(#[source] NameError),
    #[error("the TLS handshake hides its server name (encrypted client hello)")]
    Encrypted,
}

/// A `access_denied` alert, as the record that refuses a handshake.
pub const ACCESS_DENIED: [u8; 7] = [21, 3, 1, 0, 2, 2, 49];

/// The server name of the ClientHello at the beginning of these bytes; `Ok(None)` while it is not complete.
pub fn server_name(bytes: &[u8]) -> Result<Option<Name>, HelloError> {
    let Some(message) = handshake_message(bytes)? else { return Ok(None) };
    let mut hello = Reader(&message);
    // Version and random, session id, cipher suites, compression methods.
    hello.take(34)?;
    hello.vector8()?;
    hello.vector16()?;
    hello.vector8()?;
    if hello.0.is_empty() {
        return Err(HelloError::NoServerName);
    }
    let mut extensions = Reader(hello.vector16()?);
    if !hello.0.is_empty() {
        return Err(HelloError::Malformed);
    }
    let mut found = None;
    while !extensions.0.is_empty() {
        let kind = extensions.word()?;
        let body = extensions.vector16()?;
        match kind {
            EXTENSION_ENCRYPTED_HELLO => return Err(HelloError::Encrypted),
            EXTENSION_SERVER_NAME if found.is_some() => return Err(HelloError::SeveralServerNames),
            EXTENSION_SERVER_NAME => found = Some(listed_name(body)?),
            _ => {}
        }
    }
    found.map(Some).ok_or(HelloError::NoServerName)
}

/// The one host name of the extension's list.
fn listed_name(body: &[u8]) -> Result<Name, HelloError> {
    const HOST_NAME: u8 = 0;
    let mut body = Reader(body);
    let mut list = Reader(body.vector16()?);
    if !body.0.is_empty() {
        return Err(HelloError::Malformed);
    }
    let kind = list.take(1)?;
    let name = list.vector16()?;
    if !list.0.is_empty() {
        return Err(HelloError::SeveralServerNames);
    }
    if kind != [HOST_NAME] {
        return Err(HelloError::NoServerName);
    }
    // Names on the wire are ASCII (RFC 6066): one that is not would be read differently by different servers.
    let text = std::str::from_utf8(name).ok().filter(|text| text.is_ascii());
    Name::parse(text.ok_or(HelloError::ServerName(NameError::Character))?).map_err(HelloError::ServerName)
}

/// The body of the ClientHello, put together from its records; `None` while it is not complete.
fn handshake_message(bytes: &[u8]) -> Result<Option<Vec<u8>>, HelloError> {
    let (mut rest, mut message) = (bytes, Vec::new());
    loop {
        if let Some([kind, length @ ..]) = message.first_chunk::<4>() {
            let [a, b, c] = length.map(usize::from);
            let length = a << 16 | b << 8 | c;
            if *kind != CLIENT_HELLO {
                return Err(HelloError::NotTls);
            }
            if length + 4 > MAX_HELLO {
                return Err(HelloError::TooLong);
            }
            if message.len() >= length + 4 {
                return Ok(Some(message[4..length + 4].to_vec()));
            }
        }
        match rest {
            [HANDSHAKE, 3, _, high, low, body @ ..] => {
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                if length == 0 {
                    return Err(HelloError::Malformed);
                }
                let part = body.get(..length.min(body.len())).unwrap_or_default();
                message.extend_from_slice(part);
                rest = body.get(part.len()..).unwrap_or_default();
            }
            [] | [HANDSHAKE] | [HANDSHAKE, 3] | [HANDSHAKE, 3, _] | [HANDSHAKE, 3, _, _] => {
                return if bytes.len() >= MAX_HELLO { Err(HelloError::TooLong) } else { Ok(None) };
            }
            _ => return Err(if message.is_empty() { HelloError::NotTls } else { HelloError::Malformed }),
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], HelloError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(HelloError::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn word(&mut self) -> Result<u16, HelloError> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn vector8(&mut self) -> Result<&'a [u8], HelloError> {
        let length = self.take(1)?[0];
        self.take(usize::from(length))
    }

    fn vector16(&mut self) -> Result<&'a [u8], HelloError> {
        let length = self.word()?;
        self.take(usize::from(length))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// The first bytes that rustls sends.
    fn real_hello(server: &str) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let name = server.to_owned().try_into().unwrap();
        let mut connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        connection.write_tls(&mut bytes).unwrap();
        bytes
    }

    /// A hello with these extensions.
    fn hello(extensions: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let with_length = |bytes: Vec<u8>| [(bytes.len() as u16).to_be_bytes().to_vec(), bytes].concat();
        let list = extensions
            .iter()
            .flat_map(|(kind, body)| [kind.to_be_bytes().to_vec(), with_length(body.clone())].concat());
        let body = [vec![3; 34], vec![0, 0, 2, 0x13, 1, 1, 0], with_length(list.collect())].concat();
        let length = (body.len() as u32).to_be_bytes();
        let message = [vec![CLIENT_HELLO], length[1..].to_vec(), body].concat();
        [vec![HANDSHAKE, 3, 1], with_length(message)].concat()
    }

    fn names(names: &[&str]) -> (u16, Vec<u8>) {
        let list: Vec<u8> = names
            .iter()
            .flat_map(|name| [vec![0], (name.len() as u16).to_be_bytes().to_vec(), name.as_bytes().to_vec()].concat())
            .collect();
        (EXTENSION_SERVER_NAME, [(list.len() as u16).to_be_bytes().to_vec(), list].concat())
    }

    #[test]
    fn a_real_clients_name_is_read_however_it_is_cut() {
        let bytes = real_hello("Files.PythonHosted.org");
        let found = server_name(&bytes).unwrap().unwrap();
        assert_eq!(found.as_str(), "files.pythonhosted.org");
        for cut in 0..bytes.len() {
            assert_eq!(server_name(&bytes[..cut]), Ok(None), "cut at {cut}");
        }
        let mut pieces = Vec::new();
        for piece in bytes[5..].chunks(9) {
            pieces.extend([HANDSHAKE, 3, 1, 0, piece.len() as u8]);
            pieces.extend(piece);
        }
        assert_eq!(server_name(&pieces).unwrap().unwrap(), found, "in many records");
        assert_eq!(server_name(&[bytes, vec![0; 20]].concat()).unwrap().unwrap(), found, "followed by other data");
    }

    #[test]
    fn hidden_missing_and_ambiguous_names_are_refused() {
        assert_eq!(server_name(&real_hello("192.0.2.1")), Err(HelloError::NoServerName));
        assert_eq!(server_name(&hello(&[])), Err(HelloError::NoServerName));
        let hidden = (EXTENSION_ENCRYPTED_HELLO, vec![0]);
        assert_eq!(server_name(&hello(&[names(&["a.b"]), hidden])), Err(HelloError::Encrypted));
        assert_eq!(server_name(&hello(&[names(&["a.b"]), names(&["c.d"])])), Err(HelloError::SeveralServerNames));
        assert_eq!(server_name(&hello(&[names(&["a.b", "c.d"])])), Err(HelloError::SeveralServerNames));
        assert_eq!(server_name(&hello(&[names(&["a b"])])), Err(HelloError::ServerName(NameError::Character)));
        assert_eq!(server_name(&hello(&[names(&["b\u{fc}.de"])])), Err(HelloError::ServerName(NameError::Character)));
        assert_eq!(server_name(&hello(&[names(&["127.0.0.1"])])), Err(HelloError::ServerName(NameError::Address)));
    }

    #[test]
    fn other_protocols_are_recognised_at_once() {
        for bytes in [&b"GET / HTTP/1.1"[..], b"SSH-2.0-x", &[22, 2, 0, 0], &[22, 3, 1, 0, 4, 2, 0, 0, 0]] {
            assert_eq!(server_name(bytes), Err(HelloError::NotTls), "{bytes:?}");
        }
        assert_eq!(server_name(&[22, 3, 1, 0, 0]), Err(HelloError::Malformed), "an empty record");
        assert_eq!(server_name(&[22, 3, 1, 0, 4, 1, 1, 0, 0]), Err(HelloError::TooLong));
    }
}
