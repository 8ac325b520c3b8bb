//! `logs`: the output of a sandbox's container.

use super::{objects::find_sandbox, streams::until_output_closes};
use crate::{args::LogsArgs, cluster::ClusterClient, output};
use agent_sandbox_client as sdk;
use anyhow::{Result, bail};
use futures::{AsyncReadExt, io::AsyncRead};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt, api::LogParams};
use std::process::ExitCode;

pub(crate) async fn logs(cluster: &ClusterClient, args: LogsArgs) -> Result<ExitCode> {
    if args.tail.is_some_and(|lines| lines < 0) {
        bail!("--tail wants a number of lines, 0 or more");
    }
    let found = find_sandbox(cluster, &args.name).await?;
    let pod = sdk::running_pod(&cluster.client, &found.sandbox).await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let params = LogParams {
        container: args.container,
        follow: args.follow,
        tail_lines: args.tail,
        timestamps: args.timestamps,
        ..LogParams::default()
    };
    let lines = pods.log_stream(&pod.name_any(), &params).await?;
    until_output_closes(async { print_all(lines).await.map(|()| ExitCode::SUCCESS) }).await
}

async fn print_all(stream: impl AsyncRead) -> Result<()> {
    let mut stream = std::pin::pin!(stream);
    let mut buffer = vec![0; 32 * 1024];
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            count => output::print_bytes(&buffer[..count])?,
        }
    }
}
