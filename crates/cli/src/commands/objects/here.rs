//! `create --here`: asks the engine on this machine to let the new sandbox have copies of folders.

use crate::{
    args::{CreateArgs, GlobalArgs},
    cluster::ClusterClient,
    commands::here::HereFolders,
};
use agent_sandbox_api::v1beta1::Sandbox;
use agent_sandbox_client::ClientError;
use agent_sandbox_engine::{DataDir, EngineRequest, send_request};
use anyhow::{Context as _, Result, bail};
use kube::Api;

/// The folders of a new sandbox. The engine is asked through its control socket, which only its own user can open: no
/// API user can choose a folder of this machine.
pub(super) async fn folders(global: &GlobalArgs, cluster: &ClusterClient, args: &CreateArgs) -> Result<HereFolders> {
    let data = DataDir::locate(global.data_dir.as_deref())?;
    let folders = HereFolders::find(&args.folders, data.path())?;
    if folders.copies.is_empty() {
        return Ok(folders);
    }
    if !cluster.is_local() {
        bail!("--here and --with work with the engine on this machine only: its folders are not on the cluster");
    }
    // Before the engine is asked: the folders of an existing sandbox would be replaced.
    let api: Api<Sandbox> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    if api.get_opt(&args.name).await?.is_some() {
        return Err(ClientError::AlreadyExists { namespace: cluster.namespace.clone(), name: args.name.clone() }.into());
    }
    let request = EngineRequest::AllowCopies {
        namespace: cluster.namespace.clone(),
        name: args.name.clone(),
        paths: folders.copies.iter().map(|copy| copy.path.clone().into()).collect(),
    };
    send_request(&data.control(), &request, |_| {})
        .await
        .context("only the user who runs the engine can give a sandbox a copy of a folder")?;
    Ok(folders)
}
