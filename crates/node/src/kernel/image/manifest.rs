//! Reads image manifests and configurations: the few fields that are needed, from all supported formats.

use serde::Deserialize;

use super::layer::LayerDigests;
use crate::runtime::{ImageConfig, ImageError};

/// An image's configuration document.
#[derive(Debug, Deserialize)]
pub(super) struct ConfigFile {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    config: Option<RunConfig>,
    rootfs: RootFs,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct RunConfig {
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    env: Option<Vec<String>>,
    working_dir: Option<String>,
    user: Option<String>,
    exposed_ports: Option<serde_json::Map<String, serde_json::Value>>,
    stop_signal: Option<String>,
}

#[derive(Debug, Deserialize)]
struct RootFs {
    diff_ids: Vec<String>,
}

/// A layer's descriptor in a manifest.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    pub(super) media_type: String,
    pub(super) digest: String,
    #[serde(default)]
    pub(super) size: u64,
    #[serde(default)]
    pub(super) platform: Option<Platform>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Platform {
    #[serde(default)]
    pub(super) os: String,
    #[serde(default)]
    pub(super) architecture: String,
}

/// A manifest or an index of manifests.
#[derive(Debug, Deserialize)]
pub(super) struct Manifest {
    #[serde(default)]
    pub(super) config: Option<Descriptor>,
    #[serde(default)]
    pub(super) layers: Vec<Descriptor>,
    #[serde(default)]
    pub(super) manifests: Vec<Descriptor>,
}

/// This machine's architecture as images name it.
pub(super) fn own_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

impl ConfigFile {
    /// Pairs the layers of the manifest with the content digests of the configuration.
    pub(super) fn layers(&self, reference: &str, descriptors: &[Descriptor]) -> Result<Vec<LayerDigests>, ImageError> {
        if descriptors.len() != self.rootfs.diff_ids.len() {
            let message =
                format!("{} layers, but {} in its configuration", descriptors.len(), self.rootfs.diff_ids.len());
            return Err(ImageError::BadLayer { reference: reference.to_owned(), message });
        }
        Ok(descriptors
            .iter()
            .zip(&self.rootfs.diff_ids)
            .map(|(descriptor, diff_id)| LayerDigests {
                digest: descriptor.digest.clone(),
                diff_id: diff_id.clone(),
                media_type: descriptor.media_type.clone(),
            })
            .collect())
    }

    pub(super) fn diff_ids(&self) -> &[String] {
        &self.rootfs.diff_ids
    }

    /// Rejects images for other platforms; an image that names none is accepted.
    pub(super) fn check_platform(&self, reference: &str) -> Result<(), ImageError> {
        let fits = |found: &str, wanted: &str| found.is_empty() || found == wanted;
        if fits(&self.os, "linux") && fits(&self.architecture, own_architecture()) {
            return Ok(());
        }
        Err(ImageError::WrongPlatform {
            reference: reference.to_owned(),
            found: format!("{}/{}", self.os, self.architecture),
            wanted: format!("linux/{}", own_architecture()),
        })
    }

    pub(super) fn image_config(&self) -> ImageConfig {
        let empty = RunConfig::default();
        let config = self.config.as_ref().unwrap_or(&empty);
        let text = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
        ImageConfig {
            entrypoint: config.entrypoint.clone().unwrap_or_default(),
            command: config.cmd.clone().unwrap_or_default(),
            env: config.env.iter().flatten().filter_map(|pair| split_pair(pair)).collect(),
            working_dir: text(&config.working_dir),
            user: text(&config.user),
            exposed_ports: config
                .exposed_ports
                .iter()
                .flat_map(|ports| ports.keys())
                .filter_map(|key| port(key))
                .collect(),
            stop_signal: text(&config.stop_signal),
            inject_sandboxd: false,
        }
    }
}

fn split_pair(pair: &str) -> Option<(String, String)> {
    pair.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()))
}

/// `8080/tcp`.
fn port(key: &str) -> Option<u16> {
    key.split('/').next()?.parse().ok()
}

/// The entry of an index that fits this machine, or the only one if it names no platform.
pub(super) fn choose(manifests: &[Descriptor]) -> Option<&Descriptor> {
    let fits = |platform: &Platform| platform.os == "linux" && platform.architecture == own_architecture();
    manifests
        .iter()
        .find(|entry| entry.platform.as_ref().is_some_and(fits))
        .or_else(|| manifests.first().filter(|entry| manifests.len() == 1 && entry.platform.is_none()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_become_defaults() {
        let text = r#"{"os":"linux","config":{"Entrypoint":["/init"],"Cmd":["a"],"Env":["A=b=c","broken"],"User":"7",
            "ExposedPorts":{"8080/tcp":{}},"WorkingDir":""},"rootfs":{"diff_ids":["sha256:1"]}}"#;
        let file: ConfigFile = serde_json::from_str(text).unwrap();
        file.check_platform("i").unwrap();
        let config = file.image_config();
        assert_eq!((config.entrypoint, config.command), (vec!["/init".to_owned()], vec!["a".to_owned()]));
        assert_eq!(config.env, [("A".to_owned(), "b=c".to_owned())]);
        assert_eq!((config.working_dir, config.user.as_deref(), config.exposed_ports), (None, Some("7"), vec![8080]));
    }

    #[test]
    fn images_for_other_machines_are_refused() {
        let text = r#"{"os":"linux","architecture":"s390x","rootfs":{"diff_ids":[]}}"#;
        let file: ConfigFile = serde_json::from_str(text).unwrap();
        assert!(matches!(file.check_platform("i"), Err(ImageError::WrongPlatform { .. })));
    }

    #[test]
    fn a_manifest_with_another_number_of_layers_is_refused() {
        let file: ConfigFile = serde_json::from_str(r#"{"rootfs":{"diff_ids":["sha256:1"]}}"#).unwrap();
        assert!(file.layers("i", &[]).is_err());
    }
}
