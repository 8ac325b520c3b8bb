//! `url`: links that open ports of sandboxes in a browser.

mod open;

use super::objects::find_sandbox;
use crate::{
    args::{UrlArgs, UrlCommand, UrlCreateArgs, UrlListArgs, UrlRevokeArgs, UrlRouterArgs},
    cluster::ClusterClient,
    output::{self, Table},
};
use agent_sandbox_api::{
    keys::annotations,
    links::{self, LinkRecord},
    v1beta1::Sandbox,
};
use agent_sandbox_client::{self as sdk, CreateLink, LinkRouter, LinkUrl, ROUTER_NAMESPACE};
use anyhow::{Context as _, Result, bail};
use jiff::Timestamp;
use kube::{Api, ResourceExt as _, api::ListParams};
use serde::Serialize;

pub(crate) async fn url(cluster: &ClusterClient, args: UrlArgs) -> Result<()> {
    match args.command {
        Some(UrlCommand::List(args)) => list(cluster, &args).await,
        Some(UrlCommand::Revoke(args)) => revoke(cluster, &args).await,
        None => create(cluster, args.create).await,
    }
}

async fn create(cluster: &ClusterClient, args: UrlCreateArgs) -> Result<()> {
    let name = args.name.context("name a sandbox")?;
    let sandbox = find_sandbox(cluster, &name).await?.sandbox;
    let opener = args.open.then(open::program).transpose()?;
    let wanted = CreateLink {
        ports: args.ports,
        ttl_seconds: args.ttl.as_secs(),
        read_only: args.read_only,
        allow_daemon: args.allow_daemon,
    };
    let router = router(cluster, &args.router).await?;
    let link = sdk::create_link(&router, sandbox.namespace(), &sandbox.name_any(), &wanted).await?;
    let addresses: Result<Vec<String>> = link.urls.iter().map(|url| address(url, args.path)).collect();
    let addresses = match addresses {
        Ok(addresses) => addresses,
        Err(error) => {
            // Nobody can use it: its address was not printed.
            sdk::revoke_link(&router, sandbox.namespace(), &sandbox.name_any(), &link.id).await?;
            return Err(error);
        }
    };
    if args.path {
        eprintln!(
            "warning: in this form all sandboxes share one origin, so that pages of one can read another's; \
             use it only where you trust every sandbox behind this router"
        );
    }
    let until = Timestamp::from_second(link.expires).map(|at| at.to_string()).unwrap_or_default();
    eprintln!("link {} opens it for everyone who has it, until {until}; end it: agent-sandbox url revoke {0}", link.id);
    output::emit(args.output.output, &link, || format!("{}\n", link.id), || addresses.join("\n") + "\n")?;
    match (opener, addresses.first()) {
        (Some(opener), Some(address)) => open::open(&opener, address).await,
        _ => Ok(()),
    }
}

fn address(url: &LinkUrl, by_path: bool) -> Result<String> {
    match (by_path, &url.host, &url.path) {
        (false, Some(host), _) => Ok(host.clone()),
        (true, _, Some(path)) => Ok(path.clone()),
        (true, _, None) => bail!(
            "this router does not name sandboxes in paths, because pages of one could then read another's; leave --path out"
        ),
        (false, None, _) => bail!("this router cannot name this sandbox in a host; add --path"),
    }
}

/// The engine's router is in every namespace and knows who asks. A cluster's gets the kubeconfig's token, in the
/// namespace that belongs to the administrator only.
async fn router(cluster: &ClusterClient, args: &UrlRouterArgs) -> Result<LinkRouter> {
    if cluster.is_local() && args.router.is_none() {
        let (client, namespace) = (cluster.client.clone(), cluster.namespace.clone());
        return Ok(LinkRouter::Tunnel { client, namespace, token: None });
    }
    let token = sdk::bearer_token(&cluster.config).await?;
    Ok(match &args.router {
        Some(url) => {
            if !url.starts_with("https://") && !url.starts_with("http://") {
                bail!("--router {url}: write a URL such as https://sandboxes.example.com");
            }
            LinkRouter::Direct { url: url.clone(), token }
        }
        None => LinkRouter::Tunnel { client: cluster.client.clone(), namespace: ROUTER_NAMESPACE.to_owned(), token },
    })
}

/// A link as `list` shows it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    namespace: String,
    sandbox: String,
    #[serde(flatten)]
    record: LinkRecord,
}

async fn list(cluster: &ClusterClient, args: &UrlListArgs) -> Result<()> {
    let now = Timestamp::now().as_second();
    let found = found(cluster, args.all_namespaces, now).await?;
    let names = || found.iter().map(|link| format!("{}\n", link.record.id)).collect();
    output::emit(args.output.output, &found, names, || table(&found, args.all_namespaces, now))
}

fn table(found: &[Listed], with_namespace: bool, now: i64) -> String {
    if found.is_empty() {
        return "no links; make one with `agent-sandbox url NAME PORT`\n".to_owned();
    }
    let columns = ["NAMESPACE", "ID", "SANDBOX", "PORTS", "METHODS", "EXPIRES IN", "CREATED BY"];
    let skip = usize::from(!with_namespace);
    let mut table = Table::new(&columns[skip..]);
    for Listed { namespace, sandbox, record } in found {
        let ports: Vec<String> = record.ports.iter().map(ToString::to_string).collect();
        let by = if record.created_by.is_empty() { "-" } else { &record.created_by };
        let cells = [
            namespace.clone(),
            record.id.clone(),
            sandbox.clone(),
            ports.join(","),
            if record.read_only { "read-only" } else { "all" }.to_owned(),
            output::age(record.expires - now),
            by.to_owned(),
        ];
        table.row(cells[skip..].to_vec());
    }
    table.render()
}

async fn revoke(cluster: &ClusterClient, args: &UrlRevokeArgs) -> Result<()> {
    let found = found(cluster, false, Timestamp::now().as_second()).await?;
    let router = router(cluster, &args.router).await?;
    for id in &args.ids {
        let Some(link) = found.iter().find(|link| link.record.id == *id) else {
            bail!("no link {id} in namespace {}; see agent-sandbox url list", cluster.namespace);
        };
        sdk::revoke_link(&router, &link.namespace, &link.sandbox, id).await?;
        output::print(&format!("link {id} revoked\n"))?;
    }
    Ok(())
}

/// The valid links, as the Sandboxes that the user may read have them.
async fn found(cluster: &ClusterClient, all_namespaces: bool, now: i64) -> Result<Vec<Listed>> {
    let api: Api<Sandbox> = match all_namespaces {
        true => Api::all(cluster.client.clone()),
        false => Api::namespaced(cluster.client.clone(), &cluster.namespace),
    };
    let sandboxes = api.list(&ListParams::default()).await?;
    let of = |sandbox: &Sandbox| {
        let (namespace, name) = (sandbox.namespace().to_owned(), sandbox.name_any());
        let records = links::read(sandbox.annotation(annotations::LINKS), now).into_iter();
        records.map(move |record| Listed { namespace: namespace.clone(), sandbox: name.clone(), record })
    };
    Ok(sandboxes.iter().flat_map(of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_that_the_router_does_not_serve_is_an_error_with_advice() {
        let url = |host: Option<&str>, path: Option<&str>| LinkUrl {
            port: 80,
            host: host.map(str::to_owned),
            path: path.map(str::to_owned),
        };
        assert_eq!(address(&url(Some("h"), Some("p")), false).unwrap(), "h");
        assert_eq!(address(&url(Some("h"), Some("p")), true).unwrap(), "p");
        assert!(address(&url(Some("h"), None), true).unwrap_err().to_string().contains("leave --path out"));
        assert!(address(&url(None, Some("p")), false).unwrap_err().to_string().contains("add --path"));
    }

    #[test]
    fn links_are_listed_with_what_they_allow() {
        let record = LinkRecord {
            id: "0a1b".to_owned(),
            ports: vec![3000, 5173],
            read_only: true,
            created: 0,
            expires: 3600,
            created_by: String::new(),
        };
        let listed = Listed { namespace: "team".to_owned(), sandbox: "box".to_owned(), record };
        insta::assert_snapshot!(table(&[listed], true, 0), @r"
        NAMESPACE   ID     SANDBOX   PORTS       METHODS     EXPIRES IN   CREATED BY
        team        0a1b   box       3000,5173   read-only   60m          -
        ");
    }
}
