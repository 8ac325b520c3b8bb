//! `cp`: files and folders into and out of a sandbox.

mod pack;

use super::{objects::find_sandbox, progress::Progress};
use crate::{
    args::{CpArgs, GlobalArgs},
    cluster::ClusterClient,
};
use agent_sandbox_client::{self as sdk, Files, RemoteKind};
use anyhow::{Context as _, Result, bail};
use futures::TryStreamExt;
use std::path::{Path, PathBuf};
use tokio::io::AsyncWriteExt;
use tokio_util::io::ReaderStream;

/// Bytes read from a local file at a time.
const CHUNK: usize = 256 * 1024;

/// Source or destination of a copy.
#[derive(Debug, PartialEq, Eq)]
enum Location {
    Local(PathBuf),
    Remote { sandbox: String, path: String },
}

/// Parses `NAME:PATH` as a path in a sandbox. Text with a slash before the colon, or without a colon, is a local path.
fn parse(text: &str) -> Result<Location> {
    match text.split_once(':') {
        Some((name, path)) if !name.contains('/') && !name.is_empty() && name != "." => {
            let path = if path.is_empty() { "." } else { path };
            Ok(Location::Remote { sandbox: name.to_owned(), path: path.to_owned() })
        }
        _ if text.is_empty() => bail!("source and destination must not be empty"),
        _ => Ok(Location::Local(PathBuf::from(text))),
    }
}

pub(crate) async fn copy(global: &GlobalArgs, args: CpArgs) -> Result<()> {
    match (parse(&args.source)?, parse(&args.destination)?) {
        (Location::Local(source), Location::Remote { sandbox, path }) => {
            let kind = std::fs::metadata(&source).with_context(|| format!("cannot read {}", source.display()))?;
            let cluster = ClusterClient::open(global).await?;
            cluster.announce_change();
            let pod = running(&cluster, &sandbox).await?;
            let files = Files::new(&cluster.client, &pod);
            if kind.is_dir() {
                send_folder(&files, &source, &path).await
            } else {
                send_file(&files, &source, &path).await
            }
        }
        (Location::Remote { sandbox, path }, Location::Local(destination)) => {
            let cluster = ClusterClient::open(global).await?;
            let pod = running(&cluster, &sandbox).await?;
            let files = Files::new(&cluster.client, &pod);
            match files.kind(&path).await? {
                RemoteKind::Missing => bail!("`{path}` does not exist in `{sandbox}`"),
                RemoteKind::Directory => receive_folder(&files, &path, &destination).await,
                RemoteKind::File => receive_file(&files, &path, &destination).await,
            }
        }
        (Location::Local(_), Location::Local(_)) => {
            bail!("source or destination must be in a sandbox: write it as NAME:PATH")
        }
        (Location::Remote { .. }, Location::Remote { .. }) => {
            bail!("copying from sandbox to sandbox is not supported; copy to this machine first")
        }
    }
}

async fn running(cluster: &ClusterClient, name: &str) -> Result<k8s_openapi::api::core::v1::Pod> {
    let found = find_sandbox(cluster, name).await?;
    Ok(sdk::running_pod(&cluster.client, &found.sandbox).await?)
}

/// Path of the copy in the sandbox: inside `path` if that is a folder, else `path` itself.
async fn remote_name(files: &Files<'_>, source: &Path, path: &str) -> Result<String> {
    let name = source.canonicalize()?.file_name().map(|name| name.to_string_lossy().into_owned());
    let into_folder = path.ends_with('/') || files.kind(path).await? == RemoteKind::Directory;
    Ok(match name {
        Some(name) if into_folder => format!("{}/{name}", path.trim_end_matches('/')),
        _ => path.to_owned(),
    })
}

async fn send_file(files: &Files<'_>, source: &Path, path: &str) -> Result<()> {
    let path = remote_name(files, source, path).await?;
    let file = tokio::fs::File::open(source).await.with_context(|| format!("cannot read {}", source.display()))?;
    let progress = Progress::start(source.display().to_string(), Some(file.metadata().await?.len()));
    let content = ReaderStream::with_capacity(file, CHUNK).inspect_ok(progress.counter());
    files.write(&path, content).await?;
    progress.finish();
    Ok(())
}

async fn send_folder(files: &Files<'_>, source: &Path, path: &str) -> Result<()> {
    let path = remote_name(files, source, path).await?;
    let progress = Progress::start(source.display().to_string(), None);
    let archive = pack::pack(source.to_owned())?.inspect_ok(progress.counter());
    files.write_tar(&path, archive).await?;
    progress.finish();
    Ok(())
}

/// Local path of the copy: inside `destination` if that is a folder, else `destination` itself.
fn local_name(path: &str, destination: &Path) -> PathBuf {
    match Path::new(path).file_name() {
        Some(name) if destination.is_dir() => destination.join(name),
        _ => destination.to_owned(),
    }
}

async fn receive_file(files: &Files<'_>, path: &str, destination: &Path) -> Result<()> {
    let destination = local_name(path, destination);
    let folder = destination.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let shown = destination.display().to_string();
    // In the destination's folder, so that the last step is a rename: a transfer that fails leaves the old file.
    let partial = tempfile::NamedTempFile::new_in(folder).with_context(|| format!("cannot write {shown}"))?;
    let mut file = tokio::fs::File::from_std(partial.reopen()?);
    let progress = Progress::start(path.to_owned(), None);
    let mut content = Box::pin(files.read(path).await?.inspect_ok(progress.counter()));
    while let Some(chunk) = content.try_next().await? {
        file.write_all(&chunk).await.with_context(|| format!("cannot write {shown}"))?;
    }
    file.sync_all().await?;
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    partial.as_file().set_permissions(readable)?;
    partial.persist(&destination).with_context(|| format!("cannot write {shown}"))?;
    progress.finish();
    Ok(())
}

async fn receive_folder(files: &Files<'_>, path: &str, destination: &Path) -> Result<()> {
    let destination = local_name(path, destination);
    let progress = Progress::start(path.to_owned(), None);
    let archive = files.read_tar(path).await?.inspect_ok(progress.counter());
    pack::unpack(archive, destination).await?;
    progress.finish();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_before_a_colon_is_a_sandbox() {
        let remote = |sandbox: &str, path: &str| Location::Remote { sandbox: sandbox.into(), path: path.into() };
        assert_eq!(parse("box:/home/user/a").unwrap(), remote("box", "/home/user/a"));
        assert_eq!(parse("box:").unwrap(), remote("box", "."));
        assert_eq!(parse("./a:b").unwrap(), Location::Local("./a:b".into()));
        assert_eq!(parse("/a:b").unwrap(), Location::Local("/a:b".into()));
        assert_eq!(parse("a").unwrap(), Location::Local("a".into()));
        assert!(parse("").is_err());
    }
}
