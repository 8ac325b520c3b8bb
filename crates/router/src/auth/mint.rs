//! `agent-sandbox token mint`: creates a scoped token.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
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
    /// File with the secret that the router also has; by default that of the local engine
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
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
    #[error("name the file with the router's secret: --secret-file FILE")]
    NoSecret,
    #[error(
        "there is no local engine's secret at {path}; start `agent-sandbox up`, or name the secret of another router with \
         --secret-file"
    )]
    NoEngine { path: PathBuf },
    #[error("cannot read secret {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("secret {path} cannot be used")]
    Secret { path: PathBuf, source: SecretError },
    #[error("cannot create the token")]
    Mint(#[from] MintError),
}

/// Creates the token; without a file in the arguments, with the secret in `local_secret`.
pub fn mint_token(arguments: &TokenMintArgs, local_secret: Option<&Path>) -> Result<String, TokenMintError> {
    for name in [&arguments.name, &arguments.namespace] {
        if !is_dns_label(name.as_bytes()) {
            return Err(TokenMintError::Name(name.clone()));
        }
    }
    let path = arguments.secret_file.as_deref().or(local_secret).ok_or(TokenMintError::NoSecret)?.to_owned();
    let bytes = match std::fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound && arguments.secret_file.is_none() => {
            return Err(TokenMintError::NoEngine { path });
        }
        read => read.map_err(|source| TokenMintError::Read { path: path.clone(), source })?,
    };
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
        (dir, TokenMintArgs { name: "box".into(), namespace: "default".into(), secret_file: Some(secret_file), ttl })
    }

    /// D-149, D-153
    #[test]
    fn minted_tokens_verify_and_short_secrets_are_refused() {
        let (_dir, arguments) = arguments(b"0123456789abcdef0123456789abcdef\n");
        let token = mint_token(&arguments, None).unwrap();
        let claims = Secret::from_file_bytes(b"0123456789abcdef0123456789abcdef").unwrap().verify(&token, 0).unwrap();
        assert_eq!((claims.namespace.as_str(), claims.name.as_str()), ("default", "box"));
        let (_dir, short) = self::arguments(b"short");
        assert!(matches!(mint_token(&short, None), Err(TokenMintError::Secret { .. })));
    }

    /// D-154
    #[test]
    fn impossible_tokens_are_refused() {
        let (_dir, arguments) = arguments(&[b'x'; 32]);
        let short = TokenMintArgs { ttl: Duration::from_millis(10), ..arguments.clone() };
        assert!(matches!(mint_token(&short, None), Err(TokenMintError::Mint(_))));
        let unnamed = TokenMintArgs { name: "No".into(), ..arguments };
        assert!(matches!(mint_token(&unnamed, None), Err(TokenMintError::Name(_))));
    }

    #[test]
    fn the_local_engines_secret_is_used_unless_a_file_is_named() {
        let (dir, named) = arguments(&[b'x'; 32]);
        let unnamed = TokenMintArgs { secret_file: None, ..named };
        let local = dir.path().join("secret");
        assert!(mint_token(&unnamed, Some(&local)).is_ok());
        let missing = mint_token(&unnamed, Some(&dir.path().join("none"))).unwrap_err();
        assert!(matches!(&missing, TokenMintError::NoEngine { .. }) && missing.to_string().contains("up"), "{missing}");
        assert!(matches!(mint_token(&unnamed, None), Err(TokenMintError::NoSecret)));
    }
}
