//! `template`: templates of sandboxes.

use super::objects::request_sandboxd;
use crate::{
    args::{ListArgs, TemplateArgs, TemplateCommand},
    cluster::ClusterClient,
    output::{self, Table, age},
};
use agent_sandbox_api::v1beta1::SandboxTemplate;
use agent_sandbox_client::{self as sdk, ContainerOptions};
use anyhow::Result;
use jiff::Timestamp;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};

pub(crate) async fn template(cluster: &ClusterClient, args: TemplateArgs) -> Result<()> {
    let api: Api<SandboxTemplate> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    match args.command {
        TemplateCommand::Create { name, image } => {
            cluster.announce_change();
            let container = ContainerOptions { image, ..ContainerOptions::default() };
            let mut template = sdk::template(&name, &container);
            request_sandboxd(&mut template.spec.pod_template);
            api.create(&PostParams::default(), &template).await?;
            output::print(&format!(
                "template {name} created\n  keep some warm:  agent-sandbox pool create {name} --template {name}\n"
            ))
        }
        TemplateCommand::Delete { name } => {
            cluster.announce_change();
            api.delete(&name, &DeleteParams::background()).await?;
            output::print(&format!("template {name} deleted\n"))
        }
        TemplateCommand::List(args) => list(cluster, args).await,
    }
}

async fn list(cluster: &ClusterClient, args: ListArgs) -> Result<()> {
    let api: Api<SandboxTemplate> = match args.all_namespaces {
        true => Api::all(cluster.client.clone()),
        false => Api::namespaced(cluster.client.clone(), &cluster.namespace),
    };
    let templates = api.list(&ListParams { label_selector: args.selector, ..ListParams::default() }).await?;
    output::emit(
        args.output.output,
        &templates,
        || templates.iter().map(|template| format!("sandboxtemplate/{}\n", template.name_any())).collect(),
        || table(&templates.items, Timestamp::now()),
    )
}

fn table(templates: &[SandboxTemplate], now: Timestamp) -> String {
    if templates.is_empty() {
        return "no templates; make one with `agent-sandbox template create NAME`\n".to_owned();
    }
    let mut table = Table::new(&["NAMESPACE", "NAME", "IMAGE", "AGE"]);
    for template in templates {
        let spec = serde_json::to_value(&template.spec.pod_template.spec).unwrap_or_default();
        let created = template.metadata.creation_timestamp.as_ref();
        table.row(vec![
            template.namespace().to_owned(),
            template.name_any(),
            spec["containers"][0]["image"].as_str().unwrap_or("-").to_owned(),
            created.map(|created| age(now.as_second() - created.0.as_second())).unwrap_or_default(),
        ]);
    }
    table.render()
}
