//! `agent-sandbox token mint`: creates a scoped token.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agent_sandbox_protocol::router_headers::is_dns_label;
use agent_sandbox_protocol::scoped_token::{MintError, Secret, SecretError};

/// Arguments of `agent-sandbox token mint`.
#[derive(Clone, Debug, clap::Args)]
pub struct TokenMintArgs {
    /// Name of the sandbox the token is for
    pub name: String,
    /// Namespace of the sandbox
    #[arg(long, short, default_value = "default")]
    pub namespace: String,
    /// File with the secret that the router also has
    #[arg(long, value_name = "FILE")]
    pub secret_file: PathBuf,
    /// How long the token is good for, like 15m or 12h
    #[arg(long, default_value = "1h", value_parser = parse_ttl)]
    pub ttl: Duration,
}

fn parse_ttl(text: &str) -> Result<Duration, String> {
    crate::config::settings::parse_duration(text).ok_or_else(|| "write it like 30s, 15m or 12h".to_owned())
}

/// Why a token could not be created.
#[derive(Debug, thiserror::Error)]
pub enum TokenMintError {
    #[error(
        "'{0}' is not a valid name of a sandbox or namespace: use lower-case letters, digits and inner dashes, at most 63"
    )]
    Name(String),
    #[error("cannot read secret {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("secret {path} cannot be used")]
    Secret { path: PathBuf, source: SecretError },
    #[error("cannot create the token")]
    Mint(#[from] MintError),
}

/// Creates the token.
pub fn mint_token(arguments: &TokenMintArgs) -> Result<String, TokenMintError> {
    for name in [&arguments.name, &arguments.namespace] {
        if !is_dns_label(name.as_bytes()) {
            return Err(TokenMintError::Name(name.clone()));
        }
    }
    let path = &arguments.secret_file;
    let bytes = std::fs::read(path).map_err(|source| TokenMintError::Read { path: path.clone(), source })?;
    let secret =
        Secret::from_file_bytes(&bytes).map_err(|source| TokenMintError::Secret { path: path.clone(), source })?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(secret.mint(&arguments.namespace, &arguments.name, arguments.ttl, now)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(secret: &[u8]) -> (tempfile::TempDir, TokenMintArgs) {
        let dir = tempfile::tempdir().unwrap();
        let secret_file = dir.path().join("secret");
        std::fs::write(&secret_file, secret).unwrap();
        let ttl = Duration::from_secs(60);
        (dir, TokenMintArgs { name: "box".into(), namespace: "default".into(), secret_file, ttl })
    }

    /// D-149, D-153
    #[test]
    fn minted_tokens_verify_and_short_secrets_are_refused() {
        let (_dir, arguments) = arguments(b"0123456789abcdef0123456789abcdef\n");
        let token = mint_token(&arguments).unwrap();
        let claims = Secret::from_file_bytes(b"0123456789abcdef0123456789abcdef").unwrap().verify(&token, 0).unwrap();
        assert_eq!((claims.namespace.as_str(), claims.name.as_str()), ("default", "box"));
        let (_dir, short) = self::arguments(b"short");
        assert!(matches!(mint_token(&short), Err(TokenMintError::Secret { .. })));
    }

    /// D-154
    #[test]
    fn impossible_tokens_are_refused() {
        let (_dir, arguments) = arguments(&[b'x'; 32]);
        let short = TokenMintArgs { ttl: Duration::from_millis(10), ..arguments.clone() };
        assert!(matches!(mint_token(&short), Err(TokenMintError::Mint(_))));
        let unnamed = TokenMintArgs { name: "No".into(), ..arguments };
        assert!(matches!(mint_token(&unnamed), Err(TokenMintError::Name(_))));
    }
}
