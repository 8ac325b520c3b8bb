//! `egress`: what sandboxes asked for outside and what was decided, and what their rules would decide.

use super::{objects::find_sandbox, on_cluster, streams::until_output_closes};
use crate::{
    args::{EgressCommand, EgressCommandArgs, EgressTestArgs, GlobalArgs},
    cluster::ClusterClient,
    output,
};
use agent_sandbox_api::keys::annotations;
use agent_sandbox_egress::{
    Decision, Name, Policy,
    log::{FILE_NAME, KEPT, Record},
};
use agent_sandbox_engine::DataDir;
use agent_sandbox_telemetry::{audit::Follow, rotated};
use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt as _};
use std::{io, path::Path, process::ExitCode, time::Duration};

/// Time between looks at the log while it is followed.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) async fn egress(global: &GlobalArgs, args: EgressCommandArgs) -> Result<ExitCode> {
    match args.command {
        EgressCommand::Test(args) => on_cluster(global, async |cluster| test(cluster, args).await).await,
        EgressCommand::Log(args) => {
            // First, so that a caller without rights learns nothing about the log.
            let of = on_cluster(global, async |cluster| pod_of(cluster, &args.name).await).await?;
            let data = DataDir::locate(global.data_dir.as_deref())?;
            let path = data.node().join(FILE_NAME);
            if !path.exists() {
                bail!("there is no egress log in {}: the engine of this machine writes it", data.node().display());
            }
            print_log(&path, &of, args.follow).await
        }
    }
}

/// Namespace and Pod of a sandbox, by which the log names it.
async fn pod_of(cluster: &ClusterClient, name: &str) -> Result<(String, String)> {
    let sandbox = find_sandbox(cluster, name).await?.sandbox;
    let pod = sandbox.annotation(annotations::POD_NAME).map_or_else(|| sandbox.name_any(), str::to_owned);
    Ok((cluster.namespace.clone(), pod))
}

async fn print_log(path: &Path, of: &(String, String), follow: bool) -> Result<ExitCode> {
    for number in (1..=KEPT).rev() {
        match std::fs::read_to_string(rotated(path, number)) {
            Ok(text) => print_lines(text.lines(), of)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).context("cannot read the egress log"),
        }
    }
    let mut log = Follow::begin(path).context("cannot read the egress log")?;
    let mut print_new = move || -> Result<()> {
        let lines = log.next_lines().context("cannot read the egress log")?;
        print_lines(lines.iter().map(String::as_str), of)
    };
    print_new()?;
    if !follow {
        return Ok(ExitCode::SUCCESS);
    }
    until_output_closes(async {
        loop {
            print_new()?;
            tokio::time::sleep(FOLLOW_INTERVAL).await;
        }
    })
    .await
}

/// Prints the records of one sandbox. They are printed as they are written: JSON has no control characters.
fn print_lines<'a>(lines: impl Iterator<Item = &'a str>, (namespace, pod): &(String, String)) -> Result<()> {
    let own = |line: &&str| {
        serde_json::from_str::<Record>(line)
            .is_ok_and(|record| record.namespace == *namespace && record.sandbox == *pod)
    };
    for line in lines.filter(own) {
        output::print(&format!("{line}\n"))?;
    }
    Ok(())
}

/// Prints what the rules decide; exit code 1 for a denial.
async fn test(cluster: &ClusterClient, args: EgressTestArgs) -> Result<ExitCode> {
    let (name, port) = target(&args.url)?;
    let sandbox = find_sandbox(cluster, &args.name).await?.sandbox;
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let namespace = namespaces.get(&cluster.namespace).await.context("cannot read the namespace and its ceiling")?;
    let ceiling = namespace.annotations().get(annotations::EGRESS_CEILING).map(String::as_str);
    let [own, of_claim] = [annotations::EGRESS, annotations::EGRESS_OF_CLAIM].map(|key| sandbox.annotation(key));
    if own.is_none() && of_claim.is_none() && ceiling.is_none() {
        output::print("no egress rules: network policies alone decide\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut policy = Policy::default().and("the sandbox", own.unwrap_or_default())?;
    for (source, rules) in [("the claim", of_claim), ("the ceiling of the namespace", ceiling)] {
        if let Some(rules) = rules {
            policy = policy.and(source, rules)?;
        }
    }
    let (text, code) = match policy.decide(&name, port) {
        Decision::Allowed { rule } => (format!("{name}:{port} is allowed by the rule {rule}\n"), ExitCode::SUCCESS),
        Decision::Denied(denied) => (format!("{name}:{port} is denied: {denied}\n"), ExitCode::FAILURE),
    };
    output::print(&text)?;
    Ok(code)
}

/// The name and port of `https://name[:port]/...`, `http://...`, or `name[:port]`.
fn target(url: &str) -> Result<(Name, u16)> {
    let (rest, default) = match url.split_once("://") {
        Some(("https", rest)) => (rest, 443),
        Some(("http", rest)) => (rest, 80),
        Some((scheme, _)) => bail!("`{scheme}` is neither http nor https; write NAME:PORT for other protocols"),
        None => (url, 443),
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let (name, port) = match authority.rsplit_once(':') {
        Some((name, port)) => (name, port.parse().with_context(|| format!("`{port}` is not a port"))?),
        None => (authority, default),
    };
    Ok((Name::parse(name).with_context(|| format!("`{name}` is not a name"))?, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        for (url, name, port) in [
            ("https://PyPI.org/simple?x", "pypi.org", 443),
            ("http://a.example", "a.example", 80),
            ("https://a.example:8443/", "a.example", 8443),
            ("db.example:5432", "db.example", 5432),
        ] {
            let (found, at) = target(url).unwrap();
            assert_eq!((found.as_str(), at), (name, port), "{url}");
        }
        for url in ["ftp://a.example", "https://10.0.0.1/", "a.example:x", ""] {
            assert!(target(url).is_err(), "{url}");
        }
    }
}
