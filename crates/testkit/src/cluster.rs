//! A throw-away cluster: the embedded API in memory with our CRDs.

use std::sync::Arc;

use agent_sandbox_apiserver::{ApiServer, Config, Converter};
use anyhow::Context;
use kube::{
    Api, Client,
    api::{DynamicObject, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::Value;

use crate::Recorder;

/// An embedded API server for one test.
pub struct Cluster {
    pub api: ApiServer,
    client: Client,
}

struct Conversion;

impl Converter for Conversion {
    fn handles(&self, group: &str, _: &str) -> bool {
        [agent_sandbox_api::groups::CORE, agent_sandbox_api::groups::EXTENSIONS].contains(&group)
    }

    fn convert(&self, object: Value, desired_api_version: &str) -> Result<Value, String> {
        agent_sandbox_api::conversion::convert(object, desired_api_version).map_err(|error| error.to_string())
    }
}

impl Cluster {
    /// An API in memory that serves our four kinds.
    pub async fn start() -> anyhow::Result<Self> {
        Self::open(Config { no_fsync: true, ..Config::default() }).await
    }

    /// Like [`Self::start`] with a given configuration; the converter is added to it.
    pub async fn open(config: Config) -> anyhow::Result<Self> {
        let api = ApiServer::open(Config { converter: Some(Arc::new(Conversion)), ..config }).await?;
        let client = api.client();
        let definitions =
            ApiResource::from_gvk(&GroupVersionKind::gvk("apiextensions.k8s.io", "v1", "CustomResourceDefinition"));
        let crds: Api<DynamicObject> = Api::all_with(client.clone(), &definitions);
        for crd in agent_sandbox_api::crd::crds() {
            let crd: DynamicObject = serde_json::from_value(crd)?;
            match crds.create(&PostParams::default(), &crd).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {}
                Err(error) => return Err(error).context("cannot install a CRD"),
            }
        }
        Ok(Self { api, client })
    }

    /// A client with all permissions.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// A client whose requests are recorded.
    pub fn recorded_client(&self) -> (Client, Recorder) {
        Recorder::wrap(self.client())
    }
}
