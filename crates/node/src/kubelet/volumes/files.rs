//! Files of configMap, secret, downwardAPI and projected volumes: their contents (pure) and writing them to disk.
//!
//! The layout is that of Kubernetes: files are in a dated folder, `..data` is a symbolic link to it, and each visible
//! name is a link through `..data`. Replacing the content is one rename, so a reader sees either all old or all new
//! files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Component, Path};

use k8s_openapi::api::core::v1::{
    Container, DownwardAPIVolumeFile, KeyToPath, Pod, PodSpec, ProjectedVolumeSource, Volume, VolumeProjection,
};
use thiserror::Error;

use crate::kubelet::downward_api::{self, Addresses, FieldPathError};
use crate::kubelet::references::Sources;
use crate::kubelet::resources::{self, Allocatable, ResourceFieldError};

/// One file below the volume's root.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct File {
    pub content: Vec<u8>,
    pub mode: u32,
}

/// The files of a volume, by relative path.
pub type Files = BTreeMap<String, File>;

/// Why the files of a volume cannot be written.
#[derive(Debug, Error)]
pub enum FilesError {
    #[error("configmap {0:?} not found")]
    NoConfigMap(String),
    #[error("secret {0:?} not found")]
    NoSecret(String),
    #[error("{object:?} has no key {key:?}")]
    NoKey { object: String, key: String },
    #[error("path {0:?} must be relative and must not contain '..'")]
    BadPath(String),
    #[error("no token for {0:?} of the Pod's service account was issued")]
    NoToken(String),
    #[error("projected source {0} is not supported by this node")]
    Unsupported(&'static str),
    #[error(transparent)]
    Field(#[from] FieldPathError),
    #[error(transparent)]
    Resource(#[from] ResourceFieldError),
    #[error("cannot write {path}")]
    Write {
        path: String,
        #[source]
        source: io::Error,
    },
}

/// Inputs of the files' contents.
#[derive(Clone, Copy, Debug)]
pub struct FilesContext<'a> {
    pub pod: &'a Pod,
    pub spec: &'a PodSpec,
    pub sources: &'a Sources,
    pub addresses: &'a Addresses,
    pub node: &'a Allocatable,
}

const DEFAULT_MODE: i32 = 0o644;

/// The files of a volume; `None` for volumes of other kinds.
pub fn files_of(volume: &Volume, context: FilesContext<'_>) -> Result<Option<Files>, FilesError> {
    let mut out = Files::new();
    if let Some(source) = &volume.config_map {
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        let optional = source.optional == Some(true);
        add_config_map(&source.name, source.items.as_deref(), optional, mode, context.sources, &mut out)?;
    } else if let Some(source) = &volume.secret {
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        let name = source.secret_name.as_deref().unwrap_or_default();
        add_secret(name, source.items.as_deref(), source.optional == Some(true), mode, context.sources, &mut out)?;
    } else if let Some(source) = &volume.downward_api {
        let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
        add_downward(source.items.as_deref().unwrap_or_default(), mode, context, &mut out)?;
    } else if let Some(source) = &volume.projected {
        add_projected(&volume.name, source, context, &mut out)?;
    } else {
        return Ok(None);
    }
    Ok(Some(out))
}

fn add_projected(
    volume: &str,
    source: &ProjectedVolumeSource,
    context: FilesContext<'_>,
    out: &mut Files,
) -> Result<(), FilesError> {
    let mode = source.default_mode.unwrap_or(DEFAULT_MODE);
    for part in source.sources.iter().flatten() {
        add_projection(volume, part, mode, context, out)?;
    }
    Ok(())
}

fn add_projection(
    volume: &str,
    part: &VolumeProjection,
    mode: i32,
    context: FilesContext<'_>,
    out: &mut Files,
) -> Result<(), FilesError> {
    if let Some(source) = &part.config_map {
        let optional = source.optional == Some(true);
        add_config_map(&source.name, source.items.as_deref(), optional, mode, context.sources, out)?;
    }
    if let Some(source) = &part.secret {
        let optional = source.optional == Some(true);
        add_secret(&source.name, source.items.as_deref(), optional, mode, context.sources, out)?;
    }
    if let Some(source) = &part.downward_api {
        add_downward(source.items.as_deref().unwrap_or_default(), mode, context, out)?;
    }
    if let Some(source) = &part.service_account_token {
        let token = context.sources.tokens.get(&(volume.to_owned(), source.path.clone()));
        let token = token.ok_or_else(|| FilesError::NoToken(source.path.clone()))?;
        insert(out, &source.path, token.clone().into_bytes(), mode)?;
    }
    if part.cluster_trust_bundle.is_some() {
        return Err(FilesError::Unsupported("clusterTrustBundle"));
    }
    if part.pod_certificate.is_some() {
        return Err(FilesError::Unsupported("podCertificate"));
    }
    Ok(())
}

fn add_config_map(
    name: &str,
    items: Option<&[KeyToPath]>,
    optional: bool,
    mode: i32,
    sources: &Sources,
    out: &mut Files,
) -> Result<(), FilesError> {
    let Some(found) = sources.config_maps.get(name) else {
        return if optional { Ok(()) } else { Err(FilesError::NoConfigMap(name.to_owned())) };
    };
    let text = found.data.iter().flatten().map(|(k, v)| (k.clone(), v.clone().into_bytes()));
    let binary = found.binary_data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone()));
    add_keys(name, text.chain(binary).collect(), items, optional, mode, out)
}

fn add_secret(
    name: &str,
    items: Option<&[KeyToPath]>,
    optional: bool,
    mode: i32,
    sources: &Sources,
    out: &mut Files,
) -> Result<(), FilesError> {
    let Some(found) = sources.secrets.get(name) else {
        return if optional { Ok(()) } else { Err(FilesError::NoSecret(name.to_owned())) };
    };
    let data = found.data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone())).collect();
    add_keys(name, data, items, optional, mode, out)
}

fn add_keys(
    object: &str,
    data: BTreeMap<String, Vec<u8>>,
    items: Option<&[KeyToPath]>,
    optional: bool,
    mode: i32,
    out: &mut Files,
) -> Result<(), FilesError> {
    let Some(items) = items.filter(|i| !i.is_empty()) else {
        return data.into_iter().try_for_each(|(key, value)| insert(out, &key, value, mode));
    };
    for item in items {
        match data.get(&item.key) {
            Some(value) => insert(out, &item.path, value.clone(), item.mode.unwrap_or(mode))?,
            None if optional => {}
            None => return Err(FilesError::NoKey { object: object.to_owned(), key: item.key.clone() }),
        }
    }
    Ok(())
}

fn add_downward(
    items: &[DownwardAPIVolumeFile],
    mode: i32,
    context: FilesContext<'_>,
    out: &mut Files,
) -> Result<(), FilesError> {
    for item in items {
        let value = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => downward_api::field(context.pod, &field.field_path, context.addresses)?,
            (None, Some(selector)) => {
                let no_container = Container::default();
                resources::field(context.spec, &no_container, selector, context.node)?
            }
            (None, None) => String::new(),
        };
        insert(out, &item.path, value.into_bytes(), item.mode.unwrap_or(mode))?;
    }
    Ok(())
}

fn insert(out: &mut Files, path: &str, content: Vec<u8>, mode: i32) -> Result<(), FilesError> {
    let plain = !path.is_empty()
        && !path.starts_with("..")
        && Path::new(path).components().all(|c| matches!(c, Component::Normal(_)));
    if !plain {
        return Err(FilesError::BadPath(path.to_owned()));
    }
    let mode = u32::try_from(mode).unwrap_or(0o644) & 0o777;
    out.insert(path.to_owned(), File { content, mode });
    Ok(())
}

/// Writes the files into `root`, replacing those of an earlier call. `generation` names the dated folder and must
/// differ between calls. With `group` (`fsGroup`) the files belong to that group and are readable for it.
pub fn write(root: &Path, files: &Files, generation: &str, group: Option<u32>) -> Result<(), FilesError> {
    if is_current(root, files) {
        return Ok(());
    }
    let dated = format!("..{generation}");
    let folder = root.join(&dated);
    let fail = |path: &Path| {
        let path = path.display().to_string();
        move |source| FilesError::Write { path, source }
    };
    fs::create_dir_all(&folder).map_err(fail(&folder))?;
    set_mode(&folder, 0o755).map_err(fail(&folder))?;
    for (name, file) in files {
        let path = folder.join(name);
        if let Some(parent) = path.parent().filter(|p| *p != folder) {
            fs::create_dir_all(parent).map_err(fail(parent))?;
        }
        fs::write(&path, &file.content).map_err(fail(&path))?;
        if let Some(group) = group {
            chown(&path, None, Some(group)).map_err(fail(&path))?;
        }
        let readable = if group.is_some() { 0o440 } else { 0 };
        set_mode(&path, shown_mode(file.mode, rustix::process::geteuid().is_root()) | readable).map_err(fail(&path))?;
    }
    let data = root.join("..data");
    let fresh = root.join("..data_tmp");
    let _ = fs::remove_file(&fresh);
    symlink(&dated, &fresh).map_err(fail(&fresh))?;
    let old = fs::read_link(&data).ok();
    fs::rename(&fresh, &data).map_err(fail(&data))?;
    link_names(root, files).map_err(fail(root))?;
    if let Some(old) = old.filter(|o| o.as_os_str() != dated.as_str()) {
        let _ = fs::remove_dir_all(root.join(old));
    }
    Ok(())
}

/// Whether `root` already contains exactly these files.
fn is_current(root: &Path, files: &Files) -> bool {
    let data = root.join("..data");
    let same = |(name, file): (&String, &File)| fs::read(data.join(name)).is_ok_and(|found| found == file.content);
    let visible = |names: fs::ReadDir| {
        names.flatten().filter(|entry| !entry.file_name().to_string_lossy().starts_with("..")).count()
    };
    let tops: BTreeSet<&str> = files.keys().filter_map(|name| name.split('/').next()).collect();
    data.exists() && files.iter().all(same) && fs::read_dir(root).map(visible).ok() == Some(tops.len())
}

/// The mode a file gets on disk. With privilege, files belong to root inside the Pod. Without privilege they belong to
/// the node's user, whose id is not mapped in the Pod's user namespace, so others get the owner's permissions. The
/// folders above keep other users of the host away, whatever the mode is.
fn shown_mode(mode: u32, privileged: bool) -> u32 {
    if privileged { mode } else { mode | (mode >> 6 & 0o007) }
}

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Creates the visible links and removes those of files that no longer exist.
fn link_names(root: &Path, files: &Files) -> io::Result<()> {
    let wanted: BTreeSet<&str> = files.keys().filter_map(|path| path.split('/').next()).collect();
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with("..") && !wanted.contains(&*name) {
            fs::remove_file(entry.path())?;
        }
    }
    for name in wanted {
        let link = root.join(name);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new("..data").join(name), &link)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::resources::quantity::Milli;
    use serde_json::{Value, json};

    fn files(volume: Value) -> Result<Option<Files>, FilesError> {
        let pod: Pod = serde_json::from_value(
            json!({"metadata": {"name": "p", "labels": {"a": "b"}}, "spec": {"containers": []}}),
        )
        .unwrap();
        let volume: Volume = serde_json::from_value(volume).unwrap();
        let mut sources = Sources::default();
        let map = json!({"metadata": {"name": "c"}, "data": {"x": "1", "y": "2"}, "binaryData": {"z": "AAE="}});
        sources.config_maps.insert("c".into(), serde_json::from_value(map).unwrap());
        let secret = json!({"metadata": {"name": "s"}, "data": {"t": "aHVzaA=="}});
        sources.secrets.insert("s".into(), serde_json::from_value(secret).unwrap());
        sources.tokens.insert(("v".into(), "token".into()), "jwt".into());
        let (addresses, node) =
            (Addresses::default(), Allocatable { cpu: Milli(1), memory: Milli(1), ephemeral_storage: Milli(1) });
        let context = FilesContext {
            pod: &pod,
            spec: pod.spec.as_ref().unwrap(),
            sources: &sources,
            addresses: &addresses,
            node: &node,
        };
        files_of(&volume, context)
    }

    fn listing(files: &Files) -> Vec<String> {
        files.iter().map(|(p, f)| format!("{p} {:o} {}", f.mode, String::from_utf8_lossy(&f.content))).collect()
    }

    #[test]
    fn each_kind_of_volume_gives_its_files() {
        let of = |volume: Value| listing(&files(volume).unwrap().unwrap());
        assert_eq!(of(json!({"name": "v", "configMap": {"name": "c"}})), ["x 644 1", "y 644 2", "z 644 \0\u{1}"]);
        assert_eq!(
            of(
                json!({"name": "v", "configMap": {"name": "c", "defaultMode": 256, "items": [{"key": "x", "path": "d/e"}]}})
            ),
            ["d/e 400 1"]
        );
        assert_eq!(of(json!({"name": "v", "secret": {"secretName": "s"}})), ["t 644 hush"]);
        assert_eq!(
            of(
                json!({"name": "v", "downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}})
            ),
            ["l 644 a=\"b\""]
        );
        assert_eq!(
            of(
                json!({"name": "v", "projected": {"sources": [{"configMap": {"name": "c", "items": [{"key": "x", "path": "x"}]}},
                {"secret": {"name": "s"}}, {"serviceAccountToken": {"path": "token"}}]}})
            ),
            ["t 644 hush", "token 644 jwt", "x 644 1"]
        );
        assert_eq!(files(json!({"name": "v", "emptyDir": {}})).unwrap(), None);
        assert_eq!(of(json!({"name": "v", "secret": {"secretName": "none", "optional": true}})), Vec::<String>::new());
    }

    #[test]
    fn missing_and_invalid_files_are_errors_that_name_them() {
        for (volume, word) in [
            (json!({"name": "v", "configMap": {"name": "none"}}), "none"),
            (json!({"name": "v", "secret": {"secretName": "s", "items": [{"key": "q", "path": "q"}]}}), "\"q\""),
            (json!({"name": "v", "configMap": {"name": "c", "items": [{"key": "x", "path": "../x"}]}}), "../x"),
            (json!({"name": "v", "configMap": {"name": "c", "items": [{"key": "x", "path": "/x"}]}}), "/x"),
            (json!({"name": "v", "configMap": {"name": "c", "items": [{"key": "x", "path": "..data"}]}}), "..data"),
            (json!({"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "other"}}]}}), "other"),
        ] {
            let message = files(volume.clone()).unwrap_err().to_string();
            assert!(message.contains(word), "{volume}: {message}");
        }
    }

    #[test]
    fn content_is_replaced_as_a_whole() {
        let root = tempfile::tempdir().unwrap();
        let file = |text: &str| File { content: text.as_bytes().to_vec(), mode: 0o600 };
        write(root.path(), &Files::from([("a".into(), file("1")), ("d/b".into(), file("2"))]), "1", None).unwrap();
        assert_eq!(fs::read_to_string(root.path().join("a")).unwrap(), "1");
        assert_eq!(fs::read_to_string(root.path().join("d/b")).unwrap(), "2");
        let mode = fs::metadata(root.path().join("a")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, shown_mode(0o600, rustix::process::geteuid().is_root()));
        assert_eq!((shown_mode(0o440, true), shown_mode(0o440, false)), (0o440, 0o444));
        write(root.path(), &Files::from([("a".into(), file("3"))]), "2", None).unwrap();
        assert_eq!(fs::read_to_string(root.path().join("a")).unwrap(), "3");
        assert!(fs::symlink_metadata(root.path().join("d")).is_err(), "a file that is gone leaves no name");
        assert!(!root.path().join("..1").exists(), "old content is removed");
    }
}
