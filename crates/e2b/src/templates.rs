//! Templates: those of the account's namespace, and those that every engine has.

use agent_sandbox_api::v1beta1::SandboxTemplate;
use agent_sandbox_protocol::e2b::ENVD_VERSION;
use jiff::Timestamp;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::error::Error;
use crate::server::Call;
use crate::source::BUILT_IN;

/// The build of a template that was not built here.
const NO_BUILD: &str = "00000000-0000-0000-0000-000000000000";

impl Call<'_> {
    pub(crate) async fn templates(&self) -> Result<Vec<Value>, Error> {
        let api: Api<SandboxTemplate> = Api::namespaced(self.account.client.clone(), &self.account.namespace);
        let stored = api.list_metadata(&ListParams::default()).await?;
        let mut found: Vec<(String, Timestamp)> = stored
            .items
            .into_iter()
            .map(|template| {
                let created = template.metadata.creation_timestamp.map_or(Timestamp::UNIX_EPOCH, |time| time.0);
                (template.metadata.name.unwrap_or_default(), created)
            })
            .collect();
        if self.settings.base_image.is_some() {
            let missing = BUILT_IN.iter().filter(|name| !found.iter().any(|(known, _)| known == *name));
            let missing: Vec<_> = missing.map(|name| ((*name).to_owned(), Timestamp::UNIX_EPOCH)).collect();
            found.extend(missing);
        }
        found.sort();
        let capacity = &self.settings.capacity;
        let template = |(name, created): (String, Timestamp)| {
            json!({
                "templateID": name, "buildID": NO_BUILD, "public": false, "aliases": [name], "names": [name],
                "cpuCount": capacity.cpus, "memoryMB": capacity.memory_mb, "diskSizeMB": capacity.disk_mb,
                "createdAt": created.to_string(), "updatedAt": created.to_string(), "createdBy": null,
                "lastSpawnedAt": null, "spawnCount": 0, "buildCount": 1, "envdVersion": ENVD_VERSION,
                "buildStatus": "ready",
            })
        };
        Ok(found.into_iter().map(template).collect())
    }

    /// The template of this name.
    pub(crate) async fn alias(&self, name: &str) -> Result<Value, Error> {
        self.source(name).await?;
        Ok(json!({ "templateID": name, "public": false }))
    }
}
