//! Folders of this machine for a new sandbox: asks the engine on this machine to give them to it.

use crate::{
    args::{CreateArgs, GlobalArgs},
    cluster::ClusterClient,
    commands::{here::HereFolders, run::volumes},
};
use agent_sandbox_api::v1beta1::Sandbox;
use agent_sandbox_client::ClientError;
use agent_sandbox_engine::{ControlError, DataDir, EngineRequest, send_request};
use agent_sandbox_node::{FolderAccess, GrantedFolder};
use anyhow::{Context as _, Result, bail};
use kube::Api;

/// The folders that `--volume`, `--here` and `--with` name. The engine is asked through its control socket, which only
/// its own user can open: no API user can choose a folder of this machine.
pub(super) async fn folders(global: &GlobalArgs, cluster: &ClusterClient, args: &CreateArgs) -> Result<HereFolders> {
    let data = DataDir::locate(global.data_dir.as_deref())?;
    let mut folders = HereFolders::find(&args.folders, data.path())?;
    let of_this_machine = !folders.copies.is_empty() || !folders.mounts.is_empty();
    folders.mounts.extend(args.volume.iter().map(|text| volumes::parse(text)).collect::<Result<Vec<_>>>()?);
    if of_this_machine && !cluster.is_local() {
        bail!("--here and --with work with the engine on this machine only: its folders are not on the cluster");
    }
    let wanted = granted(&folders);
    if wanted.is_empty() || !cluster.is_local() {
        return Ok(folders);
    }
    // Before the engine is asked: the folders of an existing sandbox would be replaced.
    let api: Api<Sandbox> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    if api.get_opt(&args.name).await?.is_some() {
        return Err(ClientError::AlreadyExists { namespace: cluster.namespace.clone(), name: args.name.clone() }.into());
    }
    let request =
        EngineRequest::AllowFolders { namespace: cluster.namespace.clone(), name: args.name.clone(), folders: wanted };
    match send_request(&data.control(), &request, |_| {}).await {
        // The engine of another user: what it allows all sandboxes is left.
        Err(ControlError::Connect { .. }) if folders.copies.is_empty() => {}
        outcome => {
            outcome.context("only the user who runs the engine can give a sandbox a folder of this machine")?;
        }
    }
    Ok(folders)
}

fn granted(folders: &HereFolders) -> Vec<GrantedFolder> {
    let folder = |path: &String, access| GrantedFolder { path: path.into(), access };
    let copies = folders.copies.iter().map(|copy| folder(&copy.path, FolderAccess::Copy));
    let mounts = folders.mounts.iter().map(|(source, _, read_only)| {
        folder(source, if *read_only { FolderAccess::Read } else { FolderAccess::Write })
    });
    copies.chain(mounts).collect()
}
