//! Credentials for registries: those that `docker login` and `podman login` have stored, or a user name with a password
//! on standard input.

use agent_sandbox_engine::Login;
use anyhow::{Context as _, Result, bail};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::Value;
use std::{fs, io, path::PathBuf};

/// The registry of image names without a registry.
const DOCKER_HUB: &str = "docker.io";
/// Docker's key for that registry in its own file.
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";

/// Reads the password from standard input, without its last line break.
pub(crate) fn from_stdin(image: &str, username: String) -> Result<Login> {
    let password = io::read_to_string(io::stdin()).context("cannot read the password from standard input")?;
    let password = password.trim_end_matches(['\r', '\n']).to_owned();
    if password.is_empty() {
        bail!("standard input holds no password");
    }
    Ok(Login { registry: registry(image).to_owned(), username, password })
}

/// The credentials that docker or podman has stored for the image's registry, if any.
pub(crate) fn find(image: &str) -> Result<Option<Login>> {
    let registry = registry(image);
    for path in files(|name| std::env::var_os(name).map(PathBuf::from)) {
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let file: Value = serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))?;
        if let Some(login) = entry(&file, registry) {
            return Ok(Some(login));
        }
    }
    Ok(None)
}

/// Files that may hold credentials, podman's first, in podman's own order.
fn files(variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let home = |rest: &str| variable("HOME").map(|home| home.join(rest));
    let docker = variable("DOCKER_CONFIG").map(|folder| folder.join("config.json"));
    let paths = [
        variable("REGISTRY_AUTH_FILE"),
        variable("XDG_RUNTIME_DIR").map(|folder| folder.join("containers/auth.json")),
        home(".config/containers/auth.json"),
        docker.or_else(|| home(".docker/config.json")),
    ];
    paths.into_iter().flatten().collect()
}

fn entry(file: &Value, registry: &str) -> Option<Login> {
    let logins = file["auths"].as_object()?;
    let keys = [registry, DOCKER_HUB_KEY];
    let keys = if registry == DOCKER_HUB { &keys[..] } else { &keys[..1] };
    let found = keys.iter().find_map(|key| logins.get(*key).or_else(|| logins.get(&format!("https://{key}"))))?;
    let text = BASE64_STANDARD.decode(found["auth"].as_str()?).ok()?;
    let text = String::from_utf8(text).ok()?;
    let (username, password) = text.split_once(':')?;
    Some(Login { registry: registry.to_owned(), username: username.to_owned(), password: password.to_owned() })
}

/// The registry of an image: the first part of its name if that looks like a host.
fn registry(image: &str) -> &str {
    match image.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => host,
        _ => DOCKER_HUB,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_name_without_a_host_belongs_to_docker_hub() {
        for (image, wanted) in [
            ("python:3.13", "docker.io"),
            ("library/python", "docker.io"),
            ("localhost/a", "localhost"),
            ("127.0.0.1:5000/a/b:c", "127.0.0.1:5000"),
            ("registry.example/a@sha256:0", "registry.example"),
        ] {
            assert_eq!(registry(image), wanted, "{image}");
        }
    }

    #[test]
    fn logins_are_found_under_the_names_that_docker_uses() {
        let auth = BASE64_STANDARD.encode("me:pass:word");
        let file =
            json!({"auths": {"registry.example": {"auth": auth}, "https://index.docker.io/v1/": {"auth": auth}}});
        let login = entry(&file, "registry.example").unwrap();
        assert_eq!((login.username.as_str(), login.password.as_str()), ("me", "pass:word"));
        assert!(entry(&file, "docker.io").is_some());
        assert!(entry(&file, "other.example").is_none());
        assert!(entry(&json!({"auths": {"a.b": {}}}), "a.b").is_none());
        assert!(!format!("{login:?}").contains("pass:word"));
    }
}
